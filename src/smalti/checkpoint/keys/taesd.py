"""Keys and hyperparameters of TAESD: inside, the numbers of the original code below `taesd.`.

In folders they are those of diffusers. The decoder of the original begins with a layer without
weights, which diffusers does not count.
Source: madebyollin/taesd `taesd.py`; diffusers `models/autoencoders/vae.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from smalti.errors import CheckpointError
from smalti.models.config import TaesdConfig

_ORIGINAL = re.compile(r"(?:taesd[._])?(decoder|encoder)\.(\d{1,4}\..+)")
_DIFFUSERS = re.compile(r"(decoder|encoder)\.layers\.(\d{1,4})\.(.+)")
_BLOCK = re.compile(r"taesd\.(decoder|encoder)\.(\d{1,4})\.conv\..+")
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


def taesd_config(where: object, shapes: Mapping[str, tuple[int, ...]]) -> TaesdConfig:
    """The autoencoder, of which one half or both have tensors (internal names) of these shapes.

    Raises CheckpointError, with `where` in front, where they show neither half.
    """
    blocks = {half: _runs({int(match[2]) for match in map(_BLOCK.fullmatch, shapes)
                           if match and match[1] == half}) for half in ("decoder", "encoder")}
    first = shapes.get("taesd.decoder.1.weight", ())
    last = shapes.get(f"taesd.encoder.{_after(blocks['encoder'])}.weight", ())
    channels = shapes.get("taesd.encoder.0.weight", first)
    if len(channels) != 4 or not blocks["decoder"] and not blocks["encoder"]:
        raise CheckpointError(f"{where}: neither half of a tiny autoencoder can be seen in it")
    return TaesdConfig(
        z_channels=first[1] if len(first) == 4 else next(iter(last), 0), channels=channels[0],
        decoder_blocks=blocks["decoder"] or blocks["encoder"][::-1],
        encoder_blocks=blocks["encoder"] or blocks["decoder"][::-1])


def _runs(numbers: set[int]) -> tuple[int, ...]:
    """Lengths of the runs of numbers without a gap.

    >>> _runs({3, 4, 5, 8, 10, 11})
    (3, 1, 2)
    """
    starts = sorted(number for number in numbers if number - 1 not in numbers)
    return tuple(next(length for length in range(1, len(numbers) + 1)
                      if start + length not in numbers) for start in starts)


def _after(encoder_blocks: tuple[int, ...]) -> int:
    """The number of the encoder's last layer: behind all blocks, and a convolution before each run.
    """
    return sum(encoder_blocks) + len(encoder_blocks)
