"""Loads machine code into memory that is never writable and executable at once.

    block, places = joined([first, second])           # of codegen.cpu.block
    executable = Executable(block)
    address = executable.address + places[0]
"""

from __future__ import annotations

import weakref

from smalti.errors import DeviceError
from smalti.runtime.cpu import instruction_cache
from smalti.runtime.cpu.code_memory import placed


class Executable:
    """A copy of `code` that can be called; it is freed by `close`, or with the object.

    Nothing may run in it when it is freed. Raises DeviceError if the operating system refuses the
    memory, or to make it executable.
    """

    def __init__(self, code: bytes) -> None:
        if not code:
            raise DeviceError("there is no code to make executable")
        self._address, free = placed(code)
        instruction_cache.synchronise(self._address, len(code))
        self.size_bytes = len(code)
        self._finalizer = weakref.finalize(self, free)
        self._finalizer.atexit = False  # a worker may still run in it; the process ends anyway

    @property
    def address(self) -> int:
        """Where the code starts, a multiple of the page size. DeviceError once closed."""
        if not self._finalizer.alive:
            raise DeviceError("the executable memory has been closed")
        return self._address

    def close(self) -> None:
        """Give the memory back; a second call does nothing."""
        self._finalizer()
