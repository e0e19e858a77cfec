"""What a safetensors file on a server is, by its header: of gigabytes a megabyte is read."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from smalti.checkpoint.file_kind import detect
from smalti.dataclass import dataclass
from smalti.families.names import FileKind, Shapes
from smalti.fetch.remote import Remote, content
from smalti.runtime.tensor_file import HEADER_BYTES_MAX, TensorEntry, parsed_header

FIRST_BYTES = 256 << 10
"""Read at first: the whole header of most files (SD 1.5: 130 kB, SDXL: 360 kB)."""


@dataclass(frozen=True)
class Header:
    """Tensors of a file by name, and what it says of itself."""

    entries: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]

    @property
    def shapes(self) -> Shapes:
        """The shape of each tensor."""
        return {name: entry.shape for name, entry in self.entries.items()}

    @property
    def precisions(self) -> Counter[str]:
        """How many numbers are stored in each format."""
        found: Counter[str] = Counter()
        for entry in self.entries.values():
            found[entry.dtype] += math.prod(entry.shape)
        return found


def header_bytes(remote: Remote, total: int) -> bytes:
    """What a safetensors file on a server begins with, the whole header included. Raises FetchError
    where it cannot be had."""
    first, _ = content(remote, FIRST_BYTES, 0, min(FIRST_BYTES, total))
    length = 8 + int.from_bytes(first[:8], "little")
    if len(first) < length <= min(total, HEADER_BYTES_MAX + 8):
        rest, _ = content(remote, HEADER_BYTES_MAX, len(first), length)
        first += rest
    return first


def read_header(remote: Remote, total: int) -> Header:
    """The header of a safetensors file on a server.

    Raises FetchError where it cannot be had, CheckpointError where it is not sound.
    """
    first = header_bytes(remote, total)
    return Header(*parsed_header(io.BytesIO(first), remote.title, total))


def kind_of(headers: Iterable[Header], components: Collection[str] = ()) -> FileKind | None:
    """The kind of model that files hold together, as `checkpoint` sees it when it opens them."""
    shapes = {name: shape for header in headers for name, shape in header.shapes.items()}
    return detect(shapes, components)


def precision_of(headers: Iterable[Header]) -> str:
    """The format that most of the numbers are stored in, such as "F16".

    >>> precision_of([Header({"a": TensorEntry("BF16", (2, 3), 0, 12)}, {})])
    'BF16'
    """
    counted: Counter[str] = sum((header.precisions for header in headers), Counter())
    return counted.most_common(1)[0][0] if counted else ""
