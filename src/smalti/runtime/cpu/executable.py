"""Loads machine code into memory that is never writable and executable at once.

    block, places = joined([first, second])           # of codegen.cpu.block
    executable = Executable(block)
    address = executable.address + places[0]
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from collections.abc import Callable

from smalti.errors import DeviceError

_ADVICE = ("Smalti runs code that it compiles itself; allow this process to make private memory "
           "executable (under SELinux: `setsebool -P deny_execmem 0`; under systemd: "
           "`MemoryDenyWriteExecute=no`)")


class Executable:
    """A copy of `code` that can be called; it is freed by `close`, or with the object.

    Nothing may run in it when it is freed. Raises DeviceError if the operating system refuses the
    memory, or to make it executable.
    """

    def __init__(self, code: bytes) -> None:
        if not code:
            raise DeviceError("there is no code to make executable")
        place = _place_windows if sys.platform == "win32" else _place_unix
        self._address, free = place(code)
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


def _place_unix(code: bytes) -> tuple[int, Callable[[], object]]:
    try:
        memory = mmap.mmap(-1, len(code), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                           prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise DeviceError(f"the operating system has no {len(code)} bytes for code ({error}); "
                          f"close other programs") from None
    memory[:len(code)] = code
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    library = ctypes.CDLL(None, use_errno=True)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    pages = len(code) + -len(code) % mmap.PAGESIZE
    if library.mprotect(address, pages, mmap.PROT_READ | mmap.PROT_EXEC):
        number = ctypes.get_errno()
        memory.close()
        raise DeviceError(f"the operating system refuses executable memory (mprotect: error "
                          f"{number}). {_ADVICE}")
    return address, memory.close


def _place_windows(code: bytes) -> tuple[int, Callable[[], object]]:
    if sys.platform != "win32":
        raise DeviceError(f"VirtualAlloc is a function of Windows, this is {sys.platform}")
    reserve_and_commit, read_write, execute_read, release = 0x3000, 0x04, 0x20, 0x8000
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    kernel.VirtualAlloc.restype = ctypes.c_void_p
    kernel.VirtualAlloc.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32,
                                    ctypes.c_uint32)
    kernel.VirtualProtect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32,
                                      ctypes.POINTER(ctypes.c_uint32))
    kernel.VirtualFree.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32)
    address = kernel.VirtualAlloc(None, len(code), reserve_and_commit, read_write)
    if not address:
        raise DeviceError(f"the operating system has no {len(code)} bytes for code (VirtualAlloc: "
                          f"error {ctypes.get_last_error()}); close other programs")
    ctypes.memmove(address, code, len(code))
    before = ctypes.c_uint32()
    if not kernel.VirtualProtect(address, len(code), execute_read, ctypes.byref(before)):
        error = ctypes.get_last_error()
        kernel.VirtualFree(address, 0, release)
        raise DeviceError(f"the operating system refuses executable memory (VirtualProtect: error "
                          f"{error}); allow dynamic code for this process (exploit protection: "
                          f"Arbitrary Code Guard)")
    return address, lambda: kernel.VirtualFree(address, 0, release)
