"""Hyperparameters of transformers of late 2025 and 2026, as those in `transformer_config`: frozen
data, no behaviour, no weights.

>>> ERNIE_IMAGE.head_dim
128
"""

from __future__ import annotations

from dataclasses import replace

from smalti.dataclass import dataclass
from smalti.models.transformer_config import (
    FLUX2_KLEIN_4B,
    FLUX2_REFERENCES,
    FluxConfig,
    TransformerConfig,
)


@dataclass(frozen=True)
class ErnieImageConfig(TransformerConfig):
    """ERNIE-Image (Baidu 2026): one stream of text and image, whose blocks are all modulated by the
    same vectors.

    A pixel of the latent is a token, as in FLUX.2, whose autoencoder it has. `axes` are the
    channels of a head that turn with the place in the text, the row and the column. A text as wide
    as the blocks is read as it is; any other goes through a layer first.
    """

    hidden_size: int
    heads: int
    mlp_size: int
    blocks: int = 36
    in_channels: int = 128
    out_channels: int = 128
    context_dim: int = 3072
    axes: tuple[int, ...] = (32, 48, 48)
    rotary_base: float = 256.0
    eps: float = 1e-6

    run = 1
    """Nothing fills up texts or images."""
    first_place = 0
    """Where the first token of a text stands on the first axis."""

    @property
    def multiple(self) -> int:
        """Any size of a latent will do."""
        return 1

    @property
    def depth(self) -> str:
        """How many blocks of which kinds it has, in words."""
        return f"{self.blocks} blocks"


@dataclass(frozen=True)
class QwenImage21Config(TransformerConfig):
    """Qwen-Image-2.1 (Qwen team 2026): one stream of text and image without biases, whose blocks
    are all modulated by the same vectors, text as at time 0.

    A pixel of the latent is a token. `axes` are the channels of a head that turn with the place in
    the text, the row and the column.
    """

    hidden_size: int
    heads: int
    mlp_size: int
    blocks: int = 32
    in_channels: int = 64
    out_channels: int = 64
    context_dim: int = 4096
    axes: tuple[int, ...] = (16, 56, 56)
    rotary_base: float = 10000.0
    eps: float = 1e-6

    patch = 1
    """A pixel of the latent is a token; its sides are even all the same."""

    @property
    def depth(self) -> str:
        """How many blocks it has, in words."""
        return f"{self.blocks} blocks"


@dataclass(frozen=True)
class OvisImageConfig(FluxConfig):
    """Ovis-Image (AIDC-AI 2025, arXiv:2511.22982): the blocks of Flux.1 with gated MLPs, without
    vectors of text and guidance. What is read of a text goes through a norm, and its tokens stand
    on the diagonal."""

    double_blocks: int = 6
    single_blocks: int = 27
    context_dim: int = 2048
    pooled_dim: int = 0
    guidance: bool = False

    gated = True
    gates_last = True
    context_normed = True
    diagonal = True


@dataclass(frozen=True)
class LongCatImageConfig(FluxConfig):
    """LongCat-Image (Meituan 2025, arXiv:2512.07584): the blocks of Flux.1 without vectors of text
    and guidance. The tokens of a text stand on the diagonal, and the image behind the longest of
    them, with an index of its own."""

    double_blocks: int = 10
    single_blocks: int = 20
    context_dim: int = 3584
    pooled_dim: int = 0
    guidance: bool = False

    diagonal = True
    image_start = (1, 512, 512)
    normed = (0, 2, 2)
    shrunk = True


@dataclass(frozen=True)
class Flux3Config(TransformerConfig):
    """FLUX.3-image (Black Forest Labs 2026): text, image and pictures that are read, each seen by
    itself alone in `stream_blocks` blocks, and all together in `blocks` more.

    A pixel of the latent is a token, as in FLUX.2, whose autoencoder it has. `axes` are the
    channels of a head that turn with the frame, row, column, and the place in the text. A model
    that was distilled is a `flow_map`, and told which time a step leads to (Boffi et al. 2024,
    arXiv:2406.07507). Layers for pictures that are read may be missing.
    """

    hidden_size: int
    heads: int
    mlp_size: int
    stream_blocks: int = 5
    blocks: int = 28
    in_channels: int = 128
    out_channels: int = 128
    context_dim: int = 20480
    axes: tuple[int, ...] = (32, 32, 32, 32)
    rotary_base: float = 10000.0
    eps: float = 1e-6
    flow_map: bool = False
    reference: bool = True

    spacing = 0.5
    """How far rows and columns of an image are apart, in steps of the axes."""
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
        """As FLUX.2 reads pictures: those of one of a megapixel where it is larger.

        >>> FLUX3_KLEIN.sides(3000, 2000), FLUX3_KLEIN.sides(640, 480)
        ((1254, 836), (640, 480))
        """
        return FLUX2_KLEIN_4B.sides(width, height)

    @property
    def depth(self) -> str:
        """How many blocks of which kinds it has, in words."""
        return f"{self.stream_blocks} stream and {self.blocks} single blocks"


ERNIE_IMAGE = ErnieImageConfig(hidden_size=4096, heads=32, mlp_size=12288)
"""ERNIE-Image and ERNIE-Image-Turbo, 8.0 billion parameters."""

QWEN_IMAGE21 = QwenImage21Config(hidden_size=4096, heads=32, mlp_size=12288)
"""Qwen-Image-2.1, 7.1 billion parameters."""

OVIS_IMAGE = OvisImageConfig(hidden_size=3072, heads=24, mlp_size=12288)
"""Ovis-Image, 7.4 billion parameters."""

LONGCAT_IMAGE = LongCatImageConfig(hidden_size=3072, heads=24, mlp_size=12288)
"""LongCat-Image, 6.3 billion parameters."""

FLUX3_KLEIN_BASE = Flux3Config(hidden_size=3072, heads=24, mlp_size=9216)
"""FLUX.3-image-klein base, 5.5 billion parameters."""

FLUX3_KLEIN = replace(FLUX3_KLEIN_BASE, flow_map=True)
"""FLUX.3-image-klein, which was distilled from it."""
