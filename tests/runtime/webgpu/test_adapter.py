"""What adapters of wgpu are used for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from smalti.runtime.webgpu.adapter import described

LIMITS = {"max-compute-workgroup-storage-size": 32768, "max-buffer-size": 2**31 - 1,
          "max-compute-invocations-per-workgroup": 1024, "max-immediate-size": 128,
          "max-compute-workgroup-size-x": 1024, "max-storage-buffer-binding-size": 2**27,
          "max-compute-workgroups-per-dimension": 65535,
          "min-storage-buffer-offset-alignment": 32, "max-storage-buffers-per-shader-stage": 8}


def handle(backend: str, name: str) -> SimpleNamespace:
    """An adapter as the package has it."""
    return SimpleNamespace(limits=LIMITS, features=set(), info={
        "vendor_id": 0, "device": name, "backend_type": backend, "description": "",
        "adapter_type": "DiscreteGPU"})


@pytest.mark.parametrize("backend, invocations", [("Metal", 256), ("Vulkan", 1024)])
def test_work_groups_are_those_that_run(backend: str, invocations: int) -> None:
    assert described(handle(backend, "Apple M3")).limits.invocations == invocations


def test_what_draws_on_the_cpu_is_used_by_name_only() -> None:
    found = described(handle("D3D12", "Microsoft Basic Render Driver"))
    assert [each.what for each in found.removals] == ["automatic choice"]
