"""Memory for code as macOS and Windows give it, by stand-ins for their functions."""

from __future__ import annotations

import ctypes
import mmap
import sys

import pytest

from smalti.errors import DeviceError
from smalti.runtime.cpu import code_memory, instruction_cache
from smalti.runtime.cpu.executable import Executable

CODE = bytes(range(100))


class Function:
    """Stands in for a function of C: notes what it is called with, and gives `result`."""

    def __init__(self, calls: list, name: str, result: object = 0) -> None:
        self.calls, self.name, self.result = calls, name, result

    def __call__(self, *arguments: object) -> object:
        self.calls.append((self.name, *arguments))
        return self.result(*arguments) if callable(self.result) else self.result


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> list:
    """This process on an Apple CPU: calls of its library, and the flags that memory is mapped
    with."""
    calls: list = []

    class Library:
        def __init__(self, *_: object, **__: object) -> None:
            self.pthread_jit_write_protect_np = Function(calls, "protect")
            self.sys_icache_invalidate = Function(calls, "invalidate")

    def mapped(file: int, size: int, flags: int, prot: int) -> mmap.mmap:
        calls.append(("mmap", flags & code_memory.MAP_JIT, prot))
        return real(file, size, flags=flags & ~code_memory.MAP_JIT, prot=prot & ~mmap.PROT_EXEC)

    real = mmap.mmap
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setattr(mmap, "mmap", mapped)
    return calls


def test_code_on_apple_cpus(apple: list) -> None:
    executable = Executable(CODE)
    assert ctypes.string_at(executable.address, len(CODE)) == CODE
    everything = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    assert apple == [("mmap", code_memory.MAP_JIT, everything), ("protect", 0), ("protect", 1),
                     ("invalidate", executable.address, len(CODE))]
    executable.close()


def test_a_refusal_by_macos_names_the_entitlement(
        apple: list, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(mmap, "mmap", refused)
    with pytest.raises(DeviceError, match="Operation not permitted.*cs.allow-jit"):
        Executable(CODE)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list:
    """This process on Windows: calls of its kernel."""
    calls: list = []
    memory = ctypes.create_string_buffer(4096)

    class Kernel:
        def __init__(self, *_: object, **__: object) -> None:
            self.VirtualAlloc = Function(calls, "alloc", ctypes.addressof(memory))
            self.VirtualProtect = Function(calls, "protect", 1)
            self.VirtualFree = Function(calls, "free", 1)
            self.GetCurrentProcess = Function(calls, "process", 7)
            self.FlushInstructionCache = Function(calls, "flush", 1)

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "WinDLL", Kernel, raising=False)
    return calls


def test_code_on_windows(windows: list) -> None:
    executable = Executable(CODE)
    address = executable.address
    assert ctypes.string_at(address, len(CODE)) == CODE
    executable.close()
    assert [call[0] for call in windows] == ["alloc", "protect", "process", "flush", "free"]
    assert windows[0] == ("alloc", None, len(CODE), 0x3000, 0x04)
    assert windows[1][:4] == ("protect", address, len(CODE), 0x20)
    assert windows[3] == ("flush", 7, address, len(CODE))


def test_other_systems_call_nothing_on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(ctypes, "CDLL", None)
    instruction_cache.synchronise(0, 64)
