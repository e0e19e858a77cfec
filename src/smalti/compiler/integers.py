"""Which products of integers kernels compute in integers: on CPUs all that they can; on GPUs those
for which that is expected to take no longer than products of floats with the same results.

A GPU may have instructions for dot products of bytes, a matrix unit for halves, both, or neither:
`schedule/group_work.py` tells how long each takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from smalti.codegen.target import Limits, Target
from smalti.errors import IllegalSchedule
from smalti.fuse import HostRegion, narrowed, partition
from smalti.fuse.support import INTEGER_PRODUCTS, When, depthwise, lacking
from smalti.graph import Graph, Node, Value
from smalti.rewrite.integers import at_once, in_f32, is_steady
from smalti.rewrite.liveness import remove_dead_nodes

Way = Callable[..., Value | None]


class IntegerChoice:
    """Tells whether kernels of a target compute a node as it is, on a device of these limits, where
    values are stored in a precision. Products are weighed where the target knows what kernels cost.
    """

    def __init__(self, target: Target, limits: Limits, precision: str) -> None:
        self.target, self.limits, self.precision = target, limits, precision
        self._expected = cache(self._clocks)
        self._standing: set[tuple] = set()

    def computes(self, node: Node) -> bool:
        """Whether a kernel computes `node`, and floats would not with exact sums in less time."""
        return self._computes(node, in_f32)

    def stands(self, node: Node) -> bool:
        """The same for a product of integers that can stand for one of real numbers, which floats
        take at once."""
        return self._computes(node, at_once)

    def _computes(self, node: Node, way: Way) -> bool:
        if lacking(node, self.target.functions):
            return False
        name = node.operation.name
        weighed = name in INTEGER_PRODUCTS and not (name == "conv_integer" and depthwise(node))
        if self.target.cost is None or not weighed:
            return True
        product = (name, tuple(node.attributes.items()), is_steady(node.inputs[1]),
                   tuple(zero.data.item() for zero in node.inputs[2:]),
                   *((x.shape, x.dtype) for x in node.inputs[:2]))
        if product not in self._standing and (
                self._expected(None, *product) > self._expected(way, *product)):
            return False
        if way is at_once:  # exact sums are no less work, and not weighed again
            self._standing.add(product)
        return True

    def _clocks(self, way: Way | None, name: str, attributes: tuple, steady: bool, points: tuple,
                left: tuple, right: tuple) -> float:
        """The expected time in each run of a product of integers that is all of a model, with a
        result of f32; as it is, or by a `way` of floats. Infinite where no kernels compute it."""
        g = Graph("product")
        factors = g.input("a", *left), (g.parameter if steady else g.input)("b", *right)
        zeros = (g.constant(n, x.dtype) for n, x in zip(points, factors, strict=True))
        found: Value | None = g.apply(name, *factors, *zeros, **dict(attributes))
        if way is not None:
            found = way(g, found.node, *found.node.inputs)
        if found is None:
            return math.inf
        g.output("y", found if found.dtype == "f32" else g.apply("cast", found, to="f32"))
        regions = partition(remove_dead_nodes(g), (), self.target.functions)
        if self.precision != "f32":
            regions = narrowed(regions, dtype=self.precision)
        target, device = self.target, self.limits
        try:
            return sum(math.inf if isinstance(each, HostRegion) else target.cost(
                each.kernel, device, target.likely(each.kernel, device, self.precision))
                for each in regions.regions if each.when is When.RUN)
        except IllegalSchedule:  # the device has no room for it
            return math.inf
