"""Counts the work of attention on a CPU: tiles of queries, over blocks of keys."""

from __future__ import annotations

from smalti.kernel.form import Kernel
from smalti.machine.cpu import micro
from smalti.machine.cpu.contraction import SCRATCH
from smalti.machine.cpu.core import Core
from smalti.machine.cpu.nests import flows
from smalti.machine.cpu.work import Cost, Flow, Work, nest, scaled, summed
from smalti.schedule.schedule import AttentionSchedule

WEIGHED = Cost(1, 5)
"""Loads and instructions for a vector of scores, besides its exponential."""
EXPONENTIAL, EXPONENTIAL_PAIRS = 4.0, 3.0
"""Clocks of 2 ** x for a vector: by a polynomial of five terms; for bf16 of three."""
TURNED = 6.0
"""Vector operations to transpose a vector of queries or of results."""


def attention(kernel: Kernel, schedule: AttentionSchedule, core: Core) -> list[Work]:
    """The work of attention, which is one step."""
    s = schedule
    batch, tokens, heads, depth = kernel.buffer("q").shape
    keys, width = kernel.buffer("k").shape[1], kernel.buffer("v").shape[3]
    queries = s.vectors * core.lanes
    groups = -(-tokens // queries)
    blocks = -(-groups // s.groups)
    tiles, each = batch * heads * blocks, groups / blocks
    pairs = s.dtype == "bf16"
    factors = "pairs" if pairs else "f32"
    seen = 0.5 * (keys + s.keys) if kernel.option("causal") else float(keys)
    turns = seen / s.keys
    score = summed(micro.clocks(core, s.keys, s.rows, s.vectors, depth, factors),
                   {"vectors": s.keys * s.vectors / core.ports})
    weigh = scaled(nest(core, WEIGHED, 1, s.keys * queries),  1.0)
    weigh["functions"] = s.keys * s.vectors * (EXPONENTIAL_PAIRS if pairs else EXPONENTIAL) \
        * 2 / core.ports
    masked = len([b for b in kernel.buffers if b.name == "mask"]) or kernel.option("causal")
    if masked:
        weigh = summed(weigh, {"vectors": 3.0 * s.keys * s.vectors})
    collect = micro.clocks(core, width, s.rows, s.vectors, s.keys, factors, "loaded")
    staged = nest(core, Cost(1, 2 if pairs else 0), 2 * s.keys, (depth + width) / 2)
    one = summed(scaled(summed(score, weigh, collect, {"rows": 3}), each), staged)
    ends = {"vectors": TURNED * each * s.vectors * (depth + width), "rows": 2 * each * queries,
            "functions": each * s.vectors * 4.0}
    clocks = summed(scaled(one, turns), ends, {"tiles": 1})
    size = 2 if pairs else 4
    near = each * turns * 4.0 * queries * (depth * size / 4 + 2 * width)
    moved = [Flow(SCRATCH, 0.0, near * tiles, s.groups * queries * 4.0 * (depth + width))]
    for flow in flows(kernel):
        again = flow.once * (blocks - 1) if flow.buffer in ("k", "v") else 0.0
        held = flow.once / (batch * heads) * 2
        moved.append(Flow(flow.buffer, flow.once, again, held, flow.written))
    return [Work(tiles, clocks, tuple(moved))]

