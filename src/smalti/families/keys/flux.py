"""Keys of Flux.1 and what is made of its blocks: inside, the original names; in folders, those of
diffusers.

Source: diffusers 0.40, `loaders/single_file_utils.py` and `models/transformers/
transformer_flux.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from smalti.families.keys.stored import Modules, Table, layers, swapped, whole

_OUTSIDE: Modules = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.in_layer": "time_text_embed.timestep_embedder.linear_1",
    "time_in.out_layer": "time_text_embed.timestep_embedder.linear_2",
    "guidance_in.in_layer": "time_text_embed.guidance_embedder.linear_1",
    "guidance_in.out_layer": "time_text_embed.guidance_embedder.linear_2",
    "vector_in.in_layer": "time_text_embed.text_embedder.linear_1",
    "vector_in.out_layer": "time_text_embed.text_embedder.linear_2",
    "final_layer.linear": "proj_out",
}
_BLOCKS: Modules = {
    "double_blocks.*.img_attn.qkv": tuple(f"transformer_blocks.*.attn.to_{x}" for x in "qkv"),
    "double_blocks.*.txt_attn.qkv": tuple(f"transformer_blocks.*.attn.add_{x}_proj" for x in "qkv"),
    "double_blocks.*.img_attn.proj": "transformer_blocks.*.attn.to_out.0",
    "double_blocks.*.txt_attn.proj": "transformer_blocks.*.attn.to_add_out",
    "double_blocks.*.img_mlp.0": "transformer_blocks.*.ff.net.0.proj",
    "double_blocks.*.img_mlp.2": "transformer_blocks.*.ff.net.2",
    "double_blocks.*.txt_mlp.0": "transformer_blocks.*.ff_context.net.0.proj",
    "double_blocks.*.txt_mlp.2": "transformer_blocks.*.ff_context.net.2",
    "single_blocks.*.linear1": (
        *(f"single_transformer_blocks.*.attn.to_{x}" for x in "qkv"),
        "single_transformer_blocks.*.proj_mlp"),
    "single_blocks.*.linear2": "single_transformer_blocks.*.proj_out",
}
_MODULATIONS: Modules = {
    "double_blocks.*.img_mod.lin": "transformer_blocks.*.norm1.linear",
    "double_blocks.*.txt_mod.lin": "transformer_blocks.*.norm1_context.linear",
    "single_blocks.*.modulation.lin": "single_transformer_blocks.*.norm.linear",
}
_NORMS = {
    "double_blocks.*.img_attn.norm.query_norm": "transformer_blocks.*.attn.norm_q",
    "double_blocks.*.img_attn.norm.key_norm": "transformer_blocks.*.attn.norm_k",
    "double_blocks.*.txt_attn.norm.query_norm": "transformer_blocks.*.attn.norm_added_q",
    "double_blocks.*.txt_attn.norm.key_norm": "transformer_blocks.*.attn.norm_added_k",
    "single_blocks.*.norm.query_norm": "single_transformer_blocks.*.attn.norm_q",
    "single_blocks.*.norm.key_norm": "single_transformer_blocks.*.attn.norm_k",
}
_FINAL = "final_layer.adaLN_modulation.*"

FLUX_DIFFUSERS: Table = {
    **layers({**_OUTSIDE, **_BLOCKS, **_MODULATIONS}),
    **{f"{ours}.scale": whole(f"{stored}.weight") for ours, stored in _NORMS.items()},
    **{f"final_layer.adaLN_modulation.1.{kind}": swapped(f"norm_out.linear.{kind}")
       for kind in ("weight", "bias")},
}
"""diffusers' `FluxTransformer2DModel`; the last modulation is stored as scale, then shift."""

FLUX_ORIGINAL: Table = {
    **layers({name: name for name in (*_OUTSIDE, *_BLOCKS, *_MODULATIONS, _FINAL)}),
    **{f"{name}.scale": whole(f"{name}.scale") for name in _NORMS},
}
"""Black Forest Labs' own files."""

_ENDS: Modules = {name: name for name in ("controlnet_blocks.*", "controlnet_single_blocks.*")}
_HINT: Modules = {"input_hint_block.0": "input_hint_block.conv_in",
         **{f"input_hint_block.{2 * i + 2}": f"input_hint_block.blocks.{i}" for i in range(6)},
         "input_hint_block.14": "input_hint_block.conv_out"}
_NO_FINAL: Modules = {name: path for name, path in _OUTSIDE.items() if name != "final_layer.linear"}
_MODES = {"controlnet_mode_embedder.weight": whole("controlnet_mode_embedder.weight")}

FLUX_CONTROLNET_DIFFUSERS: Table = {
    **layers({**_NO_FINAL, **_BLOCKS, **_MODULATIONS, **_ENDS, **_HINT,
              "controlnet_x_embedder": "controlnet_x_embedder"}),
    **{f"{ours}.scale": whole(f"{stored}.weight") for ours, stored in _NORMS.items()}, **_MODES,
}
"""diffusers' `FluxControlNetModel`, of which InstantX's files are."""

FLUX_CONTROLNET_ORIGINAL: Table = {
    **layers({name: name for name in (*_NO_FINAL, *_BLOCKS, *_MODULATIONS, *_ENDS, *_HINT)}),
    **layers({"controlnet_x_embedder": "pos_embed_input"}),
    **{f"{name}.scale": whole(f"{name}.scale") for name in _NORMS},
}
"""XLabs' own files."""

_OVIS_OUTSIDE: Modules = {
    **{name: _OUTSIDE[name] for name in ("img_in", "txt_in", "final_layer.linear")},
    "time_in.in_layer": "timestep_embedder.linear_1",
    "time_in.out_layer": "timestep_embedder.linear_2",
}
_OVIS_NORM = "context_norm"

LONGCAT_DIFFUSERS: Table = {
    **layers({**_OVIS_OUTSIDE, "time_in.in_layer": "time_embed.timestep_embedder.linear_1",
              "time_in.out_layer": "time_embed.timestep_embedder.linear_2", **_BLOCKS,
              **_MODULATIONS}),
    **{f"{ours}.scale": whole(f"{stored}.weight") for ours, stored in _NORMS.items()},
    **{f"final_layer.adaLN_modulation.1.{kind}": swapped(f"norm_out.linear.{kind}")
       for kind in ("weight", "bias")},
}
"""diffusers' `LongCatImageTransformer2DModel`; its authors' files in other layouts have the names
of Flux.1."""

OVIS_DIFFUSERS: Table = {
    **layers({**_OVIS_OUTSIDE, **_BLOCKS, **_MODULATIONS}),
    **{f"{ours}.scale": whole(f"{stored}.weight")
       for ours, stored in {**_NORMS, _OVIS_NORM: "context_embedder_norm"}.items()},
    **{f"final_layer.adaLN_modulation.1.{kind}": swapped(f"norm_out.linear.{kind}")
       for kind in ("weight", "bias")},
}
"""diffusers' `OvisImageTransformer2DModel`, whose MLPs have the gates last."""


def ovis_original(names: Iterable[str]) -> Table:
    """Ovis-Image's own files, with these names, in which layers of MLPs are apart; some call the
    factors of norms scales, and some weights."""
    mlps: Modules = {f"double_blocks.*.{stream}_mlp.{ours}": tuple(
                         f"double_blocks.*.{stream}_mlp.{each}_proj" for each in stored)
                     for stream in ("img", "txt")
                     for ours, stored in (("0", ("up", "gate")), ("2", ("down",)))}
    kept = (name for name in (*_OVIS_OUTSIDE, *_BLOCKS, *_MODULATIONS, _FINAL) if name not in mlps)
    found, norms = set(names), {**{name: name for name in _NORMS}, _OVIS_NORM: "txt_norm"}
    return {**layers({**{name: name for name in kept}, **mlps}),
            **{f"{ours}.scale": whole(f"{stored}.{_factors(stored, found)}")
               for ours, stored in norms.items()}}


def _factors(norm: str, names: Collection[str]) -> str:
    """What the factors of a norm are called."""
    return "weight" if f"{norm.replace('*', '0')}.weight" in names else "scale"


_APPROXIMATOR = {
    "distilled_guidance_layer.in_proj": "distilled_guidance_layer.in_proj",
    "distilled_guidance_layer.out_proj": "distilled_guidance_layer.out_proj",
    "distilled_guidance_layer.layers.*.in_layer": "distilled_guidance_layer.layers.*.linear_1",
    "distilled_guidance_layer.layers.*.out_layer": "distilled_guidance_layer.layers.*.linear_2",
}
_APPROXIMATOR_NORM = "distilled_guidance_layer.norms.*"
_OF_BOTH = {name: _OUTSIDE[name] for name in ("img_in", "txt_in", "final_layer.linear")}

CHROMA_DIFFUSERS: Table = {
    **layers({**_OF_BOTH, **_BLOCKS, **_APPROXIMATOR}),
    **{f"{ours}.scale": whole(f"{stored}.weight")
       for ours, stored in ({**_NORMS, _APPROXIMATOR_NORM: _APPROXIMATOR_NORM}).items()},
}
"""diffusers' `ChromaTransformer2DModel`."""

CHROMA_ORIGINAL: Table = {
    **layers({name: name for name in (*_OF_BOTH, *_BLOCKS, *_APPROXIMATOR)}),
    **{f"{name}.scale": whole(f"{name}.scale") for name in (*_NORMS, _APPROXIMATOR_NORM)},
}
"""Lodestone's own files."""
