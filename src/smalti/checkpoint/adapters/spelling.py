"""Every spelling of every layer of a model, to find the layers that an adapter means.

The table is made from the names of the model's own weights, so that nothing is guessed from the
adapter: a layer is known by the name that it has here and by those that diffusers, OpenCLIP and
XLabs give it, each with dots or, as kohya's trainer writes it, with underscores. Some spell one
layer that is fused here as several, or several that are apart here as one: a spelling stands for
ranges of rows of one or more layers.

What others call the layers of a network is in its record, in `smalti.families`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from smalti.families import backbones, text_encoders
from smalti.families.prefixes import UNET
from smalti.families.record import Backbone
from smalti.families.spelling import Layers, SpelledLayers, Target, own_spelling

Shapes = Mapping[str, tuple[int, ...]]

WRAPPERS = ("base_model_model_", "lycoris_", "lora_", "model_", "")
"""What trainers put before everything else."""
DENOISERS = ("unet_", "transformer_", "diffusion_model_", "prior_", "")


class Spellings:
    """The layers of a model whose parameters have these `shapes`, by all their spellings.

    >>> name = UNET + "input_blocks.1.1.transformer_blocks.0.attn1.to_q"
    >>> known = Spellings({name + ".weight": (8, 8)})
    >>> known.find("lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q")
    (Rows(layer='model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn1.to_q', \
start=0, count=8),)
    >>> known.find("lora_unet_conv_in") is None
    True
    """

    def __init__(self, shapes: Shapes) -> None:
        layers = {name.removesuffix(".weight").removesuffix(".scale"): shape[0]
                  for name, shape in shapes.items() if name.endswith((".weight", ".scale"))}
        known = {name: encoder for name, encoder in text_encoders().items()
                 if not encoder.of_pictures
                 and any(layer.startswith(encoder.inside) for layer in layers)}
        self.encoders = tuple(known)
        self._tables = {"denoiser": _underscored(
            _denoiser(_under(layers, UNET), backbone_of(shapes)))}
        for name, encoder in known.items():
            self._tables[name] = _underscored(encoder.spelled(_under(layers, encoder.inside)))
        self._prefixes = sorted(self._all_prefixes(), key=lambda item: -len(item[0]))

    def _all_prefixes(self) -> Iterator[tuple[str, str]]:
        """What may stand before the path of a layer, and the part of the model that it means."""
        for wrapper in WRAPPERS:
            yield from ((wrapper + denoiser, "denoiser") for denoiser in DENOISERS)
            for number, encoder in enumerate(self.encoders, 1):
                own = [f"te{number}_", f"text_encoder_{number}_"]
                if number == 1:
                    own += ["te_", "text_encoder_", "cond_stage_model_transformer_",
                            "conditioner_embedders_0_transformer_"]
                own += [f"text_encoders_{encoder}_transformer_", f"{encoder}_transformer_",
                        f"{encoder}_"]
                yield from ((wrapper + name, encoder) for name in own)
            if "t5xxl" in self.encoders and len(self.encoders) < 3:
                yield wrapper + "te3_", "t5xxl"  # kohya numbers it so where it is the second

    def find(self, module: str) -> Target | None:
        """The rows that an adapter's `module` stands for; None where the model has no such layer.
        """
        key = module.replace(".processor", "").replace(".", "_")
        for prefix, part in self._prefixes:
            if key.startswith(prefix):
                target = self._tables[part].get(key[len(prefix):])
                if target is not None:
                    return target
        return None


def of_text(name: str) -> bool:
    """Whether a weight belongs to a text encoder.

    >>> of_text("cond_stage_model.transformer.text_model.final_layer_norm.bias")
    True
    """
    return name.startswith(tuple(each.inside for each in text_encoders().values()))


def backbone_of(names: Collection[str]) -> Backbone | None:
    """The kind of denoiser that has these weights, None for none."""
    starts = {UNET + kind.mark: kind for kind in backbones().values()}
    return next((kind for start, kind in starts.items()
                 if any(name.startswith(start) for name in names)), None)


def _denoiser(layers: Layers, kind: Backbone | None) -> SpelledLayers:
    """The layers of a denoiser: as they are called here, and as elsewhere."""
    return chain(own_spelling(layers), kind.spelled(layers) if kind else ())


def _under(layers: Mapping[str, int], prefix: str) -> Layers:
    return Layers(prefix, {name.removeprefix(prefix): rows for name, rows in layers.items()
                           if name.startswith(prefix)})


def _underscored(spelled: SpelledLayers) -> dict[str, Target]:
    """The table by paths with underscores; the first spelling of a path counts."""
    table: dict[str, Target] = {}
    for path, target in spelled:
        table.setdefault(path.replace(".", "_"), target)
    return table
