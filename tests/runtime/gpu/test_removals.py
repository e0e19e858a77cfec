"""What devices are not used for: records, and the table of what is known of drivers."""

import json

import pytest

from smalti.runtime.gpu import quirks, removals
from smalti.runtime.gpu.quirks import AdapterFacts as Fact
from smalti.runtime.gpu.quirks import removals_for
from smalti.runtime.gpu.removals import Removal, matrix_shape, reduced
from smalti.schedule.group import GroupLimits, MatrixShape

SMALL, HALF = MatrixShape(8, 8, 16, "f16", "f32"), MatrixShape(16, 16, 16, "f16", "f32")
BRAIN = MatrixShape(16, 16, 16, "bf16", "f32")
ALL = GroupLimits(invocations=1024, subgroup_min=32, subgroup_max=32, subgroup_choice=True,
                  subgroup_operations=True, f16=True, bf16=True, storage8=True, storage16=True,
                  matrices=(SMALL, HALF, BRAIN))


def without(*names: str) -> GroupLimits:
    return reduced(ALL, [Removal(name, "Why.", "Instead.", "source") for name in names])


@pytest.mark.parametrize("name, matrices", [
    (removals.MATRICES, ()), (matrix_shape(HALF), (SMALL, BRAIN)), (removals.F16, (BRAIN,)),
    (removals.BF16, (SMALL, HALF)), (removals.SUBGROUP_SIZES, ()),
    (removals.STORAGE16, ALL.matrices)])
def test_matrices_go_with_what_they_need(name, matrices):
    assert without(name).matrices == matrices


@pytest.mark.parametrize("name", removals.NAMES)
def test_what_is_left_is_never_more(name):
    left = without(name)
    assert ALL.covers(left) or name == removals.SUBGROUP_SIZES  # which may be any size then
    assert left == ALL or name not in (removals.DEVICE, removals.AUTOMATIC, removals.TRANSFER_QUEUE)


def test_a_limit_of_work_groups_does_not_grow():
    assert without("work-groups above 256", "work-groups above 512").invocations == 256


def test_a_removal_is_kept_in_a_file():
    removal = Removal(matrix_shape(SMALL), "It is wrong.", "Another one is used.", "here")
    assert Removal(**json.loads(json.dumps(removal.record()))) == removal


def test_a_name_that_nothing_has_is_refused():
    with pytest.raises(ValueError, match="called 'matrices 16x16'"):
        Removal("matrices 16x16", "", "", "")


@pytest.mark.parametrize("facts, gone", [
    (Fact(quirks.NVIDIA, "NVIDIA GeForce RTX 4080", driver=quirks.NVIDIA_PROPRIETARY,
          version=(560, 1, 0, 0)), ()),
    (Fact(quirks.NVIDIA, "NVIDIA GeForce RTX 4080", driver=quirks.NVIDIA_PROPRIETARY,
          version=(565, 90, 0, 0)), ("matrices",)),
    (Fact(quirks.NVIDIA, "NVIDIA GeForce RTX 4080 (NVK AD103)", driver=quirks.NVK), ("matrices",)),
    (Fact(quirks.AMD, "AMD Radeon RX 7800 XT", driver=quirks.AMD_PROPRIETARY,
          architecture=quirks.RDNA3), ()),
    (Fact(quirks.AMD, "AMD Radeon RX 580", driver=quirks.AMD_PROPRIETARY,
          architecture=quirks.BEFORE_RDNA3), ("matrices",)),
    (Fact(quirks.AMD, "AMD Radeon RX 7800 XT", driver=quirks.AMD_OPEN_SOURCE,
          architecture=quirks.RDNA3), ("matrices",)),
    (Fact(quirks.INTEL, "Intel(R) Arc(tm) B580", driver=quirks.INTEL_MESA,
          architecture=quirks.XE2), ()),
    (Fact(quirks.INTEL, "Intel(R) Arc(tm) A770", driver=quirks.INTEL_MESA,
          architecture=quirks.BEFORE_XE2), ("matrices",)),
    (Fact(quirks.INTEL, "Intel(R) Arc(TM) Pro B70", driver=quirks.INTEL_WINDOWS,
          architecture=quirks.XE2), ("matrices",)),
    (Fact(quirks.QUALCOMM, "Adreno (TM) 840", driver=quirks.QUALCOMM_PROPRIETARY),
     ("subgroup operations", "matrices")),
    (Fact(quirks.AMD, "AMD Radeon Pro 5500M", driver=quirks.MOLTENVK),
     ("subgroup sizes", "matrices")),
    (Fact(quirks.APPLE, "Apple M3", driver=quirks.KOSMICKRISP),
     ("subgroup operations", "matrices")),
    (Fact(quirks.NVIDIA, "Microsoft Direct3D12 (NVIDIA GeForce RTX 4060)", driver=quirks.DOZEN),
     ("automatic choice", "matrices")),
    (Fact(quirks.MICROSOFT, "Microsoft Basic Render Driver", "D3D12"), ("automatic choice",)),
    (Fact(quirks.APPLE, "Apple M3", "Metal"), ("work-groups above 256",)),
], ids=lambda each: each.name if isinstance(each, Fact) else "")
def test_known_devices(facts, gone):
    assert {each.what for each in removals_for(facts)} == set(gone)


def test_matrices_that_are_proven_here_are_used_but_for_known_faults():
    older = Fact(quirks.INTEL, "Intel(R) Arc(tm) A770", driver=quirks.INTEL_MESA,
                  architecture=quirks.BEFORE_XE2)
    wrong = Fact(quirks.NVIDIA, "NVIDIA GeForce RTX 4080", driver=quirks.NVIDIA_PROPRIETARY,
                  version=(565, 90))
    assert not removals_for(older, proven=("matrices",))
    assert [each.what for each in removals_for(wrong, proven=("matrices",))] == ["matrices"]


def test_every_row_names_its_source():
    rows = [*(quirk.removal for quirk in quirks.QUIRKS), quirks.NO_MATRICES]
    assert all(row.why.endswith(".") and row.instead.endswith(".") for row in rows)
    assert all("#" in row.source for row in rows)
