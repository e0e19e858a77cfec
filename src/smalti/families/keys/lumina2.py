"""Keys of Lumina-Image 2: inside, the original names, which ComfyUI's files and GGUF files have,
too; in folders, those of diffusers.

Source: diffusers 0.42, `models/transformers/transformer_lumina2.py` and `loaders/
single_file_utils.py`.
"""

from __future__ import annotations

from smalti.families.keys.stored import Modules, Table, layers
from smalti.families.keys.z_image import STACKS

_TEXT = "context_refiner"
"""Its blocks are not modulated, so that their first norm has no layer beside it."""
_EMBEDDED = "time_caption_embed"

_OUTSIDE: Modules = {
    "x_embedder": "x_embedder",
    "final_layer.linear": "norm_out.linear_2",
    "final_layer.adaLN_modulation.1": "norm_out.linear_1",
    "t_embedder.mlp.0": f"{_EMBEDDED}.timestep_embedder.linear_1",
    "t_embedder.mlp.2": f"{_EMBEDDED}.timestep_embedder.linear_2",
    "cap_embedder.1": f"{_EMBEDDED}.caption_embedder.1",
    **{f"{stack}.*.adaLN_modulation.1": f"{stack}.*.norm1.linear"
       for stack in STACKS if stack != _TEXT},
}
_PRODUCTS: Modules = {
    **{f"{stack}.*.attention.qkv": tuple(f"{stack}.*.attn.to_{x}" for x in "qkv")
       for stack in STACKS},
    **{f"{stack}.*.attention.out": f"{stack}.*.attn.to_out.0" for stack in STACKS},
    **{f"{stack}.*.feed_forward.w{i}": f"{stack}.*.feed_forward.linear_{i}"
       for stack in STACKS for i in (1, 2, 3)},
}
_NORMS = {
    "cap_embedder.0": f"{_EMBEDDED}.caption_embedder.0",
    **{f"{stack}.*.{ours}": f"{stack}.*.{stored}" for stack in STACKS for ours, stored in {
        "attention.q_norm": "attn.norm_q", "attention.k_norm": "attn.norm_k",
        "attention_norm1": "norm1" if stack == _TEXT else "norm1.norm", "attention_norm2": "norm2",
        "ffn_norm1": "ffn_norm1", "ffn_norm2": "ffn_norm2"}.items()},
}

LUMINA2_DIFFUSERS: Table = {
    **layers(_OUTSIDE), **layers(_PRODUCTS, bias=False), **layers(_NORMS, bias=False)}
"""diffusers' `Lumina2Transformer2DModel`."""
