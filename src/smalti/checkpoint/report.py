"""What a model file is, in fifteen lines: the data behind `smalti inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smalti.checkpoint.family import Family
from smalti.errors import first_of
from smalti.models.config import ModelConfig

LISTED_MAX = 3
PARTS = ("unet", "vae", "text encoder", "other")


@dataclass(frozen=True)
class Report:
    """A checkpoint as seen from its names and shapes; weights are not read.

    `precisions` counts tensors by dtype tag, `parameters` counts numbers by part ("unet", "vae",
    "text encoder", "other"). `config` is None for families that Smalti does not read. `missing`
    are expected and absent tensors, `misfits` lines "name: found ..., expected ..." for tensors of
    another shape or kind of number, and `ignored` tensors that pictures do not need. `size_bytes`
    is the size of all files.
    """

    path: str
    format: str
    size_bytes: int
    family: Family | None
    precisions: Mapping[str, int]
    parameters: Mapping[str, int]
    config: ModelConfig | None
    ignored: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def prediction(self) -> str | None:
        """Either "epsilon" or "v_prediction"; None where the family is not read."""
        return self.config.prediction if self.config else None

    @property
    def loadable(self) -> bool:
        """Whether `load` takes this checkpoint."""
        return self.config is not None and not self.missing and not self.misfits

    def __str__(self) -> str:
        return "\n".join(f"{label:<12}{text}" for label, text in self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        total = sum(self.parameters.values())
        parts = [f"{part} {millions(n)}" for part, n in self.parameters.items() if n]
        tensors = [f"{dtype} ({count} tensors)" for dtype, count in self.precisions.items()]
        lines = [
            ("file", self.path),
            ("format", f"{self.format}, {self.size_bytes / 1e6:.1f} MB"),
            ("family", self.family.words if self.family else "unknown"),
            ("precision", ", ".join(tensors) or "no tensors"),
            ("parameters", f"{millions(total)}: {', '.join(parts)}"),
        ]
        if self.config:
            lines += _config_lines(self.config)
        lines.append(("ignored", _listing(self.ignored)))
        if self.config:
            lines += [("missing", _listing(self.missing))]
        if self.misfits:
            lines.append(("misfits", _listing(self.misfits)))
        lines += [("note", note) for note in self.notes]
        return [*lines, ("loads", "yes" if self.loadable else "no")]


def millions(count: int) -> str:
    """A number of parameters in millions.

    >>> millions(859_520_964)
    '859.5 M'
    """
    return f"{count / 1e6:.1f} M"


def _config_lines(config: ModelConfig) -> list[tuple[str, str]]:
    unet, vae = config.denoiser, config.vae
    attending = " ".join(str(level) for level, on in enumerate(unet.attention) if on)
    split = f"{unet.heads} heads" if unet.head_dim is None else f"heads of {unet.head_dim}"
    return [
        ("prediction", config.prediction),
        (
            "defaults",
            f"{config.default_width}x{config.default_height}, {config.default_steps} steps,"
            f" guidance {config.default_guidance:g}",
        ),
        (
            "unet",
            f"channels {_row(unet.block_channels)}, {unet.res_blocks} blocks a level, attention"
            f" at levels {attending}, {split}, context {unet.context_dim}",
        ),
        (
            "vae",
            f"channels {_row(vae.block_channels)}, {vae.res_blocks} blocks a level,"
            f" {vae.z_channels} latent channels, 1/{vae.downscale} size,"
            f" scaling {vae.scaling_factor:g}",
        ),
        *(
            (
                "text",
                f"{text.layers} layers, width {text.hidden_size}, {text.heads} heads,"
                f" {text.positions} positions, vocabulary {text.vocab_size}, {text.activation}",
            )
            for text in config.texts.values()
        ),
        (
            "noise",
            f"scaled-linear betas {config.beta_start:g} to {config.beta_end:g},"
            f" {config.train_steps} steps",
        ),
    ]


def _row(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))


def _listing(names: tuple[str, ...]) -> str:
    return f"{len(names)}: {first_of(names, LISTED_MAX)}" if names else "none"
