"""Programs as the driver compiles them, and what it keeps of that on disk.

The driver's own cache of compiled programs (VkPipelineCache) is an entry of the compile cache, one
for each device and version of its driver.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
import weakref
from collections.abc import Sequence

from smalti.codegen.shader import BufferUse
from smalti.errors import DeviceError
from smalti.runtime import cache
from smalti.runtime.gpu import interface as gpu
from smalti.runtime.gpu.pacing import Pace
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.library import SUCCESS
from smalti.runtime.vulkan.logical import LogicalDevice

STORAGE_BUFFER = 7
COMPUTE_STAGE = 0x20
FULL_SUBGROUPS = 2
DISPATCH_BASE = 0x10
"""Of pipelines whose launches may begin at any work-group."""
ENTRY = b"main\0"


class VulkanPipeline(gpu.ComputePipeline):
    """A program that the driver has compiled. `layout` and `sets` are those of its bindings."""

    def __init__(self, logical: LogicalDevice, name: str, bindings: tuple[BufferUse, ...],
                 groups: tuple[int, int, int], handle: int, layout: int, sets: int) -> None:
        self.name, self.bindings, self.groups, self.pace = name, bindings, groups, Pace()
        self.handle, self.layout, self.sets = handle, layout, sets
        self.logical = logical
        functions, device = logical.functions, logical.handle
        self._token = logical.own(lambda: functions.vkDestroyPipeline(device, handle, None))

    def __del__(self) -> None:
        if hasattr(self, "_token"):
            self.logical.give_back(self._token)


class Pipelines:
    """The pipelines of a device that is open. Threads build theirs at the same time."""

    def __init__(self, logical: LogicalDevice) -> None:
        self._logical, self._changed, self._kept = logical, False, time.monotonic()
        self._key = f"vulkan pipelines of {logical.adapter.identity}"
        self._built: weakref.WeakValueDictionary[bytes, VulkanPipeline]
        self._built = weakref.WeakValueDictionary()
        self._layouts: dict[int, tuple[int, int]] = {}
        functions, device = logical.functions, logical.handle
        kept = cache.get(self._key) or b""
        try:
            self._cache = self._of(kept)
        except DeviceError:  # not what this driver wrote: it need not accept it
            self._cache = self._of(b"")
        logical.own(lambda: functions.vkDestroyPipelineCache(device, self._cache, None))

    def build(self, spirv: bytes, bindings: Sequence[BufferUse], groups: tuple[int, int, int], *,
              name: str = "", subgroup_size: int = 0) -> VulkanPipeline:
        """The pipeline of a module whose entry point is `main`, in subgroups of `subgroup_size`
        invocations, all of them full (0: as the driver likes).

        Raises DeviceError when the driver rejects the module, or the device has fewer bindings,
        smaller launches, or no subgroups of this size.
        """
        logical, bindings = self._logical, tuple(bindings)
        logical.check()
        self._check(bindings, groups, name, subgroup_size)
        key = hashlib.sha256(repr((bindings, groups, name, subgroup_size)).encode()
                             + spirv).digest()
        found = self._built.get(key)
        if found is None:
            with logical.lock:
                layout, sets = self._layout(len(bindings))
            handle = self._compiled(spirv, layout, subgroup_size)
            self._changed = True
            made = VulkanPipeline(logical, name, bindings, groups, handle, layout, sets)
            found = self._built.setdefault(key, made)
        return found

    def keep(self, seconds: float = 0.0) -> None:
        """Write what the driver has compiled since the last time to the cache of this user, unless
        that was less than so many seconds ago."""
        if self._changed and time.monotonic() - self._kept >= seconds:
            self._changed, self._kept = False, time.monotonic()
            cache.put(self._key, self._data())

    # ------------------------------------------------------------------ parts

    def _check(self, bindings: tuple[BufferUse, ...], groups: tuple[int, int, int],
               name: str, subgroup_size: int) -> None:
        limits = self._logical.adapter.limits
        least, most = limits.subgroup_min, limits.subgroup_max
        if subgroup_size and not (least <= subgroup_size <= most
                                  and (limits.subgroup_choice or least == most)):
            raise DeviceError(f"{name} is for subgroups of {subgroup_size}; those of "
                              f"{self._logical.adapter.name} are of {least} to {most}"
                              f"{'' if limits.subgroup_choice else ', as the driver likes'}")
        if len(bindings) > limits.bindings:
            raise DeviceError(f"{name} has {len(bindings)} bindings; {self._logical.adapter.name} "
                              f"has {limits.bindings} at most")
        if any(not 0 < asked <= most for asked, most in zip(groups, limits.grid)):
            raise DeviceError(f"{name} is of {groups} work-groups; {self._logical.adapter.name} "
                              f"launches {limits.grid} at most")

    def _of(self, kept: bytes) -> int:
        """A cache of the driver that starts with what was kept."""
        return self._logical.functions.made(
            "vkCreatePipelineCache", self._logical.handle,
            vk.PipelineCacheCreateInfo(initialDataSize=len(kept), pInitialData=kept or None))

    def _data(self) -> bytes:
        """What the cache of the driver holds."""
        functions, device = self._logical.functions, self._logical.handle
        while True:
            size = vk.word()
            functions.vkGetPipelineCacheData(device, self._cache, size, None)
            data = ctypes.create_string_buffer(max(size[0], 1))
            if functions.vkGetPipelineCacheData(device, self._cache, size, data) == SUCCESS:
                return data.raw[:size[0]]

    def _layout(self, count: int) -> tuple[int, int]:
        """The layouts of pipelines and of sets of `count` bindings: storage buffers, and a push
        constant for each."""
        if count not in self._layouts:
            functions, device = self._logical.functions, self._logical.handle
            bindings = vk.array(vk.DescriptorSetLayoutBinding, [vk.DescriptorSetLayoutBinding(
                binding=number, descriptorType=STORAGE_BUFFER, descriptorCount=1,
                stageFlags=COMPUTE_STAGE) for number in range(count)])
            sets = functions.made(
                "vkCreateDescriptorSetLayout", device, vk.DescriptorSetLayoutCreateInfo(
                    bindingCount=count, pBindings=bindings))
            self._logical.own(lambda: functions.vkDestroyDescriptorSetLayout(device, sets, None))
            words = vk.PushConstantRange(stageFlags=COMPUTE_STAGE, size=max(4 * count, 4))
            layout = functions.made("vkCreatePipelineLayout", device, vk.PipelineLayoutCreateInfo(
                setLayoutCount=1, pSetLayouts=vk.word(sets), pushConstantRangeCount=1,
                pPushConstantRanges=words))
            self._logical.own(lambda: functions.vkDestroyPipelineLayout(device, layout, None))
            self._layouts[count] = layout, sets
        return self._layouts[count]

    def _compiled(self, spirv: bytes, layout: int, subgroup_size: int) -> int:
        """The VkPipeline of a module. The driver compiles it here, without any lock."""
        functions, device = self._logical.functions, self._logical.handle
        module = functions.made("vkCreateShaderModule", device, vk.ShaderModuleCreateInfo(
            codeSize=len(spirv), pCode=spirv))
        try:
            adapter = self._logical.adapter
            chosen = subgroup_size and adapter.limits.subgroup_choice
            full = subgroup_size and "computeFullSubgroups" in adapter.features
            stage = vk.PipelineShaderStageCreateInfo(
                pNext=vk.PipelineShaderStageRequiredSubgroupSizeCreateInfo(
                    requiredSubgroupSize=subgroup_size) if chosen else None,
                flags=FULL_SUBGROUPS if full else 0, stage=COMPUTE_STAGE, module=module,
                pName=ENTRY)
            handle = vk.word()
            functions.vkCreateComputePipelines(
                device, self._cache, 1, vk.ComputePipelineCreateInfo(
                    flags=DISPATCH_BASE, stage=stage, layout=layout), None, handle)
        finally:
            functions.vkDestroyShaderModule(device, module, None)
        return handle[0]
