"""Configurations of UNets, autoencoders and CLIP's text encoders, from the shapes of tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from smalti.checkpoint.hints import Hints, TextHints
from smalti.checkpoint.layout import DENOISER, INSIDE
from smalti.checkpoint.layout import VAE as VAE_PART
from smalti.errors import CheckpointError
from smalti.families.evidence import BLOCKS_MAX, Shapes, count, has, most, sizes
from smalti.models.config import (
    CLIP_L,
    OPENCLIP_G,
    OPENCLIP_H,
    SD1_UNET,
    SD_VAE,
    ClipTextConfig,
    UNetConfig,
    VaeConfig,
)

UNET, VAE = INSIDE[DENOISER], INSIDE[VAE_PART]
CLIPS = {"clip_l": CLIP_L, "clip_h": OPENCLIP_H, "clip_g": OPENCLIP_G}
CLIP_HEAD_DIM = 64  # of every CLIP text encoder that was published
OPENCLIP_H_LAYERS = 23  # of 24: Stable Diffusion 2 reads the state before the last layer
HEAD_DIM = 64  # of the UNets after Stable Diffusion 1.x
_WIDTH_TENSORS = ("in_layers.2.bias", "emb_layers.1.bias", "out_layers.0.bias", "out_layers.3.bias")


def clip_config(where: object, name: str, shapes: Shapes, hints: TextHints,
                projected: bool) -> ClipTextConfig:
    """The text encoder `name`, whose pooled token is `projected` or not.

    Raises CheckpointError where a number can neither be seen nor is stated.
    """
    known = CLIPS[name]
    inside = re.escape(f"{known.prefix}.text_model.")
    layer = inside + r"encoder\.layers\.(\d{1,4})\."

    def embedding(kind: str, axis: int) -> list[int]:
        return sizes(shapes, inside + rf"embeddings\.{kind}_embedding\.weight$", axis)

    hidden = most(where, "text encoder's width", [
        *sizes(shapes, layer + r"layer_norm\d\.\w+$", 0), *embedding("token", 1)])
    if hints.heads is None and hidden % CLIP_HEAD_DIM:
        raise CheckpointError(
            f"{where}: the text encoder's width {hidden} is no multiple of {CLIP_HEAD_DIM}, so its"
            " number of heads is unknown; state it as `text.num_attention_heads` in the metadata"
            " `arch_config`"
        )
    layers = count(where, "text encoder layer", shapes, layer)
    projection = sizes(shapes, re.escape(f"{known.prefix}.text_projection.weight") + "$", 0)
    return ClipTextConfig(
        vocab_size=next(iter(embedding("token", 0)), known.vocab_size),
        hidden_size=hidden,
        intermediate_size=most(where, "text encoder's inner width",
                               sizes(shapes, layer + r"mlp\.fc1\.\w+$", 0)),
        layers=min(layers, OPENCLIP_H_LAYERS) if name == "clip_h" else layers,
        heads=hints.heads or hidden // CLIP_HEAD_DIM,
        positions=next(iter(embedding("position", 0)), known.positions),
        activation=hints.activation or known.activation,
        eps=hints.eps or known.eps,
        projection=next(iter(projection), known.projection or hidden) if projected else 0,
        prefix=known.prefix,
    )


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


def _middle(shapes: Shapes) -> str:
    if has(shapes, f"{UNET}middle_block.1.", f"{UNET}middle_block.2."):
        return "transformer"
    return "residual" if has(shapes, f"{UNET}middle_block.0.") else "none"


def vae_config(where: object, shapes: Shapes, hints: Hints, known: VaeConfig) -> VaeConfig:
    """The autoencoder; what shapes do not tell is as in `known`.

    Raises CheckpointError where a number cannot be seen.
    """
    down = re.escape(VAE) + r"encoder\.down\."
    decoder, encoder = re.escape(VAE) + r"decoder\.", re.escape(VAE) + r"encoder\."
    widths = tuple(
        most(where, "autoencoder's width",
             sizes(shapes, rf"{down}{level}\.block\.\d+\.(conv\d|norm2)\.bias$", 0))
        for level in range(count(where, "autoencoder level", shapes, down + r"(\d{1,4})\.")))
    latent = [*sizes(shapes, decoder + r"conv_in\.weight$", 1),
              *sizes(shapes, re.escape(VAE) + r"post_quant_conv\.\w+$", 0)]
    return VaeConfig(
        channels=most(where, "autoencoder's width", sizes(shapes, encoder + r"conv_in\.\w+$", 0)),
        block_channels=widths,
        res_blocks=count(where, "autoencoder block", shapes, down + r"\d+\.block\.(\d{1,4})\."),
        z_channels=most(where, "latent channels", latent),
        norm_groups=hints.vae_groups or SD_VAE.norm_groups,
        eps=hints.vae_eps or SD_VAE.eps,
        image_channels=most(where, "image channels", sizes(shapes, decoder + r"conv_out\.\w+$", 0)),
        scaling_factor=hints.scaling_factor or known.scaling_factor,
        quant_conv=has(shapes, f"{VAE}quant_conv.", f"{VAE}post_quant_conv."),
        shift_factor=known.shift_factor if hints.shift_factor is None else hints.shift_factor,
    )


def divisions(part: object) -> Iterator[tuple[str, int, str, int]]:
    """What must divide what in the configuration of a part: (part, width, words, number)."""
    if isinstance(part, ClipTextConfig):
        yield "text encoder", part.hidden_size, "attention heads", part.heads
    if isinstance(part, UNetConfig):
        middle = part.middle == "transformer"
        levels = [*zip(part.block_channels, part.attention, strict=True),
                  (part.block_channels[-1], middle)]
        for width, attends in levels:
            yield "UNet", width, "norm groups", part.norm_groups
            if attends and part.head_dim is None:
                yield "UNet", width, "attention heads", part.heads
            elif attends:
                yield "UNet", width, "channels of a head", part.head_dim
    if isinstance(part, VaeConfig):
        for width in part.block_channels:
            yield "autoencoder", width, "norm groups", part.norm_groups
