"""What a driver tells of the compute pipelines it makes: VK_KHR_pipeline_executable_properties."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

from smalti.codegen.shader import Shader
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.adapter import VulkanAdapter, adapters
from smalti.runtime.vulkan.gpu import VulkanGpu
from smalti.runtime.vulkan.instance import instance
from smalti.runtime.vulkan.library import listed
from smalti.runtime.vulkan.matrices import told
from smalti.runtime.vulkan.pipelines import COMPUTE_STAGE, ENTRY, FULL_SUBGROUPS, STORAGE_BUFFER

EXTENSION = b"VK_KHR_pipeline_executable_properties"
FIRST_KIND = 1000269000
"""The type of the first structure of the extension; the others follow."""
CAPTURE = 0x40 | 0x80
"""Flags of a pipeline that keeps its statistics, and its internal representations."""
BOOL, I64, U64, F64 = range(4)
"""Formats of a statistic."""
FORMATS = {BOOL: ctypes.c_uint32, I64: ctypes.c_int64, U64: ctypes.c_uint64, F64: ctypes.c_double}


def _record(number: int, text: str) -> type[vk.Chained]:
    """A structure of the extension."""
    return type(f"Told{number}", (vk.Chained,), {"_fields_": vk.fields(text)},
                kind=FIRST_KIND + number)


Features = _record(0, "u32 pipelineExecutableInfo")
Pipeline = _record(1, "u64 pipeline")
Properties = _record(2, "u32 stages; char name[256] description[256]; u32 subgroupSize")
Executable = _record(3, "u64 pipeline; u32 executableIndex")
Statistic = _record(4, "char name[256] description[256]; u32 format; u64 value")
Representation = _record(5, "char name[256] description[256]; u32 isText; u64 dataSize; "
                            "pointer pData")


@dataclass
class Compiled:
    """What the driver made of a program: the size of its subgroups, what it counted, its texts."""

    subgroup: int
    statistics: dict[str, int | float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def assembly(self) -> str:
        """The text of the machine's instructions; empty where the driver tells none."""
        names = [name for name in self.texts if "assembl" in name.lower()]
        names += [name for name in self.texts if "sass" in name.lower()]
        return self.texts[names[-1]] if names else ""


class TellingGpu(VulkanGpu):
    """A device whose driver tells what it makes of programs; they need not run.

    Its matrix unit counts as one that the check of a machine has proven, unless `matrices` is
    false: then programs do without it, as where it is not trusted. Its units are those of an
    `architecture`, as drivers without a device do not tell its name.
    """

    def __init__(self, architecture: str, matrices: bool = True, number: int = 0) -> None:
        functions = instance().functions
        create = functions.vkCreateDevice
        functions.vkCreateDevice = lambda adapter, info, *others: create(
            adapter, _with_extension(info), *others)
        try:
            super().__init__(_proven(adapters()[number], architecture, matrices), number)
        finally:
            functions.vkCreateDevice = create
        compiled = self._logical.functions.vkCreateComputePipelines

        def captured(device: int, cache: int, count: int, info: vk.Chained, *others: object) -> int:
            info.flags |= CAPTURE
            return compiled(device, 0, count, info, *others)  # no cache: it keeps no texts

        self._logical.functions.vkCreateComputePipelines = captured
        self._told = [self._function(name, kind) for name, kind in (
            (b"vkGetPipelineExecutablePropertiesKHR", Properties),
            (b"vkGetPipelineExecutableStatisticsKHR", Statistic),
            (b"vkGetPipelineExecutableInternalRepresentationsKHR", Representation))]

    def told(self, shader: Shader, code: bytes) -> Compiled:
        """What the driver makes of a program. Raises DeviceError when it rejects it."""
        return self._of(self.build(shader, code).handle)

    def told_of(self, code: bytes, bindings: int, subgroup: int, constants: Mapping[int, int],
                push_bytes: int) -> Compiled:
        """The same of SPIR-V of any origin with an entry point `main`: `constants` specialise it,
        and it has `push_bytes` of push constants; `subgroup` 0 leaves that to the driver."""
        functions, device = self._logical.functions, self._logical.handle
        places = vk.array(vk.DescriptorSetLayoutBinding, [vk.DescriptorSetLayoutBinding(
            binding=number, descriptorType=STORAGE_BUFFER, descriptorCount=1,
            stageFlags=COMPUTE_STAGE) for number in range(bindings)])
        sets = functions.made("vkCreateDescriptorSetLayout", device,
                              vk.DescriptorSetLayoutCreateInfo(bindingCount=bindings,
                                                               pBindings=places))
        layout = functions.made("vkCreatePipelineLayout", device, vk.PipelineLayoutCreateInfo(
            setLayoutCount=1, pSetLayouts=vk.word(sets), pushConstantRangeCount=1,
            pPushConstantRanges=vk.PushConstantRange(stageFlags=COMPUTE_STAGE, size=push_bytes)))
        module = functions.made("vkCreateShaderModule", device, vk.ShaderModuleCreateInfo(
            codeSize=len(code), pCode=code))
        special = _specialisation(constants)
        chosen = subgroup and self.limits.subgroup_choice
        stage = vk.PipelineShaderStageCreateInfo(
            pNext=vk.PipelineShaderStageRequiredSubgroupSizeCreateInfo(
                requiredSubgroupSize=subgroup) if chosen else None,
            flags=FULL_SUBGROUPS if chosen else 0, stage=COMPUTE_STAGE, module=module, pName=ENTRY)
        stage.pSpecializationInfo = ctypes.addressof(special.info)
        handle = vk.word()
        functions.vkCreateComputePipelines(
            device, 0, 1, vk.ComputePipelineCreateInfo(stage=stage, layout=layout), None, handle)
        return self._of(handle[0])

    # ------------------------------------------------------------------ parts

    def _function(self, name: bytes, kind: type[vk.Chained]) -> Callable[[vk.Chained], list]:
        """A function of the extension, as one that lists records of a kind."""
        library, logical = instance().library, self._logical
        address = library.entry(instance().handle, b"vkGetDeviceProcAddr")
        find = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(address)
        function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(
            find(logical.handle, name))

        def found(which: vk.Chained, records: list | None = None) -> list:
            if records is None:
                return listed(function, kind, logical.handle, ctypes.byref(which))
            every = vk.array(kind, records)
            function(logical.handle, ctypes.byref(which),
                     (ctypes.c_uint32 * 1)(len(records)), every)
            return list(every)

        return found

    def _of(self, pipeline: int) -> Compiled:
        """What is told of a pipeline: of the last of its executables."""
        properties, statistics, representations = self._told
        executables = properties(Pipeline(pipeline=pipeline))
        which = Executable(pipeline=pipeline, executableIndex=len(executables) - 1)
        made = Compiled(executables[-1].subgroupSize)
        for each in statistics(which):
            raw = (ctypes.c_uint64 * 1)(each.value)
            made.statistics[each.name.decode()] = FORMATS[each.format].from_buffer(raw).value
        texts = representations(which)
        rooms = [ctypes.create_string_buffer(text.dataSize) for text in texts]
        for text, room in zip(texts, rooms, strict=True):
            text.pData = ctypes.addressof(room)
        for text, room in zip(representations(which, texts), rooms, strict=True):
            made.texts[text.name.decode()] = room.raw.rstrip(b"\0").decode("utf-8", "replace")
        return made


def _proven(adapter: VulkanAdapter, architecture: str, matrices: bool) -> VulkanAdapter:
    """An adapter with all shapes that its driver lists for the matrix unit, or with none."""
    shapes = told(adapter) if matrices and "cooperativeMatrix" in adapter.features else ()
    limits = replace(adapter.limits, matrices=shapes, architecture=architecture)
    return replace(adapter, limits=limits, offers_matrices=bool(shapes))


def _with_extension(info: vk.Chained) -> vk.Chained:
    """What a device is created from, with the extension asked for."""
    name = ctypes.create_string_buffer(EXTENSION)
    given = (ctypes.c_void_p * info.enabledExtensionCount).from_address(
        info.ppEnabledExtensionNames) if info.enabledExtensionCount else ()
    names = vk.array(ctypes.c_void_p, [*given, ctypes.addressof(name)])
    feature = Features(pipelineExecutableInfo=1)
    feature.pNext = info.pNext
    info.pNext = ctypes.addressof(feature)
    info.enabledExtensionCount, info.ppEnabledExtensionNames = len(names), ctypes.addressof(names)
    info.kept += [name, names, feature]
    return info


def _specialisation(constants: Mapping[int, int]) -> SimpleNamespace:
    """The structure VkSpecializationInfo for words by their numbers, with what it points to."""
    entries = (ctypes.c_uint32 * (4 * max(len(constants), 1)))()
    for index, number in enumerate(constants):  # number, offset, and a size of 64 bits
        entries[4 * index:4 * index + 4] = [number, 4 * index, 4, 0]
    values = (ctypes.c_uint32 * max(len(constants), 1))(*constants.values())
    info = (ctypes.c_uint64 * 4)(len(constants), ctypes.addressof(entries), 4 * len(constants),
                                 ctypes.addressof(values))
    return SimpleNamespace(info=info, entries=entries, values=values)
