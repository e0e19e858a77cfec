"""Counts the work of contractions on a CPU: direct (staged, in place, planar) and by Winograd.

A tile goes through its patch chunk by chunk. Weights are read again by each tile of pixels, the
input by each block of panels. All tiles of pixels run before the next block of panels begins, so
the weights of a block are found in cache again if they fit beside the patch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from smalti.dataclass import dataclass
from smalti.kernel.form import ELEMENT_BYTES, STORED_BYTES, Kernel, paired_weights
from smalti.kernel.traffic import touched
from smalti.machine.cpu import micro
from smalti.machine.cpu.core import Core
from smalti.machine.cpu.work import (
    Cost,
    Flow,
    Work,
    cost,
    nest,
    others,
    rounding,
    scaled,
    summed,
)
from smalti.schedule.merge import (
    Extents,
    contraction_extents,
    lies_as,
    weights_batched,
    weights_bound,
)
from smalti.schedule.schedule import RUN, TILE, ContractionSchedule, InPlace, Planar
from smalti.schedule.winograd import points

PACKED_VECTORS = 4.0
"""Vectors moved for each packed vector of weights that are computed: packing transposes them."""
WORKSPACE = "workspace"
"""The name of the buffer in which a step of a kernel leaves values for the next step."""
SCRATCH = "scratch"
"""The name of the buffer for a thread's own scratch memory."""


@dataclass(frozen=True)
class Facts:
    """What is known of a contraction before its schedule.

    These are its extents `e`; the costs of `prologue` and `epilogue` for a vector; instructions to
    round a vector of results, `rounded`; the bytes of each buffer; and what prologue (`before`) and
    epilogue (`behind`) read.
    """

    e: Extents
    prologue: Cost
    epilogue: Cost
    rounded: float
    bytes: Mapping[str, float]
    before: tuple[Flow, ...]
    behind: tuple[Flow, ...]


@lru_cache(maxsize=4096)
def facts(kernel: Kernel, core: Core) -> Facts:
    """The facts of a contraction."""
    patch, _, result = kernel.stages
    counts = touched(kernel)
    sizes = {name: ELEMENT_BYTES[kernel.buffer(name).dtype] for name in counts}
    return Facts(contraction_extents(kernel), cost(kernel, patch.value, "c", core.lanes),
                 cost(kernel, result.value, "o", core.lanes, "sum"), rounding(kernel, core),
                 {name: float(counts[name] * sizes[name]) for name in counts},
                 others(kernel, patch.value, counts, sizes),
                 others(kernel, result.value, counts, sizes, "sum"))


def contraction(kernel: Kernel, schedule: ContractionSchedule, core: Core) -> list[Work]:
    """The work of each step of a contraction."""
    shape = _Shape(kernel, schedule, core)
    if schedule.winograd:
        return shape.winograd()
    return [*shape.packing(), shape.direct()]


class _Shape:
    """Counts the work of a contraction by a schedule on a core."""

    def __init__(self, kernel: Kernel, schedule: ContractionSchedule, core: Core) -> None:
        self.kernel, self.s, self.core = kernel, schedule, core
        self.w = schedule.winograd
        self.facts = facts(kernel, core)
        self.e = e = self.facts.e
        s = schedule
        self.width = s.vectors * core.lanes
        self.panels = -(-e.o // self.width)
        self.groups = -(-self.panels // s.panels)
        self.mine = min(s.panels, self.panels)
        self.pixel_tiles = e.b / s.tile_b * e.y / s.tile_y * e.x / s.tile_x
        whole = -(-e.y // s.tile_y) * -(-e.x // s.tile_x) * (e.b // s.tile_b)
        self.tiles = max(1, whole)
        self.share = self.pixel_tiles / self.tiles
        """The share of a tile that lies inside of the result, on average."""
        self.chunks = -(-e.c // s.chunk)

    # ------------------------------------------------------------------ flows

    def weights(self, bytes_each: float, held: float) -> Flow:
        """The flow of weights, `bytes_each` for each panel, which every tile of pixels reads."""
        total = bytes_each * self.panels * self.e.parts
        if weights_batched(self.kernel):
            return Flow("weight", total * self.e.b * self.e.y,
                        total * (self.tiles - self.e.b * self.e.y), held)
        return Flow("weight", total, total * (self.tiles - 1), held)

    def inputs(self, again: float, held: float) -> tuple[Flow, ...]:
        """The flows of what the prologue reads, `again` times more than once."""
        return tuple(Flow(f.buffer, f.once, again * f.once, held) for f in self.facts.before)

    def results(self) -> tuple[Flow, ...]:
        """The flows of what the epilogue reads, and of the result."""
        return (*self.facts.behind, Flow("out", self.facts.bytes["out"], written=True))

    # ------------------------------------------------------------------ direct

    def packing(self) -> list[Work]:
        """The step that packs weights, if these are computed; else none."""
        if weights_bound(self.kernel):
            return []
        each = self.e.b * self.e.y if weights_batched(self.kernel) else 1
        size = 4 * each * self.panels * self.e.parts * self.e.r * self.e.s * self.e.c * self.width
        vectors = size / 4 / self.core.lanes / max(1, self.panels * each)
        return [Work(self.panels * each, {"vectors": PACKED_VECTORS * vectors, "tiles": 1},
                     (Flow("weight", self.facts.bytes["weight"]),
                      Flow(WORKSPACE, size, written=True)))]

    def direct(self) -> Work:
        """The step of all tiles of the direct algorithm."""
        e, s, core = self.e, self.s, self.core
        lines = s.tile_b * s.tile_y
        planar, in_registers = isinstance(s.algorithm, Planar), s.in_registers
        depth = e.r * e.s * (e.c if planar else s.chunk)
        sums = "kept" if in_registers else "loaded" if self.chunks > 1 else "zero"
        factors = s.factors
        if core.by_lane and core.pairs and s.blocks:
            factors = "blocks of quads" if s.integers else "blocks"
        if factors == "quads" and paired_weights(self.kernel):  # only where there is no VNNI
            factors = "quads of pairs"
        block = micro.clocks(core, s.tile_x, s.rows, s.vectors, depth, factors, sums)
        turns = lines * self.mine * e.parts * (1 if planar else self.chunks)
        multiplied = scaled(block, turns)
        wide = (s.tile_x - 1) * e.stride_x + (e.s - 1) * e.dilation_x + 1
        high = (s.tile_y - 1) * e.stride_y + (e.r - 1) * e.dilation_y + 1
        staged = self._staging(wide, high)
        pixels = lines * s.tile_x
        made = self.mine * self.width / max(1, self.panels * self.width) * e.o
        if in_registers:
            written = nest(core, self.facts.epilogue, pixels / s.rows,
                           made * s.rows, self.facts.rounded)
        else:
            written = nest(core, self.facts.epilogue, pixels * self.mine, made / self.mine,
                           self.facts.rounded)
        size = ELEMENT_BYTES[s.weights]
        panel = e.r * e.s * s.chunk * self.chunks * self.width * size
        block_bytes = self.mine * panel * e.parts
        patch = ELEMENT_BYTES[s.dtype] * s.tile_b * wide * high * s.chunk
        held = block_bytes + (0 if isinstance(s.algorithm, InPlace) else patch)
        reread = e.r * e.s > 1 and high > e.stride_y * s.tile_y
        halo = high * wide / (s.tile_y * e.stride_y * s.tile_x * e.stride_x) - 1 if reread else 0.0
        source = sum(f.once for f in self.facts.before)
        near = self._near(panel / self.chunks, lines * -(-s.tile_x // s.rows))
        kept = 0.0 if in_registers else 4.0 * pixels * self.width * self.mine * e.parts
        rows = 0.0 if patch < core.l1_bytes / 2 else patch * (self.mine * e.parts - 1)
        turns = self.tiles * self.groups * self.chunks
        flows = (self.weights(panel, held), *self.inputs(self.groups - 1, source + block_bytes),
                 *self.results(),
                 Flow(SCRATCH, 0.0, near * self.tiles * self.groups + halo * source),
                 Flow(SCRATCH, 0.0, rows * turns, patch + kept / self.mine),
                 Flow(SCRATCH, 0.0, 2 * kept * turns, kept + patch))
        inside = scaled(summed(multiplied, staged, written), self.share)
        return Work(self.tiles * self.groups, summed(inside, {"tiles": 1}), flows)

    def _staging(self, wide: int, high: int) -> dict[str, float]:
        e, s, core = self.e, self.s, self.core
        if isinstance(s.algorithm, InPlace):
            return {}
        if isinstance(s.algorithm, Planar):
            return nest(core, self.facts.prologue, e.c * high, wide)
        rows, channels = s.tile_b * high * wide, min(s.chunk, e.c)
        signed = s.integers and core.by_lane and not core.pairs  # `sdot`: bytes become less by 128
        if s.dtype != "f32" and lies_as(self.kernel, s.dtype) and not signed:
            words = -(-channels * STORED_BYTES[s.dtype] // STORED_BYTES["f32"])
            return scaled(nest(core, Cost(loads=1), rows, words), self.chunks)
        rounded = 0.0 if s.dtype == "f32" else 2.0
        return scaled(nest(core, self.facts.prologue, rows, channels, rounded), self.chunks)

    def _near(self, chunk_bytes: float, turns: int) -> float:
        """Bytes of weights that a tile reads again from the second-level cache, because those of a
        chunk and a panel do not stay in the first-level one."""
        if turns <= 1 or chunk_bytes < self.core.l1_bytes / 2:
            return 0.0
        return (turns - 1) * chunk_bytes * self.mine * self.chunks * self.e.parts

    # ------------------------------------------------------------------ winograd

    def winograd(self) -> list[Work]:
        """The steps of Winograd's algorithm."""
        e, s, w = self.e, self.s, self.w
        size = w.size
        self.blocks = s.tile_b * (s.tile_y // size) * (s.tile_x // size)
        self.count = points(size, w.folded)
        deep = -(-e.c // self.core.lanes)
        bytes_v = 4.0 * self.count * self.blocks * e.c * self.tiles
        first = self._transformed_inputs(deep)
        products, flows = self._winograd_products()
        steps = []
        if w.transformed == RUN:
            steps.append(self._transformed_weights())
        if w.shared:
            parts = self.chunks * s.tile_b
            steps.append(Work(self.tiles * parts, summed(scaled(first, 1 / parts), {"tiles": 1}),
                              (*self.inputs(0, 0), Flow(WORKSPACE, bytes_v, written=True))))
            again = Flow(WORKSPACE, bytes_v, bytes_v * (self.groups * self.mine / w.group - 1),
                         bytes_v / self.tiles)
            flows = (again, *flows)
        else:
            products = summed(first, products)
            flows = (*self.inputs(self.groups - 1, sum(f.once for f in self.facts.before)), *flows)
        steps.append(Work(self.tiles * self.groups, summed(products, {"tiles": 1}), flows))
        return steps

    def _extent(self, tile: int) -> int:
        """Input pixels that a tile reads along an axis."""
        size, folded = self.w.size, self.w.folded
        step, window = (size // 2, size // 2 + 2) if folded else (size, size + 2)
        return (tile // size - 1) * step + window

    def _transform(self, inner: int, outer: int, loaded: float, stored: float) -> float:
        """Clocks of a transform of inner × inner vectors to outer × outer ones."""
        adds = 2.0 * min(inner, outer) * (inner + outer)
        return max(loaded / self.core.ports, stored / self.core.stores, adds / self.core.ports)

    def _transformed_inputs(self, deep: int) -> dict[str, float]:
        e, s, w, core = self.e, self.s, self.w, self.core
        rows = s.tile_b * self._extent(s.tile_y) * self._extent(s.tile_x)
        staged = scaled(nest(core, self.facts.prologue, rows, min(s.chunk, e.c)), self.chunks)
        edge, side = math.isqrt(self.count), (w.size // 2 + 2 if w.folded else w.size + 2)
        each = self._transform(side, edge, side * side, self.count)
        return summed(staged, {"transforms": self.blocks * deep * each})

    def _weights_clocks(self) -> float:
        """Clocks to transform the weights of one vector of channels and one input channel."""
        edge = math.isqrt(self.count)
        return self._transform(3, edge, 9, self.count)

    def _transformed_weights(self) -> Work:
        """The step that transforms all weights, once in each run."""
        e, s = self.e, self.s
        vectors = e.c * s.vectors / self.chunks
        size = ELEMENT_BYTES[s.weights]
        whole = e.c * self.panels * self.width
        return Work(self.panels * self.chunks,
                    {"transforms": vectors * self._weights_clocks(), "tiles": 1},
                    (Flow("weight", 9.0 * size * whole),
                     Flow(WORKSPACE, 4.0 * self.count * whole, written=True)))

    def _winograd_products(self) -> tuple[dict[str, float], tuple[Flow, ...]]:
        """The clocks of the products and results of a tile, and the flows of the step."""
        e, s, w, core = self.e, self.s, self.w, self.core
        streamed = w.transformed == TILE
        slices = self.chunks if streamed else 1
        sums = "loaded" if slices > 1 else "zero"
        block = micro.clocks(core, self.blocks, s.rows, s.vectors, e.c / slices, "f32", sums)
        multiplied = scaled(block, self.count * self.mine * slices)
        weights = {}
        if streamed:
            weights = {"transforms": self.mine * e.c * s.vectors * self._weights_clocks()}
        edge = math.isqrt(self.count)
        back = self._transform(edge, w.size, self.count, w.size ** 2)
        results = {"transforms": self.blocks * s.vectors * self.mine * back}
        pixels = self.blocks * w.size ** 2 * self.share
        written = nest(core, self.facts.epilogue, pixels * self.mine, e.o / self.panels,
                       self.facts.rounded)
        panel = (9.0 * ELEMENT_BYTES[s.weights] if streamed else 4.0 * self.count) \
            * e.c * self.width
        v, m = (4.0 * self.count * self.blocks * n for n in (e.c, self.width))
        source = self.weights(panel, self.mine * panel + v)
        if w.transformed == RUN:
            source = replace(source, buffer=WORKSPACE)
        turns = self.tiles * self.groups * self.mine
        u = 4.0 * self.count * e.c * self.width if streamed else 0.0
        again = (Flow(SCRATCH, 0.0, turns * (2 * slices * m + 2 * u),
                      (m + u / slices) * w.group + v / slices * streamed),
                 Flow(SCRATCH, 0.0, 0.0 if w.shared else v * turns / w.group, v + m))
        return (summed(multiplied, weights, results, written),
                (source, *again, *self.results()))


__all__ = ["SCRATCH", "WORKSPACE", "contraction"]
