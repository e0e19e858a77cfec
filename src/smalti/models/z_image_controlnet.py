"""ControlNets (Zhang et al. 2023, arXiv:2302.05543) for Z-Image, as Alibaba PAI trained them.

What becomes tokens, and what refines those of text and image, are the model's own weights. Blocks
built like the model's work on tokens of a picture, into which those of the model are added before
the first; what each of them made goes to the model through a layer that was zero when training
began. Names are those of the model (see `models/z_image.py`) and, for what is new, of the files'
authors.
"""

from __future__ import annotations

from smalti.errors import InputError
from smalti.graph import Graph, Value
from smalti.models.controlnet import PREFIX
from smalti.models.flux import PATCH, Places
from smalti.models.flux import PREFIX as MODEL
from smalti.models.transformer_config import (
    ALONE,
    LAYERS,
    ZImageConfig,
    ZImageControlNetConfig,
)
from smalti.models.z_image import STREAM_UNIT, Angles, Embedded, block, embedded, filled_image
from smalti.nn import linear, patches

EMBEDDER, REFINERS, BLOCKS = "control_all_x_embedder.2-1", "control_noise_refiner", "control_layers"
"""Names of what makes tokens of a picture, of what refines these, and of the blocks."""


def z_image_controlnet_graph(config: ZImageControlNetConfig, model: ZImageConfig, batch: int,
                             height: int, width: int, length: int) -> Graph:
    """What the blocks of the `model` are given more; `height` and `width` are those of the latent.

    latent, timesteps, context and mask as of `z_image_graph`, and hint f32[batch, hint_channels,
    height, width], the latent of a picture, and where more is read 1 where another one stays as it
    is, and the latent of that, or zeros for both -> `control.0`, ... f32[batch, tokens of text and
    image, hidden_size] in `STREAM_UNIT`, one for each block. One that steers refiners reads
    `strength` f32[batch], too: how much is added to them here, where the model's tokens are refined
    for the net alone. Raises InputError as that does.

    >>> from smalti.models import Z_IMAGE, ZImageControlNetConfig
    >>> union = ZImageControlNetConfig(3840, heads=30, mlp_size=10240, blocks=6)
    >>> g = z_image_controlnet_graph(union, Z_IMAGE, batch=1, height=128, width=96, length=64)
    >>> g.inputs["hint"].shape, len(g.outputs), g.outputs["control.5"].shape
    ((1, 16, 128, 96), 6, (1, 3136, 3840))
    """
    g = Graph("z_image_controlnet")
    read = embedded(g, model, batch, height, width, length)
    hint = g.input("hint", (batch, config.hint_channels, height, width))
    with g.scope(PREFIX):
        control = linear(patches(hint, PATCH, pixels_first=True), EMBEDDER, config.hidden_size)
    with g.scope(MODEL):
        control = filled_image(control, model)                           # [n, i, c]
    control, added = _refined(control, read, config)
    if added:
        strength = g.input("strength", (batch,)).reshape(batch, 1, 1)
        added = {place: part * strength for place, part in added.items()}
    img = read.img
    for i in range(model.refiners):
        with g.scope(f"{MODEL}.noise_refiner.{i}"):
            img = block(img, read.image_angles, model, read.vec)
        if i in added:
            img = img + added[i]
    x, control = (g.apply("concat", read.txt, part, axis=1) for part in (img, control))
    _, made = _steered(control, x, BLOCKS, config.blocks, read.angles, read, read.hidden, config)
    for i, part in enumerate(made):
        g.output(f"control.{i}", part)
    return g


def z_image_control_places(config: ZImageControlNetConfig, model: ZImageConfig) -> Places:
    """Which control is added behind each block of the model. Raises InputError for more blocks than
    the model has.

    >>> from smalti.models import Z_IMAGE
    >>> z_image_control_places(ZImageControlNetConfig(3840, 30, 10240, blocks=6), Z_IMAGE)[:7]
    (0, -1, -1, -1, -1, 1, -1)
    """
    each = max(1, model.blocks // config.blocks)
    places = config.places or tuple(range(0, each * config.blocks, each))
    if max(places) >= model.blocks:
        raise InputError(f"a ControlNet adds something behind block {max(places)}; the model has "
                         f"blocks 0 to {model.blocks - 1}")
    return tuple(places.index(i) if i in places else -1 for i in range(model.blocks))


def _refined(control: Value, read: Embedded,
             config: ZImageControlNetConfig) -> tuple[Value, dict[int, Value]]:
    """The tokens of the picture, and what is added behind which refiner of the model."""
    if config.refining == ALONE:
        for i in range(config.refiners):
            with control.graph.scope(f"{PREFIX}.{REFINERS}.{i}"):
                control = block(control, read.image_angles, config, read.vec)
        return control, {}
    stack, count = (BLOCKS, config.blocks) if config.refining == LAYERS else (
        REFINERS, config.refiners)
    control, made = _steered(control, read.img, stack, count, read.image_angles, read, None, config)
    places = config.refiner_places or range(len(made))
    return control, dict(zip(places, made))


def _steered(control: Value, x: Value, stack: str, count: int, angles: Angles, read: Embedded,
             hidden: Value | None,
             config: ZImageControlNetConfig) -> tuple[Value, list[Value]]:
    """Tokens of a picture [n, t, c] after so many blocks, to which those of the model, x, are added
    before the first, and what each block gives for these."""
    made = []
    for i in range(count):
        with control.graph.scope(f"{PREFIX}.{stack}.{i}"):
            if i == 0:
                control = x + linear(control, "before_proj", config.hidden_size, unit=STREAM_UNIT)
            control = block(control, angles, config, read.vec, hidden)
            made.append(linear(control, "after_proj", config.hidden_size, unit=STREAM_UNIT))
    return control, made
