"""Hyperparameters of the transformer families: frozen data, no behaviour, no weights.

>>> FLUX_DEV.head_dim, FLUX_DEV.packed_channels, T5_XXL.inner_size
(128, 64, 4096)
"""

from __future__ import annotations

from dataclasses import dataclass, replace


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


@dataclass(frozen=True)
class FluxConfig:
    """Flux.1 (Black Forest Labs 2024; Esser et al. 2024, arXiv:2403.03206).

    Channels are those of the latent, before 2 x 2 pixels become a token: `in_channels` is 16, 32
    with the latent of a control picture behind, 96 for Fill (the latent, that of the masked
    picture, the mask of 8 x 8 pixels). `guidance` is whether the model was distilled from guided
    predictions and is told their strength. `axes` are the channels of a head that turn with
    index, row and column.
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

    @property
    def head_dim(self) -> int:
        """Channels per attention head."""
        return self.hidden_size // self.heads

    @property
    def packed_channels(self) -> int:
        """Channels of a token of the latent: those of 2 x 2 pixels."""
        return 4 * self.in_channels


T5_XXL = T5Config(32128, hidden_size=4096, mlp_size=10240, layers=24, heads=64, head_dim=64)
"""The text encoder of SD 3, Flux and Chroma."""

FLUX_DEV = FluxConfig(hidden_size=3072, heads=24, mlp_size=12288)
"""Flux.1 dev."""

FLUX_SCHNELL = replace(FLUX_DEV, guidance=False)
"""Flux.1 schnell."""
