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
from smalti.codegen import spirv, wgsl
from smalti.codegen.gpu import GroupProgram
from smalti.codegen.gpu.functions import FUNCTIONS as GPU_FUNCTIONS
from smalti.codegen.gpu.lower import lower as lower_for_gpu
from smalti.codegen.x86.encoder import disassembly
from smalti.codegen.x86.functions import FUNCTIONS as X86_FUNCTIONS
from smalti.codegen.x86.instructions import LEVELS, level
from smalti.codegen.x86.lower import limits as x86_limits
from smalti.codegen.x86.lower import lower as lower_for_x86
from smalti.compiler.front import prepared
from smalti.compiler.module import HostCall, Image, Place
from smalti.errors import IllegalSchedule, UnsupportedError
from smalti.fuse import HostRegion
from smalti.graph import Graph, show
from smalti.machine.detection import at_level
from smalti.runtime.compiler import build_image
from smalti.runtime.compiler import regions_of as x86_regions
from smalti.runtime.device_compiler import DeviceRecipe, plan_of
from smalti.runtime.device_compiler import regions_of as gpu_regions
from smalti.runtime.device_plan import DeviceLaunch, DevicePlan, Stored
from smalti.runtime.executable import FUNCTION_ALIGNMENT
from smalti.runtime.gpu import Module
from smalti.runtime.known import Known
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
    for kind, functions in (("x86", X86_FUNCTIONS), ("GPUs", GPU_FUNCTIONS)):
        found, halves = prepared(graph, functions)
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
    known, chosen = Known(), level(setting.target)
    if setting.costs:
        device = at_level(machine.device(MODELLED), chosen.lanes, chosen.pairs)
        objective = Objective.on(device, THREADS, "latency")
        known = Known({}, objective, objective)
    bounds = x86_limits(chosen, THREADS, L1_BYTES, L2_BYTES)
    image = build_image(graph, chosen, bounds, setting.precision, held, weights=weights,
                        known=known)
    partition = []
    for region in image.regions:
        partition.append(f"{region.form} {region.scope}: {region.flops} flops, "
                         f"{region.bytes} bytes")
        if region.kernel >= 0:
            partition += image.kernels[region.kernel].splitlines()
    return {"partition": partition, **_described(image.regions), "code": _x86_code(image, detail),
            "memory": _x86_memory(image), "weights": _x86_weights(image)}


def _x86_code(image: Image, detail: bool) -> list[str]:
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


def _x86_memory(image: Image) -> list[str]:
    lines = [f"arena {image.arena_bytes}, scratch {image.scratch_bytes}, weights "
             f"{image.weights_bytes} bytes, {image.steady} launches at binding, {image.changing} "
             f"when {sorted(image.held)} change, work {image.work_seconds:.6g} s"]
    for launch in image.launches:
        if isinstance(launch, HostCall):
            operands = [f"slot {each.slot} {_place(each.place)}" for each in launch.operands]
            lines.append(_call(launch.operation, launch.attributes, operands,
                               _place(launch.result), launch.region))
            continue
        pointers = ", ".join(f"{kind} {at}" for kind, at in launch.pointers)
        lines.append(f"{launch.region}: function {launch.function}, tiles {launch.first} to "
                     f"{launch.tiles}, {pointers}" + ", barrier" * launch.barrier)
    for kind, places in (("input", image.inputs), ("output", image.outputs)):
        lines += [f"{kind} {name}: {_place(place)}" for name, place in places.items()]
    return lines + _rows(image.rows)


def _x86_weights(image: Image) -> list[str]:
    lines = [f"{len(image.constants)} bytes of constants {_digest(image.constants)}"]
    for number, slot in enumerate(image.slots):
        form = slot.winograd
        lines.append(
            f"slot {number} {slot.kind} {slot.name}: {slot.bytes} bytes, from {slot.start} as "
            f"{slot.dtype}, function {slot.function}, {slot.panels} panels"
            + (f", F({form.size}) {'folded ' * form.folded}of {form.shape} {form.strides}"
               if form else ""))
    return lines


# ---------------------------------------------------------------------- GPUs


def _for_gpu(graph: Graph, setting: Setting, held: tuple[str, ...], weights: Mapping[str, str],
             detail: bool) -> Lines:
    gpu, texts = GPUS[setting.target], {}

    def emit(program: GroupProgram) -> Module:
        code, texts[code] = _emitted(program, gpu)
        return Module.of(program, code)

    recipe = DeviceRecipe(graph, setting.precision, held, _limits(gpu),
                          tuple(sorted(weights.items())))
    partition = []
    for region in recipe.partition()[0].regions:
        if isinstance(region, HostRegion):
            partition.append(f"host {region.scope}: {region.operation}, {region.flops} flops")
        else:
            partition += [f"{region.kernel.form} {region.scope}: {region.flops} flops",
                          *str(region.kernel).splitlines()]
    plan, code = plan_of(recipe, emit), []
    for number, module in enumerate(plan.programs):
        code += _code(f"program {number} {module.name}, groups {module.groups} of {module.size}, "
                      f"subgroups of {module.subgroup}", module.code, texts[module.code], detail)
        code += [f"  binding of {b.bytes} bytes, by {b.item_bytes}" + ", read" * b.reads
                 + ", written" * b.writes for b in module.bindings]
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
        text = wgsl.emit(program, _limits(gpu), immediates=False)
        return text.encode(), lambda: text
    code = spirv.emit(program, _limits(gpu))
    return code, lambda: f"{program}\n{spirv.listing(code)}"


def _gpu_memory(plan: DevicePlan) -> list[str]:
    lines = [f"arena {plan.arena_bytes}, weights {plan.weights_bytes} bytes, {plan.steady} "
             f"launches at binding, {plan.changing} when {sorted(plan.held)} change"]
    for launch in plan.launches:
        if isinstance(launch, DeviceLaunch):
            operands = ", ".join(" ".join(map(str, each)) for each in launch.operands)
            lines.append(f"{launch.region}: program {launch.program}, {operands}")
            continue
        given = [_stored(each) if isinstance(each, Stored) else f"slot {each[0]} {_place(each[1])}"
                 for each in launch.operands]
        lines.append(_call(launch.operation, launch.attributes, given, _stored(launch.result),
                           launch.region))
    for kind, places in (("input", plan.inputs), ("output", plan.outputs)):
        lines += [f"{kind} {name}: {_stored(place)}" for name, place in places.items()]
    return lines + _rows(plan.rows)


def _gpu_weights(plan: DevicePlan) -> list[str]:
    lines = []
    for number, slot in enumerate(plan.slots):
        form = slot.packed
        lines.append(
            f"slot {number} {slot.name or 'constant ' + _digest(plan.constants)}: "
            f"{slot.elements} of {slot.stored} from {slot.start} as {slot.dtype}, {slot.shape} "
            f"{slot.strides}" + ", for the host" * slot.host
            + (f", packed to {form.rows} rows, {form.parts} parts of {form.columns} {form.dtype} "
               f"from {form.o} by {form.c} by {form.taps}" if form else ""))
    return lines


# ---------------------------------------------------------------------- schedules to explore


def _spaces(graph: Graph, setting: Setting) -> Iterable[tuple]:
    """Each kernel of a graph, its schedules, and what gives the code of one."""
    if setting.target in LEVELS:
        chosen = level(setting.target)
        bounds = x86_limits(chosen, THREADS, L1_BYTES, L2_BYTES)
        for region in x86_regions(graph, setting.precision, (), {})[1].regions:
            if not isinstance(region, HostRegion):
                first = choose(region.kernel, bounds, setting.precision)
                yield (region.kernel, space(region.kernel, bounds, first, algorithms=True),
                       lambda schedule, kernel=region.kernel: [
                           (step.code.bytes, lambda step=step: _x86_text(
                               step.code.bytes, step.code.entry))
                           for step in lower_for_x86(kernel, schedule, chosen).steps])
        return
    gpu = GPUS[setting.target]
    bounds = _limits(gpu)
    for region in gpu_regions(graph, setting.precision, (), {}).regions:
        if not isinstance(region, HostRegion) and region.kernel.form == "contraction":
            yield (region.kernel,
                   list(gpu_schedules(region.kernel, bounds, setting.precision)),
                   lambda schedule, kernel=region.kernel: [
                       _emitted(step, gpu)
                       for step in lower_for_gpu(kernel, schedule, bounds).steps])


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


def _stored(stored: Stored) -> str:
    return f"{_place(stored.place)} for {stored.dtype}"


def _rows(rows: Mapping[str, int]) -> list[str]:
    return [f"{name} below {rows[name]}" for name in sorted(rows)]


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]
