"""CPUID as CPUs other than this one answer it."""

from __future__ import annotations

from smalti.runtime.cpu import x86


def registers(eax: int = 0, ebx: int = 0, ecx: int = 0, edx: int = 0) -> dict[str, int]:
    return {"eax": eax, "ebx": ebx, "ecx": ecx, "edx": edx}


def test_caches_of_an_intel_cpu() -> None:
    # leaf 4 of a Core i7-1165G7: 48 KiB L1d, 32 KiB L1i, 1.25 MiB L2, 12 MiB L3
    answers = [registers(0x1C004121, 0x02C0003F, 0x3F), registers(0x1C004122, 0x01C0003F, 0x3F),
               registers(0x1C004143, 0x04C0003F, 0x3FF), registers(0x1C03C163, 0x02C0003F, 0x3FFF),
               registers()]

    def cpuid(leaf: int, subleaf: int) -> dict[str, int]:
        return {4: answers[subleaf], 0: registers(0x1B), 0x80000000: registers(0x80000008)}[leaf]

    assert dict(x86._caches(cpuid)) == {1: 48 << 10, 2: 1280 << 10, 3: 12 << 20}


def test_wide_registers_count_only_when_the_system_saves_them() -> None:
    def cpuid(leaf: int, subleaf: int) -> dict[str, int]:
        return registers(7, *[0xFFFFFFFF] * 3) if (leaf, subleaf) == (0, 0) else registers(
            *[0xFFFFFFFF] * 4)

    assert "avx2" not in x86._features(cpuid, lambda: 0x02)
    narrow = x86._features(cpuid, lambda: 0x06)
    assert "avx2" in narrow and "avx512f" not in narrow
    assert "avx512_bf16" in x86._features(cpuid, lambda: 0xE6)
