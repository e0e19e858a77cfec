"""Linear-scan register allocation (Poletto & Sarkar 1999, doi:10.1145/330249.330250).

Every virtual register lives from its first to its last line; a register that a loop reads but does
not define lives to the end of that loop. When registers run out, the one that is used least for
the time it lives goes to the stack frame, and a few registers are set aside to carry it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from smalti.errors import VerificationError
from smalti.target.x86.instructions import GENERAL, GENERAL_REGISTERS, VECTOR, Level

if TYPE_CHECKING:
    from smalti.target.x86.assembler import Label, Line, Register

CARRIERS = {"g": 3, "v": 4, "k": 0}


def allocate(lines: Sequence[Line], loops: Sequence[tuple[Label, Label]], level: Level,
             fixed: Mapping[Register, str]) -> tuple[list[Line], int]:
    """The lines with every virtual register replaced by a physical one, and the bytes of frame."""
    spans, weights = lifetimes(lines, loops, fixed)
    counts = {"g": len(GENERAL_REGISTERS), "v": level.vectors, "k": 8}
    places: dict[Register, int] = {}
    frame: dict[Register, int] = {}
    frame_bytes = 0
    for kind, count in counts.items():
        mine = {r: span for r, span in spans.items() if r.kind == kind}
        first = 1 if kind == "k" else 0
        taken = {r: GENERAL_REGISTERS.index(fixed[r]) for r in mine if r in fixed}
        placed, spilled = scan(mine, weights, range(first, count), taken)
        if spilled:
            if kind == "k":
                raise VerificationError("more mask registers are needed than there are")
            placed, spilled = scan(mine, weights, range(count - CARRIERS[kind]), taken)
        places.update(placed)
        size = level.bytes if kind == "v" else 8
        for register in spilled:
            frame_bytes += -frame_bytes % size
            frame[register] = frame_bytes
            frame_bytes += size
    return rewrite(lines, places, frame, level), frame_bytes


def uses(line: Line) -> tuple[list[Register], list[Register]]:
    """Registers that a line reads, and those it writes."""
    from smalti.target.x86.assembler import Memory, Register

    reads: list[Register] = []
    writes: list[Register] = []
    if line.row is None:
        return reads, writes
    for operand, use in zip(line.operands, line.row.use):
        if isinstance(operand, Memory):
            reads.extend(operand.registers)
        elif isinstance(operand, Register):
            if use in "rm":
                reads.append(operand)
            if use in "wm":
                writes.append(operand)
    if line.mask is not None:
        reads.append(line.mask)
        if not line.zeroing and writes:
            reads.extend(writes)
    return reads, writes


def lifetimes(lines: Sequence[Line], loops: Sequence[tuple[Label, Label]],
              fixed: Mapping[Register, str]) -> tuple[dict, dict]:
    """First and last line of each register, and how often it is used, loops counted ten times."""
    at = {line.target: i for i, line in enumerate(lines) if line.name == "label"}
    regions = sorted(((at[s], at[e]) for s, e in loops), key=lambda r: r[1] - r[0])
    depth = [0] * (len(lines) + 1)
    for start, end in regions:
        depth[start] += 1
        depth[end] -= 1
    spans: dict[Register, list[int]] = {register: [0, 0] for register in fixed}
    weights: dict[Register, float] = defaultdict(float)
    level = 0
    for i, line in enumerate(lines):
        level += depth[i]
        reads, writes = uses(line)
        for register in (*reads, *writes):
            span = spans.setdefault(register, [i, i])
            span[1] = i
            weights[register] += 8.0 ** min(level, 6)
    for start, end in regions:
        for span in spans.values():
            if span[0] < start <= span[1] <= end:
                span[1] = end
    return spans, weights


def scan(spans: Mapping[Register, list[int]], weights: Mapping[Register, float],
         registers: Sequence[int],
         taken: Mapping[Register, int]) -> tuple[dict[Register, int], list[Register]]:
    """Places for the registers in order of their start; what found none is listed as spilled."""
    free = [r for r in reversed(registers) if r not in taken.values()]
    active: list[Register] = []
    placed: dict[Register, int] = {}
    spilled: list[Register] = []
    for register in sorted(spans, key=lambda r: (spans[r][0], r.number)):
        start = spans[register][0]
        for other in [o for o in active if spans[o][1] <= start]:
            active.remove(other)
            free.append(placed[other])
        if register in taken and taken[register] in registers:
            placed[register] = taken[register]
        elif free:
            placed[register] = free.pop()
        else:
            victim = min([*active, register], key=lambda r: (
                r in taken, weights[r] / (1 + spans[r][1] - spans[r][0])))
            spilled.append(victim)
            if victim is register:
                continue
            placed[register] = placed.pop(victim)
            active.remove(victim)
        active.append(register)
    return placed, spilled


def rewrite(lines: Sequence[Line], places: Mapping[Register, int],
            frame: Mapping[Register, int], level: Level) -> list[Line]:
    """The lines on physical registers, with loads and stores around uses of spilled ones."""
    from smalti.target.x86.assembler import Line, Memory, Register

    stack = Register("g", -1)
    counts = {"g": len(GENERAL_REGISTERS), "v": level.vectors}
    moves = {"g": (GENERAL["mov"], GENERAL["mov_store"]),
             "v": (VECTOR["load"], VECTOR["store"])}
    out: list[Line] = []
    for line in lines:
        if line.row is None:
            out.append(line)
            continue
        reads, writes = uses(line)
        carrier = {"g": counts["g"], "v": counts["v"]}
        carried: dict[Register, int] = {}
        for register in (*reads, *writes):
            if register in frame and register not in carried:
                carrier[register.kind] -= 1
                carried[register] = carrier[register.kind]
        for kind, used in carrier.items():
            if counts[kind] - used > CARRIERS[kind]:
                raise VerificationError(f"{line.name} uses too many spilled registers")

        def physical(operand):
            if isinstance(operand, Register):
                return Register(operand.kind, carried.get(operand, places.get(operand, -2)))
            if isinstance(operand, Memory):
                return replace(operand, base=operand.base and physical(operand.base),
                               index=operand.index and physical(operand.index))
            return operand

        for register in dict.fromkeys(r for r in reads if r in frame):
            slot = Memory(stack, frame[register])
            out.append(Line("reload", moves[register.kind][0], (physical(register), slot)))
        out.append(Line(line.name, line.row, tuple(physical(o) for o in line.operands),
                        line.mask and physical(line.mask), line.zeroing, line.target))
        for register in dict.fromkeys(r for r in writes if r in frame):
            slot = Memory(stack, frame[register])
            out.append(Line("spill", moves[register.kind][1], (slot, physical(register))))
    return out
