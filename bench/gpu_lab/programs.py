"""The programs of a graph as a device gets them, each with the kernel and schedule it is of."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from smalti.codegen.gpu.form import GroupProgram
from smalti.codegen.gpu.lowered import GroupSteps
from smalti.codegen.shader import Shader
from smalti.codegen.target import EncodedFunctions, Reference, Target
from smalti.compiler.passes import compiled
from smalti.compiler.select import Knowledge
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.gpu.recipe import recipe_for
from smalti.schedule.group import GroupLimits, GroupSchedule

Change = Callable[[Any], Any]
"""What is done to a schedule before it is used."""


@dataclass(frozen=True)
class Compilable:
    """A program, the code that a driver takes, and how often the graph launches it.

    `step` is its place among the steps of the kernel.
    """

    kernel: Kernel
    schedule: GroupSchedule
    step: int
    program: GroupProgram
    shader: Shader
    code: bytes
    count: int


class _Recorder:
    """A target that remembers which kernel and schedule each program was lowered from."""

    def __init__(self, target: Target, change: Change) -> None:
        self._inner, self._change = target, change
        self._origin: dict[int, tuple[Kernel, GroupSchedule, int]] = {}
        self._kept: list[object] = []  # so that no other object gets an id that was noted
        self.programs: list[GroupProgram] = []
        self.target = replace(target, first=self._first, lower=self._lower, placed=self._placed,
                              encode=self._encode)

    def origin(self, program: GroupProgram) -> tuple[Kernel, GroupSchedule, int]:
        """The kernel and the schedule of a program, and which of their steps it is."""
        return self._origin[id(program)]

    def _first(self, kernel: Kernel, limits: GroupLimits, *others: Any) -> GroupSchedule:
        return self._change(self._inner.first(kernel, limits, *others))

    def _lower(self, kernel: Kernel, schedule: GroupSchedule, limits: GroupLimits) -> GroupSteps:
        steps = self._inner.lower(kernel, schedule, limits)
        for number, step in enumerate(steps.steps):
            self._note(step, (kernel, schedule, number))
        return steps

    def _placed(self, step: GroupProgram, references: Mapping[str, Reference]) -> GroupProgram:
        found = self._inner.placed(step, references)
        self._note(found, self.origin(step))
        return found

    def _encode(self, programs: Sequence[GroupProgram], limits: GroupLimits) -> EncodedFunctions:
        self.programs = list(programs)
        return self._inner.encode(programs, limits)

    def _note(self, program: GroupProgram, origin: tuple[Kernel, GroupSchedule, int]) -> None:
        self._kept.append(program)
        self._origin[id(program)] = origin


def programs_of(gpu: Gpu, graph: Graph, precision: str,
                change: Change = lambda schedule: schedule, held: str = "") -> list[Compilable]:
    """The programs of a graph, equal code once; `change` is applied to every first schedule, and
    weights are `held` as a dtype, where one is given and they can be."""
    recorder = _Recorder(gpu.target, change)
    weights = dict.fromkeys(graph.parameters, held) if held else {}
    recipe = recipe_for(gpu, graph, precision=precision, weights=weights)
    module = compiled(graph, recorder.target, gpu.limits, recipe.options, Knowledge())
    launched: dict[int, int] = {}
    for launch in module.launches:
        launched[launch.function] = launched.get(launch.function, 0) + 1
    found: dict[bytes, Compilable] = {}
    for number, (program, shader) in enumerate(
            zip(recorder.programs, module.shaders, strict=True)):
        code, count = module.code_of(number), launched.get(number, 0)
        if code in found:
            found[code] = replace(found[code], count=found[code].count + count)
        else:
            found[code] = Compilable(*recorder.origin(program), program, shader, code, count)
    return list(found.values())


def changed(text: str) -> Change:
    """A change of schedules from "field=value,field=value", for schedules that have every field.

    "GroupMatrixAttention.keys=32" is for schedules of that kind only.
    """
    asked: dict[str, dict[str, object]] = {}
    for pair in filter(None, text.split(",")):
        name, sign, value = pair.partition("=")
        kind, _, field = name.rpartition(".")
        if not sign:
            raise InputError(f"--schedule {pair!r}; expected field=value, such as buffers=1")
        asked.setdefault(kind, {})[field] = _value(value)
    known = {kind.__name__: {field.name for field in fields(kind)} for kind in _kinds()}
    for kind, given in asked.items():
        if kind and kind not in known:
            raise InputError(f"no schedule is a {kind!r}; known: {', '.join(sorted(known))}")
        where = [known[kind]] if kind else list(known.values())
        if not any(given.keys() <= names for names in where):
            raise InputError(f"no {kind or 'schedule'} has all of the fields {', '.join(given)}; "
                             f"known: {'; '.join(f'{k}: {sorted(v)}' for k, v in known.items())}")

    def change(schedule: Any) -> Any:
        if not is_dataclass(schedule):
            return schedule
        names, found = {field.name for field in fields(schedule)}, schedule
        for kind, given in asked.items():
            if kind in ("", type(schedule).__name__) and given.keys() <= names:
                found = replace(found, **given)
        return found

    return change


def _kinds() -> tuple[type, ...]:
    """The kinds of schedules of GPUs."""
    return GroupSchedule.__args__


def _value(text: str) -> object:
    """A number, a truth value or a word."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
