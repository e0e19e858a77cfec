"""Which products the matrix unit of a device computes: asked when the device is first used.

The question itself ends the process in some drivers, so it is never asked while devices are only
listed. Drivers that are known to survive it are asked here, all others in a process of their own.
What they say is kept, for the device and the version of its driver; so is that they said nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, replace

from smalti.errors import DeviceError
from smalti.runtime import cache
from smalti.runtime.gpu import child
from smalti.runtime.gpu.quirks import IN_PROCESS_QUERIES
from smalti.runtime.gpu.removals import MATRICES, Removal, reduced
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.adapter import VulkanAdapter, adapters
from smalti.runtime.vulkan.library import listed
from smalti.schedule.group import MatrixShape

SCOPE_SUBGROUP = 3
COMPONENTS = {0: "f16", 1: "f32", 3: "i8", 5: "i32", 7: "u8", 9: "u32", 1000141000: "bf16"}
"""VkComponentTypeKHR, of dtypes that programs have."""
BYTES = "i8", "u8"
QUESTION_SECONDS = 30.0
"""For a process to start, load the drivers, and answer; a tenth of it is usual."""
HOME = "smalti.runtime.vulkan.matrices"


def with_matrices(adapter: VulkanAdapter) -> VulkanAdapter:
    """An adapter with what its matrix unit computes, or with the removal that says why not."""
    if not adapter.offers_matrices or adapter.limits.matrices:
        return adapter
    answer = kept(adapter)
    if answer is None:
        answer = _asked(adapter)
        cache.put(_key(adapter), answer.encode())
    return _with(adapter, answer)


def listed_with_matrices(adapter: VulkanAdapter) -> VulkanAdapter:
    """The same, as far as it is known already: nobody is asked."""
    answer = kept(adapter)
    return adapter if answer is None or not adapter.offers_matrices else _with(adapter, answer)


def kept(adapter: VulkanAdapter) -> str | None:
    """What its driver has said before, as `_asked` gives it; None where it was never asked."""
    found = cache.get(_key(adapter))
    return None if found is None else found.decode()


def answered(identity: str) -> str:
    """The shapes that the driver of the adapter of this identity tells, as JSON."""
    found = next((each for each in adapters() if each.identity == identity), None)
    if found is None:
        raise DeviceError("the device is not there")
    return json.dumps([astuple(shape) for shape in told(found)])


def told(adapter: VulkanAdapter) -> tuple[MatrixShape, ...]:
    """Products that a subgroup computes, of dtypes that programs have, as the driver tells: those
    of bytes only where the device computes with bytes, as their type is one of these."""
    found, wide = set(), "shaderInt8" not in adapter.features
    for each in listed(
            adapter.instance.functions.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR,
            vk.CooperativeMatrixPropertiesKHR, adapter.handle):
        factors, sums = COMPONENTS.get(each.AType), COMPONENTS.get(each.CType)
        if (factors and sums and each.AType == each.BType and each.CType == each.ResultType
                and each.scope == SCOPE_SUBGROUP and not each.saturatingAccumulation
                and not (wide and factors in BYTES)):
            found.add(MatrixShape(each.MSize, each.NSize, each.KSize, factors, sums))
    return tuple(sorted(found))


def _asked(adapter: VulkanAdapter) -> str:
    """What the driver says: shapes as JSON, or why there is no answer as a JSON text."""
    try:
        if adapter.facts.driver in IN_PROCESS_QUERIES:
            return json.dumps([astuple(shape) for shape in told(adapter)])
        return child.asked(HOME, adapter.identity, QUESTION_SECONDS)
    except DeviceError as error:
        return json.dumps(str(error))


def _with(adapter: VulkanAdapter, answer: str) -> VulkanAdapter:
    found: str | Sequence[Sequence] = json.loads(answer)
    if isinstance(found, str):
        removal = Removal(MATRICES, f"Its driver was asked for its matrix unit: {found}.",
                          "Products are computed without it.", "asked on this machine")
        return replace(adapter, offers_matrices=False, removals=(*adapter.removals, removal))
    shapes = tuple(MatrixShape(*shape) for shape in found)
    limits = reduced(replace(adapter.limits, matrices=shapes), adapter.removals)
    return replace(adapter, offers_matrices=bool(limits.matrices), limits=limits)


def _key(adapter: VulkanAdapter) -> str:
    # "matrices" were answers with shapes of bytes also of devices that do not compute with bytes
    return f"vulkan matrix shapes of {adapter.identity}"
