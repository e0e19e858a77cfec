"""Keys of FLUX.2: inside, the original names; in folders, those of diffusers.

Source: diffusers 0.42, `models/transformers/transformer_flux2.py`.
"""

from __future__ import annotations

from smalti.families.keys.stored import Modules, Table, layers, swapped, whole

_STREAMS = {"img": ("to_q", "to_k", "to_v", "to_out.0", "ff"),
            "txt": ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out", "ff_context")}
_BLOCK = "transformer_blocks.*"

_MODULES: Modules = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    **{f"{ours}_in.{end}_layer": f"time_guidance_embed.{theirs}_embedder.linear_{number}"
       for ours, theirs in (("time", "timestep"), ("guidance", "guidance"))
       for number, end in ((1, "in"), (2, "out"))},
    **{f"{name}.lin": f"{name}.linear" for name in (
        "double_stream_modulation_img", "double_stream_modulation_txt",
        "single_stream_modulation")},
    **{f"double_blocks.*.{stream}_attn.qkv": tuple(f"{_BLOCK}.attn.{part}" for part in parts[:3])
       for stream, parts in _STREAMS.items()},
    **{f"double_blocks.*.{stream}_attn.proj": f"{_BLOCK}.attn.{parts[3]}"
       for stream, parts in _STREAMS.items()},
    **{f"double_blocks.*.{stream}_mlp.{number}": f"{_BLOCK}.{parts[4]}.linear_{end}"
       for stream, parts in _STREAMS.items() for number, end in ((0, "in"), (2, "out"))},
    "single_blocks.*.linear1": "single_transformer_blocks.*.attn.to_qkv_mlp_proj",
    "single_blocks.*.linear2": "single_transformer_blocks.*.attn.to_out",
    "final_layer.linear": "proj_out",
}
_NORMS = {
    "double_blocks.*.img_attn.norm.{}": "transformer_blocks.*.attn.norm_{}",
    "double_blocks.*.txt_attn.norm.{}": "transformer_blocks.*.attn.norm_added_{}",
    "single_blocks.*.norm.{}": "single_transformer_blocks.*.attn.norm_{}",
}

FLUX2_DIFFUSERS: Table = {
    **layers(_MODULES, bias=False),
    **{f"{ours.format(name)}.scale": whole(f"{stored.format(letter)}.weight")
       for ours, stored in _NORMS.items()
       for name, letter in (("query_norm", "q"), ("key_norm", "k"))},
    "final_layer.adaLN_modulation.1.weight": swapped("norm_out.linear.weight"),
}
"""diffusers' `Flux2Transformer2DModel`; the last modulation is stored as scale, then shift."""
