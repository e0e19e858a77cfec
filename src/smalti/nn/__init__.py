"""Building blocks to write models with, on top of `graph/`.

Every function takes the value it works on first, and names its parameters as a PyTorch module of
that name would: `linear(x, "to_q", 64)` inside `g.scope("attn1")` reads `attn1.to_q.weight`.
Shapes are logical and channels-first, as in checkpoints; how they lie in memory is decided later.
"""

from smalti.nn.activation import (
    gelu,
    gelu_tanh,
    leaky_relu,
    prelu,
    quick_gelu,
    relu,
    relu6,
    silu,
)
from smalti.nn.attention import (
    capped_attention,
    cross_attention,
    hidden_scores,
    normalised_and_turned,
    out_of_sight,
    turned_part,
)
from smalti.nn.convolution import conv2d, pixel_shuffle, pixel_unshuffle, upsample_nearest
from smalti.nn.embedding import (
    diagonal_angles,
    embedding,
    grid_angles,
    rotary_embedding,
    timestep_embedding,
)
from smalti.nn.feed_forward import geglu_feed_forward
from smalti.nn.linear import linear
from smalti.nn.normalization import (
    batch_norm,
    group_norm,
    layer_norm,
    modulated_norm,
    modulation,
    rms_norm,
)
from smalti.nn.tokens import from_patches, from_tokens, patches, to_tokens

__all__ = [
    "batch_norm", "capped_attention", "conv2d", "cross_attention", "diagonal_angles", "embedding",
    "from_patches", "from_tokens", "geglu_feed_forward", "gelu", "gelu_tanh", "grid_angles",
    "group_norm", "hidden_scores", "layer_norm", "leaky_relu", "linear", "modulated_norm",
    "modulation", "normalised_and_turned", "out_of_sight", "patches", "pixel_shuffle",
    "pixel_unshuffle", "prelu", "quick_gelu", "relu", "relu6", "rms_norm", "rotary_embedding",
    "silu", "timestep_embedding", "to_tokens", "turned_part", "upsample_nearest",
]
