"""A graph as MLIR text: `linalg` on tensors, `tensor`, `arith` and `math`, in one function.

    func.func @double(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
      %empty = tensor.empty() : tensor<2x3xf32>
      %add_1 = linalg.generic {…} ins(%x, %x : …) outs(%empty : …) {…} -> tensor<2x3xf32>
      return %add_1 : tensor<2x3xf32>
    }

Inputs come first, then parameters, each with its own name as the attribute `smalti.name`: the text
holds no weights. Dialects: mlir.llvm.org/docs/Dialects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from smalti.errors import UnsupportedError, UnsupportedNode
from smalti.export.mlir.scalars import TYPES, cast_row, row
from smalti.export.mlir.text import Map, affine_map, dense, string, symbol, tensor
from smalti.graph import Graph, Node, Value
from smalti.graph.graph import rebuilt
from smalti.graph.operation import FLOATS, Type
from smalti.rewrite.rebuilding import Images, copied

Operand = tuple[str, Type, Map]
"""The name of a tensor, its type, and where it is read."""


def export(graph: Graph) -> str:
    """The MLIR module of `graph`: one public function, of static shapes, without weights.

    Composites that the dialects lack (attention, normalisations, GELU) are written as what they are
    made of. Raises UnsupportedError listing every node that cannot be written.

    >>> g = Graph("double")
    >>> x = g.input("x", (2, 3))
    >>> g.output("y", x + x)
    >>> print(export(g)[:56])
    module {
      func.func @double(%x: tensor<2x3xf32> {smalti
    """
    graph = _in_primitives(graph)
    bad = [UnsupportedNode(node.scope or "(top)", node.operation.name,
                           "no row of the MLIR export takes "
                           f"{', '.join(str(v.type) for v in node.inputs)}")
           for node in graph.nodes if not _expressible(node)]
    bad += [UnsupportedNode(name, value.kind, f"dtype {value.dtype} is not written")
            for leaves in (graph.inputs, graph.parameters) for name, value in leaves.items()
            if value.dtype not in TYPES]
    if bad:
        raise UnsupportedError(f"graph {graph.name} has {len(bad)} nodes that MLIR export cannot "
                               f"write:", bad)
    return _Writer(graph).module()


def _expressible(node: Node) -> bool:
    if any(v.dtype not in TYPES for v in (*node.inputs, node.output)):
        return False
    name = node.operation.name
    if name == "cast":
        given, to = node.inputs[0].dtype, node.output.dtype
        return TYPES[given] == TYPES[to] or cast_row(given, to) is not None
    return name in WRITERS or (node.operation.pointwise
                               and row(name, node.inputs[-1].dtype) is not None)


def _in_primitives(graph: Graph) -> Graph:
    """`graph` with each composite that cannot be written replaced by what it is made of."""
    def step(images: Images, node: Node, target: Graph) -> Value:
        if _expressible(node) or node.operation.decompose is None:
            return rebuilt(images, node, target)
        with target.scope(node.scope):
            return node.operation.decompose(target, *(images[v] for v in node.inputs),
                                            **node.attributes)

    while any(not _expressible(n) and n.operation.decompose is not None for n in graph.nodes):
        graph = copied(graph, step)
    return graph


class _Writer:
    """Writes one graph; `names` has the name of each value that is written already."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()

    # ------------------------------------------------------------------ the frame

    def module(self) -> str:
        """The whole text."""
        leaves = [*self.graph.inputs.values(), *self.graph.parameters.values()]
        for value in leaves:
            self.names[value] = self.fresh(symbol(value.name))
        scope = ""
        for node in self.graph.nodes:
            if node.scope != scope:
                scope = node.scope
                self.lines.append(f"// {string(scope)[1:-1]}")
            self.names[node.output] = self.write(node)
        results = list(self.graph.outputs.items())
        returned = ", ".join(self.name(value) for _, value in results)
        types = ", ".join(tensor(value.type) for _, value in results)
        arguments = ", ".join(f"{self.names[v]}: {_named(v.type, v.name)}" for v in leaves)
        promised = ", ".join(_named(value.type, name) for name, value in results)
        self.lines.append(f"return {returned} : {types}")
        body = "\n".join(f"    {line}" for line in self.lines)
        return (f"module {{\n  func.func @{symbol(self.graph.name)}({arguments}) -> ({promised}) "
                f"{{\n{body}\n  }}\n}}\n")

    def fresh(self, wish: str) -> str:
        """An unused name of a value, like `wish`."""
        name, number = wish, 0
        while name in self.taken:
            number += 1
            name = f"{wish}_{number}"
        self.taken.add(name)
        return f"%{name}"

    def name(self, value: Value) -> str:
        """The name of a value; constants are written where they are first read."""
        if value not in self.names:
            self.names[value] = self.fresh("constant")
            self.lines.append(f"{self.names[value]} = arith.constant "
                              f"{dense(value.data, value.dtype)} : {tensor(value.type)}")
        return self.names[value]

    def write(self, node: Node) -> str:
        """Write a node; the name of its result."""
        writer: Callable[[_Writer, Node], str] = WRITERS.get(node.operation.name, _Writer.pointwise)
        return writer(self, node)

    def line(self, wish: str, text: str) -> str:
        """Write `%wish = text`; the name of the result."""
        name = self.fresh(wish)
        self.lines.append(f"{name} = {text}")
        return name

    # ------------------------------------------------------------------ regions

    def empty(self, type: Type) -> str:
        """A tensor whose elements are all written later."""
        return self.line("empty", f"tensor.empty() : {tensor(type)}")

    def filled(self, type: Type, number: str) -> str:
        """A tensor of one number, written as MLIR writes it."""
        scalar = self.line("fill", f"arith.constant {number} : {TYPES[type.dtype]}")
        return self.line("filled", f"linalg.fill ins({scalar} : {TYPES[type.dtype]}) "
                                   f"outs({self.empty(type)} : {tensor(type)}) -> {tensor(type)}")

    def generic(self, wish: str, operands: Sequence[Operand], out: Operand, iterators: str,
                body: str = "") -> str:
        """A `linalg.generic`: `iterators` has a letter (p or r) for each dimension; `body` makes
        `%e` of `%a0`, `%a1` … and of `%o`, what the output holds; without one `%a0` is copied."""
        maps = ", ".join(affine_map(len(iterators), m) for _, _, m in (*operands, out))
        kinds = ", ".join('"parallel"' if i == "p" else '"reduction"' for i in iterators)
        given = ", ".join(name for name, _, _ in operands)
        types = ", ".join(tensor(t) for _, t, _ in operands)
        scalars = ", ".join(f"%a{i}: {TYPES[t.dtype]}" for i, (_, t, _) in enumerate(operands))
        element, result = TYPES[out[1].dtype], tensor(out[1])
        ins = f"ins({given} : {types}) " if operands else ""
        arguments = f"{scalars}, %o: {element}" if operands else f"%o: {element}"
        name = self.line(wish, f"linalg.generic {{indexing_maps = [{maps}], iterator_types = "
                               f"[{kinds}]}} {ins}outs({out[0]} : {result}) {{")
        self.lines.append(f"^bb0({arguments}):")
        self.lines += [f"  {line}" for line in body.splitlines()]
        self.lines += [f"  linalg.yield {'%e' if body else '%a0'} : {element}", f"}} -> {result}"]
        return name

    def elements(self, wish: str, operands: Sequence[Operand], result: Type,
                 body: str = "") -> str:
        """A `generic` without a sum: each element of the result is written once."""
        axes = range(len(result.shape))
        return self.generic(wish, operands, (self.empty(result), result, tuple(axes)),
                            "p" * len(axes), body)

    def reshaped(self, name: str, given: Type, shape: Sequence[int]) -> str:
        """`name` in another shape: by way of the finest shape that both are groupings of."""
        shape = tuple(shape)
        groups = _groups(given.shape, shape)
        middle = Type(tuple(math.prod(given.shape[i] for i in left) for left, _ in groups),
                      given.dtype)
        result = Type(shape, given.dtype)
        if given.shape != middle.shape:
            name = self.line("collapsed", f"tensor.collapse_shape {name} "
                             f"{[list(left) for left, _ in groups]} : {tensor(given)} into "
                             f"{tensor(middle)}")
        if not groups and shape:  # one element has no axes to group
            return self.elements("expanded", [(name, middle, ())], result)
        if middle.shape != shape:
            name = self.line("expanded", f"tensor.expand_shape {name} "
                             f"{[list(right) for _, right in groups]} output_shape {list(shape)} : "
                             f"{tensor(middle)} into {tensor(result)}")
        return name

    # ------------------------------------------------------------------ operations

    def pointwise(self, node: Node) -> str:
        name, dtype = node.operation.name, node.inputs[-1].dtype
        arguments = [f"%a{i}" for i in range(len(node.inputs))]
        body = row(name, dtype).replace("{r}", "%e").format(*arguments)
        return self.elements(name, [self.broadcast(v, node.output.shape) for v in node.inputs],
                             node.output.type, body)

    def broadcast(self, value: Value, shape: Sequence[int]) -> Operand:
        """`value` as it is read for a result of `shape`."""
        first = len(shape) - len(value.shape)
        return self.name(value), value.type, tuple(
            None if n == 1 and shape[first + i] != 1 else first + i
            for i, n in enumerate(value.shape))

    def cast(self, node: Node) -> str:
        (x,), to = node.inputs, node.output.dtype
        if TYPES[x.dtype] == TYPES[to]:
            return self.name(x)
        body = cast_row(x.dtype, to).replace("{r}", "%e").format("%a0")
        return self.elements("cast", [self.broadcast(x, x.shape)], node.output.type, body)

    def reshape(self, node: Node) -> str:
        return self.reshaped(self.name(node.inputs[0]), node.inputs[0].type, node.output.shape)

    def transpose(self, node: Node) -> str:
        (x,), result = node.inputs, node.output.type
        return self.line("transpose", f"linalg.transpose ins({self.name(x)} : {tensor(x.type)}) "
                         f"outs({self.empty(result)} : {tensor(result)}) permutation = "
                         f"{list(node.attributes['perm'])}")

    def expand(self, node: Node) -> str:
        return self.elements("expand", [self.broadcast(node.inputs[0], node.output.shape)],
                             node.output.type)

    def concat(self, node: Node) -> str:
        axis = node.attributes["axis"] % len(node.output.shape)
        given = ", ".join(self.name(v) for v in node.inputs)
        types = ", ".join(tensor(v.type) for v in node.inputs)
        return self.line("concat", f"tensor.concat dim({axis}) {given} : ({types}) -> "
                                   f"{tensor(node.output.type)}")

    def slice(self, node: Node) -> str:
        (x,), result = node.inputs, node.output.type
        offsets = [node.attributes["start"] if i == node.attributes["axis"] else 0
                   for i in range(len(x.shape))]
        return self.line("slice", f"tensor.extract_slice {self.name(x)}{offsets} "
                         f"{list(result.shape)} {[1] * len(x.shape)} : {tensor(x.type)} to "
                         f"{tensor(result)}")

    def resize(self, node: Node) -> str:
        """Each axis n becomes n x scale, the elements repeated along the second."""
        (x,), scales = node.inputs, [int(s) for s in node.attributes["scales"]]
        pairs = Type(tuple(n for pair in zip(x.shape, scales, strict=True) for n in pair), x.dtype)
        read = tuple(range(0, 2 * len(scales), 2))
        repeated = self.elements("resize", [(self.name(x), x.type, read)], pairs)
        return self.reshaped(repeated, pairs, node.output.shape)

    def gather(self, node: Node) -> str:
        """Rows of a table [rows, c], by whole numbers."""
        table, rows = node.inputs
        last = len(node.output.shape) - 1
        kind = TYPES[rows.dtype]
        body = (f"%row = arith.index_cast %a0 : {kind} to index\n"
                f"%column = linalg.index {last} : index\n"
                f"%e = tensor.extract {self.name(table)}[%row, %column] : {tensor(table.type)}")
        return self.elements("gather", [(self.name(rows), rows.type, tuple(range(last)))],
                             node.output.type, body)

    def mat_mul(self, node: Node) -> str:
        a, b = node.inputs
        result, rank = node.output.type, len(node.output.shape)
        batch = result.shape[:-2]
        k = rank
        left = (*self.broadcast(a, (*batch, *a.shape[-2:]))[2][:-2], rank - 2, k)
        right = (*self.broadcast(b, (*batch, *b.shape[-2:]))[2][:-2], k, rank - 1)
        operands = [(self.name(a), a.type, left), (self.name(b), b.type, right)]
        return self.generic("mat_mul", operands,
                            (self.filled(result, _zero(result)), result, tuple(range(rank))),
                            "p" * rank + "r", _product(result.dtype))

    def conv(self, node: Node) -> str:
        """[n, c, h, w] with [o, c / group, r, s], as sums over c, r and s of each group."""
        x, w = node.inputs[:2]
        groups, (stride_y, stride_x) = node.attributes["group"], node.attributes["strides"]
        dilation_y, dilation_x = node.attributes["dilations"]
        padded, shape = self.padded(x, node.attributes["pads"])
        n, _, height, width = node.output.shape
        o, c, r, s = w.shape
        x_type = Type((n, groups, c, *shape[2:]), x.dtype)
        w_type = Type((groups, o // groups, c, r, s), w.dtype)
        out = Type((n, groups, o // groups, height, width), x.dtype)
        image = self.reshaped(padded, Type(shape, x.dtype), x_type.shape)
        weight = self.reshaped(self.name(w), w.type, w_type.shape)
        if len(node.inputs) == 3:
            bias = node.inputs[2]
            parts = Type((groups, o // groups), bias.dtype)
            start = self.elements("bias", [(self.reshaped(self.name(bias), bias.type, parts.shape),
                                            parts, (1, 2))], out)
        else:
            start = self.filled(out, _zero(out))
        rows = f"d3 * {stride_y} + d6 * {dilation_y}"
        columns = f"d4 * {stride_x} + d7 * {dilation_x}"
        total = self.generic("conv", [(image, x_type, (0, 1, 5, rows, columns)),
                                      (weight, w_type, (1, 2, 5, 6, 7))],
                             (start, out, (0, 1, 2, 3, 4)), "ppppprrr", _product(x.dtype))
        return self.reshaped(total, out, node.output.shape)

    def padded(self, x: Value, pads: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """An image with zeros around it, and its shape."""
        top, left, bottom, right = pads
        n, c, height, width = x.shape
        shape = (n, c, height + top + bottom, width + left + right)
        if not any(pads):
            return self.name(x), shape
        number = self.line("zero", f"arith.constant {_zero(x.type)} : {TYPES[x.dtype]}")
        name = self.line("padded", f"tensor.pad {self.name(x)} low[0, 0, {top}, {left}] "
                                   f"high[0, 0, {bottom}, {right}] {{")
        self.lines += ["^bb0(%i: index, %j: index, %k: index, %l: index):",
                       f"  tensor.yield {number} : {TYPES[x.dtype]}",
                       f"}} : {tensor(x.type)} to {tensor(Type(shape, x.dtype))}"]
        return name, shape

    def reduce(self, node: Node) -> str:
        (x,), name = node.inputs, node.operation.name
        rank = len(x.shape)
        reduced = {axis % rank for axis in node.attributes["axes"]}
        kept = tuple(i for i in range(rank) if i not in reduced)
        out = Type(tuple(x.shape[i] for i in kept), x.dtype)
        function, start = ("add", _zero(out)) if name != "reduce_max" else ("max", _lowest(out))
        body = row(function, x.dtype).replace("{r}", "%e").format("%a0", "%o")
        total = self.generic(name, [(self.name(x), x.type, tuple(range(rank)))],
                             (self.filled(out, start), out, kept),
                             "".join("r" if i in reduced else "p" for i in range(rank)), body)
        if name == "reduce_mean":
            count = x.type.size // max(out.size, 1)
            literal = f"{count}.0" if out.dtype in FLOATS else str(count)
            body = (f"%n = arith.constant {literal} : {TYPES[x.dtype]}\n"
                    + row("div", x.dtype).replace("{r}", "%e").format("%a0", "%n"))
            total = self.elements("mean", [(total, out, tuple(range(len(kept))))], out, body)
        return self.reshaped(total, out, node.output.shape)


WRITERS: dict[str, Callable[[_Writer, Node], str]] = {
    "cast": _Writer.cast, "reshape": _Writer.reshape, "transpose": _Writer.transpose,
    "expand": _Writer.expand, "concat": _Writer.concat, "slice": _Writer.slice,
    "resize": _Writer.resize, "gather": _Writer.gather, "mat_mul": _Writer.mat_mul,
    "conv": _Writer.conv, "reduce_sum": _Writer.reduce, "reduce_mean": _Writer.reduce,
    "reduce_max": _Writer.reduce,
}
"""How each operation that is not pointwise is written."""


def _named(type: Type, name: str) -> str:
    return f"{tensor(type)} {{smalti.name = {string(name)}}}"


def _zero(type: Type) -> str:
    return "0.0" if type.dtype in FLOATS else "false" if type.dtype == "bool" else "0"


def _lowest(type: Type) -> str:
    """What no element lies below, as MLIR writes it."""
    bits = {"f64": "0xFFF0000000000000", "f32": "0xFF800000", "f16": "0xFC00", "bf16": "0xFF80"}
    if type.dtype in bits:
        return bits[type.dtype]
    return "0" if type.dtype[0] == "u" else str(-(1 << int(type.dtype[1:]) - 1))


def _product(dtype: str) -> str:
    multiply, add = ("mulf", "addf") if dtype in FLOATS else ("muli", "addi")
    kind = TYPES[dtype]
    return f"%p = arith.{multiply} %a0, %a1 : {kind}\n%e = arith.{add} %o, %p : {kind}"


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Runs of axes of `old` and of `new` that hold the same elements, as fine as possible."""
    if math.prod(old) == 0 or not old or not new:
        return [(list(range(len(old))), list(range(len(new))))] if old and new else []
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        left, right = [i] if i < len(old) else [], [j] if j < len(new) else []
        size, other = (old[i] if left else 1), (new[j] if right else 1)
        i, j = i + len(left), j + len(right)
        while size != other:
            if size < other:
                left.append(i)
                size, i = size * old[i], i + 1
            else:
                right.append(j)
                other, j = other * new[j], j + 1
        if left and right:
            groups.append((left, right))
        elif groups:  # axes of one element are left at the end
            groups[-1][0].extend(left)
            groups[-1][1].extend(right)
    return groups
