"""Keys of FLUX.3-image: inside, the original names; in folders, those of diffusers.

Source: diffusers 0.42, `models/transformers/transformer_flux3.py` and `loaders/
single_file_utils.py`.
"""

from __future__ import annotations

from smalti.families.keys.stored import Modules, Table, layers, swapped, whole

_STREAMS = ("image", "image_cond")
_BLOCKS = {"txt_mode_blocks.*": "txt_mode_blocks.*",
           **{f"content_mode_blocks.{name}.*": f"mode_blocks.{name}.*" for name in _STREAMS},
           "single_blocks.*": "single_transformer_blocks.*"}
_INSIDE = {"q_proj": "attn.to_q", "k_proj": "attn.to_k", "v_proj": "attn.to_v",
           "attn_out": "attn.to_out.0", "mlp_in": "ff.linear_in", "mlp_out": "ff.linear_out"}

_MODULES: Modules = {
    "txt_in": "context_embedder",
    **{f"emb_in.{name}": f"x_embedders.{name}" for name in _STREAMS},
    **{f"{ours}.{end}_layer": f"{theirs}.linear_{number}"
       for ours, theirs in (("time_in", "timestep_embedder"),
                            ("ref_time_in", "target_timestep_embedder"))
       for number, end in ((1, "in"), (2, "out"))},
    **{f"{kind}_stream_modulations.{name}.lin": f"{kind}_stream_modulations.{name}.linear"
       for kind in ("early", "single") for name in (*_STREAMS, "txt")},
    **{f"{ours}.{layer}": f"{stored}.{name}" for ours, stored in _BLOCKS.items()
       for layer, name in _INSIDE.items()},
    "final_layer.image.linear": "proj_out",
}

FLUX3_DIFFUSERS: Table = {
    **layers(_MODULES, bias=False),
    **{f"{ours}.norm.{name}_norm.scale": whole(f"{stored}.attn.norm_{name[0]}.weight")
       for ours, stored in _BLOCKS.items() for name in ("query", "key")},
    "final_layer.image.adaLN_modulation.1.weight": swapped("norm_out.linear.weight"),
}
"""diffusers' `Flux3Transformer2DModel`; the last modulation is stored as scale, then shift."""
