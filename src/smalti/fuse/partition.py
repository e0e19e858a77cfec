"""Partitions a graph into regions, one kernel each.

It starts from everything in one region: every pointwise operation, broadcast and view is computed
where its result is read. A region ends only where keeping things together is impossible or costs
more than a store and a load: at the result of a contraction or an attention, where statistics
need a whole image first, and where a value would be computed again too often. `Region.reason` says
which. What no kernel computes is a `HostRegion`: it runs as its numpy meaning on what is stored.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from smalti.fuse.layout import row_values
from smalti.fuse.reader import Reader, broadcast
from smalti.fuse.region import HostRegion, Partition, Region
from smalti.fuse.support import (
    ANCHORS,
    BYTES,
    CONTRACTIONS,
    INTEGERS,
    NORMALIZATIONS,
    POOLS,
    REDUCTIONS,
    STORED,
    VIEWS,
    When,
    elementwise,
    lacking,
    only_ones,
    whens,
)
from smalti.fuse.tail import grow_tails
from smalti.fuse.view import Storage, View, given, row_major, stored
from smalti.fuse.window import conv_window, matrices, matrix_window, pool_counts, pool_window
from smalti.graph import OPERATIONS, Graph, Node, Value
from smalti.kernel import build
from smalti.kernel.form import Call, Const, Index, Kernel, Load, axis

READS_MAX = 4
"""A pointwise result that more kernels than this read is stored instead of computed again."""
POINTWISE = frozenset(name for name, operation in OPERATIONS.items() if operation.pointwise)


def partition(graph: Graph, held: Collection[str] = (), functions: Collection[str] = POINTWISE,
              otherwise: Collection[Value] = ()) -> Partition:
    """The partition of `graph`; inputs named in `held` change more rarely than others.

    `functions` are the pointwise operations that kernels may compute. What has no kernel becomes
    host regions. Of the values that are `open`, those in `otherwise` are not stored where they
    would be, and stored where they would not.
    """
    return _Partitioner(graph, held, functions, otherwise).run()


class _Partitioner:
    def __init__(self, graph: Graph, held: Collection[str], functions: Collection[str],
                 otherwise: Collection[Value]) -> None:
        self.graph, self.otherwise = graph, otherwise
        self.hosted = {node: why for node in graph.nodes if (why := lacking(node, functions))}
        self.users = graph.users()
        self.result = Partition(graph.name, held=tuple(sorted(held)))
        self.views: dict[Value, View] = {}
        self.copies: dict[tuple[View, tuple[int, ...], int], View] = {}
        self.moments: dict[Node, tuple[View, ...]] = {}
        self.kept: set[Value] = set()
        self.places: dict[Value, tuple[Value, int]] = {}
        self.outputs, self.making = set(graph.outputs.values()), None
        self.when, self.row_values = whens(graph, held), row_values(graph)
        self.tails, self.absorbed = grow_tails(graph, self.users, self.when, self.hosted)

    # ------------------------------------------------------------------ deciding

    def run(self) -> Partition:
        for kind in (self.graph.inputs, self.graph.parameters):
            for name, value in kind.items():
                strides = (given if value.kind == "input" and value not in self.row_values
                           else row_major)(value.shape)
                storage = Storage(value.kind, value.type.size, value.dtype, name)
                self.views[value] = View(storage, 0, value.shape, strides)
        self.result.inputs = {n: self.views[v] for n, v in self.graph.inputs.items()}
        for node in reversed(self.graph.nodes):
            self._decide(node)
        for node in self.graph.nodes:
            if node.operation.name == "concat" and node not in self.hosted:
                self._place_operands(node)
        for node in self.graph.nodes:
            self.making = node.output
            self._emit(node)
        for name, value in self.graph.outputs.items():
            view = self.view(value)
            if view.storage.kind in ("parameter", "constant"):
                view = self._copied(view, value)
            self.result.outputs[name] = view
        self.result.regions.sort(key=lambda region: region.when)
        return self.result

    def _decide(self, node: Node) -> None:
        """Whether the node's result is stored; its readers are decided already."""
        value, name = node.output, node.operation.name
        if node in self.hosted:
            self.kept.add(value)
            return
        if value in self.absorbed or name in VIEWS:
            return
        stored = name in ("attention", "concat", "rotary_embedding")
        if value in self.tails or stored or value in self.outputs:
            self.kept.add(value)
            return
        if self._settles(value, self.when[value]):
            self.kept.add(value)
            return
        reads = self._reads(value)
        store = reads is None or reads > (1 if name == "gather" else READS_MAX)
        if reads and self._is_open(node):
            self.result.open.append(value)
            store ^= value in self.otherwise
        if store:
            self.kept.add(value)
        elif name in ("gather", "resize"):
            scales = node.attributes.get("scales", (2,) * (len(value.shape) - 1) + (1,))
            moved = {i - len(scales) for i, scale in enumerate(scales) if scale != 1}
            if not self._walkable(value, moved):
                self.kept.add(value)

    def _is_open(self, node: Node) -> bool:
        """Whether storing a result is a matter of cost: of a chain, that of the last operation."""
        last = any(not elementwise(user) or user.output in self.kept
                   or user.output in self.absorbed
                   for user in self.users[node.output])
        return last and self.when[node.output] == When.RUN and (
            node.operation.name in POINTWISE or node.operation.name in NORMALIZATIONS)

    def _settles(self, value: Value, when: When) -> bool:
        """Whether something that is computed more often than `when` reads `value`."""
        return when < When.RUN and any(
            self.when[user.output] > when
            or self.is_view(user) and self._settles(user.output, when)
            for user in self.users.get(value, []))

    def _walkable(self, value: Value, moved: set[int]) -> bool:
        """Whether those who read `value` can compute it, where its index along `moved` (axes
        counted from the last, -1) is divided or looked up: epilogues cannot, and no contraction
        along its channels."""
        for user in self.users.get(value, []):
            name = user.operation.name
            if user.output in self.absorbed or user.output in self.tails:
                grouped = user.attributes.get("group", 1) != 1
                if name not in CONTRACTIONS or grouped or (-3 if name == "conv" else -1) in moved:
                    return False
            elif user.output not in self.kept and (
                    name in VIEWS or not self._walkable(user.output, moved)):
                return False
        return True

    def _reads(self, value: Value) -> int | None:
        """How many kernels would compute `value` themselves; None when one cannot."""
        total = 0
        if value in self.outputs:
            return None
        for user in self.users.get(value, []):
            name = user.operation.name
            if user in self.hosted or value in user.inputs[1:] and name in ANCHORS:
                return None
            if name in ANCHORS and user.inputs[0] is value:
                gathered = value.node is not None and value.node.operation.name == "gather"
                if gathered or name in POOLS or user.attributes.get("group", 1) != 1:
                    return None
                total += 1
            elif name in VIEWS or name == "resize":
                if user.output in self.kept:
                    total += 1
                    continue
                if name == "reshape" and not only_ones(value.shape, user.output.shape) \
                        and not self._joins_heads(user):
                    return None
                inner = self._reads(user.output)
                if inner is None:
                    return None
                total += inner
            elif elementwise(user):
                alone = user.output in self.kept or user.output in self.absorbed \
                    or user.output in self.tails
                inner = 1 if alone else self._reads(user.output)
                if inner is None:
                    return None
                if alone and len(self.users[value]) > 1:
                    return None
                total += inner
            elif name == "rotary_embedding" and user.inputs.count(value) == 1:
                total += 1
            else:
                return None
        return total

    def _joins_heads(self, node: Node) -> bool:
        """Whether a reshape [n, t, h, d] -> [n, t, h * d] is only read by rotations of heads of d,
        which walk heads and their channels on axes of their own."""
        old, new = node.inputs[0].shape, node.output.shape
        users = self.users.get(node.output, [])
        return len(old) == 4 and new == (*old[:2], old[2] * old[3]) and node.output not in \
            self.outputs and all(user.operation.name == "rotary_embedding"
                                 and user.inputs[0] is node.output
                                 and user.attributes["num_heads"] == old[2] for user in users)

    def _place_operands(self, node: Node) -> None:
        """Let the operands of a concat be computed where the concat wants them."""
        at, dimension = 0, node.attributes["axis"] % len(node.output.shape)
        for value in node.inputs:
            made = value in self.kept
            if made and value not in self.places and node.inputs.count(value) == 1:
                self.places[value] = (node.output, at)
            at += value.shape[dimension]

    # ------------------------------------------------------------------ views

    def is_view(self, node: Node) -> bool:
        """Whether the result of `node` is other strides over its operand."""
        return node.operation.name in VIEWS and node not in self.hosted

    def bound_rows(self, numbers: View, extent: int) -> None:
        """Note that `numbers` are rows of a table of `extent` rows."""
        storage, known = numbers.storage, self.result.rows
        if storage.kind == "input":
            known[storage.name] = min(extent, known.get(storage.name, extent))

    def view(self, value: Value) -> View:
        """Where `value` is stored; a reshape that strides cannot express is copied first."""
        if value in self.views:
            return self.views[value]
        if value.kind == "constant":
            storage = Storage("constant", value.type.size, value.dtype, data=value.data)
            found = View(storage, 0, value.shape, row_major(value.shape))
        else:
            node = value.node
            base = self.view(node.inputs[0])
            name, attributes = node.operation.name, node.attributes
            if name == "transpose":
                found = base.transpose(attributes["perm"])
            elif name == "slice":
                found = base.slice(attributes["axis"], attributes["start"], attributes["end"])
            elif name == "expand":
                found = base.expand(value.shape)
            else:
                found = base.reshape(value.shape) or self._copied(base, value)
        self.views[value] = found
        return found

    def _copied(self, base: View, value: Value) -> View:
        """`value`, which lies at `base`, copied to row-major order."""
        copy = self._copy(base, value, row_major(base.shape))
        return View(copy.storage, 0, value.shape, row_major(value.shape))

    def _copy(self, base: View, value: Value, strides: tuple[int, ...], slack: int = 0) -> View:
        """A copy of `base` with other strides; `value` is what lies there. Behind the copy is room
        for `slack` elements. Who asks for the same copy again, is given the same."""
        key = (base, strides, slack)
        if key not in self.copies:
            self.copies[key] = self._copied_anew(base, value, strides, slack)
        return self.copies[key]

    def _copied_anew(self, base: View, value: Value, strides: tuple[int, ...], slack: int) -> View:
        storage = Storage("arena", math.prod(base.shape) + slack, value.dtype)
        target, when = View(storage, 0, base.shape, strides), self.when.get(value, When.BINDING)
        scope = value.node.scope if value.node is not None else ""
        if value.dtype not in (*STORED, *BYTES) or not storage.size:
            self.result.regions.append(HostRegion(
                "reshape", {"shape": base.shape}, {"x0": base, "out": target}, scope,
                f"host: strides cannot express what reads it, and no kernel copies {value.dtype}",
                0, when))
            return target
        reader = Reader(self)
        axes = [(f"i{k}", n) for k, n in enumerate(base.shape)]
        expr = reader.load(base, tuple(axis(name) for name, _ in axes))
        self._add(build.map_over(axes, expr, reader.buffers(out=target)),
                  reader.views(out=target), value.node, "strides cannot express what reads it",
                  when=when)
        return target

    def target(self, value: Value) -> View:
        """A new place for `value`: inside a concat that reads it, or of its own."""
        if value in self.places:
            whole, at = self.places[value]
            dimension = whole.node.attributes["axis"] % len(whole.shape)
            view = self.target_once(whole).slice(dimension, at, at + value.shape[dimension])
        else:
            storage = Storage("arena", value.type.size, value.dtype)
            view = View(storage, 0, value.shape, self._strides(value))
        self.views[value] = view
        return view

    def _strides(self, value: Value) -> tuple[int, ...]:
        """The strides of a new place: where rows are only read in another order, that one."""
        if value.dtype in (*STORED, *INTEGERS) and value not in self.row_values:
            return stored(value.shape)
        users = self.users.get(value, [])
        if len(users) == 1 and users[0].operation.name == "transpose" and value in self.row_values \
                and value not in self.outputs:
            perm = users[0].attributes["perm"]
            turned = row_major([value.shape[k] for k in perm])
            return tuple(turned[perm.index(k)] for k in range(len(perm)))
        return row_major(value.shape)

    def target_once(self, value: Value) -> View:
        """The place of a concat, made when its first operand is."""
        return self.views[value] if value in self.views else self.target(value)

    # ------------------------------------------------------------------ emitting

    def _add(self, kernel: Kernel, views: dict[str, View], node: Node | None, reason: str,
             flops: int = 0, when: When | None = None) -> None:
        scope = node.scope if node is not None else ""
        if when is None:
            when = When.RUN if node is None else self.when[node.output]
        self.result.regions.append(Region(kernel, views, scope, reason, flops, when, self.making))

    def _emit(self, node: Node) -> None:
        value, name = node.output, node.operation.name
        if node in self.hosted:
            self._emit_host(node)
            return
        if name in NORMALIZATIONS:
            self._emit_moments(node)
        if value not in self.kept:
            return
        if value in self.tails:
            anchor = self.tails[value]
            emit = {**dict.fromkeys(REDUCTIONS, self._emit_reduction),
                    **dict.fromkeys(POOLS, self._emit_pool)}
            emit.get(anchor.operation.name, self._emit_contraction)(anchor, value)
        elif name == "attention":
            self._emit_attention(node)
        elif name == "concat":
            self._emit_concat(node)
        elif name == "rotary_embedding":
            self._emit_rotary(node)
        else:
            reader, axes = Reader(self), [(f"i{k}", n) for k, n in enumerate(value.shape)]
            expr = reader.node(node, tuple(axis(name) for name, _ in axes))
            self._emit_map(node, axes, expr, reader, self.target(value), self._reason(value))

    def _emit_host(self, node: Node) -> None:
        views = {f"x{k}": self.view(value) for k, value in enumerate(node.inputs)}
        views["out"] = self.target(node.output)
        self.result.regions.append(HostRegion(
            node.operation.name, node.attributes, views, node.scope, f"host: {self.hosted[node]}",
            _products(node), self.when[node.output]))

    def _emit_map(self, node: Node, axes, expr, reader: Reader, target: View,
                  reason: str) -> None:
        flops = math.prod(target.shape)
        self._add(build.map_over(axes, expr, reader.buffers(out=target)),
                  reader.views(out=target), node, reason, flops)

    def _emit_rotary(self, node: Node) -> None:
        """x * cos - other * sin for the first of a pair of channels, + for the second."""
        (x, cos, sin), heads = node.inputs, node.attributes["num_heads"]
        half = x.shape[-1] // (heads or 1) // 2
        n, t, h, i, k = map(axis, "nthik")
        steps = {"i": 2, "k": 1} if node.attributes["interleaved"] else {"k": half, "i": 1}
        extents = {"i": half, "k": 2}
        pair = [(name, extents[name]) for name in steps]
        channel = Index(tuple(steps.items()))
        other = Index(tuple((a, -s if a == "k" else s) for a, s in steps.items()), steps["k"])
        if heads:
            axes = [("n", x.shape[0]), ("t", x.shape[1]), ("h", heads), *pair]
            head = (("h", 2 * half),) if heads > 1 else ()
            places = [(n, t, Index((*head, *at.terms), at.offset)) for at in (channel, other)]
        else:
            axes = [("n", x.shape[0]), ("h", x.shape[1]), ("t", x.shape[2]), *pair]
            places = [(n, h, t, at) for at in (channel, other)]
        reader = Reader(self, dict(axes))
        sign = np.array([-1, 1], np.float32)
        turn = (n if cos.shape[0] > 1 else Index(), t, i if cos.shape[2] == half else channel)
        here, there = (reader.value(x, place) for place in places)
        part = Call("mul", (reader.value(sin, turn), reader.array(sign, (k,))))
        value = Call("add", (Call("mul", (here, reader.value(cos, turn))),
                             Call("mul", (there, part))))
        shape = [extent for _, extent in axes]
        target = self.target(node.output).reshape(shape)
        self._emit_map(node, axes, value, reader, target, self._reason(node.output))

    def _emit_concat(self, node: Node) -> None:
        whole = self.target_once(node.output)
        dimension, at = node.attributes["axis"] % len(whole.shape), 0
        for value in node.inputs:
            part = whole.slice(dimension, at, at + value.shape[dimension])
            at += value.shape[dimension]
            if self.places.get(value, (None,))[0] is node.output:
                continue
            reader, axes = Reader(self), [(f"i{k}", n) for k, n in enumerate(value.shape)]
            expr = reader.value(value, tuple(axis(name) for name, _ in axes))
            self._emit_map(node, axes, expr, reader, part, "a part of a concat")

    def _emit_contraction(self, anchor: Node, last: Value) -> None:
        weight = self.view(anchor.inputs[1])
        if anchor.operation.name == "conv":
            self._emit_convolution(anchor, last, weight)
            return
        data, outer = anchor.inputs[0], anchor.output.shape[:-2]
        b, y, x, o = map(axis, "byxo")
        window, at = matrix_window(anchor), (b, y)[:len(outer)]
        read, total = Reader(self), Load("sum", (b, y, x, o))
        patch = read.value(data, broadcast(data, (*at, x, axis("c"))))
        result = read.value(last, (*at, x, o), {anchor.output: total}, anchor)
        weight = matrices(weight, outer)
        out = self.target(last)
        out = out.reshape((*out.shape[:-2], *(1,) * (2 - len(outer)), *out.shape[-2:]))
        kernel = build.contraction(window, patch, result, read.buffers(weight=weight, out=out),
                                   anchor.output.type.size // last.type.size)
        self._add(kernel, read.views(weight=weight, out=out), anchor, self._reason(last),
                  _products(anchor))

    def _emit_convolution(self, anchor: Node, last: Value, weight: View) -> None:
        """One kernel; one for each group, unless every group is a channel."""
        groups, data = anchor.attributes["group"], anchor.inputs[0]
        window = conv_window(anchor)
        depthwise = groups == data.shape[1] == anchor.output.shape[1] > 1
        source = self._pixels(data) if groups > 1 else None
        b, y, x, o = map(axis, "byxo")
        found = []
        for part in range(1 if depthwise else groups):
            read, first = Reader(self), part * window.out_channels
            at = (b, axis("c").plus(part * window.channels), y.plus(-window.pad[0]),
                  x.plus(-window.pad[1]))
            patch = read.value(data, at) if source is None else read.load(source, at)
            total = Load("sum", (b, y, x, o.plus(-first)))
            result = read.value(last, (b, o.plus(first), y, x), {anchor.output: total}, anchor)
            found.append((read, patch, result))
        target = self.target(last)
        made = last.shape[1] // len(found)
        for part, (read, patch, result) in enumerate(found):
            first, end = part * window.out_channels, (part + 1) * window.out_channels
            out = target.slice(1, part * made, (part + 1) * made)
            views = {"weight": weight.slice(0, first, end), "out": out.transpose((0, 2, 3, 1))}
            buffers = read.buffers(**views)
            kernel = (build.depthwise(window, patch, result, buffers) if depthwise else
                      build.contraction(window, patch, result, buffers,
                                        window.out_channels // made))
            self._add(kernel, read.views(**views), anchor, self._reason(last),
                      _products(anchor) // len(found))

    def _emit_pool(self, anchor: Node, last: Value) -> None:
        window, read = pool_window(anchor), Reader(self)
        b, y, x, o = map(axis, "byxo")
        at = (b, axis("c"), y.plus(-window.pad[0]), x.plus(-window.pad[1]))
        patch = read.load(self._pixels(anchor.inputs[0]), at)
        total: Load | Call = Load("sum", (b, y, x, o))
        if anchor.operation.name == "average_pool":
            total = Call("mul", (total, read.array(1 / pool_counts(anchor), (y, x))))
        result = read.value(last, (b, o, y, x), {anchor.output: total})
        out = self.target(last).transpose((0, 2, 3, 1))
        kernel = build.pooling(window, patch, POOLS[anchor.operation.name], result,
                               read.buffers(out=out))
        self._add(kernel, read.views(out=out), anchor, self._reason(last), _products(anchor))

    def _pixels(self, value: Value) -> View:
        """Where the image `value` is stored, the channels of a pixel side by side."""
        view = self.view(value)
        if view.strides[1] == 1 or view.shape[1] == 1:
            return view
        return self._copy(view, value, stored(view.shape))

    def _emit_reduction(self, anchor: Node, last: Value) -> None:
        data, shape = anchor.inputs[0], anchor.output.shape
        reduced = {k % len(data.shape) for k in anchor.attributes["axes"]}
        axes = tuple((f"i{k}", n) for k, n in enumerate(shape))
        kept = tuple(axis(name) for name, _ in axes)
        left = iter(kept) if not anchor.attributes["keepdims"] else None
        over, at = [], []
        for k, extent in enumerate(data.shape):
            if k in reduced:
                over.append((f"r{k}", extent))
            at.append(axis(f"r{k}") if k in reduced else next(left) if left else kept[k])
        total: Load | Call = Load("total", kept)
        if anchor.operation.name == "reduce_mean":
            total = Call("mul", (total, Const(1 / math.prod(n for _, n in over))))
        read = Reader(self)
        value = read.value(data, tuple(at))
        result = read.value(last, kept, {anchor.output: total})
        out = self.target(last)
        kernel = build.reduction(axes, over, REDUCTIONS[anchor.operation.name], value, result,
                                 read.buffers(out=out))
        self._add(kernel, read.views(out=out), anchor, self._reason(last), data.type.size)

    def _emit_attention(self, node: Node) -> None:
        heads = node.attributes["num_heads"]
        views = {}
        for name, value in zip("qkv", node.inputs):
            n, t, width = value.shape
            shape = (n, t, heads, width // heads)
            split = self._before_reshape(value, shape) or self.view(value).reshape(shape)
            if split is None or split.strides[-1] != 1 and width != heads:
                split = self._copied(self.view(value), value).reshape(shape)
            views[name] = split
        if len(node.inputs) == 4:
            views["mask"] = self._mask(node.inputs[3], (n, heads, node.inputs[0].shape[1], t))
        out = self.target(node.output)
        n, t, width = out.shape
        views["out"] = out.reshape((n, t, heads, width // heads))
        scale = node.attributes["scale"]
        if scale is None:
            scale = 1 / math.sqrt(views["q"].shape[3])
        buffers = {name: Reader.buffer(name, view) for name, view in views.items()}
        kernel = build.attention(**buffers, scale=scale, causal=bool(node.attributes["is_causal"]))
        flops = node.operation.flops([v.type for v in node.inputs], node.output.type,
                                     node.attributes)
        self._add(kernel, views, node, "attention keeps its scores on chip", flops)

    def _before_reshape(self, value: Value, shape: tuple[int, ...]) -> View | None:
        """Where the operand of a reshape from `shape` is stored."""
        node = value.node
        if node is None or node.operation.name != "reshape" or node.inputs[0].shape != shape:
            return None
        return self.view(node.inputs[0])

    def _mask(self, value: Value, scores: tuple[int, int, int, int]) -> View:
        """A mask as [n, heads, keys, queries], queries side by side, broadcast by strides of 0."""
        n, heads, queries, keys = scores
        view = self.view(value).transpose((0, 1, 3, 2))
        if view.shape[3] > 1:
            view = self._copy(view, value, row_major(view.shape), build.MASK_SLACK)
        return view.expand((n, heads, keys, queries))

    def _emit_moments(self, node: Node) -> None:
        """The statistics of a normalisation, as scale and shift."""
        moments = {"group_normalization": self._group_moments,
                   "layer_normalization": self._layer_moments,
                   "rms_normalization": self._rms_moments}
        views, kernel = moments[node.operation.name](node)
        self._add(kernel, views, node, "statistics need all of it before any is normalised",
                  4 * node.output.type.size)

    def _group_moments(self, node: Node) -> tuple[dict[str, View], Kernel]:
        x = self.view(node.inputs[0])
        batch, channels = x.shape[:2]
        pixels = math.prod(x.shape[2:])
        flat = x.reshape((batch, channels, pixels))
        if flat is None or flat.strides[1] != 1 and channels > 1:
            n, *inner, c = row_major((batch, *x.shape[2:], channels))
            flat = self._copy(x, node.inputs[0], (n, c, *inner)).reshape((batch, channels, pixels))
        made = [View(Storage("arena", batch * channels), 0, (batch, channels), (channels, 1))
                for _ in range(2)]
        views = {"x": flat, "gamma": self._dense(node.inputs[1]),
                 "beta": self._dense(node.inputs[2]), "scale": made[0], "shift": made[1]}
        buffers = [Reader.buffer(name, view) for name, view in views.items()]
        kernel = build.group_scale_shift(buffers[0], node.attributes["num_groups"],
                                         node.attributes["epsilon"], buffers[1:])
        self.moments[node] = (made[0], made[1])
        return views, kernel

    def _layer_moments(self, node: Node) -> tuple[dict[str, View], Kernel]:
        x = self.view(node.inputs[0])
        outer = x.shape[:node.attributes["axis"] % len(x.shape)]
        rows = math.prod(outer)
        channels = math.prod(x.shape) // rows
        flat = x.reshape((rows, channels))
        if flat is None or flat.strides[1] != 1 and channels > 1:
            flat = self._copied(x, node.inputs[0]).reshape((rows, channels))
        made = [View(Storage("arena", rows), 0, (rows,), (1,)) for _ in range(2)]
        views = {"x": flat, "scale": made[0], "shift": made[1]}
        buffers = [Reader.buffer(name, view) for name, view in views.items()]
        kernel = build.layer_scale_shift(buffers[0], node.attributes["epsilon"], buffers[1:])
        self.moments[node] = (made[0].reshape(outer), made[1].reshape(outer))
        return views, kernel

    def _rms_moments(self, node: Node) -> tuple[dict[str, View], Kernel]:
        x = self.view(node.inputs[0])
        outer = x.shape[:node.attributes["axis"] % len(x.shape)]
        rows = (math.prod(outer[:-2]), math.prod(outer[-2:-1]), math.prod(outer[-1:]))
        shape = (*rows, math.prod(x.shape) // math.prod(rows))
        split = x.reshape(shape)
        if split is None or split.strides[3] != 1 and shape[3] > 1:
            split = self._copied(x, node.inputs[0]).reshape(shape)
        scale = View(Storage("arena", math.prod(rows)), 0, rows, row_major(rows))
        views = {"x": split, "scale": scale}
        buffers = [Reader.buffer(name, view) for name, view in views.items()]
        kernel = build.rms_scale(buffers[0], node.attributes["epsilon"], buffers[1:])
        self.moments[node] = (scale.reshape(outer),)
        return views, kernel

    def _dense(self, vector: Value) -> View:
        """Where a vector is stored, its elements side by side."""
        view = self.view(vector)
        if view.strides[0] == 1 or view.shape[0] == 1:
            return view
        return self._copy(view, vector, (1,))

    def _reason(self, value: Value) -> str:
        """Why the kernel that makes `value` ends there."""
        users = self.users.get(value, [])
        if value in self.outputs:
            return "an output of the program"
        if len(users) > 1:
            return f"{len(users)} operations read it"
        name = users[0].operation.name if users else "nothing"
        if name in VIEWS and users[0].output in self.users:
            name = f"{self.users[users[0].output][0].operation.name} (through a {name})"
        return f"{name} reads it in an order of its own"


def _products(node: Node) -> int:
    return node.operation.flops([v.type for v in node.inputs], node.output.type, node.attributes)


__all__ = ["HostRegion", "Index", "Partition", "Region", "partition"]
