"""Keys of Anima: inside, the original names, which ComfyUI's files and GGUF files have, too; in
folders, those of diffusers, with what reads texts in a folder of its own.

Source: diffusers 0.42, `models/transformers/transformer_cosmos.py`, `models/condition_embedders/
condition_embedder_anima.py` and `loaders/single_file_utils.py`.
"""

from __future__ import annotations

from smalti.families.keys.stored import Modules, Table, layers

TEXT = "llm_adapter."
"""Below it is what reads texts; diffusers has the same names without it."""

BLOCKS = ("blocks.0.adaln_modulation_self_attn.", "transformer_blocks.0.norm1.linear_1.")
"""What a block of Cosmos-Predict2 has, as its authors call it and as diffusers does."""

_HALVES = {"self_attn": ("norm1", "attn1"), "cross_attn": ("norm2", "attn2"), "mlp": ("norm3", "")}
_ATTENTION = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "output_proj": "to_out.0",
              "q_norm": "norm_q", "k_norm": "norm_k"}

_MODULES: Modules = {
    "x_embedder.proj.1": "patch_embed.proj",
    "t_embedder.1.linear_1": "time_embed.t_embedder.linear_1",
    "t_embedder.1.linear_2": "time_embed.t_embedder.linear_2",
    "t_embedding_norm": "time_embed.norm",
    "final_layer.adaln_modulation.1": "norm_out.linear_1",
    "final_layer.adaln_modulation.2": "norm_out.linear_2",
    "final_layer.linear": "proj_out",
    **{f"blocks.*.adaln_modulation_{half}.{i}": f"transformer_blocks.*.{norm}.linear_{i}"
       for half, (norm, _) in _HALVES.items() for i in (1, 2)},
    **{f"blocks.*.{half}.{ours}": f"transformer_blocks.*.{stored}.{theirs}"
       for half, (_, stored) in _HALVES.items() if stored for ours, theirs in _ATTENTION.items()},
    "blocks.*.mlp.layer1": "transformer_blocks.*.ff.net.0.proj",
    "blocks.*.mlp.layer2": "transformer_blocks.*.ff.net.2",
}

ANIMA_DIFFUSERS: Table = layers(_MODULES, bias=False)
"""diffusers' `CosmosTransformer3DModel`, without the folder `text_conditioner`."""
