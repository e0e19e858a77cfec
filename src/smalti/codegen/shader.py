"""Programs of GPUs as drivers take them: code, and what a driver is told besides."""

from __future__ import annotations

from smalti.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BufferUse:
    """What of a buffer a shader touches: `bytes` from the operand's offset on, in elements of
    `item_bytes`; what it `reads` must be written before, what it `writes` is waited for."""

    bytes: int
    item_bytes: int
    reads: bool = True
    writes: bool = True


@dataclass(frozen=True)
class Shader:
    """What a driver is told of a program besides its code, which is SPIR-V, or WGSL as UTF-8.

    A launch of it is `groups` of `size` invocations; `subgroup` is the size of subgroups that it
    asks for, or 0.
    """

    name: str
    groups: tuple[int, int, int]
    size: int
    subgroup: int
    bindings: tuple[BufferUse, ...]
