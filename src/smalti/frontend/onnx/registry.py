"""What each operator of ONNX becomes: a table of rules, filled by the modules in `rules/`.

A rule is a function of a `NodeCall`: it reads operands and attributes and gives one value for each
result, made by `call.apply`. Where a meaning changed between versions of the operators, each
spelling is a rule of its own, `since` its first version.

    @rule("Gelu")
    def gelu(call: NodeCall) -> Value:
        spelling = "gelu_tanh" if call.text("approximate") == "tanh" else "gelu"
        return call.apply(spelling, call[0])

A rule that gives None leaves the node to the body that the standard has for its operator.

An operator whose results have shapes that depend on values is a `host` rule: a function of arrays,
which is called when they are there, in the middle of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from smalti.errors import InputError
from smalti.frontend.onnx.messages import AttributeProto, GraphProto, TensorProto
from smalti.graph import Graph, Value
from smalti.graph.graph import CONSTANT_ELEMENTS_MAX
from smalti.graph.operation import REQUIRED

if TYPE_CHECKING:
    from smalti.frontend.onnx.steps import ScopedNode


class Expanded:
    """What a rule returns that makes no values, but puts other steps in the place of its node."""


EXPANDED = Expanded()
Results = Value | Sequence[Value | None] | Expanded | None
Body = Callable[[str, Sequence[Any]], list[Any]]
"""Runs the body that an attribute names on arrays."""
Rule = Callable[["NodeCall"], Results]
HostRule = Callable[["HostNodeCall"], Sequence[Any]]

RULES: dict[tuple[str, str], list[tuple[int, Rule]]] = {}
HOST_RULES: dict[tuple[str, str], HostRule] = {}


class NeedsValue(Exception):
    """A rule has to know the elements of a value, of which only the type is known before a run.

    Its step is deferred, and imported again in the middle of the run, when they are computed.
    """


class Unsupported(Exception):
    """No operations of ours compute a node; says why. The error lists it with all such nodes."""


def rule(*operators: str, since: int = 1, domain: str = "") -> Callable[[Rule], Rule]:
    """Enter a function as the rule of these operators from version `since` on."""
    def enter(function: Rule) -> Rule:
        for operator in operators:
            versions = RULES.setdefault((domain, operator), [])
            if any(version == since for version, _ in versions):
                raise ValueError(f"operator {operator} has two rules since version {since}")
            versions.append((since, function))
            versions.sort(key=lambda entry: entry[0])
        return function
    return enter


def host(*operators: str, domain: str = "") -> Callable[[HostRule], HostRule]:
    """Enter a function of arrays as the meaning of operators whose shapes depend on values."""
    def enter(function: HostRule) -> HostRule:
        for operator in operators:
            if (domain, operator) in HOST_RULES:
                raise ValueError(f"operator {operator} has two host rules")
            HOST_RULES[domain, operator] = function
        return function
    return enter


def rule_for(domain: str, operator: str, version: int) -> Rule | None:
    """The rule of an operator in that version of its domain."""
    fitting = [function for since, function in RULES.get((domain, operator), ())
               if since <= version]
    return fitting[-1] if fitting else None


class Attributes:
    """Attributes of a node, with the schema's defaults; asked for with the type they must have.

    `where` names the node in messages.
    """

    def __init__(self, step: ScopedNode, fields: dict[str, AttributeProto],
                 version: int) -> None:
        self.step, self.fields, self.where = step, fields, step.label
        self.version = version
        """Version of the operators of the node's domain."""

    @property
    def operator(self) -> str:
        """The name of the operator."""
        return self.step.node.op_type

    @property
    def results(self) -> tuple[bool, ...]:
        """For each result in turn: whether it has a name, that is whether it may be read."""
        return tuple(map(bool, self.step.node.output))

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def _field(self, name: str, default: Any, type: int, slot: str) -> Any:
        found = self.fields.get(name)
        if found is None:
            if default is REQUIRED:
                raise InputError(f"the attribute {name!r} is missing")
            return default
        if found.type != type:
            raise InputError(f"attribute {name!r} is of type {found.type}, "
                             f"{type} is expected")
        value = getattr(found, slot)
        return tuple(value) if slot in ("ints", "floats", "strings") else value

    def integer(self, name: str, default: Any = REQUIRED) -> int:
        """An integer, `default` where there is none. All of these raise InputError without one."""
        return self._field(name, default, AttributeProto.INT, "i")

    def number(self, name: str, default: Any = REQUIRED) -> float:
        """A floating number."""
        return self._field(name, default, AttributeProto.FLOAT, "f")

    def text(self, name: str, default: Any = REQUIRED) -> str:
        """A string."""
        found = self._field(name, default, AttributeProto.STRING, "s")
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else found

    def integers(self, name: str, default: Any = REQUIRED) -> tuple[int, ...]:
        """Several integers."""
        return self._field(name, default, AttributeProto.INTS, "ints")

    def numbers(self, name: str, default: Any = REQUIRED) -> tuple[float, ...]:
        """Several floating numbers."""
        return self._field(name, default, AttributeProto.FLOATS, "floats")

    def texts(self, name: str, default: Any = REQUIRED) -> tuple[str, ...]:
        """Several strings."""
        found = self._field(name, default, AttributeProto.STRINGS, "strings")
        return found if found is default else tuple(s.decode("utf-8", "replace") for s in found)

    def tensor(self, name: str) -> TensorProto | None:
        """A tensor."""
        return self._field(name, None, AttributeProto.TENSOR, "t")

    def graph(self, name: str) -> GraphProto:
        """A body. Raises InputError where there is none."""
        return self._field(name, REQUIRED, AttributeProto.GRAPH, "g")


class GraphImporter(Protocol):
    """What rules need of an import that is under way; see `importer.Importer`."""

    values: dict[str, Value]

    @property
    def graph(self) -> Graph: ...

    def known(self, value: Value) -> np.ndarray: ...

    def tensor(self, key: str, proto: TensorProto) -> Value: ...

    def standard(self, call: NodeCall, operator: str, operands: Sequence[Value | None],
                 version: int | None, fields: Mapping[str, Any]) -> list[Value | None]: ...

    def body(self, step: ScopedNode, graph: GraphProto,
             given: Sequence[str]) -> tuple[list[ScopedNode], list[str]]: ...

    def take_next(self, steps: Sequence[ScopedNode]) -> None: ...


class NodeCall(Attributes):
    """One use of an operator: operands as values of the graph, attributes, number of results.

    Attributes are asked for with `integer`, `number`, `text`, `integers`, … .
    """

    def __init__(self, importer: GraphImporter, step: ScopedNode, operands: Sequence[Value | None],
                 fields: dict[str, AttributeProto], version: int) -> None:
        super().__init__(step, fields, version)
        self.importer, self.operands = importer, tuple(operands)

    def wants(self, i: int) -> bool:
        """Whether result `i` may be read."""
        return i < len(self.results) and self.results[i]

    def optional(self, i: int) -> Value | None:
        """Operand `i`, None where it is left out."""
        return self.operands[i] if i < len(self.operands) else None

    def __getitem__(self, i: int) -> Value:
        value = self.optional(i)
        if value is None:
            raise InputError(f"operand {i} is missing")
        return value

    def known(self, i: int) -> np.ndarray:
        """The array that operand `i` is. Raises NeedsValue where only a run tells."""
        return self.importer.known(self[i])

    def known_or(self, i: int, default: Any) -> Any:
        """As `known`; `default` where the operand is left out."""
        return default if self.optional(i) is None else self.known(i)

    def known_integers(self, i: int, default: Any = REQUIRED) -> Any:
        """Operand `i` as a tuple of integers; `default` where it is left out."""
        if self.optional(i) is None and default is not REQUIRED:
            return default
        numbers = self.known(i).reshape(-1)
        if not np.isfinite(numbers.astype(np.float64)).all():
            raise InputError(f"operand {i} holds {numbers}; integers are expected")
        return tuple(int(n) for n in numbers)

    def known_integer(self, i: int) -> int:
        """Operand `i` as one integer. Raises InputError for any other number of elements."""
        array = self.known(i)
        if array.size != 1 or array.dtype.kind not in "iu":
            raise InputError(f"operand {i} is {self[i].type}; one integer is expected")
        return int(array.reshape(())[()])

    def integers_of(self, name: str, i: int, default: Any = REQUIRED) -> Any:
        """Integers that are an attribute in earlier versions, and operand `i` in later ones."""
        if name in self:
            return self.integers(name)
        return self.known_integers(i, default)

    def axis(self, value: Value, axis: int) -> int:
        """`axis` of `value`, counted from the front. Raises InputError for one it has not."""
        rank = len(value.shape)
        if not -rank <= axis < rank:
            raise InputError(f"axis {axis} does not exist in {value.type}")
        return axis % rank

    def apply(self, operation: str, *operands: Value, **attributes: Any) -> Value:
        """The result of an operation of ours."""
        return self.importer.graph.apply(operation, *operands, **attributes)

    def counted(self, count: int) -> np.ndarray:
        """0, 1, … up to `count`. Raises Unsupported for more than a constant may have."""
        if count > CONSTANT_ELEMENTS_MAX:
            raise Unsupported(f"it counts to {count}; at most {CONSTANT_ELEMENTS_MAX} numbers are "
                              f"made")
        return np.arange(count)

    def standard(self, operator: str, *operands: Value | None, version: int | None = None,
                 **fields: Any) -> list[Value | None]:
        """The results of an operator of the standard for `operands`, with `fields` and otherwise
        the attributes of this node. Raises Unsupported where it has no rule for these."""
        return self.importer.standard(self, operator, operands, version, fields)

    def constant(self, data: Any, dtype: str = "") -> Value:
        """A constant; see `Graph.constant`."""
        return self.importer.graph.constant(data, dtype)

    def filled(self, shape: Sequence[int], number: Any, dtype: str) -> Value:
        """A value of any size that holds one number, which no memory is taken for."""
        return self.apply("expand", self.constant(number, dtype), shape=tuple(shape))


class HostNodeCall(Attributes):
    """One use of an operator on arrays; None for operands that are left out."""

    def __init__(self, step: ScopedNode, operands: Sequence[Any],
                 fields: dict[str, AttributeProto], version: int,
                 body: Body | None) -> None:
        super().__init__(step, fields, version)
        self.operands, self._body = tuple(operands), body

    def body(self, name: str, arrays: Sequence[Any]) -> list[Any]:
        """The results of the body `name` for `arrays`. Raises NeedsValue while importing."""
        if self._body is None:
            raise NeedsValue
        return self._body(name, arrays)

    def optional(self, i: int) -> Any:
        """Operand `i`, None where it is left out."""
        return self.operands[i] if i < len(self.operands) else None

    def __getitem__(self, i: int) -> Any:
        value = self.optional(i)
        if value is None:
            raise InputError(f"operand {i} is missing")
        return value
