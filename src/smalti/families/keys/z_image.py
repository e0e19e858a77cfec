"""Keys of Z-Image: inside, the original names, which ComfyUI's files and GGUF files have, too; in
folders, those of diffusers.

Source: diffusers 0.42, `models/transformers/transformer_z_image.py` and `loaders/
single_file_utils.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from smalti.families.keys.stored import Expression, Modules, Table, layers, whole

STACKS = ("noise_refiner", "context_refiner", "layers")
"""The kinds of blocks; those of the second are not modulated."""

CONTROL_STACKS = ("control_noise_refiner", "control_layers")
"""Those of its ControlNets."""

_OUTSIDE: Modules = {
    "x_embedder": "all_x_embedder.2-1",
    "final_layer.linear": "all_final_layer.2-1.linear",
    "final_layer.adaLN_modulation.1": "all_final_layer.2-1.adaLN_modulation.1",
    **{name: name for name in ("t_embedder.mlp.0", "t_embedder.mlp.2", "cap_embedder.1")},
}
_PRODUCTS: Modules = {
    "attention.qkv": tuple(f"attention.to_{x}" for x in "qkv"),
    "attention.out": "attention.to_out.0",
    **{f"feed_forward.w{i}": f"feed_forward.w{i}" for i in (1, 2, 3)},
}
_NORMS: Modules = {
    "attention.q_norm": "attention.norm_q", "attention.k_norm": "attention.norm_k",
    **{name: name for name in ("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2")},
}


def _blocks(stacks: Sequence[str], *layers_with_bias: str) -> dict[str, Expression]:
    """The blocks of these stacks, in each of which a layer makes what modulates it."""
    found: dict[str, Expression] = {}
    for stack in stacks:
        found |= layers({f"{stack}.*.{name}": f"{stack}.*.{name}"
                         for name in ("adaLN_modulation.0", *layers_with_bias)})
        found |= layers({f"{stack}.*.{ours}": f"{stack}.*.{stored}" if isinstance(stored, str)
                         else tuple(f"{stack}.*.{part}" for part in stored)
                         for ours, stored in {**_PRODUCTS, **_NORMS}.items()}, bias=False)
    return found


Z_IMAGE_DIFFUSERS: Table = {
    **layers(_OUTSIDE), **_blocks(STACKS), **layers({"cap_embedder.0": "cap_embedder.0"},
                                                    bias=False),
    **{name: whole(name) for name in ("x_pad_token", "cap_pad_token")},
}
"""diffusers' `ZImageTransformer2DModel`."""

Z_IMAGE_CONTROLNET_DIFFUSERS: Table = {
    **layers({name: name for name in ("control_all_x_embedder.2-1",)}),
    **_blocks(CONTROL_STACKS, "before_proj", "after_proj"),
}
"""diffusers' `ZImageControlNetModel`, whose names its authors' files have, too."""
