"""Nodes of ONNX become operations of a graph, one after another.

A body of a function, a branch or a loop is put in the place of its node, as steps of its own.

What depends on constants only is computed at once, so that arithmetic on shapes leaves no nodes
behind. A node whose rule has to know a value that only a run can tell is left over, with all that
depends on it: `deferred`, see `runtime/staged.py`. Nodes without an equal among our operations are
collected, all of them, before anything is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from smalti.dataclass import dataclass
from smalti.errors import InputError, UnsupportedError, UnsupportedNode
from smalti.frontend.onnx.folding import FoldingGraph
from smalti.frontend.onnx.hosted import IMPOSSIBLE, host_results
from smalti.frontend.onnx.messages import FunctionProto, GraphProto, TensorProto, node
from smalti.frontend.onnx.reading import Source, opsets_of
from smalti.frontend.onnx.registry import (
    HOST_RULES,
    Expanded,
    NeedsValue,
    NodeCall,
    Rule,
    Unsupported,
    rule_for,
)
from smalti.frontend.onnx.signatures import check_operands
from smalti.frontend.onnx.standard import operator_in
from smalti.frontend.onnx.steps import (
    STANDARD,
    Scope,
    ScopedNode,
    bodies_of,
    body_steps,
    fields_of,
    inner_scope,
    operator_of,
    same,
    steps_of,
)
from smalti.frontend.onnx.tensors import read, type_of
from smalti.frontend.onnx.weights import ModelTensors, is_mask, is_weight
from smalti.graph import Value
from smalti.graph.graph import CONSTANT_ELEMENTS_MAX
from smalti.graph.operation import DTYPES, FLOATS

KNOWN_FLOPS_MAX, KNOWN_FLOPS_SUM = 1 << 22, 1 << 29
"""Operations and elements that are computed with numpy for one array that a rule has to know, and
for all of them: some ms, and about a second. What takes more becomes a stage of the program."""
CONTRACTIONS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Gather", "LSTM", "GRU", "RNN")
"""Operators whose tensors are weights, even if they hold infinities: these are not looked for."""


@dataclass
class Importer:
    """Makes operations of `graph` of steps; afterwards `values` has the value of each key.

    A step ends in one of three ways: its results are in `values`; or it is `deferred`, since a rule
    needs the elements of a value that only a run computes, and its keys are `waiting`; or no rule
    computes it, so that it is in `unsupported` and what depends on it is only looked through.
    """

    source: Source
    graph: FoldingGraph
    tensors: ModelTensors
    functions: Mapping[tuple[str, str], FunctionProto]
    values: dict[str, Value] = field(default_factory=dict)
    arrays: dict[Value, np.ndarray] = field(default_factory=dict)
    """Between the stages of a run: the arrays of those inputs of the stage that are computed."""
    baked: dict[str, np.ndarray] = field(default_factory=dict)
    """Those of them, by name, whose elements decided what the graph is: a shape, a branch."""
    deferred: list[ScopedNode] = field(default_factory=list)
    asked: set[ScopedNode] = field(default_factory=set)
    """Deferred steps whose own rules need the elements of a value; others read what these make."""
    unsupported: list[UnsupportedNode] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    """Keys of values that deferred steps make, or that are no tensors."""
    _poisoned: set[str] = field(default_factory=set)
    _queue: deque[ScopedNode] = field(default_factory=deque)
    _steps: int = 0
    _known_flops: int = 0

    # ------------------------------------------------------------------ steps

    def run(self, steps: Iterable[ScopedNode]) -> None:
        """Import `steps`. Raises UnsupportedError listing all nodes that have no equal here."""
        self._queue.extend(steps)
        while self._queue:
            self._steps += 1
            self._check_steps(0)
            self._take(self._queue.popleft())
        if self.unsupported:
            raise UnsupportedError(
                f"{self.source.name} has {len(self.unsupported)} nodes that cannot be compiled:",
                self.unsupported)

    def _take(self, step: ScopedNode) -> None:
        keys = [key for key in (*step.reads, *step.captured) if key]
        if not self._poisoned.isdisjoint(keys):
            self._poisoned.update(step.makes)
            self._check(step)
        elif not self.waiting.isdisjoint(step.reads):  # captured values may wait
            self._defer(step)
        else:
            try:
                self._import(step)
            except NeedsValue:
                self.asked.add(step)
                self._defer(step)
            except Unsupported as error:
                self._refuse(step, str(error))

    def _defer(self, step: ScopedNode) -> None:
        self._check(step)
        self.deferred.append(step)
        self.waiting.update(filter(None, step.makes))

    def _refuse(self, step: ScopedNode, why: str) -> None:
        self.unsupported.append(UnsupportedNode(step.name, step.node.op_type, why))
        self._poisoned.update(filter(None, step.makes))

    def _check(self, step: ScopedNode) -> None:
        """List a node that is not looked at now but has no rule at all, and such in its bodies."""
        domain, operator, version = operator_of(step)
        if rule_for(domain, operator, version) is None \
                and (domain, operator) not in HOST_RULES \
                and (domain, operator) not in self.functions \
                and _standard_body(step) is None:
            self._refuse(step, f"no rule for this operator, version {version} of "
                               f"{domain or 'ai.onnx'}")
        for body in bodies_of(step.node):
            scope = inner_scope(step, parent=step.scope)
            for inner in body.node:
                self._check(ScopedNode(inner, scope, (), ()))

    def _import(self, step: ScopedNode) -> None:
        domain, operator, version = operator_of(step)
        if version < 7 and any(a.name == "broadcast" and a.i for a in step.node.attribute):
            raise Unsupported("operands are broadcast by an attribute, as before version 7")
        operands = [self.value(key, step) if key else None for key in step.reads]
        rule = rule_for(domain, operator, version)
        if (domain, operator) not in self.functions:
            self._check_operands(step, operands)
        if (domain, operator) in self.functions:
            self._call(step, self.functions[domain, operator])
        elif rule is not None and self._apply(
                rule, NodeCall(self, step, operands, fields_of(step), version)):
            return
        elif (domain, operator) in HOST_RULES:
            self._on_host(step, operands)
        elif (body := _standard_body(step)) is not None:
            self._call(step, body)
        else:
            raise Unsupported(f"no rule for this operator, version {version} of "
                              f"{domain or 'ai.onnx'}")

    def _check_operands(self, step: ScopedNode, operands: Sequence[Value | None]) -> None:
        types = [None if value is None else value.type for value in operands]
        try:
            check_operands(*operator_of(step), types)
        except InputError as error:
            raise InputError(f"{step.label}: {error}") from None

    def _apply(self, rule: Rule, call: NodeCall) -> bool:
        """Import a node by its rule; False when the rule leaves it to the body of the standard."""
        step = call.step
        before = len(self.graph.nodes)
        try:
            with self.graph.scope(step.place):
                results = rule(call)
        except NeedsValue:
            del self.graph.nodes[before:]
            raise
        except (InputError, *IMPOSSIBLE) as error:
            raise InputError(f"{step.label}: {error}") from None
        if results is None:
            del self.graph.nodes[before:]
            return False
        if not isinstance(results, Expanded):
            self._bind(step, (results,) if isinstance(results, Value) else tuple(results))
        return True

    def standard(self, call: NodeCall, operator: str, operands: Sequence[Value | None],
                 version: int | None, fields: Mapping[str, Any]) -> list[Value | None]:
        """See `NodeCall.standard`."""
        step = ScopedNode(node(operator, [], ["y"], call.step.name, **fields), STANDARD, (), ("y",))
        version = version or STANDARD.opsets[""]
        rule = rule_for("", operator, version)
        found = rule and rule(NodeCall(self, step, operands,
                                       {**fields_of(step), **call.fields, **fields_of(step, False)},
                                       version))
        if found is None or isinstance(found, Expanded):
            raise Unsupported(f"{operator} of such operands")
        return [found] if isinstance(found, Value) else list(found)

    def _bind(self, step: ScopedNode, results: Sequence[Value | None]) -> None:
        for i, key in enumerate(step.makes):
            if not key:
                continue
            if i >= len(results) or results[i] is None:
                raise Unsupported(f"its result {i} is not computed")
            self.values[key] = results[i]

    def _on_host(self, step: ScopedNode, operands: Sequence[Value | None]) -> None:
        """Compute a node whose result has a shape that depends on values, if all is known."""
        if step.captured or any(v is not None and v.kind != "constant" for v in operands):
            raise NeedsValue
        arrays = [None if value is None else value.data for value in operands]
        results = host_results(step, arrays)
        if any(not isinstance(array, np.ndarray) or array.dtype == object
               or array.size > CONSTANT_ELEMENTS_MAX for array in results):
            raise NeedsValue
        self._bind(step, [self.graph.constant(array, dtype_name(array)) for array in results])

    # ------------------------------------------------------------------ values

    def value(self, key: str, step: ScopedNode) -> Value:
        """The value of a key; a tensor of the file becomes a leaf when it is first read."""
        found = self.values.get(key)
        if found is None and key in self.tensors:
            found = self.values[key] = self._leaf(key, step.node.op_type not in CONTRACTIONS)
        if found is None:
            raise InputError(f"{step.label} reads {key!r} before it is made")
        return found

    def _leaf(self, key: str, checked: bool = False) -> Value:
        """A tensor of the model: a parameter when it is a weight, else a constant.

        A mask is no weight, nor is one of infinities, which are looked for where `checked`.
        """
        type = self.tensors.type(key)
        if type is None:
            raise Unsupported("it reads strings")
        weight = is_weight(type)
        if weight and type.size <= CONSTANT_ELEMENTS_MAX:
            array = self.tensors[key]
            infinite = checked and type.dtype in FLOATS \
                and not np.isfinite(array.astype(np.float32)).all()
            weight = not infinite and not is_mask(array)
        if not weight:
            return self.graph.constant(self.tensors[key], type.dtype)
        scope, self.graph._scope = self.graph._scope, []
        value = self.graph.parameter(key, type.shape, type.dtype)
        self.graph._scope = scope
        return value

    def made(self, key: str, leaf: bool = False) -> Value | None:
        """The value of a key; None for what is not there yet, and unless `leaf` for tensors."""
        if key not in self.values and leaf and key in self.tensors:
            self.values[key] = self._leaf(key)
        return self.values.get(key)

    def clean(self, outputs: Iterable[Value]) -> None:
        """Drop nodes and parameters that nothing reads any more."""
        live, nodes = set(outputs), []
        for made in reversed(self.graph.nodes):
            if made.output in live:
                live.update(made.inputs)
                nodes.append(made)
        self.graph.nodes = nodes[::-1]
        self.graph.parameters = {name: value for name, value in self.graph.parameters.items()
                                 if value in live}

    def tensor(self, key: str, proto: TensorProto) -> Value:
        """The value `key` of a tensor that is none of the file's: it stands in a body of the
        standard, or is an attribute of the call of a function. A constant, where it is small."""
        if proto.data_type == TensorProto.STRING:
            raise Unsupported("its value is text")
        type = type_of(proto, name=key)
        if type.size <= CONSTANT_ELEMENTS_MAX:
            return self.graph.constant(read(proto, name=key), type.dtype)
        if key not in self.tensors:
            self.tensors.add(key, proto)
        return self._leaf(key)

    def known(self, value: Value) -> np.ndarray:
        """The array of a value that depends on nothing but constants, weights and the arrays
        that are there. Raises NeedsValue for any other."""
        if value.kind == "constant":
            return value.data
        if value in self.graph.open:
            raise NeedsValue
        order: dict[Value, None] = {}
        stack = [(value, False)]
        while stack:
            top, ready = stack.pop()
            if ready:
                order[top] = None
            elif top not in order and top.kind != "constant":
                stack.append((top, True))
                stack.extend((v, False) for v in (top.node.inputs if top.node else ()))
        nodes = [v.node for v in order if v.node is not None]
        cost = sum(node.cost for node in nodes)
        if cost > KNOWN_FLOPS_MAX or self._known_flops + cost > KNOWN_FLOPS_SUM:
            raise NeedsValue
        self._known_flops += cost
        return self._evaluated(list(order))

    def _evaluated(self, order: Sequence[Value]) -> np.ndarray:
        arrays: dict[Value, np.ndarray] = {}
        for value in order:
            if value.kind == "parameter":
                arrays[value] = self.tensors[value.name]
            elif value.kind == "input":
                arrays[value] = self.baked[value.name] = self.arrays[value]
            else:
                inputs = [v.data if v.kind == "constant" else arrays[v] for v in value.node.inputs]
                with np.errstate(all="ignore"):
                    result = value.node.operation.meaning(*inputs, **value.node.attributes)
                arrays[value] = np.asarray(result, DTYPES[value.dtype])
        return arrays[order[-1]]

    # ------------------------------------------------------------------ attributes and bodies

    def _call(self, step: ScopedNode, function: FunctionProto) -> None:
        """Put the body of a function in the place of its call.

        Its operators are of the versions that the function imports; of a domain that it does not
        import, those of the caller.
        """
        arguments = {a.name: a for a in function.attribute_proto} | fields_of(step)
        opsets = {**step.scope.opsets, **opsets_of(function.opset_import)}
        inner = inner_scope(step, opsets=opsets, parent=None, arguments=arguments)
        if len(step.reads) > len(function.input) or len(step.makes) > len(function.output):
            raise InputError(f"{step.label}: the function takes {len(function.input)} operands "
                             f"and gives {len(function.output)} results")
        given = dict.fromkeys(function.input, "")  # as names of what the call leaves out
        given |= zip(function.input, step.reads)
        inner.keys.update(given)
        self.expand(inner, function, zip(function.output, step.makes))

    def body(self, step: ScopedNode, graph: GraphProto,
             given: Sequence[str]) -> tuple[list[ScopedNode], list[str]]:
        """The nodes of a body of `step`, its inputs being the keys `given`; keys of its results."""
        scope = inner_scope(step, parent=step.scope)
        return body_steps(step, scope, graph, given, self.tensors)

    def expand(self, scope: Scope, function: FunctionProto,
               results: Iterable[tuple[str, str]]) -> None:
        """Take the nodes of a function next; afterwards each key of `results` is what the name in
        `scope` is."""
        steps = steps_of(function.node, scope, self.tensors.names(function))
        self.take_next(steps + [same(scope.key(name, scope.prefix + name), key)
                                for name, key in results if key])

    def take_next(self, steps: Sequence[ScopedNode]) -> None:
        """Import `steps` before all others. Raises InputError when there are too many."""
        self._check_steps(len(self._queue) + len(steps))
        self._queue.extendleft(reversed(steps))

    def _check_steps(self, more: int) -> None:
        if self._steps + more > self.source.steps_max:
            raise InputError(f"{self.source.name}: more than {self.source.steps_max} nodes, bodies "
                             f"in place of their calls")


def _standard_body(step: ScopedNode) -> FunctionProto | None:
    """The body that the ONNX standard gives for an operator that we have no rule for."""
    known = operator_in(*operator_of(step))
    return None if known is None else known.body


def dtype_name(array: np.ndarray) -> str:
    """Our name of the dtype of an array."""
    return next(name for name, dtype in DTYPES.items() if array.dtype == dtype)
