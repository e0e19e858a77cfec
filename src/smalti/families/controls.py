"""Kinds of ControlNets, one record each: which denoiser they fit, what they read, what they give.

Those of a UNet give one array for each of its blocks. Those of a transformer give fewer: each is
added behind several blocks, and by which these are, several nets are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from smalti.dataclass import dataclass
from smalti.families.autoencoder import scaling
from smalti.families.record import Floats
from smalti.graph import Graph
from smalti.models import (
    ControlNetConfig,
    FluxConfig,
    FluxControlNetConfig,
    MMDiTConfig,
    MMDiTControlNetConfig,
    QwenImageConfig,
    QwenImageControlNetConfig,
    UNetConfig,
    VaeConfig,
    ZImageConfig,
    ZImageControlNetConfig,
    controlnet_graph,
    flux_control_places,
    flux_controlnet_graph,
    qwen_image_control_places,
    qwen_image_controlnet_graph,
    sd3_control_places,
    sd3_controlnet_graph,
    z_image_control_places,
    z_image_controlnet_graph,
)
from smalti.models.denoiser_config import DenoiserConfig
from smalti.models.z_image import token_counts

PATCH = 2
"""Side of the square of pixels of a latent that transformers make a token of."""

USUAL_GUIDANCE = 3.5
"""What a ControlNet of Flux dev is told beside a model that is told nothing."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class JoinedControl:
    """Several ControlNets as the graph of a denoiser is told of them.

    `control` is its argument of that name; `sources` are, for each input that it has for that, the
    outputs of the nets that add up to it, in their order, "" for a net that adds nothing there.
    """

    control: object
    sources: Mapping[str, tuple[str, ...]]


def _in_unit_range(net: Any, hint: Floats) -> Floats:
    return 2 * np.maximum(hint, 0) - 1


def _no(net: Any) -> bool:
    return False


def _as_it_is(net: Any, latent: Floats, hint: Floats | None) -> Floats:
    return latent


def _nothing(net: Any, rows: int, given: Mapping[str, Floats], kind: int) -> dict[str, Floats]:
    return {}


def _latent_of_net(net: Any) -> int:
    return net.in_channels


def _token_shapes(denoiser: DenoiserConfig, names: Sequence[str], rows: int, height: int,
                  width: int, length: int) -> dict[str, tuple[int, ...]]:
    tokens = height // PATCH * (width // PATCH)
    return dict.fromkeys(names, (rows, tokens, denoiser.hidden_size))


@dataclass(frozen=True)
class ControlKind:
    """A kind of ControlNets; `net` is the configuration of one of them.

    config           the class of its configurations, and `denoiser` that of the denoisers
    words            these, in a sentence
    graph            (net, denoiser, rows, height, width, tokens) -> its graph
    joined           (denoiser, nets) -> the nets as one
    shapes           (denoiser, names of what is added, rows, height, width, tokens of the text) ->
                     their shapes
    same             (net) -> where the fields are in which it must agree with the denoiser, which
    kinds            (net) -> the kinds of pictures that a union knows, 0 for one that is none
    refuses          (net) -> why it cannot be used, "" where it can
    latent_channels  (net) -> channels of the latent that it reads, the first of the denoiser's
    downscale        (net) -> pixels of the picture per latent pixel, along one side; 0 for one that
                     reads a latent
    pixels           (net, picture in [0, 1]) -> as the autoencoder encodes it for the net
    shifted          (net) -> whether its latent is shifted as that of the denoiser is
    fills            (net) -> whether it reads where a picture is to be filled, which is -1 there
    only_fills       (net) -> whether it does nothing else, so that its picture has such parts
    completes        (net) -> whether the picture that it fills is another one than that which
                     steers, whose latent stands behind all else that it reads
    keeps            (net) -> whether its authors leave it to the net alone that the rest stays
    channels         (net, latent of the picture that steers, the one that is filled, or the only
                     one, if any) -> what it reads, but for the latent of what is filled
    prompt_alone     whether what it gives for the first prompt is added for all others, too
    conditions       (net, rows, what the denoiser is told, kind of the picture) -> what the net is
                     told besides latent, time and text
    """

    config: type
    denoiser: type
    words: str
    graph: Callable[..., Graph]
    joined: Callable[[Any, Sequence[Any]], JoinedControl]
    same: Callable[[Any], tuple[Any, list[str]]]
    kinds: Callable[[Any], int]
    shapes: Callable[..., Shapes] = _token_shapes
    refuses: Callable[[Any], str] = lambda net: ""
    latent_channels: Callable[[Any], int] = _latent_of_net
    downscale: Callable[[Any], int] = lambda net: 0
    pixels: Callable[[Any, Floats], Floats] = _in_unit_range
    shifted: Callable[[Any], bool] = lambda net: True
    fills: Callable[[Any], bool] = _no
    only_fills: Callable[[Any], bool] = _no
    completes: Callable[[Any], bool] = _no
    keeps: Callable[[Any], bool] = _no
    channels: Callable[[Any, Floats, Floats | None], Floats] = _as_it_is
    prompt_alone: bool = False
    conditions: Callable[..., dict[str, Floats]] = _nothing

    def scaled(self, net: object, mean: Floats, vae: VaeConfig) -> Floats:
        """The latent of a picture, of the encoder's mean, as a net reads it."""
        shift, factor = scaling(vae)
        return (mean - shift if self.shifted(net) else mean) * factor


# ---------------------------------------------------------------------- UNets


def _unet_shapes(unet: UNetConfig, names: Sequence[str], rows: int, height: int,
                 width: int, length: int) -> Shapes:
    graph = controlnet_graph(ControlNetConfig(unet), rows, height, width, tokens=1)
    return {name: value.shape for name, value in graph.outputs.items()}


def _unet_joined(unet: UNetConfig, nets: Sequence[ControlNetConfig]) -> JoinedControl:
    names = _unet_shapes(unet, (), 1, unet.multiple, unet.multiple, 1)
    return JoinedControl(True, {name: (name,) * len(nets) for name in names})


def _unet_same(net: ControlNetConfig) -> tuple[UNetConfig, list[str]]:
    fields = ["block_channels", "res_blocks", "vector_dim"]
    return net.unet, fields + ["context_dim"] * any(net.unet.attention)


def _types(net: ControlNetConfig, rows: int, given: Mapping[str, Floats],
           kind: int) -> dict[str, Floats]:
    return {"types": np.eye(net.types, dtype=np.float32)[[kind]]} if net.types else {}


UNET = ControlKind(
    config=ControlNetConfig,
    denoiser=UNetConfig,
    words="a UNet",
    graph=lambda net, denoiser, *shape: controlnet_graph(net, *shape),
    joined=_unet_joined,
    same=_unet_same,
    kinds=lambda net: net.types,
    shapes=_unet_shapes,
    latent_channels=lambda net: net.unet.in_channels,
    downscale=lambda net: net.downscale,
    fills=lambda net: net.fills,
    conditions=_types,
)


# ---------------------------------------------------------------------- transformers


def _joined_behind(places: Mapping[str, Sequence[Sequence[int]]]) -> tuple[list, dict]:
    """Kind of block -> for each net, behind each block the number of what it adds there, or -1; as
    the argument of each kind, and the outputs that add up to each input."""
    merged, sources = [], {}
    for kind, of_nets in places.items():
        blocks = max(map(len, of_nets))
        behind = [tuple(each[block] if each else -1 for each in of_nets) for block in range(blocks)]
        sums = list(dict.fromkeys(numbers for numbers in behind if max(numbers) >= 0))
        merged.append(tuple(sums.index(numbers) if numbers in sums else -1 for numbers in behind))
        for i, numbers in enumerate(sums):
            sources[f"control.{kind}{i}"] = tuple(
                f"control.{kind}{number}" if number >= 0 else "" for number in numbers)
    return merged, sources


def _joined_by(places: Callable[[Any, Any], Sequence[int]]
               ) -> Callable[[Any, Sequence[Any]], JoinedControl]:
    """`ControlKind.joined` of models with blocks of one kind: `places(net, denoiser)` has, for each
    block, the number of what the net adds behind it, or -1."""
    def joined(denoiser: Any, nets: Sequence[Any]) -> JoinedControl:
        (merged,), sources = _joined_behind({"": [places(net, denoiser) for net in nets]})
        return JoinedControl(merged, sources)

    return joined


def _flux_joined(flux: FluxConfig, nets: Sequence[FluxControlNetConfig]) -> JoinedControl:
    double, single = zip(*(flux_control_places(net, flux) for net in nets), strict=True)
    merged, sources = _joined_behind({"double.": double, "single.": single})
    return JoinedControl(tuple(merged), sources)


def _flux_conditions(net: FluxControlNetConfig, rows: int, given: Mapping[str, Floats],
                     kind: int) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    if net.modes:
        found["mode"] = np.full(rows, kind, np.int32)
    if net.guidance and "guidance" not in given:
        found["guidance"] = np.full(rows, USUAL_GUIDANCE, np.float32)
    return found


FLUX = ControlKind(
    config=FluxControlNetConfig,
    denoiser=FluxConfig,
    words="FLUX.1",
    graph=lambda net, denoiser, *shape: flux_controlnet_graph(net, *shape),
    joined=_flux_joined,
    same=lambda net: (net, ["hidden_size", "pooled_dim", "context_dim", "heads"]),
    kinds=lambda net: net.modes,
    downscale=lambda net: 2 ** (len(net.hint_channels) - 1) if net.hint_channels else 0,
    conditions=_flux_conditions,
)


def _sd3_graph(net: MMDiTControlNetConfig, denoiser: MMDiTConfig, *shape: int) -> Graph:
    """Without text, tokens are the model's own."""
    return sd3_controlnet_graph(
        net if net.joint else replace(net, positions=denoiser.positions), *shape)


def _sd3_pixels(net: MMDiTControlNetConfig, hint: Floats) -> Floats:
    """The authors of the net for edges of 3.5 large have trained it with pixels in another range.
    """
    return hint * np.float32(127.5) + np.float32(0.5) if net.canny else 2 * hint - 1


def _sd3_conditions(net: MMDiTControlNetConfig, rows: int, given: Mapping[str, Floats],
                    kind: int) -> dict[str, Floats]:
    """Those of InstantX were trained without the text as a whole."""
    return {"pooled": np.zeros_like(given["pooled"])} if net.joint else {}


def _sd3_refuses(net: MMDiTControlNetConfig) -> str:
    return "" if net.hint_channels == net.in_channels else (
        f"is a ControlNet for inpainting, which reads {net.hint_channels} channels; those are not "
        f"made of a picture alone")


SD3 = ControlKind(
    config=MMDiTControlNetConfig,
    denoiser=MMDiTConfig,
    words="Stable Diffusion 3",
    graph=_sd3_graph,
    joined=_joined_by(sd3_control_places),
    same=lambda net: (net, ["hidden_size", "pooled_dim", *["context_dim", "heads"] * net.joint]),
    kinds=lambda net: 0,
    refuses=_sd3_refuses,
    pixels=_sd3_pixels,
    shifted=lambda net: not net.joint,  # as InstantX trained
    conditions=_sd3_conditions,
)


def _what_stays(latent: Floats, hint: Floats) -> Floats:
    """1 where a picture stays [1, h, w], as its pixels at the corners of those of the latent tell.
    """
    step = hint.shape[1] // latent.shape[1]
    return (hint[:1, ::step, ::step] >= 0).astype(np.float32)


def _qwen_image_channels(net: QwenImageControlNetConfig, latent: Floats,
                         hint: Floats | None) -> Floats:
    """Behind the latent where the picture stays."""
    if not net.fills or hint is None:
        return latent
    return np.concatenate([latent, _what_stays(latent, hint)])


def _qwen_image_refuses(net: QwenImageControlNetConfig) -> str:
    return "" if net.fills or net.hint_channels == net.in_channels else (
        f"reads {net.hint_channels} channels, which are not made of a picture; expected "
        f"{net.in_channels}, or one more for inpainting")


QWEN_IMAGE = ControlKind(
    config=QwenImageControlNetConfig,
    denoiser=QwenImageConfig,
    words="Qwen-Image",
    graph=lambda net, denoiser, *shape: qwen_image_controlnet_graph(net, *shape),
    joined=_joined_by(qwen_image_control_places),
    same=lambda net: (net, ["hidden_size", "heads", "context_dim", "in_channels"]),
    kinds=lambda net: 0,
    refuses=_qwen_image_refuses,
    fills=lambda net: net.fills,
    only_fills=lambda net: net.fills,
    keeps=lambda net: net.fills,
    channels=_qwen_image_channels,
    prompt_alone=True,  # as its authors' pipeline does
)


def _z_image_shapes(denoiser: ZImageConfig, names: Sequence[str], rows: int, height: int,
                    width: int, length: int) -> Shapes:
    """Those of the text are steered, too."""
    tokens = sum(token_counts(denoiser, height, width, length))
    return dict.fromkeys(names, (rows, tokens, denoiser.hidden_size))


def _z_image_channels(net: ZImageControlNetConfig, latent: Floats, hint: Floats | None) -> Floats:
    """Behind the latent where a picture that is filled stays; zeros stand for none, and for its
    latent."""
    if net.fills and hint is not None:
        return np.concatenate([latent, _what_stays(latent, hint)])
    return np.pad(latent, ((0, net.hint_channels - len(latent)), (0, 0), (0, 0)))


def _z_image_refuses(net: ZImageControlNetConfig) -> str:
    return "" if net.hint_channels >= net.in_channels else (
        f"reads {net.hint_channels} channels; expected those of a latent, {net.in_channels}, or "
        f"more")


Z_IMAGE = ControlKind(
    config=ZImageControlNetConfig,
    denoiser=ZImageConfig,
    words="Z-Image",
    graph=z_image_controlnet_graph,
    joined=_joined_by(z_image_control_places),
    same=lambda net: (net, ["hidden_size", "heads", "mlp_size", "vector_size"]),
    kinds=lambda net: 0,
    shapes=_z_image_shapes,
    refuses=_z_image_refuses,
    fills=lambda net: net.fills,
    completes=lambda net: net.fills,
    keeps=lambda net: net.fills,
    channels=_z_image_channels,
)

CONTROL_KINDS: Mapping[type, ControlKind] = {
    kind.config: kind for kind in (UNET, FLUX, SD3, QWEN_IMAGE, Z_IMAGE)}
"""Class of a ControlNet's configuration -> its kind."""


def control_kind(net: object) -> ControlKind | None:
    """The kind of a ControlNet by its configuration; None for a network that is none.

    >>> control_kind(FluxControlNetConfig(3072, 24, 12288)).words
    'FLUX.1'
    """
    return CONTROL_KINDS.get(type(net))


def misfit(net: object, denoiser: DenoiserConfig) -> str:
    """Why a ControlNet cannot steer a denoiser, to be said behind its name; "" where it can.

    >>> from smalti.models import FLUX_DEV, SD1_UNET
    >>> misfit(FluxControlNetConfig(3072, 24, 12288), SD1_UNET)
    'is a ControlNet for FLUX.1, and this model has none'
    >>> misfit(FluxControlNetConfig(3072, 24, 12288), FLUX_DEV)
    ''
    """
    kind = control_kind(net)
    if kind is None:
        return "is no ControlNet"
    if type(denoiser) is not kind.denoiser:
        return f"is a ControlNet for {kind.words}, and this model has none"
    if denoiser.needs_reference:
        return ("is a ControlNet, and this model changes pictures that it reads as tokens, which "
                "ControlNets do not know")
    theirs, fields = kind.same(net)
    for what in fields:
        if getattr(denoiser, what) != getattr(theirs, what):
            return (f"was made for another model: its {what} are {getattr(theirs, what)}, those of "
                    f"the denoiser {getattr(denoiser, what)}")
    return kind.refuses(net)


def joined(denoiser: DenoiserConfig, nets: Sequence[object]) -> JoinedControl:
    """ControlNets of one kind as one.

    >>> from smalti.models import FLUX_DEV
    >>> small = FluxControlNetConfig(3072, 24, 12288, double_blocks=2, single_blocks=0)
    >>> both = joined(FLUX_DEV, [small, small])
    >>> both.sources["control.double.1"], len(both.control[0]), both.control[1]
    (('control.double.1', 'control.double.1'), 19, ())
    """
    return CONTROL_KINDS[type(nets[0])].joined(denoiser, nets)
