"""Keys of language models: inside, the names of transformers; in GGUF files, those of llama.cpp.

Sources: transformers 5, `models/qwen3/modeling_qwen3.py`, `models/qwen2_5_vl` and
`models/gemma2/modeling_gemma2.py`; llama.cpp, `gguf-py/gguf/constants.py`, `conversion/gemma.py`,
and `conversion/qwenvl.py` for what reads pictures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from smalti.families.keys.stored import StoredRows, Table, layers

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

_SANDWICHED = {
    **_LAYER,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _gguf(layer: dict[str, str]) -> Table:
    return layers({"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
                   **{f"layers.*.{ours}": f"blk.*.{stored}" for ours, stored in layer.items()}})


LANGUAGE_GGUF: Table = _gguf(_LAYER)
"""llama.cpp's GGUF files."""

GEMMA_GGUF: Table = {ours: tuple(StoredRows(part.name, added=float("norm" in ours))
                                 for part in rule)
                     for ours, rule in _gguf(_SANDWICHED).items()}
"""Those of Gemma: factors of norms have the one that is added to them elsewhere."""

VISION = "visual."
"""What begins the names of that which reads pictures."""
PATCHES = f"{VISION}patch_embed.proj"
"""What makes tokens of patches, of two frames: inside a matrix for each of them."""
FRAMES = 2
"""Of a film that a patch is made of; a picture has both the same."""

_VISION_LAYER = {
    "attn.qkv": ("attn_q", "attn_k", "attn_v"), "attn.proj": "attn_out", "norm1": "ln1",
    "norm2": "ln2", **{f"mlp.{kind}_proj": f"ffn_{kind}" for kind in ("gate", "up", "down")}}

VISION_GGUF: Table = {
    **layers({f"{VISION}merger.ln_q": "v.post_ln",
              **{f"{VISION}merger.mlp.{i}": f"mm.{i}" for i in (0, 2)},
              **{f"{VISION}blocks.*.{ours}": tuple(f"v.blk.*.{each}" for each in (
                     stored if isinstance(stored, tuple) else (stored,)))
                 for ours, stored in _VISION_LAYER.items()}}),
    f"{PATCHES}.0.weight": (StoredRows("v.patch_embd.weight", flat=True),),
    f"{PATCHES}.1.weight": (StoredRows("v.patch_embd.weight.1", flat=True),)}
"""llama.cpp's files of what reads pictures in Qwen2.5-VL, which are called mmproj."""

_START = re.compile(r"(model\.)?(language_model\.)?(model\.)?")


def known_names(norms: bool, biases: bool, beside: str = "", sandwiched: bool = False) -> str:
    """An expression of the names of all that a language model has: with norms of its heads, with
    biases of queries, keys and values, with what is `beside` it, such as what reads pictures, with
    norms behind attention and MLP as well."""
    modules = "|".join(re.escape(name) for name in (_SANDWICHED if sandwiched else _LAYER)
                       if norms or "_norm" not in name)
    found = (rf"(embed_tokens|norm|lm_head|layers\.\d+\.({modules}))\.weight"
             r"|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
    found += r"|layers\.\d+\.self_attn\.[qkv]_proj\.bias" * biases
    return found + f"|{beside}" * bool(beside)


def language_name(name: str) -> str:
    """Name of a tensor of a language model in a file of it with the words that it would say, or
    with what reads pictures.

    >>> language_name("model.layers.0.mlp.up_proj.weight"), language_name("lm_head.weight")
    ('layers.0.mlp.up_proj.weight', 'lm_head.weight')
    >>> language_name("model.language_model.norm.weight"), language_name("model.visual.norm.weight")
    ('norm.weight', 'visual.norm.weight')
    """
    return _START.sub("", name, count=1)


def seeing_names(names: Iterable[str]) -> Table:
    """The table for a language model that reads pictures, whose tensors have these names: the
    kernel over two frames of a film becomes a matrix for each frame.

    >>> list(seeing_names(["visual.patch_embed.proj.weight"]))
    ['visual.patch_embed.proj.0.weight', 'visual.patch_embed.proj.1.weight']
    """
    found: dict[str, tuple[StoredRows, ...]] = {}
    for stored in names:
        ours = language_name(stored)
        if ours == f"{PATCHES}.weight":
            found |= {f"{PATCHES}.{i}.weight": (StoredRows(stored, tap=i, flat=True),)
                      for i in range(FRAMES)}
        else:
            found[ours] = (StoredRows(stored),)
    return found
