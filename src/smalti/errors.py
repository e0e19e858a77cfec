"""Everything Smalti raises on purpose.

    SmaltiError
    ├── InputError              what the caller gave cannot be used (command line exit code 2)
    │   ├── CheckpointError     a model file is damaged, incomplete or of the wrong shape
    │   │   └── UnknownFamilyError   a model file is readable, but of no family that Smalti knows
    │   ├── FetchError          a model cannot be had by its name: network, login, licence, hash
    │   ├── UnknownOptionError  no option has this name; a TypeError, too
    │   ├── UnknownDeviceError  no device of the library has this name; a KeyError, too
    │   ├── EngineError         an engine file is damaged, or does not fit this machine
    │   ├── UnsupportedError    a graph holds nodes that cannot be compiled; `.nodes` lists all
    │   └── OutputError         a result cannot be written where it was asked for
    ├── VerificationError       a graph, kernel or program breaks its own rules (a compiler bug)
    ├── IllegalSchedule         a schedule cannot be applied to a kernel; a search catches only this
    ├── NumericsError           NaN or Inf appeared; names the first kernel that made it
    └── DeviceError             the device or the operating system refused what a program needs
        ├── DeviceMemoryError   its memory does not suffice; says what was asked and what is free
        └── DeviceLostError     it stopped working for this process; it can be opened anew

Every message says what was given, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class SmaltiError(Exception):
    """Base of all errors that Smalti raises on purpose."""


class InputError(SmaltiError):
    """What the caller gave (a prompt, a size, an option, a file) cannot be used."""


class UnknownOptionError(InputError, TypeError):
    """No option of a picture has this name; the message says which is near."""


class UnknownDeviceError(InputError, KeyError):
    """No device of the library has this name; the message lists near ones."""

    __str__ = Exception.__str__  # that of KeyError would put the message in quotes


class CheckpointError(InputError):
    """A model file is damaged, incomplete, or holds a tensor of another shape than its family."""


class UnknownFamilyError(CheckpointError):
    """A model file is readable, but its keys and shapes belong to no family that Smalti knows."""


class FetchError(InputError):
    """A model cannot be had by its name: no network, no such name, a login or a licence that is
    asked for, a full disk, or another content than its hash says."""


class EngineError(InputError):
    """An engine file is damaged, of another version, or holds no code that this machine runs."""


class UnsupportedNode(NamedTuple):
    """A node that cannot be compiled: its name, its operation, and why."""

    name: str
    operator: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.operator}: {self.why}"


class UnsupportedError(InputError):
    """A graph holds nodes that cannot be compiled.

    `nodes` lists every one of them.
    """

    def __init__(self, message: str, nodes: Sequence[UnsupportedNode] = ()) -> None:
        super().__init__("\n  ".join([message, *map(str, nodes)]))
        self.nodes = tuple(nodes)


class OutputError(InputError):
    """A result cannot be written where it was asked for."""


class VerificationError(SmaltiError):
    """A graph, kernel or program breaks a rule of its own form: a bug in the pass that made it."""


class IllegalSchedule(SmaltiError):
    """A schedule cannot be applied to a kernel. A search catches this and nothing else."""


class NumericsError(SmaltiError):
    """NaN or Inf appeared in a result; the message names the first kernel or weight with it."""


class DeviceError(SmaltiError):
    """The device or the operating system refused what a program needs."""


class DeviceMemoryError(DeviceError):
    """The memory of a device does not suffice; the message says what was asked for and is free."""


class DeviceLostError(DeviceError):
    """A device stopped working for this process (reset, removed, or hung by a program).

    What was open on it is of no use any more; the device can be opened anew.
    """


def first_of(names: Iterable[str], limit: int = 10, separator: str = ", ") -> str:
    """The first names of a list, and how many more there are.

    >>> first_of(["a", "b", "c"], limit=2)
    'a, b, and 1 more'
    """
    listed = list(names)
    more = [f"and {len(listed) - limit} more"] if len(listed) > limit else []
    return separator.join([*listed[:limit], *more])
