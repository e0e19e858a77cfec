"""Hyperparameters of a ControlNet, from the shapes of its tensors under internal names.

What shapes do not tell is as in the models that were published: 8 heads where the context is that
of Stable Diffusion 1.x, heads of 64 channels elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from smalti.errors import CheckpointError
from smalti.families.evidence import BLOCKS_MAX
from smalti.families.keys.renaming import CONTROL
from smalti.models.config import SD1_UNET, SD2_UNET, ControlNetConfig, UNetConfig

Shapes = Mapping[str, tuple[int, ...]]

_BLOCK = re.compile(r"input_blocks\.(\d{1,4})\.(.+)")
_HINT = re.compile(r"input_hint_block\.(\d{1,4})\.weight")
_TRANSFORMER = re.compile(r"1\.transformer_blocks\.(\d{1,4})\.")
_UNION_LAYER = re.compile(r"transformer_layes\.(\d{1,4})\.")


def controlnet_config(where: object, shapes: Shapes, heads: Sequence[int] = (),
                      norm_groups: int = SD1_UNET.norm_groups,
                      pooled: bool = False) -> ControlNetConfig:
    """The ControlNet whose tensors have these shapes; `heads` of each level where they are known.

    Raises CheckpointError, with `where` in front, where a number cannot be seen.
    """
    shapes = {name.removeprefix(CONTROL): shape for name, shape in shapes.items()}
    unet = _unet(where, shapes, heads, norm_groups)
    hints = {int(match[1]): shapes[match[0]] for match in map(_HINT.fullmatch, shapes) if match}
    if len(hints) < 2 or any(len(shape) != 4 for shape in hints.values()):
        raise CheckpointError(f"{where}: no tensor shows how this ControlNet reads its picture; "
                              f"expected {CONTROL}input_hint_block")
    *stages, _ = sorted(hints)
    types = _extent(shapes, "task_embedding", 0)
    waves = _extent(shapes, "control_add_embedding.linear_1.weight", 1)
    return ControlNetConfig(
        unet, hint_channels=tuple(hints[number][0] for number in stages[::2]),
        image_channels=hints[stages[0]][1], pooled=pooled, types=types,
        type_sinusoids=waves // types if types else ControlNetConfig.type_sinusoids,
        type_layers=_numbers(map(_UNION_LAYER.match, shapes)) if types else 1)


def _unet(where: object, shapes: Shapes, heads: Sequence[int], norm_groups: int) -> UNetConfig:
    """The way down; there is no way up, and what it would make is as what is read."""
    widths, depths, blocks = _levels(shapes)
    first = shapes.get("input_blocks.0.0.weight", ())
    if len(first) != 4 or 0 in widths or len(set(blocks)) != 1 or not blocks[0]:
        raise CheckpointError(f"{where}: the levels of this ControlNet cannot be told from its "
                              f"tensors; of each are seen channels {widths}, blocks {blocks}")
    projections = [shape for name, shape in shapes.items() if name.endswith(".proj_in.weight")]
    context = [shape[1] for name, shape in shapes.items()
               if name.endswith(".attn2.to_k.weight") and len(shape) == 2]
    head_dim = None if context[:1] == [SD1_UNET.context_dim] else SD2_UNET.head_dim
    if heads:
        shared = {width // count for width, count in zip(widths, heads, strict=False)}
        head_dim = shared.pop() if len(shared) == 1 else None
    middle = [name for name in shapes if name.startswith("middle_block.1.")]
    for width in (*(w for w, depth in zip(widths, depths, strict=True) if depth), widths[-1]):
        if width % (head_dim or (heads or [SD1_UNET.heads])[0]):
            raise CheckpointError(f"{where}: {width} channels cannot be split into heads"
                                  f"{f' of {head_dim}' if head_dim else ''}; a folder of diffusers "
                                  f"tells their number")
    return UNetConfig(
        in_channels=first[1], out_channels=first[1], block_channels=widths, res_blocks=blocks[0],
        heads=heads[0] if heads else SD1_UNET.heads, head_dim=head_dim,
        attention=tuple(depth > 0 for depth in depths), transformer_depth=depths,
        context_dim=context[0] if context else SD1_UNET.context_dim, norm_groups=norm_groups,
        linear_projection=any(len(shape) == 2 for shape in projections),
        vector_dim=_extent(shapes, "label_emb.0.0.weight", 1),
        middle="transformer" if middle else "residual",
        depth_in_middle=_depth(name.removeprefix("middle_block.") for name in middle))


def _levels(shapes: Shapes) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """Of each level: channels, transformer depth, residual blocks."""
    found: dict[int, list[str]] = {}
    for match in map(_BLOCK.fullmatch, shapes):
        if match and int(match[1]) < BLOCKS_MAX:
            found.setdefault(int(match[1]), []).append(match[2])
    widths, depths, blocks = [0], [0], [0]
    for block in range(1, 1 + max(found, default=0)):
        names = found.get(block, [])
        if "0.op.weight" in names:
            widths, depths, blocks = [*widths, 0], [*depths, 0], [*blocks, 0]
            continue
        widths[-1] = _extent(shapes, f"input_blocks.{block}.0.out_layers.3.bias", 0) or widths[-1]
        depths[-1] = max(depths[-1], _depth(names))
        blocks[-1] += 1
    return tuple(widths), tuple(depths), blocks


def _depth(names: Iterable[str]) -> int:
    return min(_numbers(map(_TRANSFORMER.match, names)), BLOCKS_MAX)


def _numbers(matches: Iterable[re.Match[str] | None]) -> int:
    """One more than the highest number that is matched."""
    return 1 + max((int(match[1]) for match in matches if match), default=-1)


def _extent(shapes: Shapes, name: str, axis: int) -> int:
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) else 0
