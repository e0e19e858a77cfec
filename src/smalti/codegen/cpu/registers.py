"""Linear-scan register allocation (Poletto & Sarkar 1999, doi:10.1145/330249.330250).

Every virtual register lives from its first to its last line; a register that a loop reads but does
not define lives to the end of that loop. When registers run out, the one that is used least for
the time it lives goes to the stack frame, and a few registers are set aside to carry it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smalti.codegen.cpu.operands import Address, CodeLine, Label, Register
from smalti.dataclass import dataclass
from smalti.errors import VerificationError

LOOP_TURNS, LOOPS_MAX = 8.0, 6
"""How often a loop is taken to repeat its body, and how many loops around each other count: guesses
that keep out of memory what innermost loops use."""
CARRIERS = {"g": 3, "v": 4, "k": 0}
"""Registers of each kind that are set aside, where any is spilled, to carry spilled ones into and
out of an instruction: as many as one instruction has operands."""
USES = {"r": 1, "w": 1, "m": 2}
"""Times that an operand is used by an instruction that reads it, writes it, or does both."""


@dataclass(frozen=True)
class RegisterFile:
    """The registers that code may use.

    `general` are names of those of 64 bits, whose numbers are their places here, `arguments` those
    of them in which arguments come. `vectors` are the numbers of vector registers, of
    `vector_bytes` each, `masks` those of mask registers. `reload` and `spill` give the line that
    loads a register from so many bytes into the stack frame, or stores it there.
    """

    general: tuple[str, ...]
    arguments: tuple[str, ...]
    vectors: range
    vector_bytes: int
    masks: range
    reload: Callable[[Register, int], CodeLine]
    spill: Callable[[Register, int], CodeLine]


def allocate(lines: Sequence[CodeLine], loops: Sequence[tuple[Label, Label]], file: RegisterFile,
             fixed: Mapping[Register, str]) -> tuple[list[CodeLine], int]:
    """The lines with every virtual register replaced by a physical one, and the bytes of the stack
    frame that holds spilled ones."""
    spans, weights = lifetimes(lines, loops, fixed)
    numbers = {"g": range(len(file.general)), "v": file.vectors, "k": file.masks}
    places: dict[Register, int] = {}
    frame: dict[Register, int] = {}
    frame_bytes = 0
    for kind, free in numbers.items():
        mine = {r: span for r, span in spans.items() if r.kind == kind}
        taken = {r: file.general.index(fixed[r]) for r in mine if r in fixed}
        placed, spilled = scan(mine, weights, free, taken)
        if spilled:
            if kind == "k":
                raise VerificationError("more mask registers are needed than there are")
            placed, spilled = scan(mine, weights, free[:len(free) - CARRIERS[kind]], taken)
        places.update(placed)
        size = file.vector_bytes if kind == "v" else 8
        for register in spilled:
            frame_bytes += -frame_bytes % size
            frame[register] = frame_bytes
            frame_bytes += size
    return rewrite(lines, places, frame, file), frame_bytes


def uses(line: CodeLine) -> tuple[Sequence[Register], Sequence[Register]]:
    """Registers that a line reads, and those it writes."""
    if line.row is None:
        return (), ()
    reads: list[Register] = []
    writes: list[Register] = []
    for operand, use in zip(line.operands, line.row.use):
        if type(operand) is Address:
            reads.extend(operand.registers)
        elif type(operand) is Register:
            if use != "w":
                reads.append(operand)
            if use != "r":
                writes.append(operand)
    if line.mask is not None:
        reads.append(line.mask)
        if not line.zeroing and writes:
            reads.extend(writes)
    return reads, writes


def lifetimes(lines: Sequence[CodeLine], loops: Sequence[tuple[Label, Label]],
              fixed: Mapping[Register, str]
              ) -> tuple[dict[Register, tuple[int, int]], dict[Register, float]]:
    """First and last line of each register, and how often it is used, each loop around a use
    counted `LOOP_TURNS` times."""
    at = {line.target: i for i, line in enumerate(lines) if line.name == "label"}
    regions = sorted(((at[s], at[e]) for s, e in loops), key=lambda r: r[1] - r[0])
    depth = [0] * (len(lines) + 1)
    for start, end in regions:
        depth[start] += 1
        depth[end] -= 1
    lives: dict[Register, list] = {register: [0, 0, 0.0] for register in fixed}
    level, weight = 0, 1.0
    for i, line in enumerate(lines):
        row = line.row
        if row is None:  # loops begin and end at labels
            level += depth[i]
            weight = LOOP_TURNS ** min(level, LOOPS_MAX)
            continue
        mask = line.mask
        kept = mask is not None and not line.zeroing
        touched: list[tuple[Register | None, float]] = [] if mask is None else [(mask, weight)]
        for operand, use in zip(line.operands, row.use):
            if type(operand) is Register:
                touched.append((operand, weight * (USES[use] + (kept and use != "r"))))
            elif type(operand) is Address:
                touched.append((operand.base, weight))
                if operand.index is not None:
                    touched.append((operand.index, weight))
        for register, times in touched:
            life = lives.get(register)
            if life is not None:
                life[1] = i
                life[2] += times
            elif register is not None:  # the base of what lies among the constants
                lives[register] = [i, i, times]
    starts, ends, _ = np.array([*lives.values()] or np.empty((0, 3))).T.astype(np.int64)
    for start, end in regions:
        ends[(starts < start) & (start <= ends) & (ends <= end)] = end
    return (dict(zip(lives, zip(starts.tolist(), ends.tolist()))),
            {register: life[2] for register, life in lives.items()})


def scan(spans: Mapping[Register, tuple[int, int]], weights: Mapping[Register, float],
         registers: Sequence[int],
         taken: Mapping[Register, int]) -> tuple[dict[Register, int], list[Register]]:
    """A physical register for each virtual one, in order of their first lines, and a list of those
    that are spilled because none was free."""
    free = [r for r in reversed(registers) if r not in taken.values()]
    active: list[tuple[int, Register]] = []  # each behind its last line
    placed: dict[Register, int] = {}
    spilled: list[Register] = []
    earliest = 0  # no register in use ends before this line
    for start, _, end, register in sorted((start, register.number, end, register)
                                          for register, (start, end) in spans.items()):
        if earliest <= start:
            free += [placed[other] for last, other in active if last <= start]
            active = [each for each in active if each[0] > start]
            earliest = min(active)[0] if active else end
        if register in taken and taken[register] in registers:
            placed[register] = taken[register]
        elif free:
            placed[register] = free.pop()
        else:
            victim = min([*(other for _, other in active), register], key=lambda r: (
                r in taken, weights[r] / (1 + spans[r][1] - spans[r][0])))
            spilled.append(victim)
            if victim is register:
                continue
            placed[register] = placed.pop(victim)
            active.remove((spans[victim][1], victim))
        active.append((end, register))
        earliest = min(earliest, end)
    return placed, spilled


def rewrite(lines: Sequence[CodeLine], places: Mapping[Register, int],
            frame: Mapping[Register, int], file: RegisterFile) -> list[CodeLine]:
    """The lines on physical registers, with loads and stores around uses of spilled ones."""
    placed: dict[Register | None, Register | None] = {
        register: Register(register.kind, number) for register, number in places.items()}
    placed[None] = None
    out: list[CodeLine] = []
    for line in lines:
        if line.row is None:
            out.append(line)
            continue
        try:
            out.append(on_physical(line, placed))
        except KeyError:  # it uses a register that is in the frame
            before, carriers, after = carried(line, frame, file)
            out += before
            placed.update(carriers)
            out.append(on_physical(line, placed))
            out += after
            for register in carriers:
                del placed[register]
    return out


def on_physical(line: CodeLine, placed: Mapping[Register | None, Register | None]) -> CodeLine:
    """A line with the places of its registers instead of them. Raises KeyError for one that has
    none."""
    operands: list[Any] = [
        placed[o] if type(o) is Register else
        Address(placed[o.base], o.offset, placed[o.index], o.scale, o.spread, o.pool)
        if type(o) is Address else o for o in line.operands]
    return CodeLine(line.name, line.row, tuple(operands), placed[line.mask], line.zeroing,
                    line.target)


def carried(line: CodeLine, frame: Mapping[Register, int], file: RegisterFile
            ) -> tuple[list[CodeLine], dict[Register, Register], list[CodeLine]]:
    """What spilled registers that a line uses need: loads before it, the registers that they lie in
    meanwhile, which are the last of their kind, and stores behind it."""
    counts = {"g": len(file.general), "v": len(file.vectors)}
    last = dict(counts)
    reads, writes = uses(line)
    carriers: dict[Register, Register] = {}
    for register in dict.fromkeys((*reads, *writes)):
        if register in frame:
            last[register.kind] -= 1
            carriers[register] = Register(register.kind, last[register.kind])
    if any(counts[kind] - last[kind] > CARRIERS[kind] for kind in counts):
        raise VerificationError(f"{line.name} uses too many spilled registers")
    before = [file.reload(place, frame[register]) for register, place in carriers.items()
              if register in reads]
    after = [file.spill(carriers[register], frame[register]) for register in dict.fromkeys(writes)
             if register in frame]
    return before, carriers, after
