"""Nodes of ONNX become operations of a graph, one after another.

What a node reads and makes has a key: its name in the model, behind a prefix for what stands in the
body of a function, a branch or a loop. A body is put in the place of its node, as steps of its own.

What depends on constants only is computed at once, so that arithmetic on shapes leaves no nodes
behind. A node whose rule has to know a value that only a run can tell is left over, with all that
depends on it: `deferred`, see `runtime/staged.py`. Nodes without an equal among our operations are
collected, all of them, before anything is refused.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import defs

from smalti.errors import InputError, UnsupportedError, UnsupportedNode
from smalti.frontend.onnx.reading import Source, opsets_of
from smalti.frontend.onnx.registry import (
    HOST_RULES,
    Body,
    Call,
    Expanded,
    HostCall,
    NeedsValue,
    Rule,
    Unsupported,
    rule_for,
)
from smalti.frontend.onnx.signatures import check_operands
from smalti.frontend.onnx.tensors import ELEMENT_OF, PACKED, Tensors
from smalti.graph import Graph, Value
from smalti.graph.folding import folded
from smalti.graph.graph import CONSTANT_ELEMENTS_MAX, VALUE_BYTES_MAX
from smalti.graph.operation import DTYPES, FLOATS

DEPTH_MAX = 24
"""Bodies within bodies, and functions that call functions."""
AXES_MAX = 32
"""Numpy has 64, and some of our meanings double the axes."""
KNOWN_FLOPS_MAX, KNOWN_FLOPS_SUM = 1 << 22, 1 << 29
"""What is computed with numpy on the way, because a rule has to know it, once and in all; more is a
stage."""
WEIGHTS = (*FLOATS, "i8", "u8", *PACKED, "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz")
"""Initializers of these dtypes with more than one element are parameters, which `bind` may swap;
others are constants, as long as they are small."""

CONTRACTIONS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Gather", "LSTM", "GRU", "RNN")
"""Operators whose initializers are weights, for certain."""

NAME_SCOPES = "pkg.torch.onnx.name_scopes"
MASKED = -1e4
"""Attention masks hold 0 and numbers below this one, and are no weights."""

IMPOSSIBLE = (ArithmeticError, LookupError, MemoryError, ValueError)
"""What numpy raises for sizes and numbers that no array has."""


class Scope:
    """Names of a model, a function or a body, each with the key of its value."""

    def __init__(self, opsets: Mapping[str, int], parent: Scope | None = None, prefix: str = "",
                 arguments: Mapping[str, onnx.AttributeProto] | None = None,
                 depth: int = 0) -> None:
        self.opsets, self.parent, self.prefix, self.depth = opsets, parent, prefix, depth
        self.arguments = arguments or {}
        self.keys: dict[str, str] = {}

    def define(self, name: str) -> str:
        """The key of a new value. Raises InputError for a second definition."""
        if name in self.keys:
            raise InputError(f"the value {name!r} is defined twice")
        key = self.keys[name] = self.prefix + name
        return key

    def key(self, name: str, where: str) -> str:
        """The key of a value. Raises InputError when nothing defines it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.keys:
                return scope.keys[name]
            scope = scope.parent
        raise InputError(f"{where} reads {name!r}, which nothing before it defines")


@dataclass(eq=False)
class Step:
    """A node in its scope; `reads` and `makes` are keys, empty for what is left out."""

    node: onnx.NodeProto
    scope: Scope
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    captured: tuple[str, ...] = ()
    """Keys of outer values that bodies of the node read."""

    @property
    def label(self) -> str:
        """The node for messages: its name and operator."""
        return f"node {self.name} ({self.node.op_type})"

    @property
    def name(self) -> str:
        """The node's name, else that of its first result."""
        return self.scope.prefix + (self.node.name or next(filter(None, self.node.output), "?"))

    @property
    def place(self) -> str:
        """The name, behind the module that the node is part of where PyTorch's exporter tells it:
        in a list such as "['', 'encoder', 'encoder.layers.0', 'linear_1']", before the function."""
        listed = next((p.value for p in self.node.metadata_props if p.key == NAME_SCOPES), "")
        *modules, _ = listed.split("'")[1::2] or [""]
        return f"{modules[-1]}/{self.name}" if modules and modules[-1] else self.name


def is_mask(array: np.ndarray) -> bool:
    """Whether `array` tells which tokens see which: 0, or a number below which no score matters."""
    if array.dtype.kind in "iu" or array.flat[0] != 0 and array.flat[0] > MASKED:
        return False
    hidden = array <= MASKED
    return bool(hidden.any() and (hidden | (array == 0)).all())


class FoldingGraph(Graph):
    """A graph in which what depends on constants only is a constant, and what is empty, too."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.open: set[Value] = set()
        """What depends on an input whose array is not there."""

    def apply(self, name: str, *inputs: Value, **attributes: Any) -> Value:
        value = super().apply(name, *inputs, **attributes)
        if value.type.bytes > VALUE_BYTES_MAX or len(value.shape) > AXES_MAX:
            raise InputError(f"a result of {value.type} is larger than any memory")
        if value.type.size == 0:
            self.nodes.pop()
            return self.constant(np.zeros(value.shape, DTYPES[value.dtype]), value.dtype)
        constant = folded(value)
        if constant is not value:
            self.nodes.pop()
        elif not self.open.isdisjoint(inputs):
            self.open.add(value)
        return constant


@dataclass
class Importer:
    """Imports steps into `graph`; afterwards `values` has what became of each key."""

    source: Source
    graph: FoldingGraph
    tensors: Tensors
    functions: Mapping[tuple[str, str], onnx.FunctionProto]
    values: dict[str, Value] = field(default_factory=dict)
    arrays: dict[Value, np.ndarray] = field(default_factory=dict)
    """Arrays of inputs that are there already, in the middle of a run."""
    baked: dict[str, np.ndarray] = field(default_factory=dict)
    """Arrays of such inputs, by name, that the graph depends on."""
    deferred: list[Step] = field(default_factory=list)
    asked: set[Step] = field(default_factory=set)
    """Deferred steps whose own rules need a value."""
    unsupported: list[UnsupportedNode] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    """Keys of what is not there yet."""
    _poisoned: set[str] = field(default_factory=set)
    _queue: deque[Step] = field(default_factory=deque)
    _steps: int = 0
    _known_flops: int = 0

    # ------------------------------------------------------------------ steps

    def run(self, steps: Iterable[Step]) -> None:
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

    def _take(self, step: Step) -> None:
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

    def _defer(self, step: Step) -> None:
        self._check(step)
        self.deferred.append(step)
        self.waiting.update(filter(None, step.makes))

    def _refuse(self, step: Step, why: str) -> None:
        self.unsupported.append(UnsupportedNode(step.name, step.node.op_type, why))
        self._poisoned.update(filter(None, step.makes))

    def _check(self, step: Step) -> None:
        """List a node that is not looked at now but has no rule at all, and such in its bodies."""
        domain, operator, version = operator_of(step)
        if rule_for(domain, operator, version) is None \
                and (domain, operator) not in HOST_RULES \
                and (domain, operator) not in self.functions \
                and not _has_body(operator, version, domain):
            self._refuse(step, f"no rule for this operator, version {version} of "
                               f"{domain or 'ai.onnx'}")
        for body in bodies_of(step.node):
            scope = inner_scope(step, parent=step.scope)
            for node in body.node:
                self._check(Step(node, scope, (), ()))

    def _import(self, step: Step) -> None:
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
                rule, Call(self, step, operands, fields_of(step), version)):
            return
        elif (domain, operator) in HOST_RULES:
            self._on_host(step, operands)
        elif (body := self._standard_body(step, operands, version)) is not None:
            self._call(step, body)
        else:
            raise Unsupported(f"no rule for this operator, version {version} of "
                              f"{domain or 'ai.onnx'}")

    def _check_operands(self, step: Step, operands: Sequence[Value | None]) -> None:
        types = [None if value is None else value.type for value in operands]
        try:
            check_operands(*operator_of(step), types)
        except InputError as error:
            raise InputError(f"{step.label}: {error}") from None

    def _apply(self, rule: Rule, call: Call) -> bool:
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

    def standard(self, call: Call, operator: str, operands: Sequence[Value | None],
                 version: int | None, fields: Mapping[str, Any]) -> list[Value | None]:
        """See `Call.standard`."""
        node = onnx.helper.make_node(operator, [], ["y"], call.step.name, **fields)
        step = Step(node, STANDARD, (), ("y",))
        version = version or STANDARD.opsets[""]
        rule = rule_for("", operator, version)
        found = rule and rule(Call(self, step, operands,
                                   {**fields_of(step), **call.fields, **fields_of(step, False)},
                                   version))
        if found is None or isinstance(found, Expanded):
            raise Unsupported(f"{operator} of such operands")
        return [found] if isinstance(found, Value) else list(found)

    def _bind(self, step: Step, results: Sequence[Value | None]) -> None:
        for i, key in enumerate(step.makes):
            if not key:
                continue
            if i >= len(results) or results[i] is None:
                raise Unsupported(f"its result {i} is not computed")
            self.values[key] = results[i]

    def _on_host(self, step: Step, operands: Sequence[Value | None]) -> None:
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

    def value(self, key: str, step: Step) -> Value:
        """The value of a key; an initializer becomes a leaf when it is first read."""
        found = self.values.get(key)
        if found is None and key in self.tensors:
            found = self.values[key] = self._leaf(key, step.node.op_type not in CONTRACTIONS)
        if found is None:
            raise InputError(f"{step.label} reads {key!r} before it is made")
        return found

    def _leaf(self, key: str, checked: bool = False) -> Value:
        """An initializer: a parameter when it is a weight, or large; else a constant.

        A mask of infinities is no weight: those are found when they are looked for (`checked`).
        """
        type = self.tensors.type(key)
        if type is None:
            raise Unsupported("it reads strings")
        if type.size == 0 or type.size <= CONSTANT_ELEMENTS_MAX and (
                type.dtype not in WEIGHTS or type.size == 1 or is_mask(self.tensors[key])):
            return self.graph.constant(self.tensors[key], type.dtype)
        if checked and type.dtype in FLOATS and type.size <= CONSTANT_ELEMENTS_MAX \
                and not np.isfinite(self.tensors[key].astype(np.float32)).all():
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
        for node in reversed(self.graph.nodes):
            if node.output in live:
                live.update(node.inputs)
                nodes.append(node)
        self.graph.nodes = nodes[::-1]
        self.graph.parameters = {name: value for name, value in self.graph.parameters.items()
                                 if value in live}

    def tensor(self, name: str, proto: onnx.TensorProto) -> Value:
        """The value of a tensor that stands in the model, under a name of its own."""
        if name not in self.tensors:
            self.tensors.add(name, proto)
        return self._leaf(name)

    def known(self, value: Value) -> np.ndarray:
        """The array of a value that depends on nothing but constants, initializers and the arrays
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

    def _standard_body(self, step: Step, operands: Sequence[Value | None],
                       version: int) -> onnx.FunctionProto | None:
        """The body that the ONNX standard gives for an operator that we have no rule for."""
        domain, operator, _ = operator_of(step)
        if not defs.has(operator, version, domain):
            return None
        schema = defs.get_schema(operator, version, domain)
        if schema.has_function:
            return schema.function_body
        if not schema.has_context_dependent_function:
            return None
        node = onnx.NodeProto()
        node.CopyFrom(step.node)
        del node.attribute[:]
        for name, attribute in fields_of(step).items():
            node.attribute.add().CopyFrom(attribute)
            node.attribute[-1].name = name
        types = [type_proto(value).SerializeToString() for value in operands]
        text = schema.get_context_dependent_function(node.SerializeToString(), types)
        return onnx.FunctionProto.FromString(text) if text else None

    def _call(self, step: Step, function: onnx.FunctionProto) -> None:
        """Put the body of a function in the place of its call."""
        arguments = {a.name: a for a in function.attribute_proto} | fields_of(step)
        opsets = opsets_of(function.opset_import) or step.scope.opsets
        inner = inner_scope(step, opsets=opsets, parent=None, arguments=arguments)
        if len(step.reads) > len(function.input) or len(step.makes) > len(function.output):
            raise InputError(f"{step.label}: the function takes {len(function.input)} operands "
                             f"and gives {len(function.output)} results")
        given = {name: key for name, key in zip(function.input, step.reads) if key}
        inner.keys.update(given)
        nodes = [_without(node, set(function.input) - set(given)) for node in function.node]
        self.expand(inner, nodes, zip(function.output, step.makes))

    def body(self, step: Step, graph: onnx.GraphProto,
             given: Sequence[str]) -> tuple[list[Step], list[str]]:
        """The nodes of a body of `step`, its inputs being the keys `given`; keys of its results."""
        scope = inner_scope(step, parent=step.scope)
        return body_steps(step, scope, graph, given, self.tensors)

    def expand(self, scope: Scope, nodes: Sequence[onnx.NodeProto],
               results: Iterable[tuple[str, str]]) -> None:
        """Take `nodes` next; afterwards each key of `results` is what the name in `scope` is."""
        steps = steps_of(nodes, scope)
        self.take_next(steps + [same(scope.key(name, scope.prefix + name), key)
                                for name, key in results if key])

    def take_next(self, steps: Sequence[Step]) -> None:
        """Import `steps` before all others. Raises InputError when there are too many."""
        self._check_steps(len(self._queue) + len(steps))
        self._queue.extendleft(reversed(steps))

    def _check_steps(self, more: int) -> None:
        if self._steps + more > self.source.steps_max:
            raise InputError(f"{self.source.name}: more than {self.source.steps_max} nodes, bodies "
                             f"in place of their calls")


_BODIES = itertools.count(1)
STANDARD = Scope({"": defs.onnx_opset_version()})
"""The scope of nodes that the importer makes itself."""


def inner_scope(step: Step, *, parent: Scope | None, opsets: Mapping[str, int] | None = None,
                arguments: Mapping[str, Any] | None = None) -> Scope:
    """A scope for a body of `step`. Raises InputError when bodies nest too deep."""
    outer = step.scope
    if outer.depth >= DEPTH_MAX:
        raise InputError(f"{step.label}: bodies within bodies, {DEPTH_MAX} deep")
    prefix = f"{step.name}#{next(_BODIES)}/"
    return Scope(opsets or outer.opsets, parent, prefix,
                 outer.arguments if arguments is None else arguments, outer.depth + 1)


def is_hosted(step: Step, operands: Sequence[Any], asked: bool,
              functions: Mapping[tuple[str, str], onnx.FunctionProto]) -> bool:
    """Whether a step is computed on arrays: it has no rule, none for such operands, or one that
    needed to know a value (`asked`)."""
    domain, operator, version = operator_of(step)
    if (domain, operator) not in HOST_RULES or (domain, operator) in functions:
        return False
    plain = all(array is None or isinstance(array, np.ndarray | np.generic)
                and array.dtype != object for array in operands)
    given = all(array is not None or not key for array, key in zip(operands, step.reads))
    return rule_for(domain, operator, version) is None or asked or not plain or not given


def operator_of(step: Step) -> tuple[str, str, int]:
    """Domain, name and version of the operator of a step."""
    domain = "" if step.node.domain == "ai.onnx" else step.node.domain
    return domain, step.node.op_type, step.scope.opsets.get(domain, 1)


def fields_of(step: Step, defaults: bool = True) -> dict[str, onnx.AttributeProto]:
    """Attributes by name, those of an enclosing function filled in, and the defaults."""
    domain, operator, version = operator_of(step)
    fields = {}
    if defaults and defs.has(operator, version, domain):
        for name, entry in defs.get_schema(operator, version, domain).attributes.items():
            if entry.default_value.type:
                fields[name] = entry.default_value
    for attribute in step.node.attribute:
        if attribute.ref_attr_name:
            given = step.scope.arguments.get(attribute.ref_attr_name)
            if given is not None:
                fields[attribute.name] = given
        else:
            fields[attribute.name] = attribute
    return fields


def same(source: str, target: str) -> Step:
    """A step that makes the value of one key that of another."""
    node = onnx.NodeProto(op_type="Identity", name=target, input=["x"], output=["y"])
    return Step(node, STANDARD, (source,), (target,))


def body_steps(step: Step, scope: Scope, graph: onnx.GraphProto, given: Sequence[str],
               tensors: Tensors) -> tuple[list[Step], list[str]]:
    """The nodes of a body in `scope`, its inputs being the keys `given`; keys of its results."""
    if len(graph.input) != len(given):
        raise InputError(f"{step.label}: its body takes {len(graph.input)} operands, "
                         f"{len(given)} are given")
    for value, key in zip(graph.input, given):
        scope.keys[value.name] = key
    for tensor in graph.initializer:
        tensors.add(scope.define(tensor.name), tensor)
    steps = steps_of(graph.node, scope)
    return steps, [scope.key(value.name, step.label) for value in graph.output]


def steps_of(nodes: Iterable[onnx.NodeProto], scope: Scope) -> list[Step]:
    """The nodes of a body as steps; their results are defined in `scope`.

    Raises InputError for a name that is read before it is defined, or defined twice.
    """
    steps = []
    for node in nodes:
        where = f"node {node.name or next(iter(node.output), '?')} ({node.op_type})"
        reads = tuple(scope.key(name, where) if name else "" for name in node.input)
        captured = tuple(dict.fromkeys(
            scope.key(name, where) for name in free_names(node)))
        makes = tuple(scope.define(name) if name else "" for name in node.output)
        steps.append(Step(node, scope, reads, makes, captured))
    return steps


def bodies_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The bodies of a node."""
    return [body for attribute in node.attribute
            for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)]


def free_names(node: onnx.NodeProto) -> list[str]:
    """Names that the bodies of a node read from outside."""
    found: list[str] = []
    for body in bodies_of(node):
        own = {v.name for v in body.input} | {t.name for t in body.initializer} \
            | {t.values.name for t in body.sparse_initializer}
        for inner in body.node:
            found += [n for n in (*inner.input, *free_names(inner)) if n and n not in own]
            own.update(inner.output)
        found += [v.name for v in body.output if v.name and v.name not in own]
    return found


def _without(node: onnx.NodeProto, absent: set[str]) -> onnx.NodeProto:
    """A node of a function body; operands that the call leaves out are left out."""
    if absent.isdisjoint(node.input):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = ["" if name in absent else name for name in node.input]
    return copy


def _has_body(operator: str, version: int, domain: str) -> bool:
    if not defs.has(operator, version, domain):
        return False
    schema = defs.get_schema(operator, version, domain)
    return schema.has_function or schema.has_context_dependent_function


def dtype_name(array: np.ndarray) -> str:
    """Our name of the dtype of an array."""
    return next(name for name, dtype in DTYPES.items() if array.dtype == dtype)


def type_proto(value: Value | None) -> onnx.TypeProto:
    """The type of a value, as ONNX writes it."""
    if value is None:
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(ELEMENT_OF[value.dtype], value.shape)


def host_results(step: Step, arrays: Sequence[Any], body: Body | None = None) -> list[Any]:
    """What a host rule makes of arrays; `body` runs bodies. Raises InputError naming the node."""
    domain, operator, version = operator_of(step)
    try:
        call = HostCall(step, arrays, fields_of(step), version, body)
        results = list(HOST_RULES[domain, operator](call))
    except UnsupportedError:
        raise
    except (InputError, AttributeError, TypeError, *IMPOSSIBLE) as error:  # operands of any kind
        raise InputError(f"{step.label}: {error}") from None
    if len(results) < len(step.makes):
        raise InputError(f"{step.label}: {len(step.makes)} results are asked for, it gives "
                         f"{len(results)}")
    return results
