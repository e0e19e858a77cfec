"""Forms with files (`multipart/form-data`, RFC 7578), as clients send pictures that are edited.

The whole content is there, at most `BODY_BYTES_MAX` of it, so it is only cut at its boundaries.
"""

from __future__ import annotations

from email.message import Message

from smalti.dataclass import dataclass
from smalti.errors import InputError

PARTS_MAX = 64
"""Of a form: all fields there are, and more pictures than are taken."""
HEAD_BYTES_MAX = 4096
"""Of the headers of a part, which are two lines."""
BOUNDARY_MAX = 70
"""Characters, by RFC 2046."""


@dataclass(frozen=True)
class FormField:
    """A field of a form: its name, its content, and whether it is a file."""

    name: str
    content: bytes
    is_file: bool


def parts(content: bytes, content_type: str) -> list[FormField]:
    """The fields of a form in order. Raises InputError for what is none.

    >>> form = b'--x\\r\\nContent-Disposition: form-data; name="n"\\r\\n\\r\\n2\\r\\n--x--\\r\\n'
    >>> parts(form, "multipart/form-data; boundary=x")
    [FormField(name='n', content=b'2', is_file=False)]
    """
    boundary = _parameter(content_type, "boundary")
    if not boundary or len(boundary) > BOUNDARY_MAX or not boundary.isascii():
        raise InputError(f"the form has the boundary {boundary!r:.80}; expected 1 to "
                         f"{BOUNDARY_MAX} characters of ASCII in its Content-Type")
    pieces = (b"\r\n" + content).split(b"\r\n--" + boundary.encode())
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise InputError("the form does not end with its boundary")
    if len(pieces) > PARTS_MAX + 2:
        raise InputError(f"the form has {len(pieces) - 2} parts; expected at most {PARTS_MAX}")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> FormField:
    """A part of a form, which begins with the rest of the line of its boundary."""
    head, blank, content = piece.lstrip(b" \t")[2:].partition(b"\r\n\r\n")
    if not blank or len(head) > HEAD_BYTES_MAX:
        raise InputError("a part of the form has no headers, or too many")
    lines = head.decode("utf-8", "replace").split("\r\n")
    disposition = next((line.partition(":")[2] for line in lines
                        if line.lower().startswith("content-disposition:")), "")
    name = _parameter(disposition, "name")
    if name is None:
        raise InputError("a part of the form has no name")
    return FormField(name, content, _parameter(disposition, "filename") is not None)


def _parameter(header: str, name: str) -> str | None:
    """A parameter of a header such as `form-data; name="prompt"`."""
    message = Message()
    message["x"] = header.strip().replace("\r", " ").replace("\n", " ")
    found = message.get_param(name, header="x")
    return found if isinstance(found, str) else None
