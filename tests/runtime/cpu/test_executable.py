"""Executable memory: it runs, it is never writable and executable at once, it is given back."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from smalti.codegen.arm64.encoder import word
from smalti.codegen.cpu.block import joined
from smalti.errors import DeviceError
from smalti.runtime.cpu.architecture import architecture
from smalti.runtime.cpu.executable import Executable


def returning(number: int) -> bytes:
    """A function of this CPU that returns a number."""
    if architecture() == "arm64":
        words = word("movz.w", 0, number, 0), word("ret", 30)
        return b"".join(each.to_bytes(4, "little") for each in words)
    return b"\xb8" + number.to_bytes(4, "little") + b"\xc3"  # mov eax, number; ret


RETURN_42, RETURN_7 = returning(42), returning(7)

MAPS = Path("/proc/self/maps")


def permissions(address: int) -> str | None:
    """Permissions of the mapping at an address, as the kernel prints them; None: no mapping."""
    for line in MAPS.read_text().splitlines():
        span, flags = line.split()[:2]
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return flags
    return None


def call(address: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


def test_code_runs() -> None:
    executable = Executable(RETURN_42)
    assert executable.address % 4096 == 0
    assert call(executable.address) == 42


def test_several_functions_in_one_block() -> None:
    constants = SimpleNamespace(bytes=b"\0" * 64 + RETURN_7, entry=64)
    block, places = joined([SimpleNamespace(bytes=RETURN_42, entry=0), constants])
    assert places == [0, 128]
    executable = Executable(block)
    assert [call(executable.address + place) for place in places] == [42, 7]


def writable_code() -> set[str]:
    """Where memory of this process is writable and executable: drivers of GPUs have such."""
    if sys.platform != "linux":
        return set()
    return {line.split()[0] for line in MAPS.read_text().splitlines() if "wx" in line.split()[1]}


def test_memory_is_never_writable_and_executable() -> None:
    others = writable_code()
    executable = Executable(RETURN_42 * 2000)
    if sys.platform == "linux":
        assert permissions(executable.address) == "r-xp"
        assert permissions(executable.address + executable.size_bytes - 1) == "r-xp"
        assert writable_code() <= others


def test_memory_is_given_back() -> None:
    executable = Executable(RETURN_42)
    executable.close()
    executable.close()
    with pytest.raises(DeviceError, match="closed"):
        _ = executable.address
    dropped = Executable(RETURN_42 * 10000)
    address = dropped.address
    del dropped
    gc.collect()
    if sys.platform == "linux":
        assert permissions(address) != "r-xp"


def test_a_refusal_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        """A C library whose mprotect says no, as under SELinux."""

        def __init__(self, *args: object, **options: object) -> None:
            def mprotect(*arguments: object) -> int:
                ctypes.set_errno(13)
                return -1
            self.mprotect = mprotect

    monkeypatch.setattr(ctypes, "CDLL", Refusing)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(DeviceError, match="error 13.*deny_execmem"):
        Executable(RETURN_42)
    with pytest.raises(DeviceError, match="no code"):
        Executable(b"")
