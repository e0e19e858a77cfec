"""The configuration of an SD 1.x checkpoint, derived from the shapes of its tensors.

Each number is read from every tensor that shows it, and the most frequent answer wins, so that a
few missing or misshapen tensors do not hide what the others say; those are then listed by name.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from smalti.checkpoint.expected import TEXT, UNET, VAE
from smalti.checkpoint.hints import Hints
from smalti.errors import CheckpointError
from smalti.models.config import SD15, ClipTextConfig, ModelConfig, UNetConfig, VaeConfig

CLIP_L = SD15.texts["clip_l"]
CLIP_HEAD_DIM = 64  # of every CLIP text encoder that OpenAI published
BLOCKS_MAX = 64  # a name may hold any number, but a table of any size must not be built
BETA_MIN = 1e-12  # the square of the lowest noise level
KEPT_MIN = 1e-20  # one over the square of the highest one
_WIDTH_TENSORS = ("in_layers.2.bias", "emb_layers.1.bias", "out_layers.0.bias", "out_layers.3.bias")

Shapes = Mapping[str, tuple[int, ...]]


def derive_config(where: object, shapes: Shapes, hints: Hints) -> ModelConfig:
    """Configuration of the model whose tensors (internal names) have these shapes.

    `where` names the file in messages. Raises `CheckpointError` where a whole part is missing or
    where heads or groups do not divide a width.
    """
    config = ModelConfig(
        family="sd1",
        texts={"clip_l": _text(where, shapes, hints)},
        denoiser=_unet(where, shapes, hints),
        vae=_vae(where, shapes, hints),
        prediction=_prediction(shapes, hints),
        beta_start=hints.beta_start or SD15.beta_start,
        beta_end=hints.beta_end or SD15.beta_end,
        train_steps=hints.train_steps or SD15.train_steps,
        default_steps=hints.steps or SD15.default_steps,
        default_guidance=hints.guidance or SD15.default_guidance,
        **_default_size(shapes, hints),
    )
    _check_schedule(where, config)
    _check_divisions(where, config)
    return config


def _text(where: object, shapes: Shapes, hints: Hints) -> ClipTextConfig:
    layer = re.escape(TEXT) + r"encoder\.layers\.(\d{1,4})\."
    hidden = _most(
        where,
        "text encoder's width",
        [*_sizes(shapes, layer + r"layer_norm\d\.\w+$", 0), *_embedding(shapes, "token", 1)],
    )
    if hints.text_heads is None and hidden % CLIP_HEAD_DIM:
        raise CheckpointError(
            f"{where}: the text encoder's width {hidden} is no multiple of {CLIP_HEAD_DIM}, so its"
            " number of heads is unknown; state it as `text.num_attention_heads` in the metadata"
            " `arch_config`"
        )
    return ClipTextConfig(
        vocab_size=next(iter(_embedding(shapes, "token", 0)), CLIP_L.vocab_size),
        hidden_size=hidden,
        intermediate_size=_most(
            where, "text encoder's inner width", _sizes(shapes, layer + r"mlp\.fc1\.\w+$", 0)
        ),
        layers=_count(where, "text encoder layer", shapes, layer),
        heads=hints.text_heads or hidden // CLIP_HEAD_DIM,
        positions=next(iter(_embedding(shapes, "position", 0)), CLIP_L.positions),
        activation=hints.text_activation or CLIP_L.activation,
        eps=hints.text_eps or CLIP_L.eps,
    )


def _unet(where: object, shapes: Shapes, hints: Hints) -> UNetConfig:
    levels = _unet_levels(where, shapes)
    unet = re.escape(UNET)
    context = _sizes(shapes, unet + r".*\.attn2\.to_[kv]\.weight$", 1)
    linear = [len(s) == 2 for n, s in shapes.items() if re.match(unet + r".*proj_in\.weight$", n)]
    first = shapes.get(f"{UNET}input_blocks.0.0.weight", ())
    return UNetConfig(
        in_channels=first[1] if len(first) == 4 else SD15.denoiser.in_channels,
        out_channels=_most(where, "UNet's output", _sizes(shapes, unet + r"out\.2\.\w+$", 0)),
        block_channels=tuple(_most(where, "UNet's width", widths) for widths, _, _ in levels),
        res_blocks=_most(where, "UNet's blocks per level", [blocks for _, blocks, _ in levels]),
        attention=tuple(depth > 0 for _, _, depth in levels),
        heads=hints.unet_heads or SD15.denoiser.heads,
        head_dim=None,
        transformer_depth=tuple(depth for _, _, depth in levels),
        context_dim=_most(where, "UNet's context width", context),
        norm_groups=hints.unet_groups or SD15.denoiser.norm_groups,
        eps=hints.unet_eps or SD15.denoiser.eps,
        linear_projection=bool(linear) and 2 * sum(linear) > len(linear),
    )


def _unet_levels(where: object, shapes: Shapes) -> list[tuple[list[int], int, int]]:
    """Per level: the widths its tensors show, its residual blocks, its transformer depth."""
    last = _count(where, "UNet block", shapes, re.escape(UNET) + r"input_blocks\.(\d{1,4})\.")
    by_block: dict[int, list[str]] = {}
    for name in shapes:
        if match := re.match(re.escape(UNET) + r"input_blocks\.(\d{1,4})\.(.+)", name):
            by_block.setdefault(int(match[1]), []).append(match[2])
    levels: list[tuple[list[int], int, int]] = [([], 0, 0)]
    for block in range(1, last):
        names = by_block.get(block, [])
        if any(name.startswith("0.op.") for name in names):
            levels.append(([], 0, 0))
            continue
        widths, blocks, depth = levels[-1]
        for tensor in _WIDTH_TENSORS:
            widths.extend(shapes.get(f"{UNET}input_blocks.{block}.0.{tensor}", ())[:1])
        found = [re.match(r"1\.transformer_blocks\.(\d{1,4})\.", name) for name in names]
        deepest = 1 + max((int(match[1]) for match in found if match), default=-1)
        levels[-1] = (widths, blocks + 1, max(depth, min(deepest, BLOCKS_MAX)))
    return levels


def _vae(where: object, shapes: Shapes, hints: Hints) -> VaeConfig:
    down = re.escape(VAE) + r"encoder\.down\."
    decoder, encoder = re.escape(VAE) + r"decoder\.", re.escape(VAE) + r"encoder\."
    widths = tuple(
        _most(
            where,
            "autoencoder's width",
            _sizes(shapes, rf"{down}{level}\.block\.\d+\.(conv\d|norm2)\.bias$", 0),
        )
        for level in range(_count(where, "autoencoder level", shapes, down + r"(\d{1,4})\."))
    )
    latent = [*_sizes(shapes, decoder + r"conv_in\.weight$", 1)]
    latent += _sizes(shapes, re.escape(VAE) + r"post_quant_conv\.\w+$", 0)
    return VaeConfig(
        channels=_most(where, "autoencoder's width", _sizes(shapes, encoder + r"conv_in\.\w+$", 0)),
        block_channels=widths,
        res_blocks=_count(where, "autoencoder block", shapes, down + r"\d+\.block\.(\d{1,4})\."),
        z_channels=_most(where, "latent channels", latent),
        norm_groups=hints.vae_groups or SD15.vae.norm_groups,
        eps=hints.vae_eps or SD15.vae.eps,
        image_channels=_most(
            where, "image channels", _sizes(shapes, decoder + r"conv_out\.\w+$", 0)
        ),
        scaling_factor=hints.scaling_factor or SD15.vae.scaling_factor,
    )


def _prediction(shapes: Shapes, hints: Hints) -> str:
    marked = "v_pred" in shapes  # a tensor of this name is how some files mark v-prediction
    return hints.prediction or ("v_prediction" if marked else SD15.prediction)


def _default_size(shapes: Shapes, hints: Hints) -> dict[str, int]:
    levels = {name.split(".")[3] for name in shapes if name.startswith(f"{VAE}encoder.down.")}
    latent = (hints.latent_size or 0) * 2 ** min(max(len(levels) - 1, 0), 8)
    return {
        "default_width": hints.width or latent or SD15.default_width,
        "default_height": hints.height or latent or SD15.default_height,
    }


def _sizes(shapes: Shapes, pattern: str, axis: int) -> list[int]:
    """Length of `axis` of every tensor whose name matches."""
    matches = re.compile(pattern).match
    return [s[axis] for name, s in shapes.items() if len(s) > axis and matches(name)]


def _embedding(shapes: Shapes, kind: str, axis: int) -> list[int]:
    return _sizes(shapes, f"{re.escape(TEXT)}embeddings\\.{kind}_embedding\\.weight$", axis)


def _most(where: object, what: str, values: Iterable[int]) -> int:
    """The most frequent of `values`."""
    counted = Counter(values).most_common(1)
    if not counted:
        raise CheckpointError(
            f"{where}: nothing in it shows the {what}; expected a whole checkpoint with UNet,"
            " autoencoder and text encoder; the file is incomplete"
        )
    return counted[0][0]


def _count(where: object, what: str, shapes: Shapes, pattern: str) -> int:
    """One more than the highest number that the pattern's group matches in a name."""
    matches = re.compile(pattern).match
    numbers = {int(match[1]) for match in map(matches, shapes) if match}
    if not numbers:
        raise CheckpointError(
            f"{where}: no tensor is part of a {what}; expected a whole checkpoint with UNet,"
            " autoencoder and text encoder; the file is incomplete"
        )
    if max(numbers) >= BLOCKS_MAX:
        raise CheckpointError(
            f"{where}: {what} {max(numbers)} occurs; expected fewer than {BLOCKS_MAX} of them"
        )
    return 1 + max(numbers)


def _check_schedule(where: object, config: ModelConfig) -> None:
    if not 0 < config.beta_start < config.beta_end < 1:
        raise CheckpointError(
            f"{where}: betas from {config.beta_start} to {config.beta_end};"
            " expected 0 < beta_start < beta_end < 1"
        )
    roots = np.linspace(config.beta_start**0.5, config.beta_end**0.5, config.train_steps)
    kept = math.exp(np.log1p(-(roots**2)).sum())  # of the signal, after the last training step
    if config.beta_start < BETA_MIN or kept < KEPT_MIN:
        raise CheckpointError(
            f"{where}: betas from {config.beta_start} to {config.beta_end} over"
            f" {config.train_steps} training steps; expected noise levels between 1e-6 and 1e10;"
            " state the right ones in the metadata `arch_config` or the folder's scheduler"
        )


def _check_divisions(where: object, config: ModelConfig) -> None:
    """Heads and groups must divide the widths they split."""
    unet, vae = config.denoiser, config.vae
    divisions = [("text encoder", text.hidden_size, "attention heads", text.heads)
                 for text in config.texts.values()]
    for width, attends in zip(unet.block_channels, unet.attention, strict=True):
        divisions.append(("UNet", width, "norm groups", unet.norm_groups))
        if attends:
            divisions.append(("UNet", width, "attention heads", unet.heads_at(width)))
    for width in vae.block_channels:
        divisions.append(("autoencoder", width, "norm groups", vae.norm_groups))
    wrong = [d for d in divisions if d[1] == 0 or d[1] % d[3]]
    if wrong:
        part, width, what, number = wrong[0]
        raise CheckpointError(
            f"{where}: the {part}'s width {width} cannot be split into {number} {what};"
            " state the right number in the metadata `arch_config` or the folder's config.json"
        )
