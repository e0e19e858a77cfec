"""What replay knows of the compiler's insides: all of it, so that one file follows a change there.

Everything else of replay reads what the three functions here give: for each of `STAGES`, lines.
Lines consist of numbers, texts of graphs and kernels, and digests; never of names that only Python
sees (classes, fields, modules), so that renaming those changes none. What is written for people,
such as why a kernel ends where it does, is the stage `WORDS`, which decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256

import numpy as np
from iced_x86 import Decoder, Mnemonic
from replay.machines import (
    GPUS,
    L1_BYTES,
    L2_BYTES,
    MODELLED,
    THREADS,
    Gpu,
    Setting,
)

from smalti import machine
from smalti.codegen.cpu.block import FUNCTION_ALIGNMENT
from smalti.codegen.cpu.lower import limits as x86_limits
from smalti.codegen.gpu.form import GroupProgram
from smalti.codegen.levels import level
from smalti.codegen.spirv.emit import emit as spirv
from smalti.codegen.spirv.text import listing
from smalti.codegen.target import Target
from smalti.codegen.wgsl.emit import emit as wgsl
from smalti.codegen.x86.encoder import disassembly
from smalti.codegen.x86.levels import LEVELS
from smalti.compiler import options as all_options
from smalti.compiler.module import CodePacking, HostCall, Module, Place
from smalti.compiler.passes import compiled as module_of
from smalti.compiler.passes import partitioned, prepared
from smalti.compiler.select import Knowledge
from smalti.compiler.targets import TARGETS
from smalti.errors import IllegalSchedule, UnsupportedError
from smalti.fuse import HostRegion
from smalti.graph import Graph, show
from smalti.graph.operation import DTYPES
from smalti.machine.detection import at_level
from smalti.schedule import Limits
from smalti.schedule.choose import choose
from smalti.schedule.group import GroupLimits, MatrixShape
from smalti.schedule.space import space
from smalti.schedule.space_group import schedules as gpu_schedules
from smalti.tune.objective import Objective

FORMAT = 2
"""Of the lines: one more with each change that makes equal programs other lines. What writers of
different formats wrote is not compared."""
WORDS = "words"
STAGES = ("graph", "rewritten", "partition", "schedules", "code", "memory", "weights", WORDS)
"""What becomes of a graph, in this order; a difference shows in one and in all behind it."""
Lines = dict[str, list[str]]

LARGE_CONSTANT = re.compile(r'constant "([A-Za-z0-9+/=]+)"')
NAMES = re.compile(r"\b[A-Za-z_]\w*(?:=|(?=\())")


def built(graph: Graph) -> Lines:
    """The graph as its model makes it, and as each kind of target wants it."""
    rewritten = []
    for kind, target in (("x86", "avx2"), ("GPUs", "spirv")):
        made = TARGETS[target]
        found, halves = prepared(graph, made, made.usual, all_options.Options())
        text = _graph_lines(found) + [f"half {name}: {halves[name]}" for name in sorted(halves)]
        if not rewritten or text != rewritten[1:]:
            rewritten += [f"[{kind}]", *text]
    return {"graph": _graph_lines(graph), "rewritten": rewritten}


def compiled(graph: Graph, setting: Setting, held: Iterable[str], detail: bool) -> Lines:
    """What compiling `graph` gives; with `detail`, code as text, else its digests."""
    held = tuple(name for name in held if name in graph.inputs)
    weights = {} if setting.weights == "f32" else dict.fromkeys(graph.parameters, setting.weights)
    make = _for_x86 if setting.target in LEVELS else _for_gpu
    try:
        return make(graph, setting, held, weights, detail)
    except UnsupportedError as error:
        return {"code": ["refused"], WORDS: str(error).splitlines()}


def explored(graph: Graph, setting: Setting, most: int, detail: bool) -> Lines:
    """Code of the kernels of `graph` under schedules besides the chosen one, `most` of each kernel,
    taken evenly from all that its space has."""
    lines: Lines = {"schedules": [], "code": [], WORDS: []}
    for number, (kernel, schedules, lower) in enumerate(_spaces(graph, setting)):
        for each in schedules[::max(1, -(-len(schedules) // most))]:
            try:
                codes = lower(each)
            except IllegalSchedule as error:
                lines["code"].append(f"kernel {number}: refused")
                lines[WORDS].append(str(error))
                continue
            lines["schedules"].append(f"kernel {number} {kernel.form}: {_unnamed(each)}")
            lines[WORDS].append(str(each))
            for code, text in codes:
                lines["code"] += _code(f"kernel {number} {kernel.form} {_unnamed(each)}", code,
                                       text, detail)
    return lines


def emitted(programs: Iterable[GroupProgram], setting: Setting, detail: bool) -> Lines:
    """Code of group programs that no kernel has made; the language and limits are the setting's."""
    lines: Lines = {"code": [], WORDS: []}
    for number, program in enumerate(programs):
        name = f"program {number} {program.name}"
        try:
            code, text = _emitted(program, GPUS[setting.target])
        except IllegalSchedule as error:
            lines["code"].append(f"{name}: refused")
            lines[WORDS].append(str(error))
            continue
        lines["code"] += _code(name, code, text, detail)
    return lines


# ---------------------------------------------------------------------- x86


def _for_x86(graph: Graph, setting: Setting, held: tuple[str, ...], weights: Mapping[str, str],
             detail: bool) -> Lines:
    known, chosen = Knowledge(), level(setting.target)
    if setting.costs:
        device = at_level(machine.device(MODELLED), chosen.lanes, chosen.pairs)
        objective = Objective.on(device, THREADS, "latency")
        known = Knowledge({}, objective, objective)
    target, bounds = _target(setting), _bounds(setting)
    options = _options(graph, setting, held, weights)
    image = module_of(graph, target, bounds, options, known)
    partition = []
    for region in image.regions:
        partition.append(f"{region.form} {region.scope}: {region.flops} flops, "
                         f"{region.bytes} bytes")
        if region.kernel >= 0:
            partition += image.kernels[region.kernel].splitlines()
    return {"partition": partition, **_described(image.regions), "code": _x86_code(image, detail),
            "memory": _x86_memory(image), "weights": _x86_weights(image)}


def _x86_code(image: Module, detail: bool) -> list[str]:
    """A digest of each function; first in each line what it belongs to."""
    owners: dict[int, str] = {}
    for launch in image.launches:
        if not isinstance(launch, HostCall):
            region = image.regions[launch.region]
            owners.setdefault(launch.function, f"{region.form} {region.scope}")
    lines, end = [], 0
    for number, entry in enumerate(image.functions):
        start = -(-end // FUNCTION_ALIGNMENT) * FUNCTION_ALIGNMENT
        end = _returns(image.code, entry)
        code = image.code[start:end]
        lines += _code(f"function {number}, {owners.get(number, 'packing')}", code,
                       lambda code=code, entry=entry - start: _x86_text(code, entry), detail)
    return lines


def _returns(code: bytes, entry: int) -> int:
    """Where a function ends that begins at `entry`: behind its only return."""
    decoder = Decoder(64, code[entry:])
    return entry + next(each.next_ip for each in decoder if each.mnemonic == Mnemonic.RET)


def _x86_text(code: bytes, entry: int) -> str:
    """Constants, 16 bytes a line, then the instructions."""
    constants = [f"{at:6x}  {code[at:min(at + 16, entry)].hex(' ', 4)}"
                 for at in range(0, entry, 16)]
    return "\n".join([*constants, disassembly(code, entry)])


def _x86_memory(image: Module) -> list[str]:
    lines = [f"arena {image.arena_bytes}, scratch {image.scratch_bytes}, weights "
             f"{image.weights_bytes} bytes, {image.steady} launches at binding, {image.changing} "
             f"when {sorted(image.held)} change, work {image.work_seconds:.6g} s"]
    for launch in image.launches:
        if isinstance(launch, HostCall):
            operands = [f"slot {each.slot} {_place(each.place)}" for each in launch.operands]
            lines.append(_call(launch.operation, launch.attributes, operands,
                               _place(launch.result), launch.region))
            continue
        pointers = ", ".join(f"{kind} {at}" for kind, at in _pointers(launch))
        lines.append(f"{launch.region}: function {launch.function}, tiles {launch.first} to "
                     f"{launch.tiles}, {pointers}" + ", barrier" * launch.barrier)
    for kind, places in (("input", image.inputs), ("output", image.outputs)):
        lines += [f"{kind} {name}: {_place(place)}" for name, place in places.items()]
    return lines + _rows(image.rows)


def _x86_weights(image: Module) -> list[str]:
    lines = [f"{len(image.constants)} bytes of constants {_digest(image.constants)}"]
    for number, slot in enumerate(image.slots):
        form = slot.winograd
        packing = slot.packing or CodePacking(-1, 0)
        lines.append(
            f"slot {number} {slot.kind} {slot.name}: {slot.bytes} bytes, from {slot.start} as "
            f"{slot.dtype}, function {packing.function}, {packing.panels} panels"
            + (f", F({form.size}) {'folded ' * form.folded}of {form.shape} {form.strides}"
               if form else ""))
    return lines


# ---------------------------------------------------------------------- GPUs


def _for_gpu(graph: Graph, setting: Setting, held: tuple[str, ...], weights: Mapping[str, str],
             detail: bool) -> Lines:
    gpu, target, bounds = GPUS[setting.target], _target(setting), _bounds(setting)
    options = _options(graph, setting, held, weights)
    partition = []
    for region in partitioned(graph, target, bounds, options)[0].regions:
        if isinstance(region, HostRegion):
            partition.append(f"host {region.scope}: {region.operation}, {region.flops} flops")
        else:
            partition += [f"{region.kernel.form} {region.scope}: {region.flops} flops",
                          *str(region.kernel).splitlines()]
    plan, code = module_of(graph, target, bounds, options), []
    for number, shader in enumerate(plan.shaders):
        made = plan.code_of(number)
        code += _code(f"program {number} {shader.name}, groups {shader.groups} of {shader.size}, "
                      f"subgroups of {shader.subgroup}", made,
                      lambda made=made: _text(gpu, made), detail)
        code += [f"  binding of {b.bytes} bytes, by {b.item_bytes}" + ", read" * b.reads
                 + ", written" * b.writes for b in shader.bindings]
    return {"partition": partition, **_described(plan.regions), "code": code,
            "memory": _gpu_memory(plan), "weights": _gpu_weights(plan)}


def _limits(gpu: Gpu) -> GroupLimits:
    """What work-groups of a device may have, as the compiler wants it."""
    matrices = tuple(MatrixShape(*shape, "f32") for shape in gpu.matrices)
    return GroupLimits(gpu.shared_bytes, gpu.invocations, *gpu.subgroups, bindings=gpu.bindings,
                       matrices=matrices, **gpu.more)


def _emitted(program: GroupProgram, gpu: Gpu) -> tuple[bytes, Callable[[], str]]:
    """A program in the language of a device, and how to make it readable."""
    if gpu.language == "wgsl":
        text = wgsl(program, _limits(gpu), immediates=False)
        return text.encode(), lambda: text
    code = spirv(program, _limits(gpu))
    return code, lambda: f"{program}\n{listing(code)}"


def _text(gpu: Gpu, code: bytes) -> str:
    """Code in the language of a device, made readable."""
    return code.decode() if gpu.language == "wgsl" else listing(code)


def _gpu_memory(plan: Module) -> list[str]:
    lines = [f"arena {plan.arena_bytes}, weights {plan.weights_bytes} bytes, {plan.steady} "
             f"launches at binding, {plan.changing} when {sorted(plan.held)} change"]
    for launch in plan.launches:
        if not isinstance(launch, HostCall):
            operands = ", ".join(f"{kind} {at}" if kind == "arena" else f"{kind} {number} {at}"
                                 for kind, number, at in launch.operands)
            lines.append(f"{launch.region}: program {launch.function}, {operands}")
            continue
        given = [_stored(each.place) if each.slot < 0 else f"slot {each.slot} {_place(each.place)}"
                 for each in launch.operands]
        lines.append(_call(launch.operation, launch.attributes, given, _stored(launch.result),
                           launch.region))
    for kind, places in (("input", plan.inputs), ("output", plan.outputs)):
        lines += [f"{kind} {name}: {_stored(place)}" for name, place in places.items()]
    return lines + _rows(plan.rows)


def _gpu_weights(plan: Module) -> list[str]:
    lines = []
    for number, slot in enumerate(plan.slots):
        packing, size = slot.packing, np.dtype(DTYPES[slot.stored or slot.dtype]).itemsize
        form = packing and packing.layout
        shape, strides = (packing.shape, packing.strides) if packing else ((), ())
        lines.append(
            f"slot {number} {slot.name or 'constant ' + _digest(plan.constants)}: "
            f"{slot.bytes // size} of {slot.stored or slot.dtype} from {slot.start} as "
            f"{slot.dtype}, {shape} {strides}" + ", for the host" * slot.host
            + (f", packed to {form.rows} rows, {form.parts} parts of {form.columns} {form.dtype} "
               f"from {form.o} by {form.c} by {form.taps}" if form else ""))
    return lines


# ---------------------------------------------------------------------- schedules to explore


def _spaces(graph: Graph, setting: Setting) -> Iterable[tuple]:
    """Each kernel of a graph, its schedules, and what gives the code of one."""
    target, bounds = _target(setting), _bounds(setting)
    options = _options(graph, setting)
    regions = partitioned(graph, target, bounds, options)[0].regions
    for kernel in (each.kernel for each in regions if not isinstance(each, HostRegion)):
        if setting.target in LEVELS:
            first = choose(kernel, bounds, setting.precision)
            yield (kernel, space(kernel, bounds, first, algorithms=True),
                   lambda schedule, kernel=kernel: [
                       (step.code.bytes, lambda step=step: _x86_text(
                           step.code.bytes, step.code.entry))
                       for step in target.lower(kernel, schedule, bounds).steps])
        elif kernel.form == "contraction":
            yield (kernel, list(gpu_schedules(kernel, bounds, setting.precision)),
                   lambda schedule, kernel=kernel: [
                       _emitted(step, GPUS[setting.target])
                       for step in target.lower(kernel, schedule, bounds).steps])


# ---------------------------------------------------------------------- what a setting is


def _target(setting: Setting) -> Target:
    if setting.target in LEVELS:
        return TARGETS[setting.target]
    language = GPUS[setting.target].language
    return TARGETS["wgsl without immediates" if language == "wgsl" else language]


def _bounds(setting: Setting) -> Limits | GroupLimits:
    if setting.target in LEVELS:
        return x86_limits(level(setting.target), THREADS, L1_BYTES, L2_BYTES)
    return _limits(GPUS[setting.target])


def _options(graph: Graph, setting: Setting, held: tuple[str, ...] = (),
             weights: Mapping[str, str] = all_options.ALL_F32) -> all_options.Options:
    return all_options.Options(setting.precision, held, THREADS, tuple(sorted(weights.items())))


def _pointers(launch) -> list[tuple[str, int]]:
    """The kind of each operand, and where it is in the arena, or its slot."""
    return [(kind, at if kind == "arena" else number) for kind, number, at in launch.operands]


# ---------------------------------------------------------------------- lines


def _graph_lines(graph: Graph) -> list[str]:
    """The text of a graph, large constants by their digests."""
    text = LARGE_CONSTANT.sub(lambda found: f"constant {_digest(found[1].encode())}", show(graph))
    return text.splitlines()


def _described(regions: Iterable) -> Lines:
    """The schedules of regions, and what is said about them."""
    schedules, words = [], []
    for region in regions:
        schedules.append(f"{region.form} {region.scope}: {_unnamed(region.schedule)}, "
                         f"{region.strips} strips")
        words.append(f"{region.form} {region.scope}: {region.schedule}: {region.reason}")
    return {"schedules": schedules, WORDS: words}


def _unnamed(schedule: object) -> str:
    """The text of a schedule without the names of classes and fields."""
    return NAMES.sub("", str(schedule))


def _code(name: str, code: bytes, text: Callable[[], str], detail: bool) -> list[str]:
    line = f"{name}: {len(code)} bytes {_digest(code)}"
    return [line, *("  " + each for each in text().splitlines())] if detail else [line]


def _call(operation: str, attributes: Mapping, operands: list[str], result: str,
          region: int) -> str:
    given = ", ".join(f"{name} {attributes[name]}" for name in sorted(attributes))
    return f"{region}: host {operation} of {'; '.join(operands)} to {result} with {given}"


def _place(place: Place) -> str:
    return f"{place.dtype} {place.shape} {place.strides} at {place.offset}"


def _stored(place: Place) -> str:
    return f"{_place(place)} for {place.known_as}"


def _rows(rows: Mapping[str, int]) -> list[str]:
    return [f"{name} below {rows[name]}" for name in sorted(rows)]


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]
