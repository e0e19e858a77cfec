"""Hyperparameters of the model families: frozen data, no behaviour, no weights.

A checkpoint yields one of these (see `smalti.checkpoint`), and a model is built from one. Levels
count from the highest resolution (level 0) to the lowest; widths are channels.

>>> SD15.denoiser.block_channels
(320, 640, 1280, 1280)
>>> SD15.denoiser.heads_at(640), SD15.texts["clip_l"].head_dim, SD15.vae.downscale
(8, 64, 8)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from smalti.dataclass import dataclass
from smalti.models.denoiser_config import DenoiserConfig, Division
from smalti.models.language_config import LanguageConfig, ReduxConfig
from smalti.models.transformer_config import T5Config

Prediction = Literal["epsilon", "v_prediction", "sample", "flow", "edm", "edm_v"]
WHOLE_WAY = (0.0, 1.0)
"""From when to when guidance counts where nothing says it: from noise alone to the picture."""


@dataclass(frozen=True)
class ClipTextConfig:
    """CLIP text transformer (Radford et al. 2021, arXiv:2103.00020): pre-norm, causal.

    `projection` is the width of what the pooled token is projected to, 0 without a projection;
    parameters are named below `prefix`.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    positions: int
    activation: str = "quick_gelu"
    eps: float = 1e-5
    projection: int = 0
    prefix: str = "cond_stage_model.transformer"

    @property
    def head_dim(self) -> int:
        """Channels per attention head."""
        return self.hidden_size // self.heads

    def divisions(self) -> Iterator[Division]:
        """What must divide what."""
        yield "text encoder", self.hidden_size, "attention heads", self.heads

    def outline(self) -> str:
        """Its size, in one line."""
        return (f"{self.layers} layers, width {self.hidden_size}, {self.heads} heads,"
                f" vocabulary {self.vocab_size}, {self.positions} positions, {self.activation}")


@dataclass(frozen=True)
class UNetConfig(DenoiserConfig):
    """Latent diffusion UNet (Rombach et al. 2022, arXiv:2112.10752).

    `attention` and `transformer_depth` have one entry per level; the depth is 0 where a level has
    no attention. Where the way up differs from the way down, `output_depth` has the depths of its
    blocks, for each level in the order in which they run. The middle is a transformer between two
    residual blocks, of the depth of the last level that has any unless `depth_in_middle` is given;
    or it is one residual block, or there is none. The number of heads is `heads`, unless `head_dim`
    is given: then it is width // head_dim. `vector_dim` is the width of what is embedded beside
    the time (Podell et al. 2023, arXiv:2307.01952, section 2.2), 0 without it. With `guidance`, as
    in latent consistency models, the strength of guidance is told to the model, too, as
    `guidance_sinusoids` (Luo et al. 2023, arXiv:2310.04378, section 4.2).
    """

    in_channels: int
    out_channels: int
    block_channels: tuple[int, ...]
    res_blocks: int
    attention: tuple[bool, ...]
    heads: int
    head_dim: int | None
    transformer_depth: tuple[int, ...]
    context_dim: int
    norm_groups: int = 32
    eps: float = 1e-5
    linear_projection: bool = False
    vector_dim: int = 0
    output_depth: tuple[tuple[int, ...], ...] = ()
    middle: Literal["transformer", "residual", "none"] = "transformer"
    depth_in_middle: int | None = None
    guidance: bool = False
    guidance_sinusoids: int = 256

    part = "unet"
    tileable = True

    @property
    def time_dim(self) -> int:
        """Width of the time embedding: four times the first block."""
        return 4 * self.block_channels[0]

    @property
    def middle_depth(self) -> int:
        """Transformer depth of the middle block."""
        if self.depth_in_middle is not None:
            return self.depth_in_middle
        return next((depth for depth in reversed(self.transformer_depth) if depth), 1)

    def output_depths(self, level: int) -> tuple[int, ...]:
        """Transformer depths of a level's blocks on the way up, in the order in which they run.

        >>> SSD1B_UNET.output_depths(2), SDXL_UNET.output_depths(1)
        ((4, 4, 10), (2, 2, 2))
        """
        if self.output_depth:
            return self.output_depth[level]
        return (self.transformer_depth[level],) * (self.res_blocks + 1)

    def heads_at(self, channels: int) -> int:
        """Number of attention heads at a width of `channels`."""
        return self.heads if self.head_dim is None else channels // self.head_dim

    @property
    def title(self) -> str:
        """What to call it in a sentence."""
        return "UNet"

    @property
    def multiple(self) -> int:
        """What the sides of a latent must be multiples of: it is halved from level to level."""
        return 2 ** (len(self.block_channels) - 1)

    def widest(self, area: int) -> int:
        """Numbers in an activation of the first level, for a latent of `area` pixels."""
        return self.block_channels[0] * area

    def purposes(self, latent: int, downscale: int) -> Mapping[int, str]:
        """Channels that are read behind the `latent` ones -> what a model with these is made for.
        """
        return {0: "text", latent: "edit", latent + 1: "inpaint"}

    def divisions(self) -> Iterator[Division]:
        """What must divide what."""
        levels = [*zip(self.block_channels, self.attention, strict=True),
                  (self.block_channels[-1], self.middle == "transformer")]
        for width, attends in levels:
            yield "UNet", width, "norm groups", self.norm_groups
            if attends:
                yield ("UNet", width, "attention heads", self.heads) if self.head_dim is None else (
                    "UNet", width, "channels of a head", self.head_dim)

    @property
    def depth(self) -> str:
        """How many blocks it has, in words."""
        return f"{self.res_blocks} blocks a level"

    def outline(self) -> str:
        """Its size, in one line."""
        attending = " ".join(str(level) for level, on in enumerate(self.attention) if on)
        split = f"{self.heads} heads" if self.head_dim is None else f"heads of {self.head_dim}"
        return (f"{self.in_channels} input channels, then"
                f" {' '.join(map(str, self.block_channels))}, {self.depth},"
                f" attention at levels {attending}, {split}, context {self.context_dim}")


@dataclass(frozen=True)
class ControlNetConfig:
    """ControlNet (Zhang et al. 2023, arXiv:2302.05543) for a UNet, whose way down it repeats.

    `hint_channels` are the widths in which the picture is read, each of half the size of the one
    before; `pooled` means that only the mean over all pixels is handed on ("shuffle"). A union has
    several `types` of pictures, each told to the model as `type_sinusoids` sinusoids, and
    `type_layers` transformer blocks. One that `fills` reads -1 where a picture is to be filled.
    """

    unet: UNetConfig
    hint_channels: tuple[int, ...] = (16, 32, 96, 256)
    image_channels: int = 3
    pooled: bool = False
    types: int = 0
    type_sinusoids: int = 256
    type_layers: int = 1
    fills: bool = False

    @property
    def downscale(self) -> int:
        """Pixels of the picture per latent pixel, along one side."""
        return 2 ** (len(self.hint_channels) - 1)


@dataclass(frozen=True)
class VaeConfig:
    """KL autoencoder of latent diffusion (the same paper, f8): image [-1, 1] to latent and back.

    Decoder levels have `res_blocks + 1` residual blocks, encoder levels `res_blocks`; there is one
    attention layer in the middle of each. `channels` is the width of the first level. A latent in
    model space is (mean - shift_factor) * scaling_factor of what the encoder gives; where channels
    have means and deviations of their own, as those of Playground 2.5, it is (mean - latents_mean)
    / latents_std * scaling_factor. Newer ones have no 1x1 convolutions about the latent
    (`quant_conv`).

    With a `patch` above 1, as in FLUX.2, a latent pixel of the model is patch x patch pixels of
    what the convolutions give, channel by channel, normalised by statistics that are parameters,
    with `statistics_eps` added to variances; `z_channels` are those of the model. Where the
    decoder's levels have other widths than the encoder's, they are `decoder_channels`.
    """

    channels: int
    block_channels: tuple[int, ...]
    res_blocks: int
    z_channels: int
    norm_groups: int = 32
    eps: float = 1e-6
    image_channels: int = 3
    scaling_factor: float = 0.18215
    quant_conv: bool = True
    shift_factor: float = 0.0
    latents_mean: tuple[float, ...] = ()
    latents_std: tuple[float, ...] = ()
    patch: int = 1
    statistics_eps: float = 1e-4
    decoder_channels: tuple[int, ...] = ()

    @property
    def downscale(self) -> int:
        """Pixels per latent pixel, along one side."""
        return self.patch * 2 ** (len(self.block_channels) - 1)

    @property
    def inner_channels(self) -> int:
        """Channels of the latents that its convolutions give and take."""
        return self.z_channels // self.patch**2

    @property
    def decoder_widths(self) -> tuple[int, ...]:
        """The widths of the decoder's levels."""
        return self.decoder_channels or self.block_channels

    def divisions(self) -> Iterator[Division]:
        """What must divide what."""
        for width in (*self.block_channels, *self.decoder_channels):
            yield "autoencoder", width, "norm groups", self.norm_groups


@dataclass(frozen=True)
class CausalVaeConfig(VaeConfig):
    """The autoencoder of Wan 2.1 (Wan team 2025, arXiv:2503.20314, section 4.1) and of Qwen-Image,
    which was made for films: a picture is one of a single frame.

    Its norms have no groups and no epsilon; around the latent there always are 1x1 convolutions.
    Levels of time do not show in a picture.
    """

    scaling_factor: float = 1.0

    def divisions(self) -> Iterator[Division]:
        """Nothing is divided."""
        return iter(())


@dataclass(frozen=True)
class ResidualVaeConfig(CausalVaeConfig):
    """The autoencoder of Qwen-Image-2.1 (Qwen team 2026), made of that of Wan 2.2 for pictures,
    which have an opacity besides their colours.

    What a level reads is added to what it gives, in the size and with as many channels as that. A
    level that halves time in films, too, holds a single picture as the last of two frames.
    """

    image_channels: int = 4

    def frames(self, level: int) -> int:
        """Of how many frames a level of the encoder, counted from the outside, makes one."""
        return 2 if 0 < level < len(self.block_channels) - 1 else 1


@dataclass(frozen=True)
class TaesdConfig:
    """The tiny autoencoder TAESD (madebyollin/taesd): residual blocks of each size, in the order
    in which they run; between two sizes the image is doubled or halved."""

    z_channels: int
    channels: int = 64
    decoder_blocks: tuple[int, ...] = (3, 3, 3, 1)
    encoder_blocks: tuple[int, ...] = (1, 3, 3, 3)
    image_channels: int = 3

    @property
    def downscale(self) -> int:
        """Pixels per latent pixel, along one side."""
        return 2 ** (len(self.decoder_blocks) - 1)


@dataclass(frozen=True)
class RrdbConfig:
    """ESRGAN and Real-ESRGAN (Wang et al. 2018, arXiv:1809.00219; 2021, arXiv:2107.10833).

    `growth` channels are added by each convolution of a dense block; the image is doubled
    `doublings` times; before that, pixels of squares of `unshuffle` x `unshuffle` become channels.
    """

    channels: int = 64
    growth: int = 32
    blocks: int = 23
    doublings: int = 2
    unshuffle: int = 1
    image_channels: int = 3

    title = "an ESRGAN"

    @property
    def scale(self) -> float:
        """Pixels of the result per pixel of the image, along one side."""
        return 2**self.doublings / self.unshuffle

    def outline(self) -> str:
        """Its size, in words."""
        return f"{self.blocks} blocks of {self.channels} channels"


@dataclass(frozen=True)
class SrvggConfig:
    """The compact network of Real-ESRGAN (the same repository): `convolutions` of one width between
    the first and the last, `scale` times as many pixels along one side."""

    channels: int = 64
    convolutions: int = 16
    scale: int = 4
    image_channels: int = 3

    title = "a compact Real-ESRGAN"
    unshuffle = 1
    """Pixels of a side that become channels: none, as of an ESRGAN without it."""

    def outline(self) -> str:
        """Its size, in words."""
        return f"{self.convolutions} convolutions of {self.channels} channels"


@dataclass(frozen=True)
class MobileNetV2Config:
    """MobileNetV2 (Sandler et al. 2018, arXiv:1801.04381) with a linear classifier.

    `blocks` holds the rows of the paper's table 2: expansion t, channels c, repetitions n and the
    stride s of the first one. `multiplier` is the width multiplier of section 6.1. `same_padding`
    pads as TensorFlow does, more behind than in front, so that strides meet the original weights.
    """

    classes: int = 1000
    multiplier: float = 1.0
    blocks: tuple[tuple[int, int, int, int], ...] = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1))
    stem_channels: int = 32
    head_channels: int = 1280
    image_channels: int = 3
    eps: float = 1e-3
    same_padding: bool = True

    def width(self, channels: int) -> int:
        """`channels` times the multiplier, to the next 8 and at most a tenth narrower.

        >>> MobileNetV2Config(multiplier=0.5).width(24), MobileNetV2Config().width(24)
        (16, 24)
        """
        wanted = channels * self.multiplier
        found = max(8, int(wanted + 4) // 8 * 8)
        return found + 8 if found < 0.9 * wanted else found


TextConfig = ClipTextConfig | T5Config | LanguageConfig | ReduxConfig


@dataclass(frozen=True)
class ModelConfig:
    """A whole model: its text encoders, denoiser and autoencoder, noise levels and defaults.

    `family` is the name of its record in `smalti.families`, such as "sd1" or "flux". `texts` are
    the text encoders by name ("clip_l", "clip_h", "clip_g", "t5xxl"), in the order in which they
    are read. `beta_start`, `beta_end`, `train_steps` are those of the scaled-linear schedule, with
    `zero_terminal_snr` rescaled until the last step is noise alone (Lin et al. 2023,
    arXiv:2305.08891); `flow_shift` moves the levels of models that predict a flow, None for one
    that follows from the size of the picture, then between the two `flow_shift_points` of a number
    of tokens and mu where a file states other ones than its family has; a schedule of such a model
    is stretched to end with the level `flow_terminal`, if that is not 0; `sigma_min` and
    `sigma_max` are the levels of those of EDM. Sizes are in pixels. `default_guidance_time` are the
    shares of training time, counted from noise alone, between which guidance counts.
    `default_distilled_guidance` is
    what a model is told that was distilled from guided ones; `distilled` is how it was distilled to
    few steps, where that is known, such as "lightning".
    """

    family: str
    texts: Mapping[str, TextConfig]
    denoiser: DenoiserConfig
    vae: VaeConfig
    prediction: Prediction = "epsilon"
    beta_start: float = 0.00085
    beta_end: float = 0.012
    train_steps: int = 1000
    zero_terminal_snr: bool = False
    flow_shift: float | None = 1.0
    flow_shift_points: tuple[tuple[int, float], tuple[int, float]] | None = None
    flow_terminal: float = 0.0
    sigma_min: float = 0.002
    sigma_max: float = 80.0
    default_width: int = 512
    default_height: int = 512
    default_steps: int = 20
    default_guidance: float = 7.0
    default_guidance_time: tuple[float, float] = WHOLE_WAY
    default_sampler: str = "euler_a"
    default_noise: str = "karras"
    default_distilled_guidance: float = 3.5
    distilled: str | None = None


CLIP_L = ClipTextConfig(49408, 768, 3072, layers=12, heads=12, positions=77)
"""The text encoder of Stable Diffusion 1.x; one of several in SDXL, SD3 and Flux."""

OPENCLIP_H = ClipTextConfig(49408, 1024, 4096, layers=24, heads=16, positions=77,
                            activation="gelu", prefix="text_encoders.clip_h.transformer")
"""OpenCLIP ViT-H/14, of Stable Diffusion 2.x, which reads the state before the last layer."""

OPENCLIP_G = ClipTextConfig(49408, 1280, 5120, layers=32, heads=20, positions=77,
                            activation="gelu", projection=1280,
                            prefix="text_encoders.clip_g.transformer")
"""OpenCLIP ViT-bigG/14, of SDXL and SD3."""

SD1_UNET = UNetConfig(
    in_channels=4,
    out_channels=4,
    block_channels=(320, 640, 1280, 1280),
    res_blocks=2,
    attention=(True, True, True, False),
    heads=8,
    head_dim=None,
    transformer_depth=(1, 1, 1, 0),
    context_dim=768,
)
"""Stable Diffusion 1.x; with 9 input channels for inpainting, with 8 InstructPix2Pix."""

SD2_UNET = replace(SD1_UNET, head_dim=64, context_dim=1024, linear_projection=True)
"""Stable Diffusion 2.x; with 9 input channels for inpainting, with 5 for depth."""

SDXL_UNET = UNetConfig(
    in_channels=4,
    out_channels=4,
    block_channels=(320, 640, 1280),
    res_blocks=2,
    attention=(False, True, True),
    heads=8,
    head_dim=64,
    transformer_depth=(0, 2, 10),
    context_dim=2048,
    linear_projection=True,
    vector_dim=2816,
)
"""SDXL (arXiv:2307.01952), of which the vector is 1280 pooled and 6 numbers of 256 sinusoids."""

SDXL_REFINER_UNET = replace(
    SDXL_UNET, block_channels=(384, 768, 1536, 1536), attention=(False, True, True, False),
    transformer_depth=(0, 4, 4, 0), context_dim=1280, vector_dim=2560)
"""The refiner of SDXL, with 5 numbers in the vector."""

SSD1B_UNET = replace(
    SDXL_UNET, transformer_depth=(0, 2, 4), output_depth=((0, 0, 0), (2, 1, 1), (4, 4, 10)),
    middle="residual")
"""SSD-1B (Gupta et al. 2024, arXiv:2401.02677), SDXL with fewer transformer blocks."""

VEGA_UNET = replace(
    SDXL_UNET, transformer_depth=(0, 1, 2), output_depth=((0, 0, 0), (1, 1, 1), (2, 2, 2)),
    middle="residual")
"""Segmind-Vega, of the same paper."""

SD_VAE = VaeConfig(128, (128, 256, 512, 512), res_blocks=2, z_channels=4)
"""Stable Diffusion 1.x and 2.x."""

SDXL_VAE = replace(SD_VAE, scaling_factor=0.13025)
SD3_VAE = replace(SD_VAE, z_channels=16, scaling_factor=1.5305, shift_factor=0.0609,
                  quant_conv=False)
FLUX_VAE = replace(SD3_VAE, scaling_factor=0.3611, shift_factor=0.1159)
FLUX2_VAE = replace(SD_VAE, z_channels=128, scaling_factor=1.0, patch=2)

WAN_VAE = CausalVaeConfig(
    96, (96, 192, 384, 384), res_blocks=2, z_channels=16,
    latents_mean=(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134,
                  -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
    latents_std=(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526,
                 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160))
"""Wan 2.1 and, with other weights, Qwen-Image (diffusers, AutoencoderKLWan and -QwenImage)."""

QWEN_IMAGE21_VAE = ResidualVaeConfig(
    96, (96, 192, 384, 768, 768), res_blocks=2, z_channels=64,
    decoder_channels=(144, 288, 576, 1152, 1152),
    latents_mean=(0.5126, 0.7721, -0.0631, 1.3506, -0.7855, -2.1025, -0.3458, 1.3722, 1.8873,
                  -1.7177, -0.651, 0.2732, 0.7562, -0.6163, -1.0277, 3.8363, 2.021, 0.0472, 0.932,
                  2.0087, 2.4954, -0.1391, -1.4249, 1.8464, -0.5236, 1.2826, 3.7046, -1.3035,
                  2.7286, -1.4518, -1.9036, -1.9955, -0.0342, -1.0265, -0.7636, 3.0555, 0.0746,
                  -3.0751, -0.1076, 1.7376, -1.0914, -1.9435, -0.2784, -1.368, 0.4809, -0.4433,
                  0.3764, 0.5729, -2.0595, 1.096, -1.326, -2.0211, -5.0179, 0.5275, 4.0162,
                  1.8505, 0.3026, 1.9373, 1.4937, 0.2632, 0.5547, -1.7121, -0.1562, 0.0304),
    latents_std=(3.2001, 3.2936, 3.4321, 3.0091, 3.1061, 4.0379, 4.0705, 3.791, 3.0785, 3.65,
                 3.9308, 3.0904, 2.8778, 3.7675, 3.732, 5.0756, 3.2864, 4.0397, 3.1317, 4.0443,
                 2.9249, 3.9454, 3.0988, 4.2489, 3.4896, 3.8513, 3.9323, 3.4719, 3.7498, 4.283,
                 3.5694, 4.2467, 3.9037, 3.2947, 5.077, 3.5075, 3.27, 3.4767, 2.8063, 5.1125,
                 3.5327, 4.7833, 3.1286, 4.1819, 3.8527, 3.8312, 3.5605, 4.3875, 3.9624, 4.0168,
                 3.5643, 4.055, 5.5614, 4.2963, 4.408, 3.4959, 3.8747, 3.7608, 3.5735, 3.149,
                 3.7662, 3.6746, 3.4563, 3.8161))
"""Qwen-Image-2.1 (diffusers, AutoencoderKLQwenImage21)."""

TAESD = TaesdConfig(z_channels=4)
"""For Stable Diffusion 1.x and 2.x; with other weights for SDXL."""

TAESD3 = TaesdConfig(z_channels=16)
"""For Stable Diffusion 3; with other weights for Flux."""

SD15 = ModelConfig("sd1", {"clip_l": CLIP_L}, SD1_UNET, SD_VAE)
"""Stable Diffusion 1.5."""
