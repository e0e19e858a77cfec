"""Maps: pointwise operations and data movement, one loop nest."""

from __future__ import annotations

from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.lowered import KernelStep, NativeKernel, count_left, load_pointers, pointers
from smalti.codegen.cpu.nest import LoopAxis, Nest, Sink, stream_of
from smalti.errors import IllegalSchedule
from smalti.kernel.form import Kernel, Load, loads
from smalti.schedule.merge import access, map_axes, store
from smalti.schedule.schedule import MapSchedule


def lower_map(kernel: Kernel, schedule: MapSchedule, level: FeatureLevel) -> NativeKernel:
    """Machine code of a map: tiles are `grain` steps of one axis, those inside of it are whole."""
    (stage,) = kernel.stages
    axes = (("", 1), *map_axes(kernel)[0])
    if not 1 <= schedule.inner < len(axes):
        raise IllegalSchedule(f"{schedule.inner} axes inside of a tile, there are {len(axes)}")
    asm = level.assembler("map")
    table, index = asm.argument(), asm.argument()
    names = pointers(kernel)
    held = load_pointers(asm, table, names)
    outer, inner = axes[:-schedule.inner - 1], axes[-schedule.inner:]
    block_name, block_extent = axes[-schedule.inner - 1]
    if not 1 <= schedule.grain <= block_extent:
        raise IllegalSchedule(f"a grain of {schedule.grain} in an axis of {block_extent}")
    blocks = -(-block_extent // schedule.grain)
    rest, block = asm.divide(asm.copy(index), blocks)
    origin = asm.offset(asm.immediate(0), block, schedule.grain)
    origins, tiles = {block_name: origin}, blocks
    for name, extent in reversed(outer):
        rest, origins[name] = asm.divide(rest, extent)
        tiles *= extent
    nest_axes = [LoopAxis(name, 1, origins[name]) for name, _ in outer]
    nest_axes.append(LoopAxis(block_name, count_left(asm, origin, schedule.grain, block_extent),
                              origin))
    nest_axes.extend(LoopAxis(*one) for one in inner)
    streams = {load: stream_of(asm, access(kernel, load), held, origins)
               for load in _outer_loads(stage.value)}
    sink = Sink(stream_of(asm, store(kernel, stage.axes, "out"), held, origins))
    Nest(asm, nest_axes, stage.value, streams, sink, schedule.unroll).emit()
    return NativeKernel((KernelStep(asm.finish(), tiles),), names)


def _outer_loads(value) -> list[Load]:
    """The loads of an expression, without those that are indices of others."""
    found = dict.fromkeys(loads(value))
    inner = {index for load in found for index in load.index if isinstance(index, Load)}
    return [load for load in found if load not in inner]
