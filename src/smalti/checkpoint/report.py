"""What a model file is, in fifteen lines: the data behind `smalti inspect`."""

from __future__ import annotations

from collections.abc import Mapping

from smalti.checkpoint.taught_words import TaughtWords
from smalti.dataclass import dataclass
from smalti.errors import first_of
from smalti.families.names import FileKind
from smalti.models.config import WHOLE_WAY, ModelConfig

LISTED_MAX = 3  # names of tensors in one line of `smalti inspect`


@dataclass(frozen=True)
class Report:
    """A checkpoint as seen from its names and shapes; weights are not read.

    `precisions` counts tensors by dtype tag, `parameters` counts numbers by part ("denoiser",
    "vae", the names of text encoders, "other"). `config` is None for families that Smalti does not
    read, and while there are `absent` parts, which other files can bring. `missing` are expected
    and absent tensors, `misfits` lines "name: found ..., expected ..." for tensors of another shape
    or kind of number, `uncomputed` lines about layers and settings that Smalti does not know, and
    `ignored` tensors that pictures do not need. `guided` tells whether the denoiser was distilled
    from guided ones, and is told how strong guidance is to be. `words` are those that a small model
    was taught, where a list of them lies beside it. `size_bytes` is the size of all files.
    """

    path: str
    format: str
    size_bytes: int
    kind: FileKind | None
    precisions: Mapping[str, int]
    parameters: Mapping[str, int]
    config: ModelConfig | None
    absent: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()
    uncomputed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    guided: bool = False
    words: TaughtWords | None = None

    @property
    def prediction(self) -> str | None:
        """What the denoiser predicts, such as "epsilon"; None where the family is not read."""
        return self.config.prediction if self.config else None

    @property
    def loadable(self) -> bool:
        """Whether `load` takes this checkpoint."""
        return (self.config is not None and not self.missing and not self.misfits
                and not self.uncomputed)

    def __str__(self) -> str:
        return "\n".join(f"{label:<12}{text}" for label, text in self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        total = sum(self.parameters.values())
        parts = [f"{part} {millions(n)}" for part, n in self.parameters.items() if n]
        tensors = [f"{dtype} ({count} tensors)" for dtype, count in self.precisions.items()]
        lines = [
            ("file", self.path),
            ("format", f"{self.format}, {self.size_bytes / 1e6:.1f} MB"),
            ("family", self.kind.words if self.kind else "unknown"),
            ("precision", ", ".join(tensors) or "no tensors"),
            ("parameters", f"{millions(total)}: {', '.join(parts)}"),
        ]
        if self.config:
            lines += _config_lines(self.config)
        if self.absent:
            lines.append(("absent", f"{', '.join(self.absent)}; give the files of these with"
                                    f" --text-encoder and --vae"))
        lines.append(("ignored", _listing(self.ignored)))
        if self.config:
            lines += [("missing", _listing(self.missing))]
        if self.misfits:
            lines.append(("misfits", _listing(self.misfits)))
        lines += [("unknown", line) for line in self.uncomputed]
        lines += [("note", note) for note in self.notes]
        if self.words:
            lines.append(("draws", str(self.words)))
        if self.kind and self.kind.advice:
            lines.append(("use", self.kind.advice))
        return [*lines, ("loads", "yes" if self.loadable else "no")]


def millions(count: int) -> str:
    """A number of parameters in millions.

    >>> millions(859_520_964)
    '859.5 M'
    """
    return f"{count / 1e6:.1f} M"


def _limited(config: ModelConfig) -> str:
    """From when to when guidance counts, if that is not all of the way."""
    start, end = config.default_guidance_time
    return "" if (start, end) == WHOLE_WAY else f" from {start:g} to {end:g} of the way"


def _config_lines(config: ModelConfig) -> list[tuple[str, str]]:
    vae = config.vae
    return [
        ("prediction", config.prediction),
        (
            "defaults",
            f"{config.default_width}x{config.default_height}, {config.default_steps} steps,"
            f" guidance {config.default_guidance:g}{_limited(config)}, {config.default_sampler},"
            f" {config.default_noise}",
        ),
        (config.denoiser.part, config.denoiser.outline()),
        (
            "vae",
            f"channels {_row(vae.block_channels)}, {vae.res_blocks} blocks a level,"
            f" {vae.z_channels} latent channels, 1/{vae.downscale} size,"
            f" scaling {vae.scaling_factor:g}"
            + ", means and deviations of its own" * bool(vae.latents_mean),
        ),
        *((name, text.outline()) for name, text in config.texts.items()),
        ("noise", _noise_line(config)),
    ]


def _noise_line(config: ModelConfig) -> str:
    if config.prediction == "flow":
        shift = config.flow_shift
        end = f", to level {config.flow_terminal:g}" * bool(config.flow_terminal)
        return "flow, shift " + ("by size" if shift is None else f"{shift:g}") + end
    if config.prediction.startswith("edm"):
        return f"levels {config.sigma_min:g} to {config.sigma_max:g}"
    return (f"scaled-linear betas {config.beta_start:g} to {config.beta_end:g},"
            f" {config.train_steps} steps" + ", zero terminal SNR" * config.zero_terminal_snr)


def _row(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))


def _listing(names: tuple[str, ...]) -> str:
    return f"{len(names)}: {first_of(names, LISTED_MAX)}" if names else "none"
