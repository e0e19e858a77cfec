"""The devices that `wgpu` finds, and what each of them can do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from smalti.codegen.wgsl.emit import OWN_WORDS
from smalti.dataclass import dataclass
from smalti.errors import DeviceError
from smalti.runtime.gpu.quirks import AdapterFacts, removals_for
from smalti.runtime.gpu.removals import Removal, reduced
from smalti.runtime.webgpu.library import load, refusals
from smalti.schedule.group import GroupLimits

ORDER = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
BACKENDS = ("Metal", "Vulkan", "D3D12")  # of a device that several reach, the first
KINDS = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "cpu"}
F16, SUBGROUP, IMMEDIATES, TIMES = "shader-f16", "subgroup", "immediates", "timestamp-query"
MAPPABLE = "mappable-primary-buffers"
FEATURES = (F16, SUBGROUP, IMMEDIATES, TIMES, MAPPABLE)
"""What is asked of a device that has it."""

# Sizes of subgroups, by what a name begins with; the package tells of none. Others: WebGPU's range.
SUBGROUPS = {"Apple": (32, 32), "NVIDIA": (32, 32), "AMD": (32, 64), "Intel": (8, 32)}
ANY_SUBGROUP = (4, 128)
WORD_BYTES = 4
UNIFORM_BYTES = 256  # of what stands for immediates where a device has none
GRANULE = 16  # bytes; of the widest element that WGSL declares, of which a binding holds whole ones


@dataclass(frozen=True, slots=True)
class WebAdapter:
    """A device as `wgpu` describes it: `kind` is discrete, integrated, cpu or other, `backend`
    Metal, Vulkan or D3D12, `removals` what it is not used for, which is not in `limits`."""

    handle: Any
    name: str
    kind: str
    backend: str
    driver: str
    features: frozenset[str]
    limits: GroupLimits
    removals: tuple[Removal, ...] = ()

    @property
    def identity(self) -> str:
        """Names device and driver, as far as WebGPU tells of them."""
        info = self.handle.info
        return " ".join(map(str, ("wgpu", self.backend, info["vendor_id"], info["device_id"],
                                  self.name, self.driver)))


@lru_cache(maxsize=1)
def adapters() -> tuple[WebAdapter, ...]:
    """Devices that `wgpu` reaches, each once: those with memory of their own first.

    Raises DeviceError, which says why, where there are none.
    """
    library = load()
    with refusals("looking for devices"):
        listed = library.package.gpu.enumerate_adapters_sync()
    listed = [each for each in listed if each.info["backend_type"] in BACKENDS]
    listed.sort(key=lambda each: BACKENDS.index(each.info["backend_type"]))
    once: dict[tuple, Any] = {}
    for each in listed:
        once.setdefault((each.info["vendor_id"], each.info["device_id"], each.info["device"]), each)
    found = sorted(once.values(), key=lambda each: ORDER.index(
        each.info["adapter_type"] if each.info["adapter_type"] in ORDER else "Unknown"))
    if not found:
        raise DeviceError("wgpu finds no device; a driver for Metal, Vulkan or Direct3D 12 is "
                          "needed")
    return tuple(described(each) for each in found)


def described(handle: Any) -> WebAdapter:
    """What an adapter of the package can do."""
    info, features = handle.info, frozenset(FEATURES) & frozenset(handle.features)
    kind = KINDS.get(info["adapter_type"], "other")
    removals = removals_for(AdapterFacts(info["vendor_id"], info["device"], info["backend_type"],
                                         kind))
    limits = group_limits(info["device"], handle.limits, features, kind)
    return WebAdapter(handle, info["device"], kind, info["backend_type"], info["description"],
                      features, reduced(limits, removals), removals)


def judged(adapter: WebAdapter, found: Iterable[Removal]) -> WebAdapter:
    """An adapter without what a check of this machine has found."""
    gone = tuple(found)
    return replace(adapter, removals=(*adapter.removals, *gone),
                   limits=reduced(adapter.limits, gone))


def group_limits(name: str, limits: dict[str, int], features: frozenset[str],
                 kind: str) -> GroupLimits:
    """What WebGPU's limits, by their names there, let a work-group have. Of what can be pushed
    some words are WGSL's own.

    >>> limits = {"max-compute-workgroup-storage-size": 32768, "max-buffer-size": 2**31 - 1,
    ...           "max-compute-invocations-per-workgroup": 1024, "max-immediate-size": 128,
    ...           "max-compute-workgroup-size-x": 256, "max-storage-buffer-binding-size": 2**27,
    ...           "max-compute-workgroups-per-dimension": 65535,
    ...           "min-storage-buffer-offset-alignment": 32,
    ...           "max-storage-buffers-per-shader-stage": 8}
    >>> found = group_limits("Apple M3", limits, frozenset([SUBGROUP]), "integrated")
    >>> found.invocations, found.subgroup_min, found.push_bytes, found.buffer_bytes
    (256, 32, 240, 2147483632)
    """
    sizes = next((s for maker, s in SUBGROUPS.items() if name.startswith(maker)), ANY_SUBGROUP)
    f16 = F16 in features
    return GroupLimits(
        shared_bytes=limits["max-compute-workgroup-storage-size"],
        invocations=min(limits["max-compute-invocations-per-workgroup"],
                        limits["max-compute-workgroup-size-x"]),
        subgroup_min=sizes[0], subgroup_max=sizes[1],
        subgroup_operations=SUBGROUP in features,
        grid=(limits["max-compute-workgroups-per-dimension"],) * 3,
        buffer_bytes=limits["max-buffer-size"] // GRANULE * GRANULE,
        buffer_range=limits["max-storage-buffer-binding-size"] // GRANULE * GRANULE,
        offset_alignment=max(GRANULE, limits["min-storage-buffer-offset-alignment"]),
        bindings=limits["max-storage-buffers-per-shader-stage"],
        push_bytes=(limits["max-immediate-size"] if IMMEDIATES in features else UNIFORM_BYTES)
        - WORD_BYTES * OWN_WORDS,
        f16=f16, storage16=f16, dot_i8=True,  # of the language, as the package's version has it
        unified=kind in ("integrated", "cpu"))
