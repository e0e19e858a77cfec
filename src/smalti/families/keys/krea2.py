"""Keys of Krea 2: inside, the original names, which ComfyUI's files and GGUF files have, too; in
folders, those of diffusers.

Source: diffusers 0.42, `models/transformers/transformer_krea2.py` and `loaders/
single_file_utils.py`.
"""

from __future__ import annotations

from smalti.families.keys.stored import Modules, Table, layers, whole

_STACKS = {"blocks.*": "transformer_blocks.*",
           "txtfusion.layerwise_blocks.*": "text_fusion.layerwise_blocks.*",
           "txtfusion.refiner_blocks.*": "text_fusion.refiner_blocks.*"}
_OUTSIDE: Modules = {
    "first": "img_in",
    "tmlp.0": "time_embed.linear_1",
    "tmlp.2": "time_embed.linear_2",
    "tproj.1": "time_mod_proj",
    "txtmlp.1": "txt_in.linear_1",
    "txtmlp.3": "txt_in.linear_2",
    "last.linear": "final_layer.linear",
}
_PRODUCTS: Modules = {
    "txtfusion.projector": "text_fusion.projector",
    **{f"{ours}.{layer}": f"{stored}.{name}" for ours, stored in _STACKS.items()
       for layer, name in {
           "attn.wq": "attn.to_q", "attn.wk": "attn.to_k", "attn.wv": "attn.to_v",
           "attn.wo": "attn.to_out.0", "attn.gate": "attn.to_gate", "mlp.gate": "ff.gate",
           "mlp.up": "ff.up", "mlp.down": "ff.down"}.items()},
}
_NORMS = {
    "txtmlp.0": "txt_in.norm", "last.norm": "final_layer.norm",
    **{f"{ours}.{layer}": f"{stored}.{name}" for ours, stored in _STACKS.items()
       for layer, name in {
           "attn.qknorm.qnorm": "attn.norm_q", "attn.qknorm.knorm": "attn.norm_k",
           "prenorm": "norm1", "postnorm": "norm2"}.items()},
}

KREA2_DIFFUSERS: Table = {
    **layers(_OUTSIDE), **layers(_PRODUCTS, bias=False),
    **{f"{ours}.scale": whole(f"{stored}.weight") for ours, stored in _NORMS.items()},
    "blocks.*.mod.lin": whole("transformer_blocks.*.scale_shift_table"),
    "last.modulation.lin": whole("final_layer.scale_shift_table"),
}
"""diffusers' `Krea2Transformer2DModel`, whose tables have a row for each vector."""
