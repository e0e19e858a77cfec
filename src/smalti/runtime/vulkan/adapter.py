"""The devices that the Vulkan drivers of this machine offer, and what each of them can do."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterable, Sequence
from dataclasses import field, replace

from smalti.dataclass import dataclass
from smalti.errors import DeviceError
from smalti.runtime.gpu import quirks
from smalti.runtime.gpu.architecture import architecture_of
from smalti.runtime.gpu.removals import MATRICES, Removal, reduced, removal_of
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.instance import ASKED, Instance, instance, text, unpacked
from smalti.runtime.vulkan.library import VulkanFunctions, listed
from smalti.runtime.vulkan.told import INTEGER_DOTS, SIZE_CONTROL, GpuPlaces, told
from smalti.schedule.group import GroupLimits

NEEDED = (1, 2)
"""The version of Vulkan: timeline semaphores."""

COOPERATIVE_MATRIX, BFLOAT16 = "VK_KHR_cooperative_matrix", "VK_KHR_shader_bfloat16"
BUDGET = "VK_EXT_memory_budget"

KINDS = ("other", "integrated", "discrete", "virtual", "cpu")  # VkPhysicalDeviceType
ORDER = ("discrete", "integrated", "virtual", "other", "cpu")
VENDORS = {0x1002: "AMD", 0x1010: "Imagination", 0x106B: "Apple", 0x10DE: "NVIDIA", 0x13B5: "Arm",
           0x5143: "Qualcomm", 0x8086: "Intel", 0x10005: "Mesa"}
COMPUTE_STAGE = 0x20  # of VkShaderStageFlagBits
SUBGROUP_OPERATIONS = 0x01 | 0x02 | 0x04 | 0x08 | 0x10  # basic, vote, arithmetic, ballot, shuffle
GRAPHICS, COMPUTE, TRANSFER, SPARSE = 1, 2, 4, 8  # of VkQueueFlagBits
DEVICE_LOCAL = 1  # of VkMemoryHeapFlagBits

# Features that are asked of a device that has them.
CORE = ("shaderInt16", "shaderInt64")
SINCE_1_1 = ("storageBuffer16BitAccess",)
SINCE_1_2 = ("storageBuffer8BitAccess", "shaderFloat16", "shaderInt8", "timelineSemaphore",
             "vulkanMemoryModel", "vulkanMemoryModelDeviceScope", "shaderSubgroupExtendedTypes")
SUBGROUP_SIZES = ("subgroupSizeControl", "computeFullSubgroups")
DOT = "shaderIntegerDotProduct"
BFLOAT = ("shaderBFloat16Type", "shaderBFloat16CooperativeMatrix")


@dataclass(frozen=True, slots=True)
class Family:
    """A family of queues: what they do (bits of VkQueueFlags), and how many bits of a time stamp
    they write."""

    index: int
    flags: int
    timestamp_bits: int


@dataclass(frozen=True, slots=True)
class VulkanAdapter:
    """A device as its driver describes it.

    `kind` is discrete, integrated, virtual, cpu or other; `version` that of Vulkan. `identity`
    names device and driver, for what is compiled for them. `memory_bytes` is its largest heap of
    its own; `unusable` says why programs cannot run on it, if they cannot. `facts` identify it for
    what is known of drivers, `removals` are what it is not used for, which is not in `limits`.
    `offers_matrices` says whether its matrix unit may be used; what that computes is not in
    `limits` until the device is opened (`matrices.py`).
    """

    instance: Instance = field(repr=False, compare=False)
    handle: int = field(repr=False, compare=False)
    name: str
    vendor: str
    kind: str
    version: tuple[int, int, int]
    driver: str
    identity: str
    memory_bytes: int
    features: frozenset[str]
    extensions: frozenset[str]
    families: tuple[Family, ...]
    limits: GroupLimits
    allocations: int
    """Blocks of memory at most."""
    timestamp_seconds: float
    unusable: str = ""
    facts: quirks.AdapterFacts = quirks.AdapterFacts(0, "")
    removals: tuple[Removal, ...] = ()
    offers_matrices: bool = False
    places: GpuPlaces = GpuPlaces()
    """What names its GPU whatever the driver."""
    better: str = ""
    """The driver that its GPU is used through by `auto`, where that is another one."""


def adapters() -> tuple[VulkanAdapter, ...]:
    """All devices of this machine's Vulkan drivers: those of their own memory first, drivers that
    compute on the CPU last; behind them GPUs that are there already, through other drivers.

    Raises DeviceError, which says why, where there are none.
    """
    found = described(instance())
    if not found:
        raise DeviceError("the Vulkan drivers of this machine find no device")
    return found


def described(connection: Instance) -> tuple[VulkanAdapter, ...]:
    """All devices of a connection, in the same order."""
    found = [describe(connection, handle) for handle in connection.devices()]
    return once(sorted(found, key=lambda adapter: ORDER.index(adapter.kind)))


def once(found: Sequence[VulkanAdapter]) -> tuple[VulkanAdapter, ...]:
    """Each GPU by its best driver, in the order of `found`; then what others reach of the same."""
    first: list[VulkanAdapter] = []
    others: list[VulkanAdapter] = []
    for each in sorted(found, key=lambda each: (bool(each.unusable),
                                                quirks.quality(each.facts.driver))):
        same = next((one for one in first if one.places.same(each.places)), None)
        if same is None:
            first.append(each)
        elif not each.unusable:
            others.append(judged(replace(each, better=same.driver)))
    others.sort(key=lambda each: ORDER.index(each.kind))
    return (*sorted(first, key=found.index), *others)


def describe(connection: Instance, handle: int) -> VulkanAdapter:
    """The device `handle` as its driver describes it."""
    functions = connection.functions
    core = vk.PhysicalDeviceProperties()
    functions.vkGetPhysicalDeviceProperties(handle, core)
    version = unpacked(core.apiVersion)
    families = tuple(
        Family(index, each.queueFlags, each.timestampValidBits) for index, each in enumerate(
            families_of(functions, handle)) if each.queueFlags & (COMPUTE | TRANSFER))
    plain = VulkanAdapter(
        connection, handle, text(core.deviceName),
        VENDORS.get(core.vendorID, f"{core.vendorID:#06x}"),
        KINDS[min(core.deviceType, len(KINDS) - 1)], version, "", "", 0, frozenset(), frozenset(),
        families, GroupLimits(), core.limits.maxMemoryAllocationCount,
        core.limits.timestampPeriod * 1e-9)
    if version < NEEDED:
        return replace(plain, unusable="its driver has Vulkan {}.{}; 1.2 is needed: a newer driver "
                       "may have it".format(*version))
    if not any(family.flags & COMPUTE for family in families):
        return replace(plain, unusable="it does not compute")
    try:
        return detailed(functions, plain, core)
    except DeviceError as error:  # such as a function that the driver lacks
        return replace(plain, unusable=str(error))


def families_of(functions: VulkanFunctions, handle: int) -> list[vk.QueueFamilyProperties]:
    """The families of queues of a device."""
    count = (ctypes.c_uint32 * 1)()
    functions.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, None)
    found = (vk.QueueFamilyProperties * count[0])()
    functions.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, found)
    return list(found)


def memory(functions: VulkanFunctions, handle: int, budget: vk.Chained | None = None,
           ) -> vk.PhysicalDeviceMemoryProperties2:
    """The kinds of memory of a device; `budget` is filled in where the device has BUDGET."""
    found = vk.PhysicalDeviceMemoryProperties2(pNext=budget)
    functions.vkGetPhysicalDeviceMemoryProperties2(handle, found)
    return found


def features_of(functions: VulkanFunctions, handle: int, extensions: frozenset[str],
                version: tuple, ) -> tuple[vk.Chained, ...]:
    """Structures of features, which the driver has filled in; the first is that of the core."""
    found = [vk.PhysicalDeviceFeatures2(), vk.PhysicalDeviceVulkan11Features(),
             vk.PhysicalDeviceVulkan12Features()]
    if version >= (1, 3) or SIZE_CONTROL in extensions:
        found.append(vk.PhysicalDeviceSubgroupSizeControlFeatures())
    if version >= (1, 3) or INTEGER_DOTS in extensions:
        found.append(vk.PhysicalDeviceShaderIntegerDotProductFeatures())
    if COOPERATIVE_MATRIX in extensions:
        found.append(vk.PhysicalDeviceCooperativeMatrixFeaturesKHR())
    if BFLOAT16 in extensions:
        found.append(vk.PhysicalDeviceShaderBfloat16FeaturesKHR())
    functions.vkGetPhysicalDeviceFeatures2(handle, vk.chain(*found))
    return tuple(found)


def wanted(found: tuple[vk.Chained, ...]) -> tuple[tuple[vk.Chained, ...], frozenset[str]]:
    """Of features that a driver has, those to ask for, as structures and as names."""
    asked, names = [], set()
    for each in found:
        mine = type(each)()
        inner, members = (each.features, CORE) if each is found[0] else (
            each, (*SINCE_1_1, *SINCE_1_2, *SUBGROUP_SIZES, *BFLOAT, DOT,
                   "cooperativeMatrix"))
        for name in members:
            if getattr(inner, name, 0):
                setattr(mine.features if each is found[0] else mine, name, 1)
                names.add(name)
        asked.append(mine)
    return tuple(asked), frozenset(names)


def detailed(functions: VulkanFunctions, plain: VulkanAdapter,
             core: vk.PhysicalDeviceProperties) -> VulkanAdapter:
    """`plain` with what devices of Vulkan 1.2 tell of themselves."""
    extensions = frozenset(text(each.extensionName) for each in listed(
        functions.vkEnumerateDeviceExtensionProperties, vk.ExtensionProperties, plain.handle,
        None))
    _, features = wanted(features_of(functions, plain.handle, extensions, plain.version))
    found = told(functions, plain.handle, extensions, plain.version)
    since_1_1, since_1_2, sizes = found.since_1_1, found.since_1_2, found.sizes
    driver = f"{text(since_1_2.driverName)} {text(since_1_2.driverInfo)}".strip()
    identity = " ".join([bytes(since_1_1.deviceUUID).hex(), bytes(since_1_1.driverUUID).hex(),
                         bytes(core.pipelineCacheUUID).hex(), str(core.driverVersion)])
    limits = limits_of(core.limits, since_1_1, features, plain, found.buffers.maxBufferSize)
    keeps_nan = since_1_2.shaderSignedZeroInfNanPreserveFloat32 and (
        not limits.f16 or since_1_2.shaderSignedZeroInfNanPreserveFloat16)
    limits = replace(limits, units=found.units, keeps_nan=bool(keeps_nan),
                     exact_f16=limits.f16 and found.exact_f16,
                     fast_dot_i8=limits.dot_i8 and found.fast_dot_i8)
    if "subgroupSizeControl" in features:
        limits = replace(
            limits, subgroup_min=sizes.minSubgroupSize, subgroup_max=sizes.maxSubgroupSize,
            subgroup_choice=bool(sizes.requiredSubgroupSizeStages & COMPUTE_STAGE),
            invocations=min(limits.invocations,  # where programs ask for the smallest subgroups
                            sizes.maxComputeWorkgroupSubgroups * sizes.minSubgroupSize))
    facts = facts_of(core, since_1_2.driverID, plain, limits, found.products)
    limits = replace(limits, right_lines=quirks.RIGHT_LINES.get(facts.driver, ""),
                     sum_lines=quirks.SUM_LINES.get(facts.driver, ""),
                     left_words=facts.driver in quirks.LEFT_WORDS)
    if plain.vendor == "Intel":
        limits = replace(limits, registers=128)
    limits = replace(limits, architecture=architecture_of(
        plain.name, facts.architecture, plain.vendor, bf16=limits.bf16,
        warps=found.nvidia.shaderWarpsPerSM))
    heaps = memory(functions, plain.handle).memoryProperties
    own = [heap.size for heap in heaps.memoryHeaps[:heaps.memoryHeapCount]
           if heap.flags & DEVICE_LOCAL]
    limits = replace(limits, unified=limits.unified or len(own) == heaps.memoryHeapCount)
    return judged(replace(
        plain, driver=driver, identity=identity, memory_bytes=max(own, default=0),
        features=features, extensions=extensions, limits=limits, facts=facts,
        places=found.places))


def judged(adapter: VulkanAdapter, found: Iterable[Removal] = (),
           proven: Collection[str] = ()) -> VulkanAdapter:
    """An adapter without what is known of its driver, and without what a check of this machine has
    `found`; what that has `proven` needs no row of the table."""
    has_unit = ({"cooperativeMatrix", "vulkanMemoryModel"} <= adapter.features
                and adapter.version >= ASKED)
    removals = (*quirks.through(adapter.better), *(
        each for each in quirks.removals_for(adapter.facts, proven)
        if has_unit or each.what != MATRICES), *found)
    return replace(adapter, removals=removals, limits=reduced(adapter.limits, removals),
                   offers_matrices=has_unit and removal_of(MATRICES, removals) is None)


def facts_of(core: vk.PhysicalDeviceProperties, driver: int, plain: VulkanAdapter,
             limits: GroupLimits, products: vk.PhysicalDeviceShaderIntegerDotProductProperties,
             ) -> quirks.AdapterFacts:
    """What identifies a device for the table of known faults."""
    mixed = bool(products.integerDotProduct4x8BitPackedMixedSignednessAccelerated)
    return quirks.AdapterFacts(
        core.vendorID, plain.name, "Vulkan", plain.kind, driver,
        quirks.driver_version(driver, core.driverVersion),
        quirks.architecture(core.vendorID, limits.subgroup_min, limits.subgroup_max, mixed))


def limits_of(core: vk.PhysicalDeviceLimits, since_1_1: vk.PhysicalDeviceVulkan11Properties,
              features: frozenset[str], plain: VulkanAdapter, buffer_bytes: int) -> GroupLimits:
    """What a device lets work-groups do."""
    bindings = min(core.maxPerStageDescriptorStorageBuffers, core.maxDescriptorSetStorageBuffers,
                   core.maxPerStageResources, core.maxPushConstantsSize // 4)
    allocation = since_1_1.maxMemoryAllocationSize
    operations = since_1_1.subgroupSupportedOperations
    return GroupLimits(
        shared_bytes=core.maxComputeSharedMemorySize,
        invocations=min(core.maxComputeWorkGroupInvocations, core.maxComputeWorkGroupSize[0]),
        subgroup_min=since_1_1.subgroupSize, subgroup_max=since_1_1.subgroupSize,
        subgroup_operations=bool(  # programs count on subgroups that are full
            "computeFullSubgroups" in features and since_1_1.subgroupSupportedStages & COMPUTE_STAGE
            and operations & SUBGROUP_OPERATIONS == SUBGROUP_OPERATIONS),
        grid=tuple(core.maxComputeWorkGroupCount),
        buffer_bytes=min(allocation, buffer_bytes or allocation),
        buffer_range=core.maxStorageBufferRange,
        offset_alignment=core.minStorageBufferOffsetAlignment, bindings=bindings,
        push_bytes=core.maxPushConstantsSize, f16="shaderFloat16" in features,
        bf16={"shaderBFloat16Type", "shaderInt16"} <= features,
        storage16="storageBuffer16BitAccess" in features,
        storage8="storageBuffer8BitAccess" in features, int16="shaderInt16" in features,
        dot_i8=DOT in features,
        unified=plain.kind in ("integrated", "cpu"))
