"""Keys of TAESD: inside, the numbers of the original code below `taesd.`; in folders, diffusers'.

The decoder of the original begins with a layer without weights, which diffusers does not count.
Source: madebyollin/taesd `taesd.py`; diffusers `models/autoencoders/vae.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_ORIGINAL = re.compile(r"(?:taesd[._])?(decoder|encoder)\.(\d{1,4}\..+)")
_DIFFUSERS = re.compile(r"(decoder|encoder)\.layers\.(\d{1,4})\.(.+)")
_BARE = re.compile(r"\d{1,4}\.")


def taesd_renaming(names: Iterable[str]) -> Callable[[str], str]:
    """Function from the names in a file, all of which are `names`, to internal ones.

    Of a file that holds one half only and names it nowhere, the first layer says which it is.

    >>> taesd_renaming(["decoder.layers.0.weight"])("decoder.layers.2.conv.0.weight")
    'taesd.decoder.3.conv.0.weight'
    >>> taesd_renaming(["1.weight", "1.bias"])("3.conv.0.weight")
    'taesd.decoder.3.conv.0.weight'
    >>> taesd_renaming(["0.weight", "0.bias"])("1.conv.0.weight")
    'taesd.encoder.1.conv.0.weight'
    """
    half = "encoder" if "0.weight" in set(names) else "decoder"

    def rename(name: str) -> str:
        if match := _DIFFUSERS.fullmatch(name):
            side, number, rest = match.groups()
            return f"taesd.{side}.{int(number) + (side == 'decoder')}.{rest}"
        if match := _ORIGINAL.fullmatch(name):
            return f"taesd.{match[1]}.{match[2]}"
        return f"taesd.{half}.{name}" if _BARE.match(name) else name

    return rename
