"""What a driver of Vulkan 1.2 says of a device: structures of properties, filled in."""

from __future__ import annotations

from dataclasses import field

from smalti.dataclass import dataclass
from smalti.runtime.vulkan import structures as vk
from smalti.runtime.vulkan.library import VulkanFunctions

STREAMING_MULTIPROCESSORS = "VK_NV_shader_sm_builtins"
SHADER_CORE, ACTIVE_UNITS = "VK_AMD_shader_core_properties", "VK_AMD_shader_core_properties2"
BUS = "VK_EXT_pci_bus_info"
DEPENDENT = 2  # of VkShaderFloatControlsIndependence: all floats are alike
INTEGER_DOTS = "VK_KHR_shader_integer_dot_product"  # in the core since Vulkan 1.3
SIZE_CONTROL = "VK_EXT_subgroup_size_control"


@dataclass(frozen=True, slots=True)
class GpuPlaces:
    """Where a GPU is: on the PCI `bus`, and what drivers (`uuid`) and Windows (`luid`) call it.
    Empty where that is not told."""

    bus: str = ""
    uuid: str = ""
    luid: str = ""

    def same(self, other: GpuPlaces) -> bool:
        """Whether it is the same GPU: by its place on the bus where both tell it, as two cards of
        a kind may be called alike; else by any name.

        >>> GpuPlaces("0:3:0:0", "ab").same(GpuPlaces("0:4:0:0", "ab"))
        False
        >>> GpuPlaces("0:3:0:0", "ab").same(GpuPlaces("", "ab"))
        True
        """
        if self.bus and other.bus:
            return self.bus == other.bus
        return any(name.strip("0") and name == theirs for name, theirs in (
            (self.uuid, other.uuid), (self.luid, other.luid)))


@dataclass(frozen=True)
class ToldProperties:
    """Structures by what they are about; all 0 where the driver does not know one."""

    since_1_1: vk.Chained = field(default_factory=vk.PhysicalDeviceVulkan11Properties)
    since_1_2: vk.Chained = field(default_factory=vk.PhysicalDeviceVulkan12Properties)
    sizes: vk.Chained = field(default_factory=vk.PhysicalDeviceSubgroupSizeControlProperties)
    buffers: vk.Chained = field(default_factory=vk.PhysicalDeviceMaintenance4Properties)
    products: vk.Chained = field(
        default_factory=vk.PhysicalDeviceShaderIntegerDotProductProperties)
    nvidia: vk.Chained = field(default_factory=vk.PhysicalDeviceShaderSMBuiltinsPropertiesNV)
    amd: vk.Chained = field(default_factory=vk.PhysicalDeviceShaderCorePropertiesAMD)
    active: vk.Chained = field(default_factory=vk.PhysicalDeviceShaderCoreProperties2AMD)
    bus: vk.Chained = field(default_factory=vk.PhysicalDevicePCIBusInfoPropertiesEXT)

    @property
    def units(self) -> int:
        """Compute units; 0 where the driver is silent."""
        return (self.nvidia.shaderSMCount or self.active.activeComputeUnitCount
                or self.amd.shaderEngineCount * self.amd.shaderArraysPerEngineCount
                * self.amd.computeUnitsPerShaderArray)

    @property
    def exact_f16(self) -> bool:
        """Whether programs may ask how f16 is rounded, and f32 be what it is."""
        told = self.since_1_2
        return bool(told.shaderDenormPreserveFloat16 and told.shaderRoundingModeRTEFloat16
                    and DEPENDENT not in (told.denormBehaviorIndependence,
                                          told.roundingModeIndependence))

    @property
    def fast_dot_i8(self) -> bool:
        """Whether dot products of bytes with a sign, packed in words, are faster than arithmetic
        that does the same."""
        return bool(self.products.integerDotProduct4x8BitPackedSignedAccelerated)

    @property
    def places(self) -> GpuPlaces:
        """What names the GPU, whatever its driver."""
        at = [getattr(self.bus, f"pci{part}") for part in ("Domain", "Bus", "Device", "Function")]
        return GpuPlaces(
            ":".join(map(str, at)) if any(at) else "", bytes(self.since_1_1.deviceUUID).hex(),
            bytes(self.since_1_1.deviceLUID).hex() if self.since_1_1.deviceLUIDValid else "")


def told(functions: VulkanFunctions, handle: int, extensions: frozenset[str],
         version: tuple[int, int, int]) -> ToldProperties:
    """What the driver says of the device `handle`, which has these extensions of that version."""
    found, newer = ToldProperties(), version >= (1, 3)
    asked = [vk.PhysicalDeviceProperties2(), found.since_1_1, found.since_1_2, *(
        record for record, has in (
            (found.sizes, newer or SIZE_CONTROL in extensions), (found.buffers, newer),
            (found.products, newer or INTEGER_DOTS in extensions),
            (found.nvidia, STREAMING_MULTIPROCESSORS in extensions),
            (found.amd, SHADER_CORE in extensions), (found.active, ACTIVE_UNITS in extensions),
            (found.bus, BUS in extensions)) if has)]
    functions.vkGetPhysicalDeviceProperties2(handle, vk.chain(*asked))
    return found
