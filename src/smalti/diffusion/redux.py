"""Pictures that a prompt takes on: FLUX.1 Redux (Black Forest Labs 2024, "FLUX.1 Tools").

A picture becomes 729 tokens as T5 gives them. They stand behind those of the prompt, multiplied by
the strength of the picture, one picture after the other, as in ComfyUI. Or they are added up, with
the prompt once for each picture, and all of it is multiplied by the strengths, as in diffusers
(`FluxPriorReduxPipeline`). Where strengths are biases ("attn_bias" of ComfyUI), tokens stay as they
are, and the logarithm of the strength is added to the scores of attention: a strength of 2 is as if
each token stood there twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from smalti.diffusion.images import given, opaque, opened
from smalti.diffusion.prompt import parse
from smalti.diffusion.samplers import Sampler
from smalti.errors import InputError
from smalti.families.record import Floats
from smalti.models.config import ModelConfig
from smalti.models.language_config import ReduxConfig
from smalti.models.qwen_vision import in_patches
from smalti.nn.attention import UNSEEN_CAPPED

PICTURES_MAX = 10
"""729 tokens each: beside so many those of the picture that is made are the smaller part."""


BIAS = "bias"
"""The input of a denoiser that is added to the scores of the tokens of pictures."""


def pictures_of(options: Any) -> tuple[Image.Image, ...] | None:
    """The pictures of Redux that `PictureOptions` give, opened; None without any.

    Raises InputError for what is no picture, and for strengths that are not as many.
    """
    if options.redux is None:
        return None
    found = given(options.redux, "redux")
    if len(found) > PICTURES_MAX:
        raise InputError(f"{len(found)} pictures are given as redux; expected {PICTURES_MAX} at "
                         f"most")
    if len(options.redux_strength) not in (0, 1, len(found)):
        raise InputError(f"redux_strength has {len(options.redux_strength)} numbers, redux "
                         f"{len(found)} pictures; expected one for all, or one for each")
    if options.redux_sum and options.redux_bias:
        raise InputError("redux_sum and redux_bias are given; where tokens are added up, strengths "
                         "are what they are multiplied by: choose one of them")
    return tuple(opaque(opened(each)) for each in found)


def tokens_shown(config: ModelConfig, options: Any) -> int:
    """The tokens that a denoiser reads of the pictures of Redux that are given: of those that are
    added up, as many as of one; 0 without any, or where no part of the model reads them."""
    reader = config.texts.get("redux")
    if options.redux is None or not isinstance(reader, ReduxConfig):
        return 0
    return reader.tokens * (1 if options.redux_sum else len(given(options.redux, "redux")))


def biased_tokens(config: ModelConfig, options: Any) -> tuple[int, ...]:
    """How many pictures stand in the prompt with a bias of their own, and the tokens of each; ()
    without any."""
    if not is_biased(options.redux_strength, options.redux_bias):
        return ()
    count = len(given(options.redux, "redux"))
    return count, tokens_shown(config, options) // count


def check_alone(options: Any, guidance: float, sampler: Sampler, steps: int,
                refiner: str | None) -> None:
    """Raise InputError for pictures beside prompts of which some would be without them, or in front
    of a `refiner`, which reads none."""
    if options.redux is None:
        return
    if refiner is not None:
        raise InputError(f"redux is given, and the refiner {refiner}, which does not read its "
                         f"pictures; load the pipeline without one")
    joined = len(parse(options.prompt, steps).parts) > 1
    why = (f"guidance_scale is {guidance:g}; give 1 (distilled_guidance is what FLUX.1 dev is "
           f"told)" if guidance != 1 else
           f"the sampler is {sampler.name}, which reads it always; give euler"
           if sampler.needs_negative else
           "the prompt has parts with AND, which are seen beside it; join them with commas"
           if joined else "")
    if why:
        raise InputError(f"redux is given, whose pictures stand with the prompt and not with the "
                         f"negative prompt, so that the two are not as long, and {why}")


def patches_of(picture: Image.Image, config: ReduxConfig) -> Floats:
    """A picture, RGB, of any size as patches [tokens, patch_size], stretched to the square that
    SigLIP reads.

    >>> from smalti.models import REDUX
    >>> patches_of(Image.new("RGB", (40, 20)), REDUX).shape
    (729, 588)
    """
    near = picture.resize((config.side, config.side), Image.Resampling.BICUBIC)
    used = config.grid * config.patch
    colours = np.asarray(near, np.float32)[:used, :used].transpose(2, 0, 1)
    return in_patches(colours / np.float32(127.5) - np.float32(1), config)


def with_pictures(rows: Mapping[str, Floats], tokens: Floats, strengths: Sequence[float],
                  pooled: float, added: bool, biased: bool = False) -> dict[str, Floats]:
    """What the denoiser reads, `rows` with a context [readings, length, width], with the `tokens`
    [pictures, t, width] of pictures, whose strengths are biases where they are `biased`.

    >>> rows = {"context": np.ones((1, 2, 3)), "pooled": np.ones((1, 4))}
    >>> found = with_pictures(rows, np.ones((2, 5, 3)), (0.5,), 1.0, False)
    >>> found["context"].shape
    (1, 12, 3)
    >>> with_pictures(rows, np.ones((2, 5, 3)), (0.5,), 1.0, True)["context"][0, :, 0].tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    each = np.array(strengths or (1.0,), np.float32)
    each = np.broadcast_to(each, (len(tokens),))[:, None, None]
    found = {**rows}
    if is_biased(strengths, biased):
        found[BIAS] = _biases(each, tokens, len(rows["context"]))
    shown, times = tokens * (1 if biased else each), np.float32(1)
    if added:
        shown, times = shown.sum(axis=0, keepdims=True), each.sum()
    shown = shown.reshape(1, -1, shown.shape[2])
    context = rows["context"] * times
    behind = np.broadcast_to(shown, (len(context), *shown.shape[1:]))
    return {**found, "context": np.concatenate([context, behind], axis=1).astype(np.float32),
            "pooled": rows["pooled"] * np.float32(pooled * (len(tokens) if added else 1))}


def is_biased(strengths: Sequence[float], biased: bool) -> bool:
    """Whether a bias of any picture is another than 0."""
    return biased and any(each != 1 for each in strengths)


def _biases(strengths: Floats, tokens: Floats, readings: int) -> Floats:
    """The bias of each token [readings, pictures, t], by the strengths [pictures, 1, 1]; tokens
    that nobody sees have one that no score outweighs."""
    seen = np.log(np.maximum(strengths[:, :, 0], np.finfo(np.float32).tiny))
    bias = np.where(strengths[:, :, 0] > 0, seen, np.float32(-UNSEEN_CAPPED))
    return np.broadcast_to(bias, (readings, *tokens.shape[:2])).astype(np.float32)
