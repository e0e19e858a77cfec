"""Programs of models whose shapes or branches depend on values: compiled stage by stage.

    arrays --host rules--> arrays --import--> graph --compile, run--> arrays --host rules--> ...

A stage takes in all nodes whose shapes follow from the types of the arrays there are, and from the
few values that rules ask for. What waits for a value is the next stage. Nodes whose results are as
long as values say (NonZero, a loop, a sequence) are computed on arrays between stages. A stage is
imported and compiled once for each combination of types and asked-for values, and kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from smalti.compiler.kernel_table import wrapped
from smalti.dataclass import dataclass
from smalti.errors import DeviceError, InputError, UnsupportedError, UnsupportedNode
from smalti.frontend.onnx.hosted import host_results, is_hosted
from smalti.frontend.onnx.model import ImportedStage, OnnxModel, Other
from smalti.frontend.onnx.registry import Attributes
from smalti.frontend.onnx.steps import ScopedNode, body_steps, fields_of, inner_scope
from smalti.frontend.onnx.weights import is_weight
from smalti.graph import Graph, evaluate
from smalti.graph.operation import DTYPES, Type
from smalti.graph.quantised import Quantised
from smalti.runtime.inputs import all_given, checked_input, described
from smalti.runtime.interface import Program
from smalti.runtime.sources import Done, Read, Weights, nothing, reading

VARIANTS_MAX = 64
"""Stages kept for one place in a model; the one that was not used for longest goes first."""
INTERPRETED_MAX = 1 << 15
"""Stages of no more elements and operations than this run with numpy: compiling takes longer."""

Compile = Callable[[Graph], Program]


@dataclass(eq=False)
class Variant:
    """A stage for certain types and values, what runs it, and where it leads."""

    done: tuple[int, ...]
    types: dict[str, Any]
    stage: ImportedStage
    program: Program | None
    rest: Remainder

    def fits(self, done: tuple[int, ...], types: Mapping[str, Any],
             arrays: Mapping[str, Any]) -> bool:
        """Whether it was made for these types, and for the values that it depends on."""
        return self.done == done and self.types == types and all(
            np.array_equal(array, arrays[key]) for key, array in self.stage.baked.items())


@dataclass(eq=False)
class Remainder:
    """Steps that are left, and the stages that were made of them."""

    steps: tuple[ScopedNode, ...]
    constants: dict[str, np.ndarray]
    asked: frozenset[ScopedNode] = frozenset()
    """Those whose rules needed a value when they were imported last."""
    variants: list[Variant] = field(default_factory=list)
    bodies: dict[tuple[ScopedNode, str], Body] = field(default_factory=dict)


@dataclass(eq=False)
class Body:
    """A body of a node: keys of its inputs and results, and its steps."""

    inputs: list[str]
    place: Remainder
    results: list[str]


class Machine:
    """Runs steps on arrays, stage by stage."""

    def __init__(self, model: OnnxModel, compile: Compile, interpreted_max: int) -> None:
        self.model, self.compile, self.interpreted_max = model, compile, interpreted_max
        self.read: Read = model.tensors.__getitem__
        self.programs: list[Program] = []

    def run(self, place: Remainder, arrays: dict[str, Any], wanted: Sequence[str]) -> list[Any]:
        """The arrays of the keys `wanted`; `arrays` has what the steps of `place` read.

        Raises UnsupportedError listing the steps that cannot go on.
        """
        arrays = {**arrays, **place.constants}
        while place.steps:
            done = self._host(place, arrays)
            steps = [step for i, step in enumerate(place.steps) if i not in done]
            if not steps:
                break
            variant = self._variant(place, done, steps, arrays, wanted)
            if variant.program is not None:
                arrays.update(variant.program.run(
                    {key: arrays[key] for key in variant.stage.graph.inputs}))
            arrays.update(variant.stage.constants)
            place = variant.rest
        return [self._array(arrays, key) for key in wanted]

    # ------------------------------------------------------------------ between stages

    def _host(self, place: Remainder, arrays: dict[str, Any]) -> tuple[int, ...]:
        """Compute what host rules can; the numbers of those steps."""
        done = []
        for number, step in enumerate(place.steps):
            keys = [key for key in (*step.reads, *step.captured) if key]
            if not all(key in arrays or key in self.model.tensors for key in keys):
                continue
            operands = [None if not key else self._array(arrays, key) for key in step.reads]
            if not is_hosted(step, operands, step in place.asked, self.model.functions):
                continue
            results = host_results(step, operands, self._body(place, step, arrays))
            for key, result in zip(step.makes, results):
                if key:
                    arrays[key] = result
            done.append(number)
        return tuple(done)

    def _array(self, arrays: Mapping[str, Any], key: str) -> Any:
        """A value that is there; of a weight, the one that is bound."""
        if key in arrays:
            return arrays[key]
        type = self.model.tensors.type(key)
        return self.model.tensors[key] if type is None or not is_weight(type) else self.read(key)

    def _body(self, place: Remainder, step: ScopedNode,
              arrays: Mapping[str, Any]) -> Callable[[str, Sequence[Any]], list[Any]]:
        """Runs the bodies of `step`; what they read from outside is in `arrays`."""
        captured = {key: arrays[key] for key in step.captured if key in arrays}

        def run(name: str, operands: Sequence[Any]) -> list[Any]:
            known = place.bodies.get((step, name))
            if known is None:
                known = place.bodies[step, name] = self._opened(step, name)
            if len(known.inputs) != len(operands):
                raise InputError(f"its body takes {len(known.inputs)} operands, "
                                 f"{len(operands)} are given")
            given = dict(zip(known.inputs, operands, strict=True))
            return self.run(known.place, {**captured, **given}, known.results)

        return run

    def _opened(self, step: ScopedNode, name: str) -> Body:
        """A body of a step, ready to run."""
        graph = Attributes(step, fields_of(step), 0).graph(name)
        scope = inner_scope(step, parent=step.scope)
        keys = [scope.prefix + value.name for value in graph.input]
        steps, results = body_steps(step, scope, graph, keys, self.model.tensors)
        return Body(keys, Remainder(tuple(steps), {}), results)

    # ------------------------------------------------------------------ stages

    def _variant(self, place: Remainder, done: tuple[int, ...], steps: Sequence[ScopedNode],
                 arrays: Mapping[str, Any], wanted: Sequence[str]) -> Variant:
        """The stage for these arrays, made when there is none."""
        reads = dict.fromkeys(key for step in steps for key in (*step.reads, *step.captured)
                              if key in arrays and key not in place.constants)
        types = {key: type_of(arrays[key]) for key in reads}
        for number, variant in enumerate(place.variants):
            if variant.fits(done, types, arrays):
                place.variants.append(place.variants.pop(number))
                return variant
        there = {key: arrays[key] for key, type in types.items() if type is not None}
        stage = self.model.stage(steps, types, there, place.constants, wanted)
        if stage.deferred == tuple(steps) and stage.asked <= place.asked:  # nothing was imported
            raise UnsupportedError(
                f"{self.model.name} has {len(steps)} nodes that cannot go on:",
                [UnsupportedNode(step.name, step.node.op_type, "needs a value that no run gives")
                 for step in steps])
        variant = Variant(done, types, stage, self._program(stage.graph),
                          Remainder(stage.deferred, {**place.constants, **stage.constants},
                                stage.asked))
        place.variants.append(variant)
        del place.variants[:-VARIANTS_MAX]
        return variant

    def _program(self, graph: Graph) -> Program | None:
        if not graph.outputs:
            return None
        unread = set(graph.inputs.values()) - {v for n in graph.nodes for v in n.inputs} \
            - set(graph.outputs.values())
        graph.inputs = {key: v for key, v in graph.inputs.items() if v not in unread}
        work = graph.flops() + sum(node.output.type.size for node in graph.nodes)
        program = Interpreted(graph) if work <= self.interpreted_max else self.compile(graph)
        program.bind(self.read)
        self.programs.append(program)
        return program

    def bind(self, read: Read, only: Collection[str] | None = None) -> None:
        """Take other weights, or those of `only`, now and for stages that are still to come."""
        before = self.read
        self.read = read if only is None else (
            lambda name: read(name) if name in only else before(name))
        for program in self.programs:
            program.bind(self.read, only=only)


class Interpreted(Program):
    """A small graph, run with numpy."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.name = graph, graph.name
        self.inputs, self.outputs = ({name: value.shape for name, value in values.items()}
                                     for values in (graph.inputs, graph.outputs))
        self.parameters: dict[str, np.ndarray] = {}

    def bind(self, weights: Weights, done: Done = nothing, *, strict: bool = True,
             like: Program | None = None, differing: Collection[str] = (),
             only: Collection[str] | None = None, bytes_max: int | None = None) -> None:
        shapes = {name: value.shape for name, value in self.graph.parameters.items()}
        needed = self._asked(shapes, only)
        read, done = reading(weights, done, needed, shapes, self.name, strict)
        self.parameters.update({name: np.array(read(name)) for name in needed})

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            with np.errstate(all="ignore"):
                return evaluate(self.graph, inputs, self.parameters)
        except MemoryError as error:
            raise DeviceError(f"{self.name}: {error}; choose a smaller size") from None
        except (IndexError, ValueError) as error:  # numbers that an operation cannot be asked for
            raise InputError(f"{self.name}: {error}") from None

    def first_nonfinite(self, inputs: Mapping[str, np.ndarray]) -> str | None:
        return None

    def _explained(self, all: bool, columns: int) -> str:
        return f"{self.name}: {len(self.graph.nodes)} nodes, run with numpy\n"


class StagedProgram(Program):
    """Runs a model whose shapes or branches depend on values.

    `inputs` are the shapes of the inputs, () for sequences and strings, which are given as lists
    and arrays of objects; an optional value that is absent is None. Stages are compiled in the
    first run that needs them.
    """

    def __init__(self, model: OnnxModel, compile: Compile,
                 interpreted_max: int = INTERPRETED_MAX) -> None:
        self.model, self.name = model, model.name
        self.inputs = {name: () if type is None else type.shape
                       for name, type in model.inputs.items()}
        self.outputs = dict.fromkeys(model.outputs)
        self._machine = Machine(model, compile, interpreted_max)
        self._place = Remainder(model.steps, {}, model.first.asked)
        self._turn = threading.Lock()

    def bind(self, weights: Weights, done: Done = nothing, *, strict: bool = True,
             like: Program | None = None, differing: Collection[str] = (),
             only: Collection[str] | None = None, bytes_max: int | None = None) -> None:
        """As `Program.bind`; `weights` are kept, for stages that are compiled later, and nothing is
        shared with `like`, or read again to keep below `bytes_max`."""
        read, _ = reading(weights, done, {}, self.model.tensors, self.name, strict)

        def found(name: str) -> np.ndarray | Quantised:
            try:
                return read(name)
            except KeyError:
                raise InputError(f"the weight {name!r} of {self.name} is missing in the weights "
                                 f"that are bound; give it with the others") from None

        self._machine.bind(found, only and frozenset(only))

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs for `inputs`. Raises InputError for inputs that do not fit, and where values
        lead to shapes that do not; UnsupportedError for what only this run has reached."""
        all_given(inputs, self.inputs, self.name)
        arrays = {name: checked_other(name, inputs[name], self.model.others[name])
                  if type is None else
                  checked_input(name, inputs[name], type.shape, type.dtype)
                  for name, type in self.model.inputs.items()}
        with self._turn:
            results = self._machine.run(self._place, arrays, list(self.model.outputs.values()))
        return dict(zip(self.model.outputs, results, strict=True))

    def first_nonfinite(self, inputs: Mapping[str, Any]) -> str | None:
        """The output that holds NaN or Inf first, or None."""
        for name, array in self.run(inputs).items():
            if isinstance(array, np.ndarray) and array.dtype.kind == "f" \
                    and not np.isfinite(array).all():
                return f"output {name}"
        return None

    def _explained(self, all: bool, columns: int) -> str:
        """What each stage that has run so far became."""
        programs = self._machine.programs
        title = (f"{self.name}: shapes or branches depend on values; {len(programs)} stages have "
                 f"been compiled so far")
        return "\n".join(["\n".join(wrapped(title, columns)) + "\n",
                          *(program.explain(all=all, columns=columns) for program in programs)])


def checked_other(name: str, given: Any, other: Other) -> Any:
    """An input that is no tensor, as steps read it: a sequence is a list of arrays, None is an
    optional value that is absent. Raises InputError for what is none of these."""
    if given is None and other.optional:
        return None
    if not other.sequence:
        return checked_input(name, given, np.shape(given), other.dtype) if other.dtype else given
    if not isinstance(given, list | tuple) and not (isinstance(given, np.ndarray) and given.ndim):
        raise InputError(f"input {name!r} is {described(given)}; a list of arrays is expected, [] "
                         f"where the sequence is empty")
    return [checked_input(f"{name}[{i}]", element, np.shape(element), other.dtype)
            if other.dtype else element for i, element in enumerate(given)]


def type_of(array: Any) -> Type | None:
    """The type of an array; None for lists, strings and the like."""
    if not isinstance(array, np.ndarray | np.generic):
        return None
    names = [name for name, dtype in DTYPES.items() if array.dtype == dtype]
    return Type(array.shape, names[0]) if names else None
