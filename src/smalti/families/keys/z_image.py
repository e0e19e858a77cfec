"""Keys of Z-Image: inside, the original names, which ComfyUI's files and GGUF files have, too; in
folders, those of diffusers.

Source: diffusers 0.42, `models/transformers/transformer_z_image.py` and `loaders/
single_file_utils.py`.
"""

from __future__ import annotations

from smalti.families.keys.stored import Modules, Table, layers, whole

STACKS = ("noise_refiner", "context_refiner", "layers")
"""The kinds of blocks; those of the second are not modulated."""

_OUTSIDE: Modules = {
    "x_embedder": "all_x_embedder.2-1",
    "final_layer.linear": "all_final_layer.2-1.linear",
    "final_layer.adaLN_modulation.1": "all_final_layer.2-1.adaLN_modulation.1",
    **{name: name for name in ("t_embedder.mlp.0", "t_embedder.mlp.2", "cap_embedder.1")},
    **{f"{stack}.*.adaLN_modulation.0": f"{stack}.*.adaLN_modulation.0" for stack in STACKS},
}
_PRODUCTS: Modules = {
    **{f"{stack}.*.attention.qkv": tuple(f"{stack}.*.attention.to_{x}" for x in "qkv")
       for stack in STACKS},
    **{f"{stack}.*.attention.out": f"{stack}.*.attention.to_out.0" for stack in STACKS},
    **{f"{stack}.*.feed_forward.w{i}": f"{stack}.*.feed_forward.w{i}"
       for stack in STACKS for i in (1, 2, 3)},
}
_NORMS = {
    "cap_embedder.0": "cap_embedder.0",
    **{f"{stack}.*.{ours}": f"{stack}.*.{stored}" for stack in STACKS for ours, stored in {
        "attention.q_norm": "attention.norm_q", "attention.k_norm": "attention.norm_k",
        **{name: name for name in ("attention_norm1", "attention_norm2", "ffn_norm1",
                                   "ffn_norm2")}}.items()},
}

Z_IMAGE_DIFFUSERS: Table = {
    **layers(_OUTSIDE), **layers(_PRODUCTS, bias=False), **layers(_NORMS, bias=False),
    **{name: whole(name) for name in ("x_pad_token", "cap_pad_token")},
}
"""diffusers' `ZImageTransformer2DModel`."""
