"""What makes tokens of a prompt from pictures for FLUX.1: Redux (Black Forest Labs 2024).

The image encoder of SigLIP (Zhai et al. 2023, arXiv:2303.15343) gives a state for each patch of a
picture, and two layers make of it a token as T5 gives them. Names are those of transformers'
`SiglipVisionModel`, below `visual`, and diffusers' `ReduxImageEncoder`; the kernel that reads a
patch is a matrix.
"""

from __future__ import annotations

from smalti.graph import Graph
from smalti.models.clip_text import clip_layer
from smalti.models.language_config import ReduxConfig
from smalti.nn import layer_norm, linear, silu

PREFIX = "text_encoders.redux"


def redux_graph(config: ReduxConfig, batch: int) -> Graph:
    """patches f32[batch, grid * grid, patch_size] -> context f32[batch, grid * grid, out_size].

    The numbers of a patch are those of its channels, of each of them rows and columns.

    >>> from smalti.models import REDUX
    >>> g = redux_graph(REDUX, 1)
    >>> g.outputs["context"].shape, len(g.parameters)
    ((1, 729, 4096), 441)
    """
    g = Graph("redux")
    x = g.input("patches", (batch, config.tokens, config.patch_size))
    with g.scope(PREFIX):
        with g.scope("visual"):
            x = linear(x, "embeddings.patch_embedding", config.hidden_size)     # [n, t, c]
            x = x + g.parameter("embeddings.position_embedding.weight",
                                (config.tokens, config.hidden_size))
            for i in range(config.layers):
                with g.scope(f"encoder.layers.{i}"):
                    x = clip_layer(x, config, causal=False)
            x = layer_norm(x, "post_layernorm", config.eps)
        x = silu(linear(x, "redux_up", config.middle_size))
        g.output("context", linear(x, "redux_down", config.out_size))
    return g
