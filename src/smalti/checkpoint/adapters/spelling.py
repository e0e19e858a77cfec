"""Every spelling of every layer of a model, to find the layers that an adapter means.

The table is made from the names of the model's own weights, so that nothing is guessed from the
adapter: a layer is known by the name that it has here and by those that diffusers, OpenCLIP and
XLabs give it, each with dots or, as kohya's trainer writes it, with underscores. Some spell one
layer that is fused here as several, or several that are apart here as one: a spelling stands for
ranges of rows of one or more layers.

What diffusers calls them: `scripts/convert_diffusers_to_original_stable_diffusion.py` there for
UNets, `families/keys/` here for transformers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from smalti.families.expected import UNET
from smalti.families.keys import CHROMA_DIFFUSERS, FLUX_DIFFUSERS, Table, sd3_diffusers

Shapes = Mapping[str, tuple[int, ...]]

ENCODERS = {
    "clip_l": "cond_stage_model.transformer.",
    "clip_h": "text_encoders.clip_h.transformer.",
    "clip_g": "text_encoders.clip_g.transformer.",
    "t5xxl": "text_encoders.t5xxl.transformer.",
}
"""Text encoder -> what the names of its weights begin with, in the order of diffusers' folders."""

WRAPPERS = ("base_model_model_", "lycoris_", "lora_", "model_", "")
"""What trainers put before everything else."""
DENOISERS = ("unet_", "transformer_", "diffusion_model_", "prior_", "")


@dataclass(frozen=True)
class Rows:
    """Rows `start` to `start + count` of a layer: of its weight along the first axis, its bias."""

    layer: str
    start: int
    count: int


Target = tuple[Rows, ...]
"""The rows that a spelling stands for, in the order in which an adapter has them."""


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
        self.encoders = tuple(encoder for encoder, prefix in ENCODERS.items()
                              if any(name.startswith(prefix) for name in layers))
        self._tables = {"denoiser": _underscored(_denoiser(_under(layers, UNET)))}
        for encoder in self.encoders:
            paths = _under(layers, ENCODERS[encoder])
            self._tables[encoder] = _underscored(
                _t5(paths) if encoder == "t5xxl" else _clip(paths))
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
    return name.startswith(tuple(ENCODERS.values()))


# ---------------------------------------------------------------------- paths of layers


@dataclass(frozen=True)
class _Layers:
    """The layers of one part of a model by their paths in it, and what stands before these."""

    prefix: str
    rows: Mapping[str, int]

    def whole(self, path: str) -> Target:
        """All rows of one layer."""
        return (Rows(self.prefix + path, 0, self.rows[path]),)

    def split(self, path: str, *counts: int) -> list[Target]:
        """Ranges of rows of one layer, one behind the other."""
        starts = [sum(counts[:i]) for i in range(len(counts))]
        return [(Rows(self.prefix + path, start, count),)
                for start, count in zip(starts, counts, strict=True)]

    def swapped(self, path: str) -> Target:
        """The two halves of a layer, the second first."""
        half = self.rows[path] // 2
        return (Rows(self.prefix + path, half, half), Rows(self.prefix + path, 0, half))


Spelled = Iterator[tuple[str, Target]]


def _under(layers: Mapping[str, int], prefix: str) -> _Layers:
    return _Layers(prefix, {name.removeprefix(prefix): rows for name, rows in layers.items()
                            if name.startswith(prefix)})


def _underscored(spelled: Spelled) -> dict[str, Target]:
    """The table by paths with underscores; the first spelling of a path counts."""
    table: dict[str, Target] = {}
    for path, target in spelled:
        table.setdefault(path.replace(".", "_"), target)
    return table


def _denoiser(layers: _Layers) -> Spelled:
    """The UNet or transformer: as it is called here, and as elsewhere."""
    for path in layers.rows:
        yield path, layers.whole(path)
    if any(path.startswith("double_blocks.") for path in layers.rows):
        yield from _flux(layers)
    elif any(path.startswith("joint_blocks.") for path in layers.rows):
        yield from _sd3(layers)
    else:
        yield from _unet(layers)


# ---------------------------------------------------------------------- UNets

_RESIDUAL = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}
_UNET_ENDS = {
    "time_embed.0": "time_embedding.linear_1",
    "time_embed.2": "time_embedding.linear_2",
    "label_emb.0.0": "add_embedding.linear_1",
    "label_emb.0.2": "add_embedding.linear_2",
    "input_blocks.0.0": "conv_in",
    "out.0": "conv_norm_out",
    "out.2": "conv_out",
}
_UNET_BLOCK = re.compile(r"(input|output)_blocks\.(\d+)\.(\d+)\.(.+)")
_UNET_MIDDLE = re.compile(r"middle_block\.(\d)\.(.+)")


def _unet(layers: _Layers) -> Spelled:
    """Names of diffusers, and the oldest ones of its attention layers."""
    downs = [int(match[1]) for match in
             (re.fullmatch(r"input_blocks\.(\d+)\.0\.op", path) for path in layers.rows) if match]
    inputs = [int(match[2]) for match in map(_UNET_BLOCK.fullmatch, layers.rows)
              if match and match[1] == "input"]
    stride = min(downs, default=max(inputs, default=0) + 1)  # blocks a level, and what follows them
    for path in layers.rows:
        spelling = diffusers_unet_path(path, stride)
        yield spelling, layers.whole(path)
        if spelling.endswith(".to_out.0"):
            yield spelling.removesuffix(".0"), layers.whole(path)


def diffusers_unet_path(path: str, stride: int) -> str:
    """What diffusers calls a layer of a UNet with `stride - 1` residual blocks a level.

    >>> diffusers_unet_path("input_blocks.4.1.proj_in", 3)
    'down_blocks.1.attentions.0.proj_in'
    >>> diffusers_unet_path("output_blocks.5.2.conv", 3)
    'up_blocks.1.upsamplers.0.conv'
    """
    if match := _UNET_MIDDLE.fullmatch(path):
        place, rest = int(match[1]), match[2]
        if place == 1:
            return f"mid_block.attentions.0.{rest}"
        return f"mid_block.resnets.{place // 2}.{_RESIDUAL.get(rest, rest)}"
    match = _UNET_BLOCK.fullmatch(path)
    if match is None or path in _UNET_ENDS:
        return _UNET_ENDS.get(path, path)
    side, index, place, rest = match[1], int(match[2]), int(match[3]), match[4]
    level, item = divmod(index - (side == "input"), stride)
    block = f"{'down' if side == 'input' else 'up'}_blocks.{level}"
    if rest == "op":
        return f"{block}.downsamplers.0.conv"
    if rest == "conv":
        return f"{block}.upsamplers.0.conv"
    if place == 0:
        return f"{block}.resnets.{item}.{_RESIDUAL.get(rest, rest)}"
    return f"{block}.attentions.{item}.{rest}"


# ---------------------------------------------------------------------- transformers

_XLABS = {"img_attn.qkv": "qkv_lora1", "img_attn.proj": "proj_lora1",
        "txt_attn.qkv": "qkv_lora2", "txt_attn.proj": "proj_lora2"}
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def _flux(layers: _Layers) -> Spelled:
    """Names of diffusers and XLabs for Flux and Chroma."""
    yield from _stored(layers, {**CHROMA_DIFFUSERS, **FLUX_DIFFUSERS})
    for path in layers.rows:
        kind, _, rest = path.partition(".")
        number, _, rest = rest.partition(".")
        if kind == "double_blocks" and rest in _XLABS:
            yield f"double_blocks.{number}.{_XLABS[rest]}", layers.whole(path)
        elif kind == "single_blocks" and rest == "linear1":
            width = layers.rows[f"single_blocks.{number}.linear2"]
            yield f"single_blocks.{number}.qkv_lora", layers.split(path, 3 * width)[0]
        elif kind == "single_blocks" and rest == "linear2":
            yield f"single_blocks.{number}.proj_lora", layers.whole(path)


def _sd3(layers: _Layers) -> Spelled:
    """Names of diffusers for Stable Diffusion 3."""
    blocks = {path.split(".")[1] for path in layers.rows if path.startswith("joint_blocks.")}
    return _stored(layers, sd3_diffusers(len(blocks)))


def _stored(layers: _Layers, table: Table) -> Spelled:
    """Names of the tensors that a table of keys makes the layers of."""
    for path in layers.rows:
        starred = _NUMBER.sub("*", path, count=1)
        number = match[0] if (match := _NUMBER.search(path)) else ""
        rule = next((table[name] for name in (f"{path}.weight", f"{starred}.weight",
                                              f"{starred}.scale") if name in table), ())
        names = [part.name.replace("*", number).rpartition(".")[0] for part in rule]
        if len(rule) == 1:
            yield names[0], layers.whole(path)
        elif len(set(names)) == 1:
            yield names[0], layers.swapped(path)
        elif rule:
            yield from zip(names, layers.split(path, *_heights(layers, path, len(rule))),
                           strict=True)


def _heights(layers: _Layers, path: str, count: int) -> list[int]:
    """Rows of each of the layers that are fused here: queries, keys, values, and what is left."""
    if path.endswith(".linear1"):
        width = layers.rows[path.replace(".linear1", ".linear2")]
        return [width, width, width, layers.rows[path] - 3 * width]
    return [layers.rows[path] // count] * count


# ---------------------------------------------------------------------- text encoders

_OPEN_CLIP = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
_OLD_ATTENTION = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}


def _clip(layers: _Layers) -> Spelled:
    """Names of transformers, with and without `text_model.`, of old diffusers, of OpenCLIP."""
    for full in layers.rows:
        path, target = full.removeprefix("text_model."), layers.whole(full)
        yield full, target
        yield path, target
        place, _, leaf = path.rpartition(".")
        if place.endswith(".self_attn"):
            yield f"text_model.{place}.{_OLD_ATTENTION[leaf]}", target
        match = re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)", path)
        if match is None:
            continue
        block = f"transformer.resblocks.{match[1]}"
        if match[2] in _OPEN_CLIP:
            yield f"{block}.{_OPEN_CLIP[match[2]]}", target
        elif match[2] == "self_attn.q_proj":
            fused = tuple(part for name in ("q_proj", "k_proj", "v_proj")
                          for part in layers.whole(f"text_model.{place}.{name}"))
            yield f"{block}.attn.in_proj", fused


def _t5(layers: _Layers) -> Spelled:
    """Names of transformers, which are those used here."""
    for path in layers.rows:
        yield path, layers.whole(path)
