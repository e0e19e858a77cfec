"""Hyperparameters of the transformer families: frozen data, no behaviour, no weights.

>>> FLUX_DEV.head_dim, FLUX_DEV.packed_channels, SD35_LARGE.head_dim, T5_XXL.inner_size
(128, 64, 64, 4096)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from smalti.dataclass import dataclass
from smalti.models.denoiser_config import DenoiserConfig, Division


@dataclass(frozen=True)
class T5Config:
    """Encoder of T5 v1.1 (Raffel et al. 2020, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202).

    Distances between tokens fall into `buckets`, half of them for each direction; all from
    `distance_max` on share the last. Each bucket has a bias for each head.
    """

    vocab_size: int
    hidden_size: int
    mlp_size: int
    layers: int
    heads: int
    head_dim: int
    buckets: int = 32
    distance_max: int = 128
    eps: float = 1e-6

    @property
    def inner_size(self) -> int:
        """Channels of all heads together."""
        return self.heads * self.head_dim

    def divisions(self) -> Iterator[Division]:
        """What must divide what: nothing that shapes would not show."""
        yield from ()

    def outline(self) -> str:
        """Its size, in one line."""
        return (f"{self.layers} layers, width {self.hidden_size}, {self.heads} heads,"
                f" vocabulary {self.vocab_size}")


def of_area(area: int, width: int, height: int) -> tuple[int, int]:
    """Sides of a picture of this shape with about so many pixels, multiples of `READ_MULTIPLE`.

    >>> of_area(384 * 384, 640, 480), of_area(384 * 384, 9000, 10)
    ((448, 320), (11520, 32))
    """
    wide = (area * (width / height)) ** 0.5
    return tuple(max(1, round(side / READ_MULTIPLE)) * READ_MULTIPLE
                 for side in (wide, wide / (width / height)))


READ_AREA = 1024 * 1024
"""Pixels of a picture that is read: by FLUX.2 at most, by Qwen-Image-Edit about."""
READ_MULTIPLE = 32
"""Of the sides of those that Qwen-Image-Edit reads, in pixels."""
FLUX2_REFERENCES = 10
"""Pictures that FLUX.2 reads at most, as its authors' service does for dev."""
KONTEXT_SIDES = ((672, 1568), (688, 1504), (720, 1456), (752, 1392), (800, 1328), (832, 1248),
                 (880, 1184), (944, 1104), (1024, 1024))
"""Pixels of the sides of pictures that FLUX.1 Kontext was trained with, either way round."""


class TransformerConfig(DenoiserConfig):
    """What the hyperparameters of transformers have in common."""

    @property
    def head_dim(self) -> int:
        """Channels per attention head."""
        return self.hidden_size // self.heads


@dataclass(frozen=True)
class FluxConfig(TransformerConfig):
    """Flux.1 (Black Forest Labs 2024; Esser et al. 2024, arXiv:2403.03206).

    Channels are those of the latent, before 2 x 2 pixels become a token: `in_channels` is 16, 32
    with the latent of a control picture behind, 96 for Fill (the latent, that of the masked
    picture, the mask of 8 x 8 pixels). `guidance` is whether the model was distilled from guided
    predictions and is told their strength. `axes` are the channels of a head that turn with
    index, row and column. Kontext has a `reference`: tokens of the picture that it changes stand
    behind those of the latent, with index 1 (Black Forest Labs 2025, arXiv:2506.15742).
    """

    hidden_size: int
    heads: int
    mlp_size: int
    eps: float = 1e-6
    double_blocks: int = 19
    single_blocks: int = 38
    in_channels: int = 16
    out_channels: int = 16
    context_dim: int = 4096
    pooled_dim: int = 768
    guidance: bool = True
    axes: tuple[int, ...] = (16, 56, 56)
    rotary_base: float = 10000.0
    reference: bool = False

    bias = True
    """Whether linear layers have biases."""

    gated = False
    """Whether the first layer of an MLP gives gates, too."""

    gates_last = False
    """Whether these come behind what they are for."""

    context_normed = False
    """Whether what is read of a text goes through a norm first."""

    diagonal = False
    """Whether the tokens of a text stand one behind the other, on rows and columns alike."""

    image_start = (0, 0, 0)
    """Where the first token of the image stands: index, row and column."""

    unit = 2.0**-5
    """What tokens are kept in between blocks, so that sums of two million fit f16: a power of two,
    which changes no bit of a result in f32 or bf16, since norms alone read them."""

    @property
    def stream_eps(self) -> float:
        """What norms of such tokens add to their variances."""
        return self.eps * self.unit**2

    @property
    def inner_size(self) -> int:
        """Channels that the first layer of an MLP gives."""
        return self.mlp_size * (2 if self.gated else 1)

    def sides(self, width: int, height: int) -> tuple[int, int]:
        """For Kontext the size that it was trained with whose shape is nearest.

        >>> replace(FLUX_DEV, reference=True).sides(3000, 2000)
        (1248, 832)
        """
        if not self.reference:
            return width, height
        sizes = sorted({size for pair in KONTEXT_SIDES for size in (pair, pair[::-1])})
        return min(sizes, key=lambda size: abs(width / height - size[0] / size[1]))

    @property
    def packed_channels(self) -> int:
        """Channels of a token of the latent: those of 2 x 2 pixels."""
        return 4 * self.in_channels

    @property
    def modulations(self) -> int:
        """Vectors that modulate: 3 a single block, 12 a double block, 2 of the last layer."""
        return 3 * self.single_blocks + 12 * self.double_blocks + 2

    @property
    def depth(self) -> str:
        """How many blocks of which kinds it has, in words."""
        return f"{self.double_blocks} double and {self.single_blocks} single blocks"


@dataclass(frozen=True)
class ChromaConfig(FluxConfig):
    """Chroma (Lodestone Rock 2025): Flux without vectors of text and guidance.

    All vectors that modulate come from one small network of `approximator_layers` of
    `approximator_size`, which reads `approximator_features` of time and of the number of the
    vector.
    """

    pooled_dim: int = 0
    guidance: bool = False
    approximator_size: int = 5120
    approximator_layers: int = 5
    approximator_features: int = 64


@dataclass(frozen=True)
class Flux2Config(FluxConfig):
    """FLUX.2 (Black Forest Labs 2025): gated MLPs, no biases, and no vector of the text.

    What modulates is the same for all blocks of a kind. A pixel of the latent is a token: its
    autoencoder makes one of 16 x 16 pixels of the picture. `axes` are the channels of a head that
    turn with the number of a picture, row, column, and the place in the text. Other pictures can be
    read as tokens behind those of the latent.
    """

    double_blocks: int = 5
    single_blocks: int = 20
    in_channels: int = 128
    out_channels: int = 128
    context_dim: int = 7680
    pooled_dim: int = 0
    guidance: bool = False
    axes: tuple[int, ...] = (32, 32, 32, 32)
    rotary_base: float = 2000.0
    reference: bool = True

    bias = False
    gated = True

    apart = True
    cropped = True

    @property
    def references(self) -> int:
        """Pictures that may be read as tokens."""
        return FLUX2_REFERENCES if self.reference else 0

    @property
    def multiple(self) -> int:
        """Any size of a latent will do."""
        return 1

    def sides(self, width: int, height: int) -> tuple[int, int]:
        """Of a larger picture than a megapixel those of one with as many and of the same shape.

        >>> FLUX2_KLEIN_4B.sides(3000, 2000), FLUX2_KLEIN_4B.sides(640, 480)
        ((1254, 836), (640, 480))
        """
        scale = (READ_AREA / (width * height)) ** 0.5
        return (width, height) if scale >= 1 else (int(scale * width), int(scale * height))


@dataclass(frozen=True)
class FluxControlNetConfig(FluxConfig):
    """A ControlNet for Flux.1: some of its blocks, which also read a picture.

    The picture is a latent, too, as InstantX made it, or with `hint_channels`, the widths in which
    it is read (see `ControlNetConfig`), one of pixels, as XLabs did; these controls go to the
    model's blocks in turn. A union knows `modes` kinds of pictures.
    """

    modes: int = 0
    hint_channels: tuple[int, ...] = ()


@dataclass(frozen=True)
class MMDiTConfig(TransformerConfig):
    """The multimodal diffusion transformer of Stable Diffusion 3 (Esser et al. 2024).

    The learned positions are a square of `positions` tokens a side, of which a picture takes the
    middle. `qk_norm` is whether queries and keys are normalised in each head; image tokens of the
    first `dual_blocks` blocks also attend to themselves alone, a second time.
    """

    hidden_size: int
    heads: int
    blocks: int
    positions: int = 192
    qk_norm: bool = False
    dual_blocks: int = 0
    in_channels: int = 16
    out_channels: int = 16
    context_dim: int = 4096
    pooled_dim: int = 2048
    eps: float = 1e-6

    @property
    def skippable_blocks(self) -> int:  # type: ignore[override]  # a count of its own in others
        """Blocks that can be left out to steer away from a worse picture: any."""
        return self.blocks

    @property
    def side_max(self) -> int | None:
        """The longest side of a latent that there are positions for."""
        return self.positions * self.multiple

    @property
    def depth(self) -> str:
        """How many blocks it has, in words."""
        return f"{self.blocks} blocks"


@dataclass(frozen=True)
class MMDiTControlNetConfig(MMDiTConfig):
    """A ControlNet for Stable Diffusion 3: some of its blocks, which also read a picture's latent.

    `hint_channels` are those of the latent, one more with a mask behind. Without `joint` blocks see
    no text, and tokens are embedded by the model's own weights: those of 3.5 large. Of these the
    one for edges (`canny`) was trained with pixels in another range.
    """

    hint_channels: int = 16
    joint: bool = True
    canny: bool = False

    @property
    def side_max(self) -> int | None:
        """The longest side of a latent that there are positions for; None where they are those of
        the model."""
        return super().side_max if self.joint else None


@dataclass(frozen=True)
class ZImageConfig(TransformerConfig):
    """Z-Image (Alibaba's Z-Image team 2025, arXiv:2511.22699): one stream of blocks.

    Before all `blocks`, which see image and text, `refiners` each see one of the two. Time becomes
    a vector of `vector_size`, by way of `time_size`. `axes` are the channels of a head that turn
    with the place in the text, the row and the column.
    """

    hidden_size: int
    heads: int
    mlp_size: int
    blocks: int = 30
    refiners: int = 2
    in_channels: int = 16
    out_channels: int = 16
    context_dim: int = 2560
    time_size: int = 1024
    vector_size: int = 256
    axes: tuple[int, ...] = (32, 48, 48)
    rotary_base: float = 256.0
    eps: float = 1e-5

    graph_name = "z_image"
    run = 32
    """Text and image tokens are each filled up to a multiple of so many with a learned token, which
    all others see; with 1 there are no such tokens."""
    first_place = 1
    """Where the first token of a text stands on the first axis."""
    picture_time = 1000.0
    """The time of the picture; that of pure noise is 0."""
    modulation = "adaLN_modulation.0"
    """What makes scales and gates of time."""
    activated = False
    """Whether time goes through SiLU before that."""

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values, which groups of those of queries share."""
        return self.heads

    @property
    def depth(self) -> str:
        """How many blocks of which kinds it has, in words."""
        return f"{self.blocks} blocks behind {self.refiners} of image and text each"


ALONE, LAYERS, STEERING = "alone", "layers", "steering"
"""How a ControlNet of Z-Image refines its picture (see there)."""


@dataclass(frozen=True)
class ZImageControlNetConfig(ZImageConfig):
    """A ControlNet for Z-Image (Alibaba PAI's "Fun ControlNet Union"): its `blocks` read the latent
    of a picture and the model's own tokens.

    Before them the tokens of the picture are refined: by `refiners` that see nothing else
    (`ALONE`, 1.0), by ones that steer those of the model, too (`STEERING`, 2.1), or by all blocks,
    which then steer (`LAYERS`, 2.0). `hint_channels` are those of the latent; newer ones read more,
    for inpainting: a mask and the latent of another picture. `places` are the blocks of the model
    behind which the blocks add something, `refiner_places` those of its refiners; where they are
    empty the blocks are spread evenly, and refiners are steered in turn.
    """

    hint_channels: int = 16
    refining: str = ALONE
    places: tuple[int, ...] = ()
    refiner_places: tuple[int, ...] = ()

    @property
    def fills(self) -> bool:
        """Whether it reads a picture that is to be filled, and where."""
        return self.hint_channels == 2 * self.in_channels + 1


@dataclass(frozen=True)
class Lumina2Config(ZImageConfig):
    """Lumina-Image 2 (Qin et al. 2025, arXiv:2503.21758): what Z-Image was made from. Nothing fills
    up texts and images, heads of queries share those of keys, and time is up to 1."""

    kv_heads: int = 8
    context_dim: int = 2304
    blocks: int = 26
    vector_size: int = 1024
    axes: tuple[int, ...] = (32, 32, 32)
    rotary_base: float = 10000.0

    graph_name = "lumina2"
    run = 1
    first_place = 0
    picture_time = 1.0
    modulation = "adaLN_modulation.1"
    activated = True
    normed = (1, 1, 0)

    def divisions(self) -> Iterator[Division]:
        """What must divide what."""
        yield from super().divisions()
        yield self.part, self.heads, "heads of keys", self.kv_heads


@dataclass(frozen=True)
class AnimaConfig(TransformerConfig):
    """Anima (CircleStone Labs 2025): the transformer of Cosmos-Predict2 (NVIDIA 2025), whose tokens
    of the image attend to each other and to those of the text.

    What modulates a block comes from time by way of `rank` channels. Of the text, T5's tokens are
    looked up among `vocab_size`, and `text_blocks` of `text_heads` make them see the states of a
    language model, which are `context_dim` wide, as the tokens are; there are always `TEXT_TOKENS`
    of these.
    """

    hidden_size: int
    heads: int
    mlp_size: int
    blocks: int = 28
    in_channels: int = 16
    out_channels: int = 16
    context_dim: int = 1024
    rank: int = 256
    text_dim: int = 1024
    text_heads: int = 16
    text_mlp_size: int = 4096
    text_blocks: int = 6
    vocab_size: int = 32128
    eps: float = 1e-6
    head_eps: float = 1e-5

    @property
    def axes(self) -> tuple[int, int, int]:
        """Channels of a head that turn with the frame, of which a picture has one, with the row and
        with the column."""
        place = self.head_dim // 6 * 2
        return self.head_dim - 2 * place, place, place

    @property
    def rotary_base(self) -> float:
        """That of rows and columns, stretched so that the slowest turns are a quarter as fast."""
        place = self.axes[1]
        return 10_000.0 * 4.0 ** (place / (place - 2))

    @property
    def depth(self) -> str:
        """How many blocks of which kinds it has, in words."""
        return f"{self.blocks} blocks, and {self.text_blocks} for the text"


@dataclass(frozen=True)
class QwenImageConfig(TransformerConfig):
    """Qwen-Image (Qwen team 2025, arXiv:2508.02324): blocks of two streams, text and image.

    `axes` are the channels of a head that turn with the number of a picture, row and column. Edit
    reads other pictures, so many `references`; that of 2511 has their tokens `clean`: modulated as
    at time 0.
    """

    hidden_size: int
    heads: int
    mlp_size: int
    blocks: int = 60
    references: int = 0
    clean: bool = False
    in_channels: int = 16
    out_channels: int = 16
    context_dim: int = 3584
    axes: tuple[int, ...] = (16, 56, 56)
    rotary_base: float = 10000.0
    eps: float = 1e-6

    normed = (0, 2, 2)
    """The side of a token: as diffusers' pipelines do, and ComfyUI does not."""
    apart = True

    @property
    def reference(self) -> bool:  # type: ignore[override]  # follows from a number here
        """Whether it reads pictures."""
        return self.references > 0

    @property
    def needs_reference(self) -> bool:  # type: ignore[override]  # as is this
        """Edit makes no picture of a prompt alone."""
        return self.reference

    def sides(self, width: int, height: int) -> tuple[int, int]:
        """Those of a picture of the same shape, of the area that Edit was trained with.

        >>> replace(QWEN_IMAGE, references=1).sides(3000, 2000), QWEN_IMAGE.sides(640, 480)
        ((1248, 832), (640, 480))
        """
        return of_area(READ_AREA, width, height) if self.reference else (width, height)

    @property
    def modulations(self) -> int:
        """Vectors that modulate: 12 a block, 2 of the last layer."""
        return 12 * self.blocks + 2

    @property
    def depth(self) -> str:
        """How many blocks it has, in words."""
        return f"{self.blocks} blocks"


@dataclass(frozen=True)
class QwenImageControlNetConfig(QwenImageConfig):
    """A ControlNet for Qwen-Image: some of its blocks, which also read a picture's latent.

    `hint_channels` are those of the latent; one more with a mask behind, for inpainting.
    """

    hint_channels: int = 16

    @property
    def fills(self) -> bool:
        """Whether it reads where a picture is to be filled."""
        return self.hint_channels == self.in_channels + 1


@dataclass(frozen=True)
class Krea2Config(TransformerConfig):
    """Krea 2 (Krea 2026): one stream of text and image, whose heads of queries share fewer of keys.

    Of the text encoder the states behind `taps` layers are read, each `text_dim` wide:
    `layer_blocks` of `text_heads` put those of a token together, then `text_blocks` see all tokens.
    `axes` are the channels of a head that turn with the frame, the row and the column.
    """

    hidden_size: int
    heads: int
    kv_heads: int
    mlp_size: int
    blocks: int = 28
    in_channels: int = 16
    out_channels: int = 16
    text_dim: int = 2560
    taps: int = 12
    text_heads: int = 20
    text_kv_heads: int = 20
    text_mlp_size: int = 6912
    layer_blocks: int = 2
    text_blocks: int = 2
    axes: tuple[int, ...] = (32, 48, 48)
    rotary_base: float = 1000.0
    eps: float = 1e-5

    @property
    def context_dim(self) -> int:  # type: ignore[override]  # a number of its own in others
        """Channels of all states of a token, side by side."""
        return self.taps * self.text_dim

    def divisions(self) -> Iterator[Division]:
        """What must divide what."""
        yield "transformer", self.heads, "heads of keys", self.kv_heads
        yield "transformer", self.text_heads, "heads of keys of the text", self.text_kv_heads

    @property
    def depth(self) -> str:
        """How many blocks of which kinds it has, in words."""
        return f"{self.blocks} blocks, and {self.layer_blocks + self.text_blocks} for the text"


T5_XXL = T5Config(32128, hidden_size=4096, mlp_size=10240, layers=24, heads=64, head_dim=64)
"""The text encoder of SD 3, Flux and Chroma."""

FLUX_DEV = FluxConfig(hidden_size=3072, heads=24, mlp_size=12288)
"""Flux.1 dev."""

FLUX_SCHNELL = replace(FLUX_DEV, guidance=False)
"""Flux.1 schnell."""

FLUX2_KLEIN_4B = Flux2Config(hidden_size=3072, heads=24, mlp_size=9216)
"""FLUX.2 klein of 3.9 billion parameters."""

FLUX2_KLEIN_9B = Flux2Config(hidden_size=4096, heads=32, mlp_size=12288, double_blocks=8,
                             single_blocks=24, context_dim=12288)
"""FLUX.2 klein of 9.1 billion parameters."""

FLUX2_DEV = Flux2Config(hidden_size=6144, heads=48, mlp_size=18432, double_blocks=8,
                        single_blocks=48, context_dim=15360, guidance=True)
"""FLUX.2 dev, 32 billion parameters."""

CHROMA = ChromaConfig(hidden_size=3072, heads=24, mlp_size=12288)
"""Chroma1, 8.9 billion parameters."""

SD3_MEDIUM = MMDiTConfig(hidden_size=1536, heads=24, blocks=24)
"""Stable Diffusion 3 medium."""

SD35_MEDIUM = replace(SD3_MEDIUM, positions=384, qk_norm=True, dual_blocks=13)
"""Stable Diffusion 3.5 medium."""

SD35_LARGE = MMDiTConfig(hidden_size=2432, heads=38, blocks=38, qk_norm=True)
"""Stable Diffusion 3.5 large, and large turbo."""

QWEN_IMAGE = QwenImageConfig(hidden_size=3072, heads=24, mlp_size=12288)
"""Qwen-Image and Qwen-Image-Edit, 20.4 billion parameters."""

Z_IMAGE = ZImageConfig(hidden_size=3840, heads=30, mlp_size=10240)
"""Z-Image and Z-Image-Turbo, 6.2 billion parameters."""

KREA2 = Krea2Config(hidden_size=6144, heads=48, kv_heads=12, mlp_size=16384)
"""Krea 2, 12.8 billion parameters."""

LUMINA2 = Lumina2Config(2304, heads=24, mlp_size=9216)
"""Lumina-Image 2, 2.6 billion parameters."""

ANIMA = AnimaConfig(hidden_size=2048, heads=16, mlp_size=8192)
"""Anima, 2.1 billion parameters."""
