"""Lowered kernels of earlier programs, for programs that have equal ones.

A program that differs from an earlier one in some weights, such as one of a quantised model whose
adapter changes some layers, has mostly the same kernels. As bytes:

    bytes of the table, u64 | the table, JSON | the code of all kernels, one after the other
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import asdict, field
from typing import Any, TypeVar

from smalti.compiler.decoding import decoded
from smalti.dataclass import dataclass
from smalti.schedule import AnySchedule, parse

Lowered = TypeVar("Lowered")
HEADER = struct.Struct("<Q")
BYTES_MAX = 16 << 20
"""Of what is kept for a graph, the last that was used; the UNet of Stable Diffusion 1.5 has 1.3 MB
for weights of one dtype."""
CODE = "code at"
"""Stands in the record of a kernel in the place of code: from where to where it lies."""


@dataclass
class KernelCache:
    """What kernels of a graph became, whatever dtypes its weights had, on devices with one set of
    limits: records of lowered ones with their code, by kernel and schedule, and the schedules that
    the timing model prefers to first ones.

    Kernels go by the digests of their texts. `changed` says that some are new.
    """

    changed: bool = False
    _lowered: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    _preferred: dict[str, str] = field(default_factory=dict)

    def lowered(self, kernel: str, schedule: AnySchedule, kind: type[Lowered],
                lower: Callable[[], Lowered]) -> Lowered:
        """What a kernel is lowered to under a schedule, a record of this `kind`: as it was before,
        else by `lower`."""
        key = f"{kernel} {schedule}"
        if key in self._lowered:
            self._lowered[key] = found = self._lowered.pop(key)  # the last that was used
            return _read(kind, *found)
        made = lower()
        self._lowered[key], self.changed = _written(made), True
        return made

    def has(self, kernel: str, schedule: AnySchedule) -> bool:
        """Whether it is known what a kernel is lowered to under a schedule."""
        return f"{kernel} {schedule}" in self._lowered

    def preferred(self, kernel: str, first: AnySchedule,
                  choose: Callable[[], AnySchedule]) -> AnySchedule:
        """The schedule that is preferred to the first one of a kernel: as before, or by `choose`.
        """
        key = f"{kernel} {first}"
        if key not in self._preferred:
            self._preferred[key], self.changed = str(choose()), True
        self._preferred[key] = found = self._preferred.pop(key)
        return parse(found)

    def to_bytes(self) -> bytes:
        """All of it, or what of it was used last."""
        left = BYTES_MAX
        codes: list[bytes] = []
        lowered: list[tuple[str, str, int]] = []
        for key, (record, code) in reversed(self._lowered.items()):
            left -= len(key) + len(record) + len(code)
            if left < 0:
                break
            lowered.append((key, record, len(code)))
            codes.append(code)
        preferred = {}
        for key, schedule in reversed(self._preferred.items()):
            left -= len(key) + len(schedule)
            if left < 0:
                break
            preferred[key] = schedule
        table = json.dumps([lowered, preferred]).encode()
        return b"".join((HEADER.pack(len(table)), table, *codes))

    @classmethod
    def from_bytes(cls, data: bytes) -> KernelCache:
        """What `to_bytes` wrote."""
        (size,) = HEADER.unpack_from(data)
        at = HEADER.size + size
        lowered, preferred = json.loads(data[HEADER.size:at])
        found = cls(_preferred=dict(reversed(preferred.items())))
        for key, record, length in lowered:
            found._lowered[key] = record, data[at:at + length]
            at += length
        found._lowered = dict(reversed(found._lowered.items()))
        return found


def _written(kernel: Any) -> tuple[str, bytes]:
    """The record of a lowered kernel as JSON, and its code."""
    code = bytearray()

    def laid_down(value: bytes) -> dict[str, list[int]]:
        code.extend(value)
        return {CODE: [len(code) - len(value), len(code)]}

    return json.dumps(asdict(kernel), default=laid_down, separators=(",", ":")), bytes(code)


def _read(kind: type[Lowered], record: str, code: bytes) -> Lowered:
    """The lowered kernel, a record of this kind, that `_written` wrote."""
    def placed(value: dict[str, Any]) -> Any:
        return code[slice(*value[CODE])] if CODE in value else value

    return decoded(kind, json.loads(record, object_hook=placed))
