"""Every spelling of every layer of a model, to find the layers that an adapter means.

The table is made from the names of the model's own weights, so that nothing is guessed from the
adapter: a layer is known by the name that it has here and by those that diffusers, OpenCLIP and
XLabs give it, each with dots or, as kohya's trainer writes it, with underscores. Some spell one
layer that is fused here as several, or several that are apart here as one: a spelling stands for
ranges of rows of one or more layers.

The names of the two worlds: `scripts/convert_diffusers_to_original_stable_diffusion.py` and
`loaders/single_file_utils.py` of huggingface/diffusers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from smalti.checkpoint.expected import UNET

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

_FLUX_ENDS = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_text_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_text_embed.timestep_embedder.linear_2",
    "vector_in.in_layer": "time_text_embed.text_embedder.linear_1",
    "vector_in.out_layer": "time_text_embed.text_embedder.linear_2",
    "guidance_in.in_layer": "time_text_embed.guidance_embedder.linear_1",
    "guidance_in.out_layer": "time_text_embed.guidance_embedder.linear_2",
    "final_layer.linear": "proj_out",
}
_FLUX_DOUBLE = {
    "img_mod.lin": "norm1.linear",
    "txt_mod.lin": "norm1_context.linear",
    "img_attn.proj": "attn.to_out.0",
    "txt_attn.proj": "attn.to_add_out",
    "img_mlp.0": "ff.net.0.proj",
    "img_mlp.2": "ff.net.2",
    "txt_mlp.0": "ff_context.net.0.proj",
    "txt_mlp.2": "ff_context.net.2",
    "img_attn.norm.query_norm": "attn.norm_q",
    "img_attn.norm.key_norm": "attn.norm_k",
    "txt_attn.norm.query_norm": "attn.norm_added_q",
    "txt_attn.norm.key_norm": "attn.norm_added_k",
}
_FLUX_SINGLE = {
    "modulation.lin": "norm.linear",
    "linear2": "proj_out",
    "norm.query_norm": "attn.norm_q",
    "norm.key_norm": "attn.norm_k",
}
_XLABS = {"img_attn.qkv": "qkv_lora1", "img_attn.proj": "proj_lora1",
          "txt_attn.qkv": "qkv_lora2", "txt_attn.proj": "proj_lora2"}
_QKV = ("to_q", "to_k", "to_v")
_ADDED_QKV = ("add_q_proj", "add_k_proj", "add_v_proj")


def _flux(layers: _Layers) -> Spelled:
    """Names of diffusers and XLabs for Flux and Chroma."""
    for path in layers.rows:
        kind, _, rest = path.partition(".")
        number, _, rest = rest.partition(".")
        if path in _FLUX_ENDS:
            yield _FLUX_ENDS[path], layers.whole(path)
        elif path == "final_layer.adaLN_modulation.1":
            yield "norm_out.linear", layers.swapped(path)
        elif kind == "double_blocks":
            block = f"transformer_blocks.{number}"
            if rest in _XLABS:
                yield f"double_blocks.{number}.{_XLABS[rest]}", layers.whole(path)
            if rest in _FLUX_DOUBLE:
                yield f"{block}.{_FLUX_DOUBLE[rest]}", layers.whole(path)
            elif rest in ("img_attn.qkv", "txt_attn.qkv"):
                names = _QKV if rest.startswith("img") else _ADDED_QKV
                yield from _thirds(layers, path, f"{block}.attn", names)
        elif kind == "single_blocks":
            block = f"single_transformer_blocks.{number}"
            if rest in _FLUX_SINGLE:
                yield f"{block}.{_FLUX_SINGLE[rest]}", layers.whole(path)
            if rest == "linear2":
                yield f"single_blocks.{number}.proj_lora", layers.whole(path)
            if rest == "linear1":
                width = layers.rows[f"single_blocks.{number}.linear2"]
                mlp = layers.rows[path] - 3 * width
                *qkv, behind = layers.split(path, width, width, width, mlp)
                yield from zip((f"{block}.attn.{name}" for name in _QKV), qkv, strict=True)
                yield f"{block}.proj_mlp", behind
                yield f"single_blocks.{number}.qkv_lora", layers.split(path, 3 * width, mlp)[0]


_SD3_ENDS = {
    "x_embedder.proj": "pos_embed.proj",
    "context_embedder": "context_embedder",
    "t_embedder.mlp.0": "time_text_embed.timestep_embedder.linear_1",
    "t_embedder.mlp.2": "time_text_embed.timestep_embedder.linear_2",
    "y_embedder.mlp.0": "time_text_embed.text_embedder.linear_1",
    "y_embedder.mlp.2": "time_text_embed.text_embedder.linear_2",
    "final_layer.linear": "proj_out",
}
_SD3_BLOCK = {
    "x_block.attn.proj": "attn.to_out.0",
    "context_block.attn.proj": "attn.to_add_out",
    "x_block.attn2.proj": "attn2.to_out.0",
    "x_block.mlp.fc1": "ff.net.0.proj",
    "x_block.mlp.fc2": "ff.net.2",
    "context_block.mlp.fc1": "ff_context.net.0.proj",
    "context_block.mlp.fc2": "ff_context.net.2",
    "x_block.adaLN_modulation.1": "norm1.linear",
    "x_block.attn.ln_q": "attn.norm_q",
    "x_block.attn.ln_k": "attn.norm_k",
    "x_block.attn2.ln_q": "attn2.norm_q",
    "x_block.attn2.ln_k": "attn2.norm_k",
    "context_block.attn.ln_q": "attn.norm_added_q",
    "context_block.attn.ln_k": "attn.norm_added_k",
}
_SD3_QKV = {"x_block.attn.qkv": ("attn", _QKV), "x_block.attn2.qkv": ("attn2", _QKV),
            "context_block.attn.qkv": ("attn", _ADDED_QKV)}


def _sd3(layers: _Layers) -> Spelled:
    """Names of diffusers for Stable Diffusion 3."""
    for path in layers.rows:
        kind, _, rest = path.partition(".")
        number, _, rest = rest.partition(".")
        if path in _SD3_ENDS:
            yield _SD3_ENDS[path], layers.whole(path)
        elif path == "final_layer.adaLN_modulation.1":
            yield "norm_out.linear", layers.swapped(path)
        elif kind == "joint_blocks":
            block = f"transformer_blocks.{number}"
            if rest in _SD3_BLOCK:
                yield f"{block}.{_SD3_BLOCK[rest]}", layers.whole(path)
            elif rest in _SD3_QKV:
                place, names = _SD3_QKV[rest]
                yield from _thirds(layers, path, f"{block}.{place}", names)
            elif rest == "context_block.adaLN_modulation.1":
                last = f"joint_blocks.{number}.context_block.attn.proj" not in layers.rows
                yield f"{block}.norm1_context.linear", (
                    layers.swapped(path) if last else layers.whole(path))


def _thirds(layers: _Layers, path: str, block: str, names: tuple[str, str, str]) -> Spelled:
    """The three thirds of a fused layer."""
    third = layers.rows[path] // 3
    return zip((f"{block}.{name}" for name in names), layers.split(path, third, third, third),
               strict=True)


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
