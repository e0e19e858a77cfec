"""Computers that the corpus is compiled for: fixed numbers, whatever this one is.

Each is a row of figures that published devices of its kind have; none is asked of a driver. x86 is
compiled for one CPU at each of its feature levels, whether this CPU has them or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

THREADS = 4
L1_BYTES, L2_BYTES = 48 << 10, 1 << 20
"""Caches of a core that schedules are chosen for: those of a core of the server kind."""
MODELLED = "ryzen_9_9950x"
"""The line of `machine/devices.csv` by which costs decide, where a setting has `costs`."""


@dataclass(frozen=True)
class Setting:
    """What a graph is compiled for.

    `target` is an x86 feature level or one of `GPUS`, `weights` the dtype that all parameters are
    held in. With `costs`, the timing model decides on cuts and algorithms as it does on a CPU that
    is known, else rules do.
    """

    target: str
    precision: str = "f32"
    weights: str = "f32"
    costs: bool = False

    def __str__(self) -> str:
        weights = f", weights as {self.weights}" if self.weights != "f32" else ""
        return f"{self.target} {self.precision}{weights}" + ", by costs" * self.costs


@dataclass(frozen=True)
class Gpu:
    """A device: the language of its programs, and what a work-group may have; see `GroupLimits`,
    where each of these figures is described. Whatever is not stated is as there."""

    language: str
    shared_bytes: int
    invocations: int
    subgroups: tuple[int, int]
    bindings: int
    matrices: tuple[tuple[int, int, int, str], ...] = ()
    more: Mapping[str, int | bool] = field(default_factory=dict)


SMALL_FLOATS = {"f16": True, "storage16": True}
VULKAN = {**SMALL_FLOATS, "storage8": True, "keeps_nan": True, "subgroup_operations": True,
          "push_bytes": 256, "offset_alignment": 16}
LARGE = {"buffer_bytes": 4 << 30, "buffer_range": (4 << 30) - 1, "subgroup_choice": True}

GPUS = {
    "vulkan of the least": Gpu("spirv", 16 << 10, 128, (1, 128), 8),
    "vulkan of 8 lanes": Gpu(  # drivers that compute on the CPU
        "spirv", 32 << 10, 1024, (8, 8), 16,
        more={**VULKAN, "unified": True, "buffer_bytes": 2 << 30, "buffer_range": 1 << 30}),
    "vulkan of 16 lanes, matrices": Gpu(  # Intel's
        "spirv", 32 << 10, 1024, (8, 32), 16, ((8, 16, 16, "f16"),),
        {**VULKAN, "subgroup_choice": True, "offset_alignment": 64, "registers": 128, "units": 32}),
    "vulkan of 32 lanes, matrices": Gpu(  # Nvidia's
        "spirv", 48 << 10, 1024, (32, 32), 32,
        tuple((16, columns, 16, kind) for columns in (8, 16) for kind in ("f16", "bf16")),
        {**VULKAN, **LARGE, "bf16": True, "units": 60}),
    "vulkan of 64 lanes, matrices": Gpu(  # AMD's
        "spirv", 64 << 10, 1024, (32, 64), 32,
        tuple((16, 16, 16, kind) for kind in ("f16", "bf16")), {**VULKAN, **LARGE, "units": 96}),
    "webgpu of the least": Gpu("wgsl", 16 << 10, 256, (4, 128), 8,
                               more={"push_bytes": 252, "buffer_bytes": 256 << 20}),
    "webgpu of 32 lanes": Gpu(  # Apple's
        "wgsl", 32 << 10, 1024, (32, 32), 10,
        more={**SMALL_FLOATS, "subgroup_operations": True, "push_bytes": 252, "unified": True,
              "offset_alignment": 32, "buffer_bytes": 2 << 30, "buffer_range": 1 << 30}),
}

X86_SETTINGS = (
    Setting("avx512"), Setting("avx2"), Setting("avx512_bf16", "bf16"),
    Setting("avx512", costs=True), Setting("avx2", "bf16"),
    Setting("avx512_bf16", "bf16", costs=True), Setting("avx512", weights="f16"),
    Setting("avx512_bf16", "bf16", "bf16"), Setting("avx2", weights="q4_min"),
    Setting("avx512_bf16", "bf16", "q8"), Setting("avx2", weights="bf16", costs=True),
    Setting("avx512", weights="q8_16_min"), Setting("avx512_bf16", "bf16", "f16"),
    Setting("avx512_bf16", "bf16", "q4_16"),
)
GPU_SETTINGS = (
    Setting("vulkan of 32 lanes, matrices", "f16"), Setting("webgpu of the least"),
    Setting("vulkan of the least"), Setting("vulkan of 64 lanes, matrices", "f16"),
    Setting("webgpu of 32 lanes", "f16"), Setting("vulkan of 8 lanes", "f32"),
    Setting("vulkan of 16 lanes, matrices", "f16"),
    Setting("vulkan of 32 lanes, matrices", "bf16"), Setting("webgpu of 32 lanes", "f32", "f16"),
    Setting("vulkan of 8 lanes", "f16", "f16"), Setting("vulkan of 64 lanes, matrices"),
)
