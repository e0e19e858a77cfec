"""Architectures by what drivers tell of a GPU."""

from __future__ import annotations

import pytest

from smalti.runtime.gpu import quirks
from smalti.runtime.gpu.architecture import BY_KIND, BY_WARPS, architecture_of
from smalti.schedule.compute_units import LIKE, UNITS

CASES = [
    ("NVIDIA GeForce RTX 3090", "", "NVIDIA", 48, "ampere_ga10x"),
    ("NVIDIA GeForce RTX 9999", "", "NVIDIA", 48, "ampere_ga10x"),
    ("NVIDIA GeForce GTX 1070", "", "NVIDIA", 64, "ampere_ga100"),
    ("AMD Radeon RX 7900 XTX (RADV NAVI31)", quirks.RDNA3, "AMD", 0, "rdna3_big"),
    ("AMD Radeon Graphics (RADV GFX1103)", quirks.BEFORE_RDNA3, "AMD", 0, "rdna2"),
    ("Intel(R) Arc(tm) A770 Graphics (DG2)", quirks.BEFORE_XE2, "Intel", 0, "xe_hpg"),
    ("Intel(R) Graphics (LNL)", quirks.XE2, "Intel", 0, "xe2_hpg"),
    ("llvmpipe (LLVM 19)", "", "Mesa", 0, ""), ("Apple M1", "", "Apple", 0, ""),
]


@pytest.mark.parametrize("name, kind, vendor, warps, found", CASES)
def test_names_come_first_then_what_drivers_tell(name: str, kind: str, vendor: str, warps: int,
                                                 found: str) -> None:
    assert architecture_of(name, kind, vendor, bf16=False, warps=warps) == found


def test_rdna4_computes_with_bf16() -> None:
    assert architecture_of("AMD Radeon Graphics", quirks.RDNA3, "AMD", bf16=True, warps=0) \
        == "rdna4"


def test_all_of_them_have_units() -> None:
    assert {*BY_KIND.values(), *BY_WARPS.values()} <= {*UNITS, *LIKE}
