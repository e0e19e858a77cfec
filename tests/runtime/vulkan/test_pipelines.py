"""Programs are compiled once, what is no program is rejected, and the driver's cache is kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from gpu_devices import filled, increment

from smalti.codegen.shader import BufferUse
from smalti.codegen.spirv.emit import emit
from smalti.errors import DeviceError
from smalti.runtime import cache
from smalti.runtime.gpu.interface import Dispatch, Gpu
from smalti.runtime.vulkan import VulkanAdapter, VulkanGpu
from smalti.runtime.vulkan.library import VulkanFunctions


def works(gpu: Gpu) -> bool:
    """Whether a program runs."""
    buffer = filled(gpu, np.zeros(128, np.float32))
    pipeline = gpu.pipeline(increment(64, 3.0))
    gpu.run(gpu.record([Dispatch(pipeline, ((buffer, 0), (buffer, 256)))]))
    return bool(np.all(gpu.read(buffer, 256, 256).view(np.float32) == 3))


def test_a_program_is_compiled_once(vulkan: VulkanGpu) -> None:
    assert vulkan.pipeline(increment(64)) is not vulkan.pipeline(increment(65))
    first = vulkan.pipeline(increment(64))
    assert vulkan.pipeline(increment(64)) is first


def test_threads_compile_at_once(vulkan: VulkanGpu) -> None:
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda n: vulkan.pipeline(increment(100 + n % 4)), range(16)))
    assert len(set(map(id, made))) == 4


def test_a_module_of_the_size_of_subgroups_that_it_asks_for_runs(vulkan: VulkanGpu) -> None:
    program, binding, limits = increment(64), BufferUse(256, 4), vulkan.limits
    size = limits.subgroup_max if limits.subgroup_choice else 0
    pipeline = vulkan.pipeline_from(emit(program, limits), [binding, binding], (1, 1, 1),
                                    subgroup_size=size)
    buffer = filled(vulkan, np.zeros(128, np.float32))
    vulkan.run(vulkan.record([Dispatch(pipeline, ((buffer, 0), (buffer, 256)))]))
    assert np.all(vulkan.read(buffer, 256, 256).view(np.float32) == 1)


def test_what_the_device_is_too_small_for_is_said(vulkan: VulkanGpu) -> None:
    words, most = emit(increment(64), vulkan.limits), vulkan.limits.bindings
    with pytest.raises(DeviceError, match=f"wide has {most + 1} bindings"):
        vulkan.pipeline_from(words, [BufferUse(4, 4)] * (most + 1), (1, 1, 1), name="wide")
    with pytest.raises(DeviceError, match="long is of"):
        vulkan.pipeline_from(words, [BufferUse(4, 4)] * 2, (vulkan.limits.grid[0] + 1, 1, 1),
                             name="long")
    with pytest.raises(DeviceError, match="small is for subgroups of 1024; .* are of"):
        vulkan.pipeline_from(words, [BufferUse(4, 4)] * 2, (1, 1, 1), name="small",
                             subgroup_size=1024)


def entries(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (folder / "programs").glob("*.entry")}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty compile cache."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    return tmp_path


def test_the_cache_of_the_driver_is_kept_and_given_back_to_it(
        adapter: VulkanAdapter, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with VulkanGpu(adapter) as gpu:
        assert works(gpu)
    assert len(entries(folder)) == 1
    given = []
    made = VulkanFunctions.made

    def watched(self: VulkanFunctions, create: str, *arguments: object) -> int:
        if create == "vkCreatePipelineCache":
            given.append(arguments[1].initialDataSize)
        return made(self, create, *arguments)

    monkeypatch.setattr(VulkanFunctions, "made", watched)
    with VulkanGpu(adapter) as gpu:
        assert works(gpu)
    assert given == [len(cache.get(f"vulkan pipelines of {adapter.identity}"))] and given[0] > 0


@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: b"", lambda data:
                                    data[:-1] + bytes([data[-1] ^ 1])])
def test_a_damaged_cache_is_made_anew(adapter: VulkanAdapter, folder: Path, damage) -> None:
    with VulkanGpu(adapter) as gpu:
        assert works(gpu)
    (path, data), = entries(folder).items()
    path.write_bytes(damage(data))
    assert cache.get(f"vulkan pipelines of {adapter.identity}") is None
    path.write_bytes(damage(data))
    with VulkanGpu(adapter) as gpu:
        assert works(gpu)
    assert cache.get(f"vulkan pipelines of {adapter.identity}")


def test_what_another_driver_has_written_is_not_trusted(
        adapter: VulkanAdapter, folder: Path) -> None:
    cache.put(f"vulkan pipelines of {adapter.identity}", b"not the header of any driver" * 9)
    with VulkanGpu(adapter) as gpu:
        assert works(gpu)
