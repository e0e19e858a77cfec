"""Keys of CLIP's text encoders: inside, the names of transformers; in files also those of OpenCLIP.

Source: mlfoundations/open_clip, `transformer.py`; diffusers 0.40, `loaders/single_file_utils.py`.
"""

from __future__ import annotations

from smalti.families.keys.stored import StoredRows, Table, layers, whole

_LAYER = "text_model.encoder.layers.*"
_BLOCK = "transformer.resblocks.*"

CLIP_OPENCLIP: Table = {
    "text_model.embeddings.token_embedding.weight": whole("token_embedding.weight"),
    "text_model.embeddings.position_embedding.weight": whole("positional_embedding"),
    **{f"{_LAYER}.self_attn.{projection}_proj.{kind}": (
        StoredRows(f"{_BLOCK}.attn.in_proj_{kind}", number, 3),)
       for number, projection in enumerate("qkv") for kind in ("weight", "bias")},
    **layers({
        f"{_LAYER}.self_attn.out_proj": f"{_BLOCK}.attn.out_proj",
        f"{_LAYER}.layer_norm1": f"{_BLOCK}.ln_1",
        f"{_LAYER}.layer_norm2": f"{_BLOCK}.ln_2",
        f"{_LAYER}.mlp.fc1": f"{_BLOCK}.mlp.c_fc",
        f"{_LAYER}.mlp.fc2": f"{_BLOCK}.mlp.c_proj",
        "text_model.final_layer_norm": "ln_final",
    }),
    "text_projection.weight": (StoredRows("text_projection", transposed=True),),
}
"""OpenCLIP's names: queries, keys and values in one matrix, the projection transposed."""
