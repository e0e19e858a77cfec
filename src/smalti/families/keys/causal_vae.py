"""Keys of the autoencoders of Wan 2.1 and Qwen-Image, and of Qwen-Image-2.1: inside, those of
diffusers; in the files of Wan's authors and of ComfyUI (`wan_2.1_vae`, `qwen_image_vae`,
`qwen_image_2.1_vae_bf16`), those of Wan 2.1 and of Wan 2.2.

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
_NESTED = re.compile(r"(encoder\.down|decoder\.up)samples\.(\d{1,4})\.(?:down|up)samples\.(\d{1,4})"
                     r"\.(.+)")
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
            elif stack == "middle":
                path = _middle(half, place, rest)
            else:
                kind = ("upsamplers.0" if rest.startswith("resample.")
                        else f"resnets.{place % level}")
                path = f"{half}.up_blocks.{place // level}.{kind}.{rest}"
        return f"{_ENDS.get(path, path)}.{leaf}" if path else name

    return rename


def residual_name(name: str) -> str:
    """Name inside of a tensor of either kind, of the autoencoder of Qwen-Image-2.1.

    >>> residual_name("decoder.upsamples.3.upsamples.2.residual.6.weight")
    'decoder.up_blocks.3.resnets.2.conv2.weight'
    >>> residual_name("encoder.downsamples.0.downsamples.2.resample.1.bias")
    'encoder.down_blocks.0.downsampler.resample.1.bias'
    """
    path, _, leaf = name.rpartition(".")
    if match := _NESTED.match(path):
        half, level, place, rest = match.groups()
        kind = (f"{half.partition('.')[2]}sampler" if rest.startswith("resample.")
                else f"resnets.{place}")
        path = f"{half}_blocks.{level}.{kind}.{_RESIDUAL.get(rest, rest)}"
    elif (match := _NUMBERED.match(path)) and match[2] == "middle":
        path = _middle(match[1], int(match[3]), _RESIDUAL.get(match[4], match[4]))
    return f"{_ENDS.get(path, path)}.{leaf}" if path else name


def _middle(half: str, place: int, rest: str) -> str:
    """What stands in the middle: a residual block, attention, a residual block."""
    return f"{half}.mid_block.{'attentions.0' if place == 1 else f'resnets.{place // 2}'}.{rest}"


def causal_vae(names: Iterable[str]) -> Table:
    """The table for a file that has these names, below the prefix of the autoencoder."""
    names = list(names)
    return _of_pictures(names, causal_renaming(names))


def residual_vae(names: Iterable[str]) -> Table:
    """The same of the autoencoder of Qwen-Image-2.1, which ComfyUI's file has with kernels of one
    frame, and diffusers without an axis for it."""
    return _of_pictures(names, residual_name)


def _of_pictures(names: Iterable[str], rename: Callable[[str], str]) -> Table:
    """Of kernels in time the last tap."""
    return {rename(name): (StoredRows(name, tap=-1 if name.endswith(".weight")
                                      and not _IN_SPACE.search(name) else None),)
            for name in names}
