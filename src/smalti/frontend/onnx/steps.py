"""The nodes of a model as steps, each in its scope.

What a node reads and makes has a key: its name in the model, behind a prefix for what stands in the
body of a function, a branch or a loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.frontend.onnx.messages import AttributeProto, GraphProto, NodeProto
from smalti.frontend.onnx.reading import bodies_of
from smalti.frontend.onnx.standard import newest, operator_in
from smalti.frontend.onnx.weights import ModelTensors

DEPTH_MAX = 24
"""How deep bodies may stand within bodies, and calls within functions: a function that calls itself
would nest for ever, and exports nest a few levels."""
NAME_SCOPES = "pkg.torch.onnx.name_scopes"
"""The note in which PyTorch's exporter writes which modules a node is part of."""


class Scope:
    """The names that are defined in a model, a function or a body, each with the key of its value.

    `parent` is the scope around a branch or a loop, whose names can be read, too; a function has
    none. `prefix` begins all keys that are defined here, and `arguments` are the attributes that a
    function is called with.
    """

    def __init__(self, opsets: Mapping[str, int], parent: Scope | None = None, prefix: str = "",
                 arguments: Mapping[str, AttributeProto] | None = None,
                 depth: int = 0, numbers: Iterator[int] | None = None) -> None:
        self.opsets, self.parent, self.prefix, self.depth = opsets, parent, prefix, depth
        self.arguments = arguments or {}
        self.numbers = numbers or itertools.count(1)
        """Numbers for the bodies of a model, so that no two prefixes are alike."""
        self.keys: dict[str, str] = {}

    def define(self, name: str, key: str | None = None) -> str:
        """The key of a new value: `key` for a tensor, which has one for all places that its body
        is put in. Raises InputError for a second definition."""
        if name in self.keys:
            raise InputError(f"the value {name!r} is defined twice")
        key = self.keys[name] = self.prefix + name if key is None else key
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
class ScopedNode:
    """A node in its scope: `reads` are the keys of its operands, `makes` those of its results, with
    an empty text for what is left out."""

    node: NodeProto
    scope: Scope
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    captured: tuple[str, ...] = ()
    """Keys of values outside of the node that its branches or its loop's body read."""

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


STANDARD = Scope({"": newest()})
"""The scope of nodes that the importer makes itself."""


def inner_scope(step: ScopedNode, *, parent: Scope | None, opsets: Mapping[str, int] | None = None,
                arguments: Mapping[str, Any] | None = None) -> Scope:
    """A scope for a body of `step`. Raises InputError when bodies nest too deep."""
    outer = step.scope
    if outer.depth >= DEPTH_MAX:
        raise InputError(f"{step.label}: bodies within bodies, {DEPTH_MAX} deep")
    prefix = f"{step.name}#{next(outer.numbers)}/"
    return Scope(opsets or outer.opsets, parent, prefix,
                 outer.arguments if arguments is None else arguments, outer.depth + 1,
                 outer.numbers)


def operator_of(step: ScopedNode) -> tuple[str, str, int]:
    """Domain, name and version of the operator of a step."""
    domain = "" if step.node.domain == "ai.onnx" else step.node.domain
    return domain, step.node.op_type, step.scope.opsets.get(domain, 1)


def fields_of(step: ScopedNode, defaults: bool = True) -> dict[str, AttributeProto]:
    """Attributes by name, those of an enclosing function filled in, and the defaults."""
    domain, operator, version = operator_of(step)
    known = operator_in(domain, operator, version) if defaults else None
    fields = {} if known is None else dict(known.defaults)
    for attribute in step.node.attribute:
        if attribute.ref_attr_name:
            given = step.scope.arguments.get(attribute.ref_attr_name)
            if given is not None:
                fields[attribute.name] = given
        else:
            fields[attribute.name] = attribute
    return fields


def same(source: str, target: str) -> ScopedNode:
    """A step that makes the value of one key that of another."""
    node = NodeProto(op_type="Identity", name=target, input=["x"], output=["y"])
    return ScopedNode(node, STANDARD, (source,), (target,))


def body_steps(step: ScopedNode, scope: Scope, graph: GraphProto, given: Sequence[str],
               tensors: ModelTensors) -> tuple[list[ScopedNode], list[str]]:
    """The nodes of a body in `scope`, its inputs being the keys `given`; keys of its results."""
    if len(graph.input) != len(given):
        raise InputError(f"{step.label}: its body takes {len(graph.input)} operands, "
                         f"{len(given)} are given")
    for value, key in zip(graph.input, given):
        scope.keys[value.name] = key
    held = tensors.names(graph)
    for tensor in graph.initializer:
        key = scope.define(tensor.name, held.get(tensor.name))
        if tensor.name not in held:  # in a body that the standard gives
            tensors.add(key, tensor)
    steps = steps_of(graph.node, scope, held)
    return steps, [scope.key(value.name, step.label) for value in graph.output]


def steps_of(nodes: Iterable[NodeProto], scope: Scope,
             held: Mapping[str, str]) -> list[ScopedNode]:
    """The nodes of a body as steps; their results are defined in `scope`.

    Nodes that make the tensors `held`, which gives the key of each by its name, are no steps.
    Raises InputError for a name that is read before it is defined, or defined twice.
    """
    steps = []
    for node in nodes:
        if node.op_type == "Constant" and len(node.output) == 1 and node.output[0] in held:
            scope.define(node.output[0], held[node.output[0]])
            continue
        where = f"node {node.name or next(iter(node.output), '?')} ({node.op_type})"
        reads = tuple(scope.key(name, where) if name else "" for name in node.input)
        outer = dict.fromkeys(scope.key(name, where) for name in free_names(node))
        captured = tuple(filter(None, outer))
        makes = tuple(scope.define(name) if name else "" for name in node.output)
        steps.append(ScopedNode(node, scope, reads, makes, captured))
    return steps


def free_names(node: NodeProto) -> list[str]:
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
