"""How much memory there is still to have, and that nobody asks for more."""

from __future__ import annotations

from pathlib import Path

import pytest

from smalti.errors import DeviceError
from smalti.runtime.cpu.memory import anonymous, check_free, free_bytes


def system(root: Path, available: int, **groups: dict[str, str]) -> Path:
    """The files of a Linux system with so many kB available; a group's files by its path."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal:  99 kB\nMemAvailable: {available} kB\n"
                                       f"SwapFree: 10 kB\nHugePages_Total: 0\n")
    lines = []
    for kind, files in groups.items():
        controllers = "" if kind == "unified" else kind
        lines.append(f"1:{controllers}:/a/b")
        folder = root / "sys/fs/cgroup" / controllers / "a/b"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    (root / "proc/self/cgroup").write_text("\n".join(lines))
    return root


def test_free_memory_is_what_is_available_and_swap(tmp_path: Path) -> None:
    here = system(tmp_path, 90)
    assert free_bytes(here) == 100 * 1024
    assert free_bytes(here, swap=False) == 90 * 1024


def test_a_control_group_leaves_less(tmp_path: Path) -> None:
    limit = {"memory.max": "5000\n", "memory.current": "4000\n",
             "memory.stat": "anon 7\ninactive_file 500\n"}
    assert free_bytes(system(tmp_path / "2", 90, unified=limit)) == 1500
    older = {"memory.limit_in_bytes": "5000", "memory.usage_in_bytes": "4000",
             "memory.stat": "inactive_file 1\ntotal_inactive_file 20"}
    assert free_bytes(system(tmp_path / "1", 90, memory=older)) == 1020
    endless = {"memory.max": "max", "memory.current": "4000"}
    assert free_bytes(system(tmp_path / "0", 90, unified=endless)) == 100 * 1024


def test_where_the_system_does_not_tell_nothing_is_refused(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) is None


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(DeviceError, match="a run needs 1000000.0 GB of memory, and .* are free; "):
        anonymous(10**15)
    with pytest.raises(DeviceError, match="it takes 1000000.0 GB"):
        check_free(10**15, "it takes", "take less")
    assert not anonymous(1 << 20).any()
