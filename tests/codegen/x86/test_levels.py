"""Which feature levels this machine can test; those it lacks are printed, not skipped."""

from __future__ import annotations

from native_regions import LEVELS

from smalti.codegen.levels import LEVELS as KNOWN
from smalti.runtime.cpu.adapter import available_levels, cpu
from smalti.runtime.cpu.architecture import architecture


def test_every_x86_machine_tests_at_least_avx2() -> None:
    missing = {name: sorted(level.needs - set(cpu().features)) for name, level in KNOWN.items()
               if name not in available_levels()}
    for name, features in missing.items():
        print(f"level {name} is not tested here: {cpu().name} lacks {', '.join(features)}")
    assert (architecture() == "x86") == ("avx2" in LEVELS)
    assert all(features for features in missing.values())
