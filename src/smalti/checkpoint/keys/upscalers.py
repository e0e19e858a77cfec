"""Upscalers: which network a file holds, its hyperparameters, and its keys in three spellings.

ESRGAN's first code numbers all layers in one row (`model.1.sub.0.RDB1.conv1.0`), its second names
them (`RRDB_trunk.0.RDB1.conv1`), and BasicSR names them anew (`body.0.rdb1.conv1`), which is what
they are called inside. Source: xinntao/ESRGAN, both versions; XPixelGroup/BasicSR.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

from smalti.errors import CheckpointError, first_of
from smalti.models.config import RrdbConfig, SrvggConfig

Shapes = Mapping[str, tuple[int, ...]]

_ROW = re.compile(r"model\.(\d{1,4})\.(weight|bias)")
_ROW_BLOCK = re.compile(r"model\.1\.sub\.(\d{1,4})\.RDB([123])\.conv([1-5])\.0\.(weight|bias)")
_ROW_TRUNK = re.compile(r"model\.1\.sub\.\d{1,4}\.(weight|bias)")
_NAMED_BLOCK = re.compile(r"RRDB_trunk\.(\d{1,4})\.RDB([123])\.conv([1-5])\.(weight|bias)")
_NAMED = {"trunk_conv": "conv_body", "HRconv": "conv_hr", "upconv1": "conv_up1",
          "upconv2": "conv_up2", "upconv3": "conv_up3"}
_BODY = re.compile(r"body\.(\d{1,4})\.")
_UP = re.compile(r"conv_up(\d)\.weight")
BLOCKS_MAX = 256
"""Of one network; ESRGAN has 23 blocks, the compact network of Real-ESRGAN up to 66 layers."""
SIDE_MAX = 16
"""Pixels of a side that an enlargement or a reduction counts; published ones have 4."""
SHOWN_MAX = 3  # names in the message about a file of something else


def upscaler_renaming(names: Iterable[str]) -> Callable[[str], str]:
    """Function from the names in a file, all of which are `names`, to internal ones.

    >>> rename = upscaler_renaming(f"model.{i}.weight" for i in (0, 3, 6, 8, 10))
    >>> [rename(name) for name in ("model.6.weight", "model.1.sub.22.RDB3.conv5.0.bias")]
    ['conv_up2.weight', 'body.22.rdb3.conv5.bias']
    """
    row = sorted({int(match[1]) for match in map(_ROW.fullmatch, names) if match})
    ends = ["conv_first", *(f"conv_up{i + 1}" for i in range(len(row) - 3)), "conv_hr", "conv_last"]
    numbered = dict(zip(row, ends, strict=True)) if len(row) >= 3 else {}

    def rename(name: str) -> str:
        if match := _ROW_BLOCK.fullmatch(name) or _NAMED_BLOCK.fullmatch(name):
            return "body.{}.rdb{}.conv{}.{}".format(*match.groups())
        if match := _ROW_TRUNK.fullmatch(name):
            return f"conv_body.{match[1]}"
        if (match := _ROW.fullmatch(name)) and int(match[1]) in numbered:
            return f"{numbered[int(match[1])]}.{match[2]}"
        path, _, leaf = name.rpartition(".")
        return f"{_NAMED[path]}.{leaf}" if path in _NAMED else name

    return rename


def upscaler_config(where: object, shapes: Shapes) -> RrdbConfig | SrvggConfig:
    """The network whose tensors (internal names) have these shapes, or some of them.

    Raises CheckpointError, with `where` in front, where they are those of no network known here.
    """
    blocks = {int(match[1]) for match in map(_BODY.match, shapes) if match}
    if blocks and max(blocks) < BLOCKS_MAX:
        for read in (_rrdb, _srvgg):
            config = read(shapes, max(blocks))
            if config is not None:
                return config
    raise CheckpointError(f"{where} is no ControlNet, TAESD or upscaler that is known: of upscalers"
                          f" ESRGAN, Real-ESRGAN and the compact network of Real-ESRGAN are; "
                          f"it holds {first_of(sorted(shapes), SHOWN_MAX)}")


def _rrdb(shapes: Shapes, last: int) -> RrdbConfig | None:
    first, dense, end = (shapes.get(f"{name}.weight", ()) for name in
                         ("conv_first", "body.0.rdb1.conv1", "conv_last"))
    if not len(first) == len(dense) == len(end) == 4 or not end[0]:
        return None
    doublings = max((int(match[1]) for match in map(_UP.fullmatch, shapes) if match), default=0)
    return RrdbConfig(channels=first[0], growth=dense[0], blocks=last + 1, doublings=doublings,
                      unshuffle=_root(first[1], end[0]), image_channels=end[0])


def _srvgg(shapes: Shapes, last: int) -> SrvggConfig | None:
    first, end = shapes.get("body.0.weight", ()), shapes.get(f"body.{last}.weight", ())
    if not len(first) == len(end) == 4 or last < 2 or last % 2 or not first[1]:
        return None
    return SrvggConfig(channels=first[0], convolutions=last // 2 - 1,
                       scale=_root(end[0], first[1]), image_channels=first[1])


def _root(many: int, few: int) -> int:
    """The side of the squares of pixels that make `many` channels of `few`."""
    return min(max(math.isqrt(many // few), 1), SIDE_MAX)
