"""How a picture was made, as the text that A1111 keeps in PNG files and that other programs read.

    a red apple
    Negative prompt: blurry
    Steps: 20, Sampler: Euler a, Schedule type: Karras, CFG scale: 7, Seed: 7, Size: 512x512

The text stands in a PNG text chunk named `parameters`. Source: the `infotext` of
AUTOMATIC1111/stable-diffusion-webui.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from PIL import ExifTags, Image

from smalti.dataclass import dataclass
from smalti.errors import InputError

PNG_KEY = "parameters"
NEGATIVE = "Negative prompt:"
TEXT_BYTES_MAX = 1 << 20
"""Of a file of text: a thousand times what the longest prompts take."""
UNICODE = b"UNICODE\0"
"""What begins a comment of EXIF data that is not ASCII."""

_EXPECTED = f"expected a `{PNG_KEY}` text, as Smalti, A1111 and others write it"
_PAIR = re.compile(r'\s*(\w[\w \-/]*):\s*("(?:\\.|[^\\"])*"|[^,]*)(?:,|$)')


@dataclass(frozen=True)
class Parameters:
    """A text in its parts: the prompts, and `pairs` such as "Steps" and "20", in order.

    What the pairs mean says `option_text`.
    """

    prompt: str
    negative_prompt: str = ""
    pairs: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        told = [f"{key}: {_quoted(value)}" for key, value in self.pairs.items()]
        lines = [self.prompt]
        if self.negative_prompt:
            lines.append(f"{NEGATIVE} {self.negative_prompt}")
        return "\n".join([*lines, ", ".join(told)] if told else lines)


def parse(text: str) -> Parameters:
    """The parts of an A1111 parameters text, by whatever program it was written.

    >>> found = parse("a cat\\nNegative prompt: dog\\nSteps: 20, Sampler: Euler a, Seed: 7")
    >>> found.prompt, found.negative_prompt, found.pairs["Sampler"], found.pairs["Seed"]
    ('a cat', 'dog', 'Euler a', '7')
    """
    lines = text.strip("\n").split("\n")
    pairs: dict[str, str] = {}
    found = _PAIR.findall(lines[-1])
    if len(found) >= 3 or lines[-1].startswith("Steps: "):
        pairs = {key.strip(): _unquoted(value.strip()) for key, value in found}
        lines = lines[:-1]
    start = next((i for i, line in enumerate(lines) if line.startswith(NEGATIVE)), len(lines))
    negative = "\n".join(lines[start:]).removeprefix(NEGATIVE).removeprefix(" ")
    return Parameters("\n".join(lines[:start]), negative, pairs)


def text_in(path: str | Path) -> str:
    """The parameters text that a picture carries, or that a .txt file holds.

    In PNG files it stands in a chunk of its own, in JPEG and WebP files in the comment of their
    EXIF data. Raises InputError for a file without one.
    """
    path = Path(path)
    if path.suffix.lower() == ".txt":
        return _written_in(path)
    try:
        with Image.open(path) as picture:
            text = carried(picture)
            made_by = "; it holds the graph of ComfyUI, which is not read" * (
                "workflow" in picture.info or "prompt" in picture.info)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read as a picture: {why}") from None
    if not text:
        raise InputError(f"{path} carries no settings{made_by}; expected a picture with a "
                         f"`{PNG_KEY}` text, as Smalti, A1111 and others write it")
    return text


def carried(picture: Image.Image) -> str:
    """The parameters text of a picture that was read from a file; empty without one."""
    text = picture.info.get(PNG_KEY) or _comment(picture)
    return text if isinstance(text, str) else ""


def _written_in(path: Path) -> str:
    """What a .txt file holds. Raises InputError for one that holds no parameters text."""
    try:
        with path.open("rb") as file:
            raw = file.read(TEXT_BYTES_MAX + 1)
        text = raw.decode()
    except OSError as error:
        raise InputError(f"{path} cannot be read as text: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text in UTF-8 ({error.reason} at byte {error.start}); "
                         f"{_EXPECTED}") from None
    if len(raw) > TEXT_BYTES_MAX:
        raise InputError(f"{path} has more than {TEXT_BYTES_MAX >> 20} MiB; {_EXPECTED}")
    if not text.strip():
        raise InputError(f"{path} is empty; {_EXPECTED}")
    if _is_json(text):
        raise InputError(f"{path} holds JSON, such as a graph of ComfyUI, which is not read; "
                         f"{_EXPECTED}")
    return text


def _is_json(text: str) -> bool:
    """Whether a text is an object of JSON, which no prompt is."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def exif_of(text: str) -> Image.Exif:
    """EXIF data with a text as their comment."""
    exif = Image.Exif()
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment] = (
        UNICODE + text.encode("utf-16-be", "surrogatepass"))
    return exif


def _comment(picture: Image.Image) -> str:
    """The comment in the EXIF data of a picture, as A1111 writes it."""
    raw = picture.getexif().get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.UserComment, b"")
    if isinstance(raw, bytes) and raw.startswith(UNICODE):
        return raw.removeprefix(UNICODE).decode("utf-16-be", "replace")
    return raw.decode("utf-8", "replace").strip("\0") if isinstance(raw, bytes) else str(raw)


def _quoted(value: str) -> str:
    special = any(mark in value for mark in ',:\n"') or value != value.strip()
    return json.dumps(value, ensure_ascii=False) if special else value


def _unquoted(value: str) -> str:
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value
