"""What the lowering of each operation works with: tensors of values, new variables, constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from smalti.export.ggml import layout
from smalti.export.ggml.code import Local, Statement, Tensor, Weight, braces, call
from smalti.export.ggml.layout import Shape
from smalti.export.ggml.names import unique
from smalti.graph import Graph, Node, Value

DTYPES = {"f32": "f32", "f16": "f32", "bf16": "f32", "bool": "f32", "i32": "i32", "i64": "i32",
          "i16": "i32", "i8": "i32", "u8": "i32", "u16": "i32"}
"""What ggml computes a dtype of the graph in: all floats in f32, truth as 0 and 1."""
NUMPY_TYPES = {"f32": np.float32, "i32": np.int32}


class NotExportable(Exception):
    """A node cannot be expressed; the text says why."""


Lowering = Callable[["GgmlBuilder", Node], Tensor]


class GgmlBuilder:
    """Statements for the nodes of a graph, one after the other.

    `constants` are arrays that the weights file holds beside the parameters; `swapped` are names of
    parameters that it holds with both axes exchanged, as ggml multiplies matrices.
    """

    def __init__(self, graph: Graph, swapped: frozenset[str]) -> None:
        self.statements: list[Statement] = []
        self.constants: dict[str, np.ndarray] = {}
        self.swapped = swapped
        self._taken = set(graph.parameters)
        self._tensors: dict[Value, Tensor] = {}
        self._scope = ""
        for value in graph.inputs.values():
            self._tensors[value] = Tensor((Local(value.name),), value.shape,
                                          DTYPES.get(value.dtype, "f32"))

    def lower(self, node: Node, lowering: Lowering) -> None:
        """Make the tensor of `node`. Raises NotExportable."""
        self._scope, name = divided(node.scope)
        tensor = lowering(self, node)
        tensor = self.let(tensor, shape=node.output.shape, hint=name or node.operation.name)
        self._tensors[node.output] = Tensor(tensor.code, tensor.dims, self.dtype(node.output))

    def stand_in(self, node: Node) -> None:
        """A tensor for the result of a node that was refused, so that later nodes are looked at."""
        self._tensors[node.output] = Tensor((Local("refused"),), node.output.shape,
                                            DTYPES.get(node.output.dtype, "f32"))

    def tensor(self, value: Value) -> Tensor:
        """The tensor that holds `value`, in dimensions of its own. Raises NotExportable for a
        dtype that ggml lacks."""
        found = self._tensors.get(value)
        if found is None:
            if value.kind == "parameter":
                found = Tensor((Weight(value.name),), value.shape, self.dtype(value))
            else:
                found = self.constant(value.data, "constant", self.dtype(value))
            self._tensors[value] = found
        return found

    @staticmethod
    def dtype(value: Value) -> str:
        """The dtype that ggml holds `value` in. Raises NotExportable where there is none."""
        if value.dtype not in DTYPES:
            raise NotExportable(f"dtype {value.dtype}; one of {', '.join(DTYPES)} is expected")
        return DTYPES[value.dtype]

    def shaped(self, value: Value, *dims: int) -> Tensor:
        """`value` in the dimensions `dims`, or of its own shape where they are not given."""
        return self.tensor(value).shaped(*(dims or layout.dimensions(value.shape)))

    def let(self, tensor: Tensor, *, shape: Shape | None = None, hint: str = "") -> Tensor:
        """A variable for `tensor`, so that its code stands only once; `tensor` itself if it is one.

        `hint` names the variable where the scope has no name for it.
        """
        if len(tensor.code) == 1:
            return tensor
        local = Local(hint)
        self.statements.append(Statement(local, tensor.code, self._scope, shape or tensor.dims))
        return Tensor((local,), tensor.dims, tensor.dtype)

    def constant(self, data: np.ndarray, name: str, dtype: str = "f32") -> Tensor:
        """An array of the weights file, called `name` in the scope of the node."""
        array = np.asarray(data)
        if dtype == "i32" and array.size and not -2**31 <= array.min() <= array.max() < 2**31:
            raise NotExportable("a constant does not fit 32 bits")
        full = unique(".".join(filter(None, [self._scope, name])), self._taken)
        self._taken.add(full)
        dims = layout.dimensions(array.shape)
        self.constants[full] = array.astype(NUMPY_TYPES[dtype]).reshape(dims)
        return Tensor((Weight(full),), dims, dtype)

    # ------------------------------------------------------------------ movement

    def transposed(self, tensor: Tensor, shape: Shape, perm: Sequence[int]) -> Tensor:
        """`tensor`, of `shape`, with its axes in the order `perm`."""
        for dims, order in layout.steps(shape, tuple(perm)):
            rank = len(dims)
            places = list(range(4))
            for target, source in enumerate(order):
                places[rank - 1 - source] = rank - 1 - target
            code = call("ops::permute", "ctx", tensor.shaped(*dims),
                              braces(places))
            tensor = Tensor(code, tuple(dims[i] for i in order), tensor.dtype)
        return tensor

    def expanded(self, tensor: Tensor, shape: Shape, result: Shape) -> Tensor:
        """`tensor`, of `shape`, broadcast to `result`."""
        for dims, repeated in layout.repetitions(shape, result):
            inner = [*repeated[::-1], 1, 1, 1][:4]
            tensor = Tensor(call("ggml_repeat_4d", "ctx", tensor.shaped(*dims), *inner), repeated,
                            tensor.dtype)
        return tensor


def divided(scope: str) -> tuple[str, str]:
    """The part of the model in `scope`, and the node's own name, which stands behind a slash.

    >>> divided("encoder.layers.0/node_add"), divided("/conv1/Conv"), divided("encoder.layers.0")
    (('encoder.layers.0', 'node_add'), ('/conv1', 'Conv'), ('encoder.layers.0', ''))
    """
    part, slash, name = scope.rpartition("/")
    return (part, name) if slash else (scope, "")


def scalar(value: Value) -> float | None:
    """The number that a constant of one element is, else None."""
    if value.kind != "constant" or value.type.size != 1:
        return None
    return float(value.data.reshape(-1)[0])
