"""From the names of the tensors of an adapter to modules: which layer, and which part of a change.

Every trainer has a spelling of its own for the same few things: the two factors of a low-rank
change, how much it counts, and some other kinds of change. Here a name is cut into the module that
it belongs to, as the file spells it, and the role that it has there. Sources: kohya-ss/sd-scripts
and KohakuBlueleaf/LyCORIS for `lora_down`, `hada_`, `lokr_`, `dora_scale`; huggingface/peft for
`lora_A`, `lora_magnitude_vector`; huggingface/diffusers for the older ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from smalti.checkpoint.embeddings import BUNDLE

_XLABS = re.compile(r"(.+)\.processor\.((?:qkv|proj)_lora[12]?)\.(down|up)\.weight")
_MARK = r"(?:[._]lora[._]|\.lora_linear_layer\.)"
_NAMED = r"(?:\.(?!weight$|bias$)\w+)?"  # what PEFT calls the adapter
_ENDINGS = (
    (rf"{_MARK}(?:A|down){_NAMED}(?:\.weight)?", "down"),
    (rf"{_MARK}(?:B|up){_NAMED}(?:\.weight)?", "up"),
    (rf"{_MARK}(?:A|down){_NAMED}\.bias", "down_bias"),
    (rf"{_MARK}(?:B|up){_NAMED}\.bias", "up_bias"),
    (rf"{_MARK}mid{_NAMED}(?:\.weight)?", "mid"),
    (r"\.dora_scale", "norms"),
    (rf"\.lora_magnitude_vector{_NAMED}(?:\.weight)?", "magnitude"),
    (r"\.(hada_(?:w[12]_[ab]|t[12])|lokr_(?:w[12](?:_[ab])?|t2))", None),
    (r"(?:[._]lora|\.lora_linear_layer)?\.(alpha)", None),
    (r"\.(scale|diff|diff_b|w_norm|b_norm|set_weight|reshape_weight)", None),
    (r"\.(oft_blocks|oft_diag|oft_R(?:\.weight)?|lora_embedding_[AB]|on_input|[ab][12]\.weight)",
     "other"),
)
_PATTERNS = tuple((re.compile(f"(.+?){ending}$"), role) for ending, role in _ENDINGS)
_PLAIN = re.compile(r"(.+)\.(weight|bias)$")


class Key(NamedTuple):
    """What the name of a tensor says: the module as the file spells it, and the role in it."""

    module: str
    role: str


def parsed(name: str) -> Key | None:
    """Module and role of a tensor; None where the name says nothing of the kind.

    Roles: `down`, `up`, `mid`, `down_bias`, `up_bias`, `alpha`, `scale`, `norms` and `magnitude` of
    DoRA, `hada_…`, `lokr_…`, `diff`, `diff_b`, `w_norm`, `b_norm`, `set_weight`, `set_bias`,
    `reshape_weight`, and `other` for kinds that are known by name only.

    >>> parsed("lora_unet_mid_block_attentions_0_proj_in.lora_down.weight")
    Key(module='lora_unet_mid_block_attentions_0_proj_in', role='down')
    >>> parsed("unet.mid_block.attentions.0.attn1.processor.to_out_lora.up.weight")
    Key(module='unet.mid_block.attentions.0.attn1.processor.to_out', role='up')
    >>> parsed("base_model.model.to_q.lora_A.default.weight").role
    'down'
    >>> parsed("double_blocks.0.processor.qkv_lora1.down.weight")
    Key(module='double_blocks.0.qkv_lora1', role='down')
    """
    if match := _XLABS.fullmatch(name):
        return Key(f"{match[1]}.{match[2]}", match[3])
    for pattern, role in _PATTERNS:
        if match := pattern.match(name):
            return Key(match[1], role or match[2])
    if match := _PLAIN.match(name):
        return Key(match[1], "set_bias" if match[2] == "bias" else "set_weight")
    return None


def modules(names: Iterable[str]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The tensors of each module by role, and those that belong to none.

    Embeddings that are bundled are in neither. Where two names say the same thing, the second is
    left over. A `scale` that scales nothing is the weight of a norm of Flux.

    >>> modules(["a.lora_A.weight", "a.alpha", "bundle_emb.b.clip_l", "c"])
    ({'a': {'down': 'a.lora_A.weight', 'alpha': 'a.alpha'}}, ['c'])
    """
    found: dict[str, dict[str, str]] = {}
    left = []
    for name in names:
        if name.startswith(BUNDLE):
            continue
        key = parsed(name)
        if key is None or key.role in found.get(key.module, ()):
            left.append(name)
        else:
            found.setdefault(key.module, {})[key.role] = name
    for roles in found.values():
        if set(roles) == {"scale"}:
            roles["set_weight"] = roles.pop("scale")
    return found, left
