"""Hyperparameters of language models that read prompts, and of what reads pictures beside them or
for them: frozen data, no behaviour, no weights.

>>> QWEN3_4B.outline()
'36 layers, width 2560, 32 heads over 8 of keys, vocabulary 151936'
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from smalti.dataclass import dataclass
from smalti.models.denoiser_config import Division


@dataclass(frozen=True)
class LanguageConfig:
    """A decoder-only language model (Touvron et al. 2023, arXiv:2302.13971; Yang et al. 2025,
    arXiv:2505.09388), of which the layers are read and never the words that it would say.

    Groups of `heads // kv_heads` heads of queries share the keys and values of one head (Ainslie et
    al. 2023, arXiv:2305.13245). Half of a head's channels turn against the other half with the
    position, by `rotary_base`^(-2 j / head_dim) a step. `qk_norm` is whether queries and keys are
    normalised in each head, `qkv_bias` whether their layers have biases.

    Gemma's (Gemma Team 2024, arXiv:2408.00118) are `sandwiched`: what attention and MLP give goes
    through norms, too, factors of norms are stored without the one that is added to them, and
    embeddings are multiplied by the root of the width. `gate` is the activation of MLPs, "silu" or
    "gelu_tanh". Scores are divided by the root of `query_size`, of `head_dim` where it is 0, and
    become c tanh(score / c) for a `softcap` c that is not 0. A token sees `window` tokens, itself
    included, in the first layer and every second behind it; 0 is no limit.

    Positions up to `stretched_from` tokens, which a model was first trained with, are `stretched`
    so many times in turns that are slow there (YaRN; Peng et al. 2023, arXiv:2309.00071).

    `vision` is what reads pictures, for a model that is to see them.
    """

    vocab_size: int
    hidden_size: int
    mlp_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_base: float = 1e6
    eps: float = 1e-6
    qk_norm: bool = False
    qkv_bias: bool = False
    sandwiched: bool = False
    gate: str = "silu"
    softcap: float = 0.0
    query_size: int = 0
    window: int = 0
    stretched: float = 1.0
    stretched_from: int = 0
    vision: VisionConfig | None = None

    @property
    def sections(self) -> tuple[int, int, int]:
        """Pairs of a head that turn with the time, the row and the column of a token: 2, 3 and 3 of
        8 (Bai et al. 2025, arXiv:2502.13923, section 2.1.3)."""
        place = 3 * (self.head_dim // 2) // 8
        return self.head_dim // 2 - 2 * place, place, place

    def divisions(self) -> Iterator[Division]:
        """What must divide what."""
        yield "text encoder", self.heads, "heads of keys", self.kv_heads
        yield "text encoder", self.head_dim, "halves of a head", 2
        if self.vision is not None:
            yield from self.vision.divisions()

    def outline(self) -> str:
        """Its size, in one line."""
        return (f"{self.layers} layers, width {self.hidden_size}, {self.heads} heads over "
                f"{self.kv_heads} of keys, vocabulary {self.vocab_size}"
                + ("" if self.vision is None else f"; {self.vision.outline()}"))


QWEN3_4B = LanguageConfig(151936, hidden_size=2560, mlp_size=9728, layers=36, heads=32, kv_heads=8,
                          head_dim=128, qk_norm=True)
"""The text encoder of Z-Image and FLUX.2 klein 4B."""

QWEN3_VL_4B = replace(QWEN3_4B, rotary_base=5e6)
"""What reads texts in Qwen3-VL 4B, the text encoder of Krea 2: as Qwen3, but for the turns."""

MISTRAL_SMALL = LanguageConfig(131072, hidden_size=5120, mlp_size=32768, layers=40, heads=32,
                               kv_heads=8, head_dim=128, rotary_base=1e9, eps=1e-5)
"""Mistral Small 3.2, the text encoder of FLUX.2 dev."""

MINISTRAL_3B = LanguageConfig(131072, hidden_size=3072, mlp_size=9216, layers=26, heads=32,
                              kv_heads=8, head_dim=128, eps=1e-5, stretched=16.0,
                              stretched_from=16384)
"""Ministral 3 3B, the text encoder of ERNIE-Image."""

QWEN25_7B = LanguageConfig(152064, hidden_size=3584, mlp_size=18944, layers=28, heads=28,
                           kv_heads=4, head_dim=128, qkv_bias=True)
"""What reads texts in Qwen2.5-VL 7B, the text encoder of Qwen-Image: positions on three axes are
equal where no picture is read."""

GEMMA2_2B = LanguageConfig(256000, hidden_size=2304, mlp_size=9216, layers=26, heads=8, kv_heads=4,
                           head_dim=256, rotary_base=1e4, sandwiched=True, gate="gelu_tanh",
                           softcap=50.0, query_size=256, window=4096)
"""The text encoder of Lumina-Image 2."""


@dataclass(frozen=True)
class VisionConfig:
    """What reads pictures in Qwen2.5-VL (Bai et al. 2025, arXiv:2502.13923).

    Patches of `patch` pixels a side, of `frames` frames that a picture has the same, see those in
    windows of `window` patches a side, and all in the blocks `seeing_all`; `square` x `square` of
    them become a token of `out_size` channels.
    """

    hidden_size: int
    mlp_size: int
    blocks: int
    heads: int
    out_size: int
    seeing_all: tuple[int, ...]
    patch: int = 14
    frames: int = 2
    channels: int = 3
    window: int = 8
    square: int = 2
    rotary_base: float = 10000.0
    eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        """Channels per attention head."""
        return self.hidden_size // self.heads

    @property
    def patch_size(self) -> int:
        """Numbers of a patch, of one frame."""
        return self.channels * self.patch**2

    @property
    def token_side(self) -> int:
        """Pixels along the side of what becomes a token."""
        return self.square * self.patch

    def outline(self) -> str:
        """Its size, in words."""
        return f"pictures by {self.blocks} blocks of width {self.hidden_size}"

    def divisions(self) -> Iterator[Division]:
        """What must divide what: a quarter of a head turns with the row, one with the column."""
        yield "reader of pictures", self.hidden_size, "heads", self.heads
        yield "reader of pictures", self.head_dim, "quarters of a head", 4


QWEN25_VISION = VisionConfig(hidden_size=1280, mlp_size=3420, blocks=32, heads=16, out_size=3584,
                             seeing_all=(7, 15, 23, 31))
"""What reads pictures in Qwen2.5-VL 7B."""


@dataclass(frozen=True)
class ReduxConfig:
    """What makes tokens of a prompt from a picture for FLUX.1 (Black Forest Labs 2024, "FLUX.1
    Tools"): the image encoder of SigLIP (Zhai et al. 2023, arXiv:2303.15343), and two layers.

    A picture is `grid` x `grid` patches of `patch` pixels a side, each of which becomes a token of
    `out_size` channels, by way of `middle_size`.
    """

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    grid: int
    middle_size: int
    out_size: int
    patch: int = 14
    channels: int = 3
    eps: float = 1e-6
    activation: str = "gelu_tanh"

    square = 1

    @property
    def patch_size(self) -> int:
        """Numbers of a patch."""
        return self.channels * self.patch**2

    @property
    def side(self) -> int:
        """Pixels along the side of a picture before it is cut into patches: SigLIP so400m was
        trained with 384, of which 27 patches of 14 leave out the last six."""
        return max(self.grid * self.patch, SIGLIP_SIDE * (self.grid == SIGLIP_SIDE // self.patch))

    @property
    def tokens(self) -> int:
        """Of a picture in a prompt."""
        return self.grid**2

    def outline(self) -> str:
        """Its size, in one line."""
        return (f"pictures by {self.layers} layers, width {self.hidden_size}, {self.heads} heads, "
                f"{self.tokens} tokens of {self.out_size} each")

    def divisions(self) -> Iterator[Division]:
        """What must divide what."""
        yield "reader of pictures", self.hidden_size, "heads", self.heads


SIGLIP_SIDE = 384
"""Pixels of a side of the pictures that SigLIP so400m reads for FLUX.1 Redux."""

REDUX = ReduxConfig(hidden_size=1152, intermediate_size=4304, layers=27, heads=16, grid=27,
                    middle_size=12288, out_size=4096)
"""FLUX.1 Redux dev with SigLIP so400m."""
