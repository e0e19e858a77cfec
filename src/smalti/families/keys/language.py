"""Keys of language models: inside, the names of transformers; in GGUF files, those of llama.cpp.

Sources: transformers 5, `models/qwen3/modeling_qwen3.py`; llama.cpp, `gguf-py/gguf/constants.py`.
"""

from __future__ import annotations

from smalti.families.keys.stored import Table, layers

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

LANGUAGE_GGUF: Table = layers({
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
    **{f"layers.*.{ours}": f"blk.*.{stored}" for ours, stored in _LAYER.items()}})
"""llama.cpp's GGUF files."""

_MODULES = "|".join(name.replace(".", r"\.") for name in _LAYER)

LANGUAGE_KNOWN = (rf"(embed_tokens|norm|lm_head|layers\.\d+\.({_MODULES}))\.weight"
                  r"|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
"""All that published models have, but biases, which some have and others do not."""


def language_name(name: str) -> str:
    """Name of a tensor of a language model in a file that holds the words that it would say, too.

    >>> language_name("model.layers.0.mlp.up_proj.weight"), language_name("lm_head.weight")
    ('layers.0.mlp.up_proj.weight', 'lm_head.weight')
    """
    return name.removeprefix("model.")
