"""Keys of Stable Diffusion 3: inside, the original names; in folders, those of diffusers.

Source: diffusers 0.40, `loaders/single_file_utils.py`.
"""

from __future__ import annotations

from collections.abc import Collection

from smalti.families.keys.stored import Modules, Table, layers, swapped, whole

_OUTSIDE: Modules = {
    "x_embedder.proj": "pos_embed.proj",
    "context_embedder": "context_embedder",
    "t_embedder.mlp.0": "time_text_embed.timestep_embedder.linear_1",
    "t_embedder.mlp.2": "time_text_embed.timestep_embedder.linear_2",
    "y_embedder.mlp.0": "time_text_embed.text_embedder.linear_1",
    "y_embedder.mlp.2": "time_text_embed.text_embedder.linear_2",
    "final_layer.linear": "proj_out",
}
_X, _CONTEXT = "joint_blocks.*.x_block", "joint_blocks.*.context_block"
_BLOCK = "transformer_blocks.*"
_BLOCKS: Modules = {
    f"{_X}.adaLN_modulation.1": f"{_BLOCK}.norm1.linear",
    f"{_X}.attn.qkv": tuple(f"{_BLOCK}.attn.to_{part}" for part in "qkv"),
    f"{_X}.attn.proj": f"{_BLOCK}.attn.to_out.0",
    f"{_X}.attn2.qkv": tuple(f"{_BLOCK}.attn2.to_{part}" for part in "qkv"),
    f"{_X}.attn2.proj": f"{_BLOCK}.attn2.to_out.0",
    f"{_X}.mlp.fc1": f"{_BLOCK}.ff.net.0.proj",
    f"{_X}.mlp.fc2": f"{_BLOCK}.ff.net.2",
    f"{_CONTEXT}.adaLN_modulation.1": f"{_BLOCK}.norm1_context.linear",
    f"{_CONTEXT}.attn.qkv": tuple(f"{_BLOCK}.attn.add_{part}_proj" for part in "qkv"),
    f"{_CONTEXT}.attn.proj": f"{_BLOCK}.attn.to_add_out",
    f"{_CONTEXT}.mlp.fc1": f"{_BLOCK}.ff_context.net.0.proj",
    f"{_CONTEXT}.mlp.fc2": f"{_BLOCK}.ff_context.net.2",
}
_NORMS = {
    f"{_X}.attn.ln_q": f"{_BLOCK}.attn.norm_q",
    f"{_X}.attn.ln_k": f"{_BLOCK}.attn.norm_k",
    f"{_X}.attn2.ln_q": f"{_BLOCK}.attn2.norm_q",
    f"{_X}.attn2.ln_k": f"{_BLOCK}.attn2.norm_k",
    f"{_CONTEXT}.attn.ln_q": f"{_BLOCK}.attn.norm_added_q",
    f"{_CONTEXT}.attn.ln_k": f"{_BLOCK}.attn.norm_added_k",
}
_FINAL = "final_layer.adaLN_modulation.1"


def sd3_diffusers(blocks: int) -> Table:
    """diffusers' `SD3Transformer2DModel` with this number of blocks.

    The modulation of the last block's context, like that of the last layer, is stored as scale,
    then shift.
    """
    last, stored = (f"{name.replace('*', str(blocks - 1))}" for name in (
        f"{_CONTEXT}.adaLN_modulation.1", f"{_BLOCK}.norm1_context.linear"))
    return {
        "pos_embed": whole("pos_embed.pos_embed"),
        **layers({**_OUTSIDE, **_BLOCKS}),
        **layers(_NORMS, bias=False),
        **{f"{ours}.{kind}": swapped(f"{theirs}.{kind}") for kind in ("weight", "bias")
           for ours, theirs in ((_FINAL, "norm_out.linear"), (last, stored))},
    }


SD3_ORIGINAL: Table = {
    "pos_embed": whole("pos_embed"),
    **layers({name: name for name in (*_OUTSIDE, *_BLOCKS, _FINAL)}),
    **layers({name: name for name in _NORMS}, bias=False),
}
"""Stability AI's own files."""

_SINGLE: Modules = {
    "transformer_blocks.*.adaLN_modulation.1": f"{_BLOCK}.norm1.linear",
    "transformer_blocks.*.attn.qkv": tuple(f"{_BLOCK}.attn.to_{part}" for part in "qkv"),
    "transformer_blocks.*.attn.proj": f"{_BLOCK}.attn.to_out.0",
    "transformer_blocks.*.mlp.fc1": f"{_BLOCK}.ff.net.0.proj",
    "transformer_blocks.*.mlp.fc2": f"{_BLOCK}.ff.net.2",
}
_NO_FINAL: Modules = {name: path for name, path in _OUTSIDE.items() if name != "final_layer.linear"}
_CONTROL: Modules = {name: name for name in ("controlnet_blocks.*", "pos_embed_input.proj")}

SD3_CONTROLNET_DIFFUSERS: Table = {
    "pos_embed": whole("pos_embed.pos_embed"),
    **layers({**_NO_FINAL, **_BLOCKS, **_CONTROL}),
    **layers(_NORMS, bias=False),
}
"""diffusers' `SD3ControlNetModel` with text, of which InstantX's files are."""


def sd35_controlnet(names: Collection[str]) -> Table:
    """The ControlNets of 3.5 large, which see no text, for the names in a file.

    Files have diffusers' names or the original ones, or the one for blocks and the other outside.
    """
    blocks = "transformer_blocks.0.attn.qkv.weight" in names
    outside = "t_embedder.mlp.0.weight" in names
    return layers({**({name: name for name in _NO_FINAL} if outside else _NO_FINAL),
                   **({name: name for name in _SINGLE} if blocks else _SINGLE), **_CONTROL})
