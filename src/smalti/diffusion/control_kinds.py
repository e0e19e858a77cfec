"""ControlNets of each family: what fits which denoiser, what they read, and what they give.

Those of a UNet give one array for each of its blocks. Those of a transformer give fewer: each is
added behind several blocks, and by which these are, several nets are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from smalti.errors import InputError
from smalti.graph import Graph
from smalti.models import (
    ChromaConfig,
    ControlNetConfig,
    FluxConfig,
    FluxControlNetConfig,
    MMDiTConfig,
    MMDiTControlNetConfig,
    UNetConfig,
    VaeConfig,
    controlnet_graph,
    flux_control_places,
    flux_controlnet_graph,
    sd3_control_places,
    sd3_controlnet_graph,
)

Floats = np.ndarray
NetConfig = ControlNetConfig | FluxControlNetConfig | MMDiTControlNetConfig
DenoiserConfig = UNetConfig | FluxConfig | MMDiTConfig

PATCH = 2
USUAL_GUIDANCE = 3.5
"""What a ControlNet of Flux dev is told beside a model that is told nothing."""


@dataclass(frozen=True)
class Joined:
    """Several ControlNets as the graph of a denoiser is told of them.

    `control` is its argument of that name; `sources` are, for each input that it has for that, the
    outputs of the nets that add up to it, in their order, "" for a net that adds nothing there.
    """

    control: object
    sources: Mapping[str, tuple[str, ...]]


def joined(denoiser: DenoiserConfig, nets: Sequence[NetConfig]) -> Joined:
    """The nets as one.

    >>> from smalti.models import FLUX_DEV, FluxControlNetConfig
    >>> small = FluxControlNetConfig(3072, 24, 12288, double_blocks=2, single_blocks=0)
    >>> both = joined(FLUX_DEV, [small, small])
    >>> both.sources["control.double.1"], len(both.control[0]), both.control[1]
    (('control.double.1', 'control.double.1'), 19, ())
    """
    if isinstance(denoiser, UNetConfig):
        names = _unet_shapes(denoiser, 1, *2 * (2 ** (len(denoiser.block_channels) - 1),))
        return Joined(True, {name: (name,) * len(nets) for name in names})
    if isinstance(denoiser, FluxConfig):
        kinds = ("double.", "single.")
        places = list(zip(*(flux_control_places(net, denoiser) for net in nets), strict=True))
    else:
        kinds, places = ("",), [tuple(sd3_control_places(net, denoiser) for net in nets)]
    merged, sources = [], {}
    for kind, of_nets in zip(kinds, places, strict=True):
        blocks = max(map(len, of_nets))
        behind = [tuple(each[block] if each else -1 for each in of_nets) for block in range(blocks)]
        sums = list(dict.fromkeys(numbers for numbers in behind if max(numbers) >= 0))
        merged.append(tuple(sums.index(numbers) if numbers in sums else -1 for numbers in behind))
        for i, numbers in enumerate(sums):
            sources[f"control.{kind}{i}"] = tuple(
                f"control.{kind}{number}" if number >= 0 else "" for number in numbers)
    return Joined(tuple(merged) if len(kinds) > 1 else merged[0], sources)


def shapes(denoiser: DenoiserConfig, names: Sequence[str], rows: int, height: int,
           width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of what is added for a latent of this size."""
    if isinstance(denoiser, UNetConfig):
        return _unet_shapes(denoiser, rows, height, width)
    tokens = height // PATCH * (width // PATCH)
    return dict.fromkeys(names, (rows, tokens, denoiser.hidden_size))


def _unet_shapes(unet: UNetConfig, rows: int, height: int,
                 width: int) -> dict[str, tuple[int, ...]]:
    graph = controlnet_graph(ControlNetConfig(unet), rows, height, width, tokens=1)
    return {name: value.shape for name, value in graph.outputs.items()}


def graph(net: NetConfig, denoiser: DenoiserConfig, rows: int, height: int, width: int,
          tokens: int) -> Graph:
    """What a net computes, for a latent of this size and a context of so many tokens."""
    if isinstance(net, MMDiTControlNetConfig) and not net.joint:  # tokens are the model's own
        net = replace(net, positions=denoiser.positions)
    build = {FluxControlNetConfig: flux_controlnet_graph,
             MMDiTControlNetConfig: sd3_controlnet_graph}.get(type(net), controlnet_graph)
    return build(net, rows, height, width, tokens)


def latent_channels(net: NetConfig) -> int:
    """Channels of the latent that a net reads, the first of those of the denoiser."""
    return net.unet.in_channels if isinstance(net, ControlNetConfig) else net.in_channels


def pixels_per_latent(net: NetConfig) -> int:
    """Pixels of the picture per latent pixel, along one side; 0 for nets that read a latent."""
    if isinstance(net, ControlNetConfig):
        return net.downscale
    widths = getattr(net, "hint_channels", ())
    return 2 ** (len(widths) - 1) if isinstance(widths, tuple) and widths else 0


def pixels(net: NetConfig, hint: Floats) -> Floats:
    """A picture in [0, 1] as the encoder reads it for a net: in [-1, 1], but for the one for edges
    of 3.5 large, whose authors have trained it so."""
    if isinstance(net, MMDiTControlNetConfig) and net.canny:
        return hint * np.float32(127.5) + np.float32(0.5)
    return 2 * hint - 1


def scaled(net: NetConfig, mean: Floats, vae: VaeConfig) -> Floats:
    """The latent of a picture, of the encoder's mean, as a net reads it.

    Those of InstantX for Stable Diffusion 3 were trained without the shift.
    """
    unshifted = isinstance(net, MMDiTControlNetConfig) and net.joint
    shift = 0.0 if unshifted else vae.shift_factor
    return (mean - np.float32(shift)) * np.float32(vae.scaling_factor)


def conditions(net: NetConfig, rows: int, given: Mapping[str, Floats],
               kind: int) -> dict[str, Floats]:
    """What a net is told besides latent, time and text; `kind` is that of the picture for a union.

    Those of InstantX for Stable Diffusion 3 were trained without the text as a whole.
    """
    found: dict[str, Floats] = {}
    if isinstance(net, ControlNetConfig) and net.types:
        found["types"] = np.eye(net.types, dtype=np.float32)[[kind]]
    if isinstance(net, FluxControlNetConfig):
        if net.modes:
            found["mode"] = np.full(rows, kind, np.int32)
        if net.guidance and "guidance" not in given:
            found["guidance"] = np.full(rows, USUAL_GUIDANCE, np.float32)
    if isinstance(net, MMDiTControlNetConfig) and net.joint:
        found["pooled"] = np.zeros_like(given["pooled"])
    return found


def check(path: str, net: object, denoiser: object, kind: int) -> None:
    """Raise InputError for a net that was made for another denoiser, or an unknown kind."""
    families = {ControlNetConfig: ("a UNet", UNetConfig),
                FluxControlNetConfig: ("FLUX.1", FluxConfig),
                MMDiTControlNetConfig: ("Stable Diffusion 3", MMDiTConfig)}
    if type(net) not in families:
        raise InputError(f"{path} is no ControlNet")
    words, wanted = families[type(net)]
    if not isinstance(denoiser, wanted) or isinstance(denoiser, ChromaConfig):
        raise InputError(f"{path} is a ControlNet for {words}, and this model has none")
    if isinstance(net, ControlNetConfig):
        theirs, fields, kinds = net.unet, ["block_channels", "res_blocks", "vector_dim"], net.types
        if any(theirs.attention):
            fields.append("context_dim")
    else:
        theirs, kinds = net, getattr(net, "modes", 0)
        fields = ["hidden_size", "pooled_dim"]
        if getattr(net, "joint", True):
            fields += ["context_dim", "heads"]
    for what in fields:
        if getattr(denoiser, what) != getattr(theirs, what):
            raise InputError(
                f"{path} was made for another model: its {what} are {getattr(theirs, what)}, "
                f"those of the denoiser {getattr(denoiser, what)}")
    if isinstance(net, MMDiTControlNetConfig) and net.hint_channels != net.in_channels:
        raise InputError(f"{path} is a ControlNet for inpainting, which reads "
                         f"{net.hint_channels} channels; those are not made of a picture alone")
    if kinds and not 0 <= kind < kinds:
        raise InputError(f"{path} knows {kinds} kinds of pictures, 0 to {kinds - 1}; got {kind}")
