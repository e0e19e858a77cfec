"""The UNet of latent diffusion: its hyperparameters, its parts, and the names of its layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Literal

from smalti.errors import CheckpointError
from smalti.families.evidence import BLOCKS_MAX, Shapes, count, has, most, sizes
from smalti.families.hints import Hints
from smalti.families.keys.renaming import unet_renaming
from smalti.families.prefixes import UNET
from smalti.families.record import STEADY, Backbone, Layout, ModelPart
from smalti.families.spelling import Layers, SpelledLayers
from smalti.graph import Graph
from smalti.models.config import SD1_UNET, UNetConfig
from smalti.models.tileable import tileable
from smalti.models.token_downsampling import downsampled
from smalti.models.unet import unet_graph

HEAD_DIM = 64  # of the UNets after Stable Diffusion 1.x
GUIDANCE_LAYER = "time_embed.cond_proj"
"""The layer that reads the strength of guidance, of latent consistency models."""
_WIDTH_TENSORS = ("in_layers.2.bias", "emb_layers.1.bias", "out_layers.0.bias", "out_layers.3.bias")


def unet_config(where: object, shapes: Shapes, hints: Hints, head_dim: int | None) -> UNetConfig:
    """The UNet; `head_dim` are the channels of a head where no hint tells the number of heads.

    Without either there are 8 heads. Raises CheckpointError where a number cannot be seen.
    """
    unet, known = re.escape(UNET), SD1_UNET
    levels = _levels(where, shapes)
    linear = [len(s) == 2 for n, s in shapes.items() if re.match(unet + r".*proj_in\.weight$", n)]
    first = shapes.get(f"{UNET}input_blocks.0.0.weight", ())
    widths = tuple(most(where, "UNet's width", widths) for widths, _, _ in levels)
    depths = tuple(depth for _, _, depth in levels)
    blocks = most(where, "UNet's blocks per level", [blocks for _, blocks, _ in levels])
    heads, head_dim = _heads(where, widths, hints, head_dim)
    up = _depths_up(shapes, len(levels), blocks)
    sinusoids = next(iter(sizes(shapes, re.escape(f"{UNET}{GUIDANCE_LAYER}.weight") + "$", 1)), 0)
    return UNetConfig(
        in_channels=first[1] if len(first) == 4 else known.in_channels,
        out_channels=most(where, "UNet's output", sizes(shapes, unet + r"out\.2\.\w+$", 0)),
        block_channels=widths,
        res_blocks=blocks,
        attention=tuple(depth > 0 for depth in depths),
        heads=heads,
        head_dim=head_dim,
        transformer_depth=depths,
        context_dim=most(where, "UNet's context width",
                         sizes(shapes, unet + r".*\.attn2\.to_[kv]\.weight$", 1)),
        norm_groups=hints.unet_groups or known.norm_groups,
        eps=hints.unet_eps or known.eps,
        linear_projection=bool(linear) and 2 * sum(linear) > len(linear),
        vector_dim=next(iter(sizes(shapes, unet + r"label_emb\.0\.0\.weight$", 1)), 0),
        output_depth=up if any(set(row) != {depth} for row, depth in zip(up, depths)) else (),
        middle=_middle(shapes),
        guidance=sinusoids > 0,
        guidance_sinusoids=sinusoids or known.guidance_sinusoids,
    )


def _heads(where: object, widths: tuple[int, ...], hints: Hints,
           head_dim: int | None) -> tuple[int, int | None]:
    """Number of heads, and channels of one where it is that which all levels share."""
    stated = hints.unet_heads
    if stated is None:
        return SD1_UNET.heads, hints.unet_head_dim or head_dim
    if len(set(stated)) == 1:
        return stated[0], None
    shared = {width / heads for width, heads in zip(widths, stated)}
    if len(stated) != len(widths) or len(shared) > 1 or shared.pop() % 1:
        raise CheckpointError(
            f"{where}: attention_head_dim is {list(stated)} for levels of {list(widths)} channels;"
            " expected one number, or one a level that leaves heads of the same width")
    return stated[0], widths[0] // stated[0]


def _levels(where: object, shapes: Shapes) -> list[tuple[list[int], int, int]]:
    """Per level: the widths its tensors show, its residual blocks, its transformer depth."""
    last = count(where, "UNet block", shapes, re.escape(UNET) + r"input_blocks\.(\d{1,4})\.")
    by_block = _by_block(shapes, "input_blocks")
    levels: list[tuple[list[int], int, int]] = [([], 0, 0)]
    for block in range(1, last):
        names = by_block.get(block, [])
        if any(name.startswith("0.op.") for name in names):
            levels.append(([], 0, 0))
            continue
        widths, blocks, depth = levels[-1]
        for tensor in _WIDTH_TENSORS:
            widths.extend(shapes.get(f"{UNET}input_blocks.{block}.0.{tensor}", ())[:1])
        levels[-1] = (widths, blocks + 1, max(depth, _depth(names)))
    return levels


def _depths_up(shapes: Shapes, levels: int, blocks: int) -> tuple[tuple[int, ...], ...]:
    """Transformer depths of the blocks on the way up, of each level in the order they run in."""
    by_block, row = _by_block(shapes, "output_blocks"), blocks + 1
    depths = [_depth(by_block.get(block, [])) for block in range(levels * row)]
    return tuple(tuple(depths[at:at + row]) for at in range((levels - 1) * row, -1, -row))


def _by_block(shapes: Shapes, side: str) -> Mapping[int, list[str]]:
    """Number of a block -> names of its tensors, below the block."""
    found: dict[int, list[str]] = {}
    for name in shapes:
        if match := re.match(re.escape(f"{UNET}{side}.") + r"(\d{1,4})\.(.+)", name):
            found.setdefault(int(match[1]), []).append(match[2])
    return found


def _depth(names: list[str]) -> int:
    found = [re.match(r"1\.transformer_blocks\.(\d{1,4})\.", name) for name in names]
    return min(1 + max((int(match[1]) for match in found if match), default=-1), BLOCKS_MAX)


def _middle(shapes: Shapes) -> Literal["transformer", "residual", "none"]:
    if has(shapes, f"{UNET}middle_block.1.", f"{UNET}middle_block.2."):
        return "transformer"
    return "residual" if has(shapes, f"{UNET}middle_block.0.") else "none"


# ---------------------------------------------------------------------- parts and names


def _parts(config: UNetConfig) -> dict[str, ModelPart]:
    side = config.multiple
    graph = partial(_unet_graph, config)
    return {"unet": ModelPart("the UNet", graph, (1, side, side, 77), STEADY)}


def _unet_graph(config: UNetConfig, batch: int, height: int, width: int, tokens: int,
                control: bool = False, directions: str = "", step: int = 1) -> Graph:
    graph = unet_graph(config, batch, height, width, tokens, control)
    graph = tileable(graph, directions) if directions else graph
    return downsampled(graph, step) if step > 1 else graph


def _layout(names: Iterable[str]) -> Layout:
    """Names of diffusers become those of latent diffusion, which are used inside."""
    names = list(names)
    if any(name.startswith(("down_blocks.", "up_blocks.")) for name in names):
        rename = unet_renaming(names)
        return lambda name: rename(name).removeprefix(UNET)
    return str


_RESIDUAL = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}
_UNET_ENDS = {
    GUIDANCE_LAYER: "time_embedding.cond_proj",
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


def _spelled(layers: Layers) -> SpelledLayers:
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


BACKBONE = Backbone(
    name="unet",
    models=("Stable Diffusion 1.x", "2.x", "SDXL"),
    part="unet",
    config=partial(unet_config, head_dim=HEAD_DIM),
    parts=_parts,
    layout=_layout,
    mark="input_blocks.",
    first="input_blocks.0.0",
    adapted=r"((down|up|input|output)_blocks_\d|mid(dle)?_block_)",
    precise=r"label_emb|input_blocks\.0\.0\.|(^|\.)out\.2\.|(^|\.)conv_(in|out)\.",
    spelled=_spelled,
)
"""UNets with heads of 64 channels; those of Stable Diffusion 1.x have 8 heads everywhere."""
