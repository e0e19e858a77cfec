"""The structures of Vulkan that the runtime passes, as attributes of this module.

Names, members and numbers are those of the specification (https://registry.khronos.org/vulkan/),
without the prefix Vk.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from types import new_class
from typing import Any

CType = Any
"""A type of ctypes: a number, an array, or a structure. To be multiplied into an array is what they
have in common, and `type` does not say that."""

SCALARS: dict[str, CType] = {
    "u8": ctypes.c_uint8, "u32": ctypes.c_uint32, "i32": ctypes.c_int32, "u64": ctypes.c_uint64,
    "f32": ctypes.c_float, "char": ctypes.c_char, "pointer": ctypes.c_void_p,
}


def fields(text: str) -> list[tuple[str, CType]]:
    """Members of a structure: "type name name[count]; type name".

    >>> [name for name, _ in fields("u32 a b[3]; pointer c")]
    ['a', 'b', 'c']
    """
    found = []
    for group in text.split(";"):
        kind, *names = group.split()
        base = SCALARS.get(kind) or globals()[kind]
        for name, count in re.findall(r"(\w+)(?:\[(\d+)\])?", " ".join(names)):
            found.append((name, base * int(count) if count else base))
    return found


class Record(ctypes.Structure):
    """A structure that keeps alive what it points to; functions take a pointer to it."""

    _as_parameter_ = property(ctypes.byref)

    def __init__(self, **members: object) -> None:
        super().__init__()
        self.kept = list(members.values())
        for name, value in members.items():
            pointer = getattr(self, name) is None  # as pointers to nothing read
            setattr(self, name, address(value) if pointer else value)


class Chained(Record):
    """A structure that tells its type (`kind`), and may be followed by others (`pNext`)."""

    _fields_ = fields("u32 sType; pointer pNext")
    kind = 0

    def __init_subclass__(cls, kind: int) -> None:
        super().__init_subclass__()
        cls.kind = kind

    def __init__(self, **members: object) -> None:
        super().__init__(sType=self.kind, **members)


def address(value: Any) -> int | None:
    """Where a ctypes value or bytes lie in memory; the caller keeps them alive."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, bytes):
        return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value
    return ctypes.addressof(value)


def array(kind: CType, items: Sequence[object]) -> ctypes.Array:
    """`items` one after the other, as Vulkan takes lists. What records among them point to must
    outlive the array."""
    return (kind * len(items))(*items)


def word(value: int = 0) -> ctypes.Array:
    """Room for a word of 64 bits, such as a handle, that a function takes a pointer to."""
    return (ctypes.c_uint64 * 1)(value)


def chain(*records: Chained) -> Chained:
    """The first of `records`, with the others behind it."""
    for record, following in zip(records, records[1:]):
        record.pNext = ctypes.addressof(following)
        record.kept.append(following)
    return records[0]


RECORDS = {
    "ApplicationInfo": (0, """
        pointer pApplicationName; u32 applicationVersion; pointer pEngineName; u32 engineVersion
        apiVersion"""),
    "InstanceCreateInfo": (1, """
        u32 flags; pointer pApplicationInfo; u32 enabledLayerCount; pointer ppEnabledLayerNames;
        u32 enabledExtensionCount; pointer ppEnabledExtensionNames"""),
    "ExtensionProperties": (None, "char extensionName[256]; u32 specVersion"),
    "PhysicalDeviceLimits": (None, """
        u32 maxImageDimension1D maxImageDimension2D maxImageDimension3D maxImageDimensionCube
        maxImageArrayLayers maxTexelBufferElements maxUniformBufferRange maxStorageBufferRange
        maxPushConstantsSize maxMemoryAllocationCount maxSamplerAllocationCount; u64
        bufferImageGranularity sparseAddressSpaceSize; u32 maxBoundDescriptorSets
        maxPerStageDescriptorSamplers maxPerStageDescriptorUniformBuffers
        maxPerStageDescriptorStorageBuffers maxPerStageDescriptorSampledImages
        maxPerStageDescriptorStorageImages maxPerStageDescriptorInputAttachments
        maxPerStageResources maxDescriptorSetSamplers maxDescriptorSetUniformBuffers
        maxDescriptorSetUniformBuffersDynamic maxDescriptorSetStorageBuffers
        maxDescriptorSetStorageBuffersDynamic maxDescriptorSetSampledImages
        maxDescriptorSetStorageImages maxDescriptorSetInputAttachments maxVertexInputAttributes
        maxVertexInputBindings maxVertexInputAttributeOffset maxVertexInputBindingStride
        maxVertexOutputComponents maxTessellationGenerationLevel maxTessellationPatchSize
        maxTessellationControlPerVertexInputComponents
        maxTessellationControlPerVertexOutputComponents
        maxTessellationControlPerPatchOutputComponents
        maxTessellationControlTotalOutputComponents maxTessellationEvaluationInputComponents
        maxTessellationEvaluationOutputComponents maxGeometryShaderInvocations
        maxGeometryInputComponents maxGeometryOutputComponents maxGeometryOutputVertices
        maxGeometryTotalOutputComponents maxFragmentInputComponents maxFragmentOutputAttachments
        maxFragmentDualSrcAttachments maxFragmentCombinedOutputResources
        maxComputeSharedMemorySize maxComputeWorkGroupCount[3] maxComputeWorkGroupInvocations
        maxComputeWorkGroupSize[3] subPixelPrecisionBits subTexelPrecisionBits
        mipmapPrecisionBits maxDrawIndexedIndexValue maxDrawIndirectCount; f32 maxSamplerLodBias
        maxSamplerAnisotropy; u32 maxViewports maxViewportDimensions[2]; f32
        viewportBoundsRange[2]; u32 viewportSubPixelBits; u64 minMemoryMapAlignment
        minTexelBufferOffsetAlignment minUniformBufferOffsetAlignment
        minStorageBufferOffsetAlignment; i32 minTexelOffset; u32 maxTexelOffset; i32
        minTexelGatherOffset; u32 maxTexelGatherOffset; f32 minInterpolationOffset
        maxInterpolationOffset; u32 subPixelInterpolationOffsetBits maxFramebufferWidth
        maxFramebufferHeight maxFramebufferLayers framebufferColorSampleCounts
        framebufferDepthSampleCounts framebufferStencilSampleCounts
        framebufferNoAttachmentsSampleCounts maxColorAttachments sampledImageColorSampleCounts
        sampledImageIntegerSampleCounts sampledImageDepthSampleCounts
        sampledImageStencilSampleCounts storageImageSampleCounts maxSampleMaskWords
        timestampComputeAndGraphics; f32 timestampPeriod; u32 maxClipDistances maxCullDistances
        maxCombinedClipAndCullDistances discreteQueuePriorities; f32 pointSizeRange[2]
        lineWidthRange[2] pointSizeGranularity lineWidthGranularity; u32 strictLines
        standardSampleLocations; u64 optimalBufferCopyOffsetAlignment
        optimalBufferCopyRowPitchAlignment nonCoherentAtomSize"""),
    "PhysicalDeviceSparseProperties": (None, """
        u32 residencyStandard2DBlockShape residencyStandard2DMultisampleBlockShape
        residencyStandard3DBlockShape residencyAlignedMipSize residencyNonResidentStrict"""),
    "PhysicalDeviceProperties": (None, """
        u32 apiVersion driverVersion vendorID deviceID deviceType; char deviceName[256]; u8
        pipelineCacheUUID[16]; PhysicalDeviceLimits limits; PhysicalDeviceSparseProperties
        sparseProperties"""),
    "PhysicalDeviceProperties2": (1000059001, "PhysicalDeviceProperties properties"),
    "PhysicalDeviceVulkan11Properties": (50, """
        u8 deviceUUID[16] driverUUID[16] deviceLUID[8]; u32 deviceNodeMask deviceLUIDValid
        subgroupSize subgroupSupportedStages subgroupSupportedOperations
        subgroupQuadOperationsInAllStages pointClippingBehavior maxMultiviewViewCount
        maxMultiviewInstanceIndex protectedNoFault maxPerSetDescriptors; u64
        maxMemoryAllocationSize"""),
    "ConformanceVersion": (None, "u8 major minor subminor patch"),
    "PhysicalDeviceVulkan12Properties": (52, """
        u32 driverID; char driverName[256] driverInfo[256]; ConformanceVersion
        conformanceVersion; u32 denormBehaviorIndependence roundingModeIndependence
        shaderSignedZeroInfNanPreserveFloat16 shaderSignedZeroInfNanPreserveFloat32
        shaderSignedZeroInfNanPreserveFloat64 shaderDenormPreserveFloat16
        shaderDenormPreserveFloat32 shaderDenormPreserveFloat64 shaderDenormFlushToZeroFloat16
        shaderDenormFlushToZeroFloat32 shaderDenormFlushToZeroFloat64
        shaderRoundingModeRTEFloat16 shaderRoundingModeRTEFloat32 shaderRoundingModeRTEFloat64
        shaderRoundingModeRTZFloat16 shaderRoundingModeRTZFloat32 shaderRoundingModeRTZFloat64
        maxUpdateAfterBindDescriptorsInAllPools shaderUniformBufferArrayNonUniformIndexingNative
        shaderSampledImageArrayNonUniformIndexingNative
        shaderStorageBufferArrayNonUniformIndexingNative
        shaderStorageImageArrayNonUniformIndexingNative
        shaderInputAttachmentArrayNonUniformIndexingNative robustBufferAccessUpdateAfterBind
        quadDivergentImplicitLod maxPerStageDescriptorUpdateAfterBindSamplers
        maxPerStageDescriptorUpdateAfterBindUniformBuffers
        maxPerStageDescriptorUpdateAfterBindStorageBuffers
        maxPerStageDescriptorUpdateAfterBindSampledImages
        maxPerStageDescriptorUpdateAfterBindStorageImages
        maxPerStageDescriptorUpdateAfterBindInputAttachments maxPerStageUpdateAfterBindResources
        maxDescriptorSetUpdateAfterBindSamplers maxDescriptorSetUpdateAfterBindUniformBuffers
        maxDescriptorSetUpdateAfterBindUniformBuffersDynamic
        maxDescriptorSetUpdateAfterBindStorageBuffers
        maxDescriptorSetUpdateAfterBindStorageBuffersDynamic
        maxDescriptorSetUpdateAfterBindSampledImages maxDescriptorSetUpdateAfterBindStorageImages
        maxDescriptorSetUpdateAfterBindInputAttachments supportedDepthResolveModes
        supportedStencilResolveModes independentResolveNone independentResolve
        filterMinmaxSingleComponentFormats filterMinmaxImageComponentMapping; u64
        maxTimelineSemaphoreValueDifference; u32 framebufferIntegerColorSampleCounts"""),
    "PhysicalDeviceSubgroupSizeControlProperties": (1000225000, """
        u32 minSubgroupSize maxSubgroupSize maxComputeWorkgroupSubgroups
        requiredSubgroupSizeStages"""),
    "PhysicalDeviceMaintenance4Properties": (1000413001, "u64 maxBufferSize"),
    "PhysicalDeviceShaderSMBuiltinsPropertiesNV": (1000154001, """
        u32 shaderSMCount shaderWarpsPerSM"""),
    "PhysicalDeviceShaderCorePropertiesAMD": (1000185000, """
        u32 shaderEngineCount shaderArraysPerEngineCount computeUnitsPerShaderArray
        simdPerComputeUnit wavefrontsPerSimd wavefrontSize sgprsPerSimd minSgprAllocation
        maxSgprAllocation sgprAllocationGranularity vgprsPerSimd minVgprAllocation
        maxVgprAllocation vgprAllocationGranularity"""),
    "PhysicalDeviceShaderCoreProperties2AMD": (1000227000, """
        u32 shaderCoreFeatures activeComputeUnitCount"""),
    "PhysicalDeviceShaderIntegerDotProductFeatures": (1000280000, "u32 shaderIntegerDotProduct"),
    "PhysicalDeviceShaderIntegerDotProductProperties": (1000280001, """
        u32 integerDotProduct8BitUnsignedAccelerated integerDotProduct8BitSignedAccelerated
        integerDotProduct8BitMixedSignednessAccelerated
        integerDotProduct4x8BitPackedUnsignedAccelerated
        integerDotProduct4x8BitPackedSignedAccelerated
        integerDotProduct4x8BitPackedMixedSignednessAccelerated
        integerDotProduct16BitUnsignedAccelerated integerDotProduct16BitSignedAccelerated
        integerDotProduct16BitMixedSignednessAccelerated integerDotProduct32BitUnsignedAccelerated
        integerDotProduct32BitSignedAccelerated integerDotProduct32BitMixedSignednessAccelerated
        integerDotProduct64BitUnsignedAccelerated integerDotProduct64BitSignedAccelerated
        integerDotProduct64BitMixedSignednessAccelerated
        integerDotProductAccumulatingSaturating8BitUnsignedAccelerated
        integerDotProductAccumulatingSaturating8BitSignedAccelerated
        integerDotProductAccumulatingSaturating8BitMixedSignednessAccelerated
        integerDotProductAccumulatingSaturating4x8BitPackedUnsignedAccelerated
        integerDotProductAccumulatingSaturating4x8BitPackedSignedAccelerated
        integerDotProductAccumulatingSaturating4x8BitPackedMixedSignednessAccelerated
        integerDotProductAccumulatingSaturating16BitUnsignedAccelerated
        integerDotProductAccumulatingSaturating16BitSignedAccelerated
        integerDotProductAccumulatingSaturating16BitMixedSignednessAccelerated
        integerDotProductAccumulatingSaturating32BitUnsignedAccelerated
        integerDotProductAccumulatingSaturating32BitSignedAccelerated
        integerDotProductAccumulatingSaturating32BitMixedSignednessAccelerated
        integerDotProductAccumulatingSaturating64BitUnsignedAccelerated
        integerDotProductAccumulatingSaturating64BitSignedAccelerated
        integerDotProductAccumulatingSaturating64BitMixedSignednessAccelerated"""),
    "PhysicalDevicePCIBusInfoPropertiesEXT": (1000212000, """
        u32 pciDomain pciBus pciDevice pciFunction"""),
    "CooperativeMatrixPropertiesKHR": (1000506001, """
        u32 MSize NSize KSize AType BType CType ResultType saturatingAccumulation scope"""),
    "PhysicalDeviceFeatures": (None, """
        u32 robustBufferAccess fullDrawIndexUint32 imageCubeArray independentBlend geometryShader
        tessellationShader sampleRateShading dualSrcBlend logicOp multiDrawIndirect
        drawIndirectFirstInstance depthClamp depthBiasClamp fillModeNonSolid depthBounds
        wideLines largePoints alphaToOne multiViewport samplerAnisotropy textureCompressionETC2
        textureCompressionASTC_LDR textureCompressionBC occlusionQueryPrecise
        pipelineStatisticsQuery vertexPipelineStoresAndAtomics fragmentStoresAndAtomics
        shaderTessellationAndGeometryPointSize shaderImageGatherExtended
        shaderStorageImageExtendedFormats shaderStorageImageMultisample
        shaderStorageImageReadWithoutFormat shaderStorageImageWriteWithoutFormat
        shaderUniformBufferArrayDynamicIndexing shaderSampledImageArrayDynamicIndexing
        shaderStorageBufferArrayDynamicIndexing shaderStorageImageArrayDynamicIndexing
        shaderClipDistance shaderCullDistance shaderFloat64 shaderInt64 shaderInt16
        shaderResourceResidency shaderResourceMinLod sparseBinding sparseResidencyBuffer
        sparseResidencyImage2D sparseResidencyImage3D sparseResidency2Samples
        sparseResidency4Samples sparseResidency8Samples sparseResidency16Samples
        sparseResidencyAliased variableMultisampleRate inheritedQueries"""),
    "PhysicalDeviceFeatures2": (1000059000, "PhysicalDeviceFeatures features"),
    "PhysicalDeviceVulkan11Features": (49, """
        u32 storageBuffer16BitAccess uniformAndStorageBuffer16BitAccess storagePushConstant16
        storageInputOutput16 multiview multiviewGeometryShader multiviewTessellationShader
        variablePointersStorageBuffer variablePointers protectedMemory samplerYcbcrConversion
        shaderDrawParameters"""),
    "PhysicalDeviceVulkan12Features": (51, """
        u32 samplerMirrorClampToEdge drawIndirectCount storageBuffer8BitAccess
        uniformAndStorageBuffer8BitAccess storagePushConstant8 shaderBufferInt64Atomics
        shaderSharedInt64Atomics shaderFloat16 shaderInt8 descriptorIndexing
        shaderInputAttachmentArrayDynamicIndexing shaderUniformTexelBufferArrayDynamicIndexing
        shaderStorageTexelBufferArrayDynamicIndexing shaderUniformBufferArrayNonUniformIndexing
        shaderSampledImageArrayNonUniformIndexing shaderStorageBufferArrayNonUniformIndexing
        shaderStorageImageArrayNonUniformIndexing shaderInputAttachmentArrayNonUniformIndexing
        shaderUniformTexelBufferArrayNonUniformIndexing
        shaderStorageTexelBufferArrayNonUniformIndexing
        descriptorBindingUniformBufferUpdateAfterBind
        descriptorBindingSampledImageUpdateAfterBind descriptorBindingStorageImageUpdateAfterBind
        descriptorBindingStorageBufferUpdateAfterBind
        descriptorBindingUniformTexelBufferUpdateAfterBind
        descriptorBindingStorageTexelBufferUpdateAfterBind
        descriptorBindingUpdateUnusedWhilePending descriptorBindingPartiallyBound
        descriptorBindingVariableDescriptorCount runtimeDescriptorArray samplerFilterMinmax
        scalarBlockLayout imagelessFramebuffer uniformBufferStandardLayout
        shaderSubgroupExtendedTypes separateDepthStencilLayouts hostQueryReset timelineSemaphore
        bufferDeviceAddress bufferDeviceAddressCaptureReplay bufferDeviceAddressMultiDevice
        vulkanMemoryModel vulkanMemoryModelDeviceScope
        vulkanMemoryModelAvailabilityVisibilityChains shaderOutputViewportIndex shaderOutputLayer
        subgroupBroadcastDynamicId"""),
    "PhysicalDeviceSubgroupSizeControlFeatures": (1000225002, """
        u32 subgroupSizeControl computeFullSubgroups"""),
    "PhysicalDeviceCooperativeMatrixFeaturesKHR": (1000506000, """
        u32 cooperativeMatrix cooperativeMatrixRobustBufferAccess"""),
    "PhysicalDeviceShaderBfloat16FeaturesKHR": (1000141000, """
        u32 shaderBFloat16Type shaderBFloat16DotProduct shaderBFloat16CooperativeMatrix"""),
    "MemoryType": (None, "u32 propertyFlags heapIndex"),
    "MemoryHeap": (None, "u64 size; u32 flags"),
    "PhysicalDeviceMemoryProperties": (None, """
        u32 memoryTypeCount; MemoryType memoryTypes[32]; u32 memoryHeapCount; MemoryHeap
        memoryHeaps[16]"""),
    "PhysicalDeviceMemoryProperties2": (1000059006, """
        PhysicalDeviceMemoryProperties memoryProperties"""),
    "PhysicalDeviceMemoryBudgetPropertiesEXT": (1000237000, "u64 heapBudget[16] heapUsage[16]"),
    "Extent3D": (None, "u32 width height depth"),
    "QueueFamilyProperties": (None, """
        u32 queueFlags queueCount timestampValidBits; Extent3D minImageTransferGranularity"""),
    "DeviceQueueCreateInfo": (2, "u32 flags queueFamilyIndex queueCount; pointer pQueuePriorities"),
    "DeviceCreateInfo": (3, """
        u32 flags queueCreateInfoCount; pointer pQueueCreateInfos; u32 enabledLayerCount; pointer
        ppEnabledLayerNames; u32 enabledExtensionCount; pointer ppEnabledExtensionNames
        pEnabledFeatures"""),
    "BufferCreateInfo": (12, """
        u32 flags; u64 size; u32 usage sharingMode queueFamilyIndexCount; pointer
        pQueueFamilyIndices"""),
    "MemoryRequirements": (None, "u64 size alignment; u32 memoryTypeBits"),
    "MemoryAllocateInfo": (5, "u64 allocationSize; u32 memoryTypeIndex"),
    "ShaderModuleCreateInfo": (16, "u32 flags; u64 codeSize; pointer pCode"),
    "DescriptorSetLayoutBinding": (None, """
        u32 binding descriptorType descriptorCount stageFlags; pointer pImmutableSamplers"""),
    "DescriptorSetLayoutCreateInfo": (32, "u32 flags bindingCount; pointer pBindings"),
    "PushConstantRange": (None, "u32 stageFlags offset size"),
    "PipelineLayoutCreateInfo": (30, """
        u32 flags setLayoutCount; pointer pSetLayouts; u32 pushConstantRangeCount; pointer
        pPushConstantRanges"""),
    "PipelineShaderStageRequiredSubgroupSizeCreateInfo": (1000225001, "u32 requiredSubgroupSize"),
    "PipelineShaderStageCreateInfo": (18, """
        u32 flags stage; u64 module; pointer pName pSpecializationInfo"""),
    "ComputePipelineCreateInfo": (29, """
        u32 flags; PipelineShaderStageCreateInfo stage; u64 layout basePipelineHandle; i32
        basePipelineIndex"""),
    "PipelineCacheCreateInfo": (17, "u32 flags; u64 initialDataSize; pointer pInitialData"),
    "DescriptorPoolSize": (None, "u32 type descriptorCount"),
    "DescriptorPoolCreateInfo": (33, "u32 flags maxSets poolSizeCount; pointer pPoolSizes"),
    "DescriptorSetAllocateInfo": (34, """
        u64 descriptorPool; u32 descriptorSetCount; pointer pSetLayouts"""),
    "DescriptorBufferInfo": (None, "u64 buffer offset range"),
    "WriteDescriptorSet": (35, """
        u64 dstSet; u32 dstBinding dstArrayElement descriptorCount descriptorType; pointer
        pImageInfo pBufferInfo pTexelBufferView"""),
    "CommandPoolCreateInfo": (39, "u32 flags queueFamilyIndex"),
    "CommandBufferAllocateInfo": (40, "u64 commandPool; u32 level commandBufferCount"),
    "CommandBufferBeginInfo": (42, "u32 flags; pointer pInheritanceInfo"),
    "MemoryBarrier": (46, "u32 srcAccessMask dstAccessMask"),
    "BufferCopy": (None, "u64 srcOffset dstOffset size"),
    "SemaphoreTypeCreateInfo": (1000207002, "u32 semaphoreType; u64 initialValue"),
    "SemaphoreCreateInfo": (9, "u32 flags"),
    "SemaphoreWaitInfo": (1000207004, "u32 flags semaphoreCount; pointer pSemaphores pValues"),
    "TimelineSemaphoreSubmitInfo": (1000207003, """
        u32 waitSemaphoreValueCount; pointer pWaitSemaphoreValues; u32 signalSemaphoreValueCount;
        pointer pSignalSemaphoreValues"""),
    "SubmitInfo": (4, """
        u32 waitSemaphoreCount; pointer pWaitSemaphores pWaitDstStageMask; u32
        commandBufferCount; pointer pCommandBuffers; u32 signalSemaphoreCount; pointer
        pSignalSemaphores"""),
    "QueryPoolCreateInfo": (11, "u32 flags queryType queryCount pipelineStatistics"),
}
"""For each structure its type (None for those that are never chained), then its members."""


def _made(name: str, kind: int | None, text: str) -> type:
    members = {"_fields_": fields(text), "__module__": __name__}
    base, tells = (Record, {}) if kind is None else (Chained, {"kind": kind})
    return new_class(name, (base,), tells, lambda space: space.update(members))


for _name, (_kind, _text) in RECORDS.items():  # each may hold those above it
    globals()[_name] = _made(_name, _kind, _text)


def __getattr__(name: str) -> Any:  # tells type checkers of names that they do not see
    raise AttributeError(f"{name} is no structure of RECORDS")
