"""Memory for machine code as each system gives it: written first, executable afterwards.

* Linux and others with mmap: pages are written, then mprotect takes the right to write and gives
  that to execute.
* macOS: the same on x86. On Apple's own CPUs, and for programs under the hardened runtime, memory
  for code made at run time is mapped with MAP_JIT; then pages are both, but never for a thread at
  once: pthread_jit_write_protect_np says which of them they are for the calling one. A hardened
  program needs the entitlement com.apple.security.cs.allow-jit for it.
* Windows: VirtualAlloc, then VirtualProtect.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable

from smalti.errors import DeviceError
from smalti.runtime.cpu.architecture import architecture

MAP_JIT = 0x800
"""Flag of mmap for code that is made at run time: macOS's sys/mman.h."""

_ADVICE = ("Smalti runs code that it compiles itself; allow this process to make private memory "
           "executable (under SELinux: `setsebool -P deny_execmem 0`; under systemd: "
           "`MemoryDenyWriteExecute=no`; under macOS's hardened runtime: the entitlement "
           "com.apple.security.cs.allow-jit)")

Placed = tuple[int, Callable[[], object]]
"""The address of code in memory, and what gives the memory back."""


def placed(code: bytes) -> Placed:
    """A copy of `code` in memory of its own, executable and not writable. Raises DeviceError if
    the operating system refuses the memory, or to make it executable.

    The cache of instructions may still hold what was there before: see `instruction_cache.py`.
    """
    if sys.platform == "win32":
        return _place_windows(code)
    if sys.platform == "darwin" and architecture() == "arm64":
        return _place_apple(code)
    return _place_unix(code)


def _mapped(size: int, protection: int, flags: int = 0, advice: str = "") -> mmap.mmap:
    try:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags,
                         prot=protection)
    except OSError as error:
        raise DeviceError(f"the operating system has no {size} bytes for code ({error}); close "
                          f"other programs{advice}") from None


def _place_unix(code: bytes) -> Placed:
    memory = _mapped(len(code), mmap.PROT_READ | mmap.PROT_WRITE)
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


def _place_apple(code: bytes) -> Placed:
    everything = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    memory = _mapped(len(code), everything, MAP_JIT, f". {_ADVICE}")
    protect = ctypes.CDLL(None).pthread_jit_write_protect_np
    protect.restype, protect.argtypes = None, (ctypes.c_int,)
    protect(0)
    try:
        memory[:len(code)] = code
    finally:
        protect(1)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)), memory.close


def _place_windows(code: bytes) -> Placed:
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
