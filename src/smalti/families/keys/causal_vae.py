"""Keys of the autoencoder of Wan 2.1 and Qwen-Image: inside, those of diffusers; in the files of
Wan's authors and of ComfyUI (`wan_2.1_vae`, `qwen_image_vae`), those of Wan.

Kernels in time have one more axis, of which a picture needs the last tap. Whoever computes films
reads the same names without it.

Sources: Wan-Video/Wan2.1, `wan/modules/vae.py`; diffusers 0.42, `loaders/single_file_utils.py`,
`convert_wan_vae_to_diffusers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from smalti.families.keys.stored import StoredRows, Table

_RESIDUAL = {"residual.0": "norm1", "residual.2": "conv1", "residual.3": "norm2",
             "residual.6": "conv2", "shortcut": "conv_shortcut"}
_ENDS = {"conv1": "quant_conv", "conv2": "post_quant_conv",
         **{f"{half}.{ours}": f"{half}.{theirs}" for half in ("encoder", "decoder")
            for ours, theirs in {"conv1": "conv_in", "head.0": "norm_out",
                                 "head.2": "conv_out"}.items()}}
_NUMBERED = re.compile(r"(encoder|decoder)\.(downsamples|middle|upsamples)\.(\d{1,4})\.(.+)")
_DOUBLED = re.compile(r"decoder\.upsamples\.(\d{1,4})\.resample\.")
_IN_SPACE = re.compile(r"\.(resample\.1|to_qkv|proj)\.weight$")
"""Kernels without an axis of time."""


def causal_renaming(names: Iterable[str]) -> Callable[[str], str]:
    """Function from names of either kind, all of which are `names`, to those inside.

    >>> names = ["decoder.upsamples.3.resample.1.weight", "decoder.upsamples.7.resample.1.weight"]
    >>> rename = causal_renaming(names)
    >>> rename("decoder.upsamples.4.shortcut.weight"), rename(names[1])
    ('decoder.up_blocks.1.resnets.0.conv_shortcut.weight', \
'decoder.up_blocks.1.upsamplers.0.resample.1.weight')
    >>> rename("encoder.middle.2.residual.0.gamma"), rename("decoder.conv_in.bias")
    ('encoder.mid_block.resnets.1.norm1.gamma', 'decoder.conv_in.bias')
    """
    names = list(names)
    places = [int(match[1]) for match in map(_DOUBLED.match, names) if match]
    level = 1 + min(places, default=len(names))  # blocks of a level and what doubles its size

    def rename(name: str) -> str:
        path, _, leaf = name.rpartition(".")
        if match := _NUMBERED.match(path):
            half, stack, number, rest = match.groups()
            rest, place = _RESIDUAL.get(rest, rest), int(number)
            if stack == "downsamples":
                path = f"{half}.down_blocks.{number}.{rest}"
            elif stack == "middle":  # a residual block, attention, a residual block
                kind = "attentions.0" if place == 1 else f"resnets.{place // 2}"
                path = f"{half}.mid_block.{kind}.{rest}"
            else:
                kind = ("upsamplers.0" if rest.startswith("resample.")
                        else f"resnets.{place % level}")
                path = f"{half}.up_blocks.{place // level}.{kind}.{rest}"
        return f"{_ENDS.get(path, path)}.{leaf}" if path else name

    return rename


def causal_vae(names: Iterable[str]) -> Table:
    """The table for a file that has these names, below the prefix of the autoencoder."""
    names = list(names)
    rename = causal_renaming(names)
    return {rename(name): (StoredRows(name, tap=-1 if name.endswith(".weight")
                                      and not _IN_SPACE.search(name) else None),)
            for name in names}
