"""Keys of the T5 encoder: inside, the names of transformers; in GGUF files, those of llama.cpp.

Sources: transformers 5, `models/t5/modeling_t5.py`; llama.cpp, `gguf-py/gguf/constants.py`.
"""

from __future__ import annotations

from smalti.families.keys.stored import Table, layers

_BIAS = "encoder.block.*.layer.0.SelfAttention.relative_attention_bias"
_GGUF = {
    "shared": "token_embd",
    "encoder.final_layer_norm": "enc.output_norm",
    "encoder.block.*.layer.0.layer_norm": "enc.blk.*.attn_norm",
    "encoder.block.*.layer.0.SelfAttention.q": "enc.blk.*.attn_q",
    "encoder.block.*.layer.0.SelfAttention.k": "enc.blk.*.attn_k",
    "encoder.block.*.layer.0.SelfAttention.v": "enc.blk.*.attn_v",
    "encoder.block.*.layer.0.SelfAttention.o": "enc.blk.*.attn_o",
    _BIAS: "enc.blk.*.attn_rel_b",
    "encoder.block.*.layer.1.layer_norm": "enc.blk.*.ffn_norm",
    "encoder.block.*.layer.1.DenseReluDense.wi_0": "enc.blk.*.ffn_gate",
    "encoder.block.*.layer.1.DenseReluDense.wi_1": "enc.blk.*.ffn_up",
    "encoder.block.*.layer.1.DenseReluDense.wo": "enc.blk.*.ffn_down",
}

T5_GGUF: Table = layers(_GGUF, bias=False)
"""llama.cpp's GGUF files."""

T5_TRANSFORMERS: Table = layers({name: name for name in _GGUF}, bias=False)
"""transformers' names; `encoder.embed_tokens.weight` is `shared.weight` once more, and unknown."""
