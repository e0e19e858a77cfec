"""Pictures that a text encoder reads with a prompt: what is read of them, and where they stand.

A picture has a token of each square of 28 x 28 pixels. These take the places of tokens that stand
for nothing within the prompt; they stand in rows and columns, and what follows them goes on behind
the longer side (Bai et al. 2025, arXiv:2502.13923, section 2.1.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from smalti.dataclass import dataclass
from smalti.diffusion.images import resized
from smalti.errors import InputError
from smalti.families.record import Seen
from smalti.models import picture_angles
from smalti.models.language_config import LanguageConfig, VisionConfig
from smalti.models.qwen_vision import in_patches
from smalti.models.transformer_config import of_area

Floats = np.ndarray
MEAN = np.array((0.48145466, 0.4578275, 0.40821073), np.float32)[:, None, None]
DEVIATION = np.array((0.26862954, 0.26130258, 0.27577711), np.float32)[:, None, None]
"""Of the colours that CLIP was trained with (Radford et al. 2021), from 0 to 1."""
LONGEST = 200
"""Of a picture one side is at most so many times as long as the other."""


def tokens_along(size: tuple[int, int], area: int, config: VisionConfig) -> tuple[int, int]:
    """Rows and columns of the tokens of a picture of this width and height.

    >>> from smalti.models import QWEN25_VISION
    >>> tokens_along((1600, 1200), 384 * 384, QWEN25_VISION)
    (11, 16)
    """
    columns, rows = (max(1, round(extent / config.token_side))
                     for extent in of_area(area, *size))
    return rows, columns


def in_patches_of(rows: int, columns: int) -> tuple[int, int, int]:
    """One picture, and rows and columns of its patches, of which 2 x 2 are a token."""
    return 1, 2 * rows, 2 * columns


@dataclass(frozen=True)
class SeenPicture:
    """A picture as a text encoder reads it: patches [count, numbers of one], and how many rows and
    columns of tokens they become."""

    patches: Floats
    rows: int
    columns: int

    @classmethod
    def of(cls, picture: Image.Image, area: int, config: VisionConfig) -> SeenPicture:
        """A picture, RGB, made about as large as `area`. Raises InputError for one that is too long
        for its other side."""
        if max(picture.size) > LONGEST * min(picture.size):
            raise InputError(f"a picture of {picture.width} x {picture.height} pixels is given; "
                             f"this model reads none of which one side is more than {LONGEST} "
                             f"times as long as the other")
        near, side = resized(picture, *of_area(area, *picture.size)), config.token_side
        rows, columns = tokens_along(picture.size, area, config)
        if near.size != (columns * side, rows * side):
            near = near.resize((columns * side, rows * side), Image.Resampling.BICUBIC)
        colours = np.asarray(near, np.float32).transpose(2, 0, 1) / np.float32(255)
        return cls(in_patches((colours - MEAN) / DEVIATION, config), rows, columns)

    @property
    def shape(self) -> tuple[int, int, int]:
        """What the network that reads it is compiled for: pictures at a time, rows and columns of
        patches."""
        return in_patches_of(self.rows, self.columns)

    @property
    def tokens(self) -> int:
        """The tokens that it has in a prompt."""
        return self.rows * self.columns


def marks(seen: Seen, pictures: Sequence[SeenPicture]) -> str:
    """What stands before a prompt for pictures.

    >>> marks(Seen(1, "{}: <|image_pad|>; "), [SeenPicture(np.zeros((8, 1)), 1, 2)])
    '1: <|image_pad|><|image_pad|>; '
    """
    return "".join(seen.mark.format(number).replace(seen.token, seen.token * picture.tokens)
                   for number, picture in enumerate(pictures, 1))


def places(shown: np.ndarray, pictures: Sequence[SeenPicture]) -> np.ndarray:
    """Time, row and column [length, 3] of each token of a text, of which those that are `shown`
    [length] are of the pictures, one after the other.

    >>> two = SeenPicture(np.zeros((8, 1)), 1, 2)
    >>> places(np.array([0, 1, 1, 0]), [two]).tolist()
    [[0, 0, 0], [1, 1, 1], [1, 1, 2], [3, 3, 3]]
    """
    found = np.empty((len(shown), 3), np.int64)
    at = following = 0
    for picture in pictures:
        start = at + int(np.argmax(shown[at:]))
        found[at:start] = (following + np.arange(start - at))[:, None]
        following += start - at
        at = start + picture.tokens
        grid = np.indices((1, picture.rows, picture.columns)).reshape(3, -1).T
        found[start:at] = following + grid
        following += max(picture.rows, picture.columns)
    found[at:] = (following + np.arange(len(shown) - at))[:, None]
    return found


def with_pictures(ids: np.ndarray, token: int, pictures: Sequence[SeenPicture],
                  tokens: Sequence[Floats], config: LanguageConfig) -> dict[str, np.ndarray]:
    """What a language model reads beside the numbers `ids` [texts, length] of texts that begin with
    the same pictures, of which these `tokens` [count, width] each were made."""
    shown = ids == token
    found = np.zeros((*ids.shape, config.hidden_size), np.float32)
    if pictures:
        for row, where in zip(found, shown, strict=True):
            row[where] = np.concatenate(tokens)
    cos, sin = picture_angles(np.stack([places(row, pictures) for row in shown]), config.sections,
                              config)
    return {"pictures": found, "shown": shown.astype(np.float32), "cos": cos, "sin": sin}
