"""What is measured: models at fixed shapes with seeded inputs, and the bounds that are asked for.

    case = CASES["unet"]
    graph, inputs = case.graph(), case.inputs()
    module = case.module()                  # the same as a PyTorch module, with the same weights

A case is data that another process can be given: its functions are partial applications of
functions of modules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smalti.benchmark import peers
from smalti.benchmark.tiny_cnn import tiny_cnn_graph
from smalti.benchmark.weights import seeded
from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.models import (
    CLIP_L,
    FLUX2_KLEIN_4B,
    FLUX_DEV,
    QWEN3_4B,
    SD1_UNET,
    SD15,
    Z_IMAGE,
    ClipTextConfig,
    Flux2Config,
    FluxConfig,
    LanguageConfig,
    MobileNetV2Config,
    UNetConfig,
    VaeConfig,
    ZImageConfig,
    clip_text_graph,
    flux2_single_block_graph,
    flux_double_block_graph,
    language_graph,
    mobilenet_v2_graph,
    unet_graph,
    vae_decoder_graph,
    vae_encoder_graph,
    z_image_block_graph,
)

Inputs = dict[str, np.ndarray]

TIMESTEP = 681.0
"""The time that denoisers are asked about: of 0 to 999, any would do."""


@dataclass(frozen=True)
class Case:
    """One model at one shape.

    `peer` makes the PyTorch module, and `call(module, *inputs)` calls it with the inputs of the
    graph, in their order. `bounds` are our time over that of the best peer, at most, by precision,
    and by precision and the feature level that all are held to ("f32, avx2").
    `picture` says that the output is one, in [-1, 1]. With a `checkpoint`, weights are read from
    that file. Inputs named in `held` stay the same from run to run where the model is used.
    """

    name: str
    title: str
    graph: Callable[[], Graph]
    inputs: Callable[[], Inputs]
    peer: Callable[[], peers.Peer]
    call: Callable[..., Any]
    bounds: Mapping[str, float] = field(default_factory=dict)
    picture: bool = False
    held: tuple[str, ...] = ()
    checkpoint: Path | None = None

    def read(self) -> Callable[[str], np.ndarray]:
        """What gives a parameter by its name: the checkpoint, or seeded numbers."""
        if self.checkpoint is not None:
            from smalti.checkpoint import load

            return load(self.checkpoint).floats
        shapes = {name: value.shape for name, value in self.graph().parameters.items()}
        return lambda name: seeded(name, shapes[name])

    def module(self) -> Any:
        """The PyTorch module, with the case's weights."""
        peer = self.peer()
        if self.checkpoint is not None:
            peer.fill(self.read())
        return peers.called(peer, self.call)

    def digest(self) -> str:
        """Eight digits that change with shapes and names of inputs and parameters, and the file."""
        graph = self.graph()
        said = [str(self.checkpoint or ""), *(f"{name} {array.shape} {array.dtype}"
                                              for name, array in self.inputs().items()),
                *(f"{name} {value.shape}" for name, value in graph.parameters.items())]
        return hashlib.sha256("\n".join(said).encode()).hexdigest()[:8]


def normal(seed: int, *shape: int) -> np.ndarray:
    """Seeded standard normal f32."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def tokens(config: ClipTextConfig | LanguageConfig, batch: int, count: int) -> Inputs:
    """Numbers of tokens for a text encoder."""
    ids = np.random.default_rng(5).integers(0, config.vocab_size, (batch, count), np.int32)
    return {"tokens": ids}


def unet_inputs(config: UNetConfig, batch: int, height: int, width: int, count: int) -> Inputs:
    """A latent in the middle of denoising, its time, and a context of `count` tokens."""
    return {"latent": normal(1, batch, config.in_channels, height, width),
            "timesteps": np.full(batch, TIMESTEP, np.float32),
            "context": normal(2, batch, count, config.context_dim)}


def latent(config: VaeConfig, height: int, width: int) -> Inputs:
    """What a decoder reads."""
    return {"latent": normal(3, 1, config.z_channels, height, width)}


def image(channels: int, height: int, width: int) -> Inputs:
    """Pixels in [-1, 1]."""
    shape = (1, channels, height, width)
    return {"image": np.random.default_rng(4).uniform(-1, 1, shape).astype(np.float32)}


def grid(side: int, axes: tuple[int, ...], base: float, first: int = 0,
         pairs_of_head: int | None = None) -> Inputs:
    """Rotary angles of side x side tokens that turn with row and column; `first` ones, the channels
    of the first of the `axes`, and those of a head behind them, do not."""
    still, *turning = (axis // 2 for axis in axes)
    angles = np.zeros((1, first + side * side, pairs_of_head or sum(axes) // 2))
    for place, pairs in zip(np.divmod(np.arange(side * side), side), turning, strict=True):
        frequencies = base ** -(np.arange(pairs) / pairs)
        angles[0, first:, still:still + pairs] = place[:, None] * frequencies
        still += pairs
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


def flux_inputs(config: FluxConfig, side: int, text: int) -> Inputs:
    """Tokens of a square image and of a text, the vector that modulates, and rotary angles."""
    return {"img": normal(6, 1, side * side, config.hidden_size),
            "txt": normal(7, 1, text, config.hidden_size),
            "vec": normal(8, 1, config.hidden_size),
            **grid(side, config.axes, config.rotary_base, text)}


def z_image_inputs(config: ZImageConfig, side: int) -> Inputs:
    """Tokens of a square image, the vector of time, and rotary angles."""
    return {"x": normal(9, 1, side * side, config.hidden_size),
            "vec": normal(10, 1, config.vector_size),
            **grid(side, config.axes, config.rotary_base)}


def flux2_inputs(config: Flux2Config, side: int, text: int) -> Inputs:
    """Tokens of a text and of a square image, what modulates them, and rotary angles."""
    modulations = {name: normal(seed, 1, config.hidden_size)
                   for seed, name in ((11, "shift"), (12, "scale"), (13, "gate"))}
    return {"x": normal(14, 1, text + side * side, config.hidden_size), **modulations,
            **grid(side, config.axes[:3], config.rotary_base, text, config.head_dim // 2)}


# ---------------------------------------------------------------------- kinds of cases


def tiny_cnn(name: str, title: str, side: int, **more: Any) -> Case:
    """TinyCNN for one picture of side x side."""
    return Case(name, title, partial(tiny_cnn_graph, side), partial(image, 3, side, side),
                peers.peer_tiny_cnn, peers.call_directly, **more)


def mobilenet_v2(name: str, title: str, config: MobileNetV2Config, height: int, width: int,
                 **more: Any) -> Case:
    """MobileNetV2 for one picture of height x width."""
    return Case(name, title, partial(mobilenet_v2_graph, config, 1, height, width),
                partial(image, 3, height, width), partial(peers.peer_mobilenet_v2, config),
                peers.call_mobilenet_v2, **more)


def clip_text(name: str, title: str, config: ClipTextConfig, batch: int, count: int,
              **more: Any) -> Case:
    """A CLIP text encoder that reads `count` tokens."""
    return Case(name, title, partial(clip_text_graph, config, batch, count),
                partial(tokens, config, batch, count), partial(peers.peer_clip_text, config),
                peers.call_text, **more)


def language_text(name: str, title: str, config: LanguageConfig, count: int,
                  **more: Any) -> Case:
    """A language model that reads `count` tokens, all its layers and the norm behind them."""
    graph = partial(language_graph, config, 1, count, taps=(config.layers,), final_norm=True)
    return Case(name, title, graph, partial(tokens, config, 1, count),
                partial(peers.peer_language, config), peers.call_text, **more)


def unet(name: str, title: str, config: UNetConfig, batch: int, height: int, width: int,
         count: int, **more: Any) -> Case:
    """One evaluation of a UNet on latents of height x width, with `count` tokens of context."""
    return Case(name, title, partial(unet_graph, config, batch, height, width, count),
                partial(unet_inputs, config, batch, height, width, count),
                partial(peers.peer_unet, config), peers.call_unet, held=("context",), **more)


def vae_decode(name: str, title: str, config: VaeConfig, height: int, width: int,
               **more: Any) -> Case:
    """A latent of height x width becomes a picture."""
    return Case(name, title, partial(vae_decoder_graph, config, 1, height, width),
                partial(latent, config, height, width), partial(peers.peer_vae, config),
                peers.call_vae_decode, picture=True, **more)


def vae_encode(name: str, title: str, config: VaeConfig, height: int, width: int,
               **more: Any) -> Case:
    """A picture of height x width becomes a latent."""
    return Case(name, title, partial(vae_encoder_graph, config, 1, height, width),
                partial(image, config.image_channels, height, width),
                partial(peers.peer_vae, config), peers.call_vae_encode, **more)


def flux_double_block(name: str, title: str, config: FluxConfig, side: int, text: int,
                      **more: Any) -> Case:
    """A double-stream block of Flux: an image of side x side tokens, `text` tokens of text."""
    return Case(name, title, partial(flux_double_block_graph, config, side * side, text),
                partial(flux_inputs, config, side, text),
                partial(peers.peer_flux_double_block, config), peers.call_flux_double_block,
                **more)


def z_image_block(name: str, title: str, config: ZImageConfig, side: int, **more: Any) -> Case:
    """A block of Z-Image: side x side tokens."""
    return Case(name, title, partial(z_image_block_graph, config, side * side),
                partial(z_image_inputs, config, side),
                partial(peers.peer_z_image_block, config), peers.call_z_image_block, **more)


def flux2_single_block(name: str, title: str, config: Flux2Config, side: int, text: int,
                       **more: Any) -> Case:
    """A single-stream block of FLUX.2: `text` tokens of text, an image of side x side tokens."""
    return Case(name, title, partial(flux2_single_block_graph, config, text + side * side),
                partial(flux2_inputs, config, side, text),
                partial(peers.peer_flux2_single_block, config), peers.call_flux2_single_block,
                **more)


_CASES = (
    tiny_cnn("tiny_cnn", "TinyCNN 32x32", 32, bounds={"f32": 1.0}),
    mobilenet_v2("mobilenet_v2", "MobileNetV2 224x224", MobileNetV2Config(), 224, 224,
                 bounds={"f32": 1.0, "bf16": 1.1, "f32, avx2": 1.0}),
    clip_text("clip_l", "CLIP-L text encoder, 77 tokens", CLIP_L, 1, 77,
              bounds={"f32": 0.95, "bf16": 1.0, "f32, avx2": 0.95}),
    unet("unet", "SD 1.5 UNet step 512x512, batch 2", SD1_UNET, 2, 64, 64, 77,
         bounds={"f32": 0.70, "bf16": 0.85, "f32, avx2": 0.75}),
    unet("unet_1", "SD 1.5 UNet step 512x512, batch 1", SD1_UNET, 1, 64, 64, 77),
    vae_decode("decode_256", "SD 1.5 VAE decode 256x256", SD15.vae, 32, 32),
    vae_decode("decode", "SD 1.5 VAE decode 512x512", SD15.vae, 64, 64,
               bounds={"f32": 0.55, "bf16": 0.75, "f32, avx2": 0.45}),
    vae_encode("encode", "SD 1.5 VAE encode 512x512", SD15.vae, 512, 512,
               bounds={"f32": 0.60, "bf16": 0.80, "f32, avx2": 0.55}),
    flux_double_block("flux_block", "Flux double block, 1024 + 256 tokens", FLUX_DEV, 32, 256,
                      bounds={"f32": 0.95, "bf16": 0.95}),
    z_image_block("z_image_block", "Z-Image block, 1024 tokens", Z_IMAGE, 32,
                  bounds={"f32": 0.90, "bf16": 0.90}),
    flux2_single_block("flux2_block", "FLUX.2 klein single block, 512 + 1024 tokens",
                       FLUX2_KLEIN_4B, 32, 512, bounds={"f32": 0.90, "bf16": 0.90}),
    language_text("qwen3", "Qwen3-4B, 2 of 36 layers, 256 tokens",
                  replace(QWEN3_4B, layers=2, vocab_size=4096), 256,
                  bounds={"f32": 0.90, "bf16": 0.90}),
)
CASES: dict[str, Case] = {case.name: case for case in _CASES}
"""The suite, by name, in the order in which it is measured."""


def chosen(names: Sequence[str]) -> list[Case]:
    """The cases of these names. Raises InputError for an unknown one."""
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise InputError(f"no model of the suite is named {', '.join(map(repr, unknown))}; known: "
                         f"{', '.join(CASES)}")
    return [CASES[name] for name in names]
