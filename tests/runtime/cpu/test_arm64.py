"""What AArch64 CPUs say of themselves, by stand-ins for the systems that are not here."""

from __future__ import annotations

from pathlib import Path

import pytest

from smalti.runtime.cpu import arm64
from smalti.runtime.cpu.adapter import cpu
from smalti.runtime.cpu.architecture import architecture

CORTEX_A76, CORTEX_A55 = 0x414FD0B1, 0x412FD050


def test_an_arm_cpu_here_has_a_name_and_vectors() -> None:
    if architecture() == "arm64":
        assert cpu().name and "asimd" in cpu().features


def test_features_by_linux() -> None:
    # HWCAP of a Neoverse N1: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp
    # cpuid asimdrdm lrcpc dcpop asimddp ssbs
    n1 = {arm64.AT_HWCAP: 0x10119FFF, arm64.AT_HWCAP2: 0}
    assert arm64.linux_features(n1.__getitem__) == (
        "asimd", "atomics", "fphp", "asimdhp", "asimddp")
    every = arm64.linux_features(lambda kind: (1 << 64) - 1)
    assert {"sve", "sve2", "i8mm", "bf16", "sme", "asimdfhm"} < set(every)
    assert arm64.linux_features(lambda kind: 0) == ()


def test_the_name_is_of_all_kinds_of_cores(tmp_path: Path) -> None:
    for number, midr in enumerate([CORTEX_A55] * 4 + [CORTEX_A76] * 7):
        file = tmp_path / f"cpu{number}/regs/identification/midr_el1"
        file.parent.mkdir(parents=True)
        file.write_text(f"0x{midr:016x}\n")
    (tmp_path / "cpufreq").mkdir()
    assert arm64.linux_name(tmp_path, tmp_path / "none") == "Cortex-A76 + Cortex-A55"


def test_the_name_by_proc_cpuinfo(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x61\nCPU architecture: 8\n"
                       "CPU variant\t: 0x1\nCPU part\t: 0x023\nCPU revision\t: 1\n")
    assert arm64.linux_name(tmp_path, cpuinfo) == "Apple M1"
    cpuinfo.write_text("flags : none of these\n")
    assert arm64.linux_name(tmp_path, cpuinfo) == ""
    assert arm64.linux_name(tmp_path, tmp_path / "absent") == ""
    assert arm64.own_name(lambda kind: 0) == "AArch64"


def test_a_core_without_a_name_is_told_by_its_numbers() -> None:
    assert arm64.core_name(0x77AF1230) == "AArch64 (implementer 0x77, part 0x123)"


def test_features_and_caches_by_macos() -> None:
    said = {"hw.optional.AdvSIMD": 1, "hw.optional.arm.FEAT_LSE": 1,
            "hw.optional.arm.FEAT_FP16": 1, "hw.optional.arm.FEAT_DotProd": 1,
            "hw.optional.arm.FEAT_FHM": 1, "hw.optional.arm.FEAT_BF16": 0,
            "hw.perflevel0.l1dcachesize": 128 << 10, "hw.l1dcachesize": 64 << 10,
            "hw.perflevel0.l2cachesize": 12 << 20, "hw.perflevel0.cpusperl2": 4}

    def sysctl(name: str) -> bytes:
        return said[name].to_bytes(4, "little") if name in said else b""

    assert arm64.apple_features(sysctl) == (
        "asimd", "atomics", "fphp", "asimdhp", "asimddp", "asimdfhm")
    assert arm64.apple_caches(sysctl) == {1: 128 << 10, 2: 3 << 20, 3: 12 << 20}
    assert arm64.apple_caches(lambda name: b"") == {}


def test_features_and_caches_by_windows() -> None:
    assert arm64.windows_features({34: 1, 43: 1, 67: 1}.get) == (
        "asimd", "atomics", "fphp", "asimdhp", "asimddp")

    def cache(level: int, size: int, kind: int) -> bytes:
        return b"".join(value.to_bytes(width, "little") for value, width in (
            (1, 8), (2, 4), (0, 4), (level, 1), (8, 1), (64, 2), (size, 4), (kind, 4), (0, 4)))

    core = (1).to_bytes(8, "little") + bytes(24)
    records = core + cache(1, 96 << 10, 2) + cache(1, 192 << 10, 1) + cache(2, 12 << 20, 0)
    assert arm64.windows_caches(records) == {1: 96 << 10, 2: 12 << 20}
    assert arm64.windows_caches(b"") == {}


@pytest.mark.parametrize("machine, system, built, found", [
    ("aarch64", "linux", "linux-aarch64", "arm64"), ("arm64", "darwin", "macosx-11-arm64", "arm64"),
    ("x86_64", "darwin", "macosx-11-universal2", "x86"), ("ARM64", "win32", "win-amd64", "x86"),
    ("ARM64", "win32", "win-arm64", "arm64"), ("riscv64", "linux", "linux-riscv64", None)])
def test_the_architecture_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch, machine: str,
                                                 system: str, built: str,
                                                 found: str | None) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("sysconfig.get_platform", lambda: built)
    assert architecture() == found
