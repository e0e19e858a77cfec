"""Lines on physical registers to machine code, through iced-x86.

Nothing else imports iced-x86, whose wheels are for x86 only: `codegen.x86.encoding` calls what is
here, so that other computers load all that they share with x86 without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from iced_x86 import (
    BlockEncoder,
    Code,
    Decoder,
    Formatter,
    FormatterSyntax,
    Instruction,
    MemoryOperand,
)
from iced_x86 import Register as Physical

from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.operands import Address, CodeLine, Operand, Register
from smalti.codegen.x86.instructions import (
    GENERAL,
    GENERAL_REGISTERS,
    JUMPS,
    VECTOR,
    X86Row,
)
from smalti.errors import VerificationError

if TYPE_CHECKING:  # numbers, to which only iced-x86's stubs give types of their own
    from iced_x86._iced_x86_py import Code as CodeNumber
    from iced_x86._iced_x86_py import Register as RegisterNumber

CODES: dict[str | None, CodeNumber] = {
    name: getattr(Code, name) for row in (*VECTOR.values(), *GENERAL.values())
    for name in (row.narrow, row.wide) if name}
"""Encodings by their names in the table of instructions."""
BRANCHES: dict[str, CodeNumber] = {name: getattr(Code, code) for name, code in JUMPS.items()}
GENERAL_64 = tuple(getattr(Physical, name) for name in GENERAL_REGISTERS)
GENERAL_32 = tuple(getattr(Physical, f"{name}D" if name[1].isdigit() else f"E{name[1:]}")
                   for name in GENERAL_REGISTERS)
XMM = tuple(getattr(Physical, f"XMM{i}") for i in range(32))
YMM = tuple(getattr(Physical, f"YMM{i}") for i in range(32))
ZMM = tuple(getattr(Physical, f"ZMM{i}") for i in range(32))
MASKS = tuple(getattr(Physical, f"K{i}") for i in range(8))
OFFSET_MAX = 1 << 31
"""Offsets of addresses have 32 bits, with a sign."""
STACK_ALIGNMENT = 64
"""Frames begin at a multiple of so many bytes: spilled vectors of 512 bits lie in one cache
line."""
LABELS_AT = 1 << 40
"""Labels are addresses from here on, so that none is the address of a constant."""
NARROW = {"mov32", "mov_store32", "mask_from", "mask_to", "signs"}
LOW_LANE = {("store_low", 1): XMM, ("to_bf16", 0): YMM, ("store_words", 1): YMM,
            ("load_words", 0): YMM,
            ("widen_half", 1): YMM, ("low_words", 0): YMM, ("store_half", 1): XMM,
            ("store_half_masked", 1): XMM,
            ("store_half_masked", 2): XMM, ("store_word", 1): XMM,
            ("store_quad", 1): XMM, ("store_byte", 1): XMM,
            ("widen_byte", 1): XMM, ("widen_signed_byte", 1): XMM,
            ("store_low_128", 1): XMM, ("load_low_128", 0): XMM}
"""Operands (by position) that are only the lower part of a vector register."""
HALF = {("widen_f16", 1), ("to_f16", 0)}
"""Those that are its lower half, at any level."""
INSTRUCTIONS_MAX = 1 << 14
"""Instructions that are kept to be used again, of the 147,000 of a UNet nine in ten are: 8 MB."""
LOCKED = {"exchange_add"}
MAKERS: dict[str, Callable[..., Instruction]] = {
    "rr": Instruction.create_reg_reg, "rm": Instruction.create_reg_mem,
    "mr": Instruction.create_mem_reg, "ri": Instruction.create_reg_i32,
    "rrr": Instruction.create_reg_reg_reg,
    "rrm": Instruction.create_reg_reg_mem,
    "mrr": Instruction.create_mem_reg_reg,
    "mri": Instruction.create_mem_reg_i32,
    "rmr": Instruction.create_reg_mem_reg,
    "rri": Instruction.create_reg_reg_i32,
    "rmi": Instruction.create_reg_mem_i32,
    "rrri": Instruction.create_reg_reg_reg_i32,
    "rrmi": Instruction.create_reg_reg_mem_i32,
    "rrrr": Instruction.create_reg_reg_reg_reg,
    "rrmr": Instruction.create_reg_reg_mem_reg,
    "r": Instruction.create_reg, "m": Instruction.create_mem,
    "mov_immediate": Instruction.create_reg_i64,
}
"""What makes an instruction of each kinds of operands: r(egisters), m(emory), i(mmediate numbers);
and of the one whose number has 64 bits."""


def encode(lines: Sequence[CodeLine], level: FeatureLevel, ip: int, frame_bytes: int) -> bytes:
    """Machine code of `lines`; it will stand `ip` bytes behind the pool of constants."""
    block = BlockEncoder(64)
    pending: list[int] = []
    merged: dict[int, int] = {}
    instructions: list[Instruction] = []
    branches: list[Instruction] = []

    def append(instruction: Instruction) -> None:
        if pending:
            instruction = instruction.copy()  # the same one stands elsewhere, too
            instruction.ip = pending[0]
            for label in pending:
                merged[label] = pending[0]
            pending.clear()
        instructions.append(instruction)

    for instruction in enter(frame_bytes):
        append(instruction)
    for line in lines:
        if line.name == "label":
            pending.append(LABELS_AT + line.target.number)
        elif line.name.startswith("jump_"):
            append(Instruction.create_branch(BRANCHES[line.name[5:]],
                                             LABELS_AT + line.target.number))
            branches.append(instructions[-1])
        else:
            if line.name == "return":
                for instruction in leave(frame_bytes):
                    append(instruction)
            append(known(line, level))
    if pending:
        raise VerificationError("a label stands behind the last instruction")
    for branch in branches:
        branch.near_branch64 = merged[branch.near_branch64]
    for instruction in instructions:
        block.add(instruction)
    return block.encode(ip)


def enter(frame_bytes: int) -> list[Instruction]:
    """An aligned stack frame; the caller's stack pointer is kept above it."""
    if not frame_bytes:
        return []
    rsp, rax = Physical.RSP, Physical.RAX
    size = frame_bytes + -frame_bytes % STACK_ALIGNMENT
    saved = MemoryOperand(rsp, displ=size, displ_size=1)
    return [Instruction.create_reg_reg(Code.MOV_R64_RM64, rax, rsp),
            Instruction.create_reg_i32(Code.SUB_RM64_IMM32, rsp, size + STACK_ALIGNMENT),
            Instruction.create_reg_i32(Code.AND_RM64_IMM32, rsp, -STACK_ALIGNMENT),
            Instruction.create_mem_reg(Code.MOV_RM64_R64, saved, rax)]


def leave(frame_bytes: int) -> list[Instruction]:
    """The caller's stack pointer again."""
    if not frame_bytes:
        return []
    size = frame_bytes + -frame_bytes % STACK_ALIGNMENT
    saved = MemoryOperand(Physical.RSP, displ=size, displ_size=1)
    return [Instruction.create_reg_mem(Code.MOV_R64_RM64, Physical.RSP, saved)]


def known(line: CodeLine, level: FeatureLevel) -> Instruction:
    """One line as an iced-x86 instruction, which equal lines share: it is not to be changed."""
    assert isinstance(line.row, X86Row), line
    code = CODES.get(line.row.wide if level.wide else line.row.narrow)
    if code is None:
        raise VerificationError(f"{line.name} has no encoding at level {level.name}")
    implied = line.row.immediate
    return instruction_of(line.name, code, line.operands if implied is None else
                          (*line.operands, implied), line.mask, line.zeroing, level.wide)


@lru_cache(maxsize=INSTRUCTIONS_MAX)
def instruction_of(name: str, code: CodeNumber, operands: tuple[Operand, ...],
                   mask: Register | None, zeroing: bool, wide: bool) -> Instruction:
    """The instruction `name` with its encoding, of vectors of 512 bits where they are `wide`."""
    if not operands:
        return Instruction.create(code)
    vectors = ZMM if wide else YMM
    kinds = ""
    values: list[int | RegisterNumber | MemoryOperand] = []
    for position, operand in enumerate(operands):
        if isinstance(operand, int):
            kinds += "i"
            values.append(operand)
        elif isinstance(operand, Register):
            kinds += "r"
            low = LOW_LANE.get((name, position))
            if (name, position) in HALF:
                low = YMM if wide else XMM
            values.append(low[operand.number] if low else physical(operand, name, vectors))
        else:
            kinds += "m"
            values.append(address(operand, vectors))
    maker = MAKERS["mov_immediate" if name == "mov_immediate" else kinds]
    instruction = maker(code, *values)
    if mask is not None:
        instruction.op_mask = MASKS[mask.number]
        instruction.zeroing_masking = zeroing
    if name in LOCKED:
        instruction.has_lock_prefix = True
    return instruction


def physical(register: Register, name: str, vectors: Sequence[RegisterNumber]) -> RegisterNumber:
    """The machine register of the right width for the instruction `name`."""
    kind, number = register
    if kind == "v":
        return vectors[number]
    if kind == "k":
        return MASKS[number]
    if number == -1:
        return Physical.RSP
    return (GENERAL_32 if name in NARROW else GENERAL_64)[number]


def address(memory: Address, vectors: Sequence[RegisterNumber]) -> MemoryOperand:
    """The memory operand; constants are addressed relative to the instruction pointer.

    Raises OverflowError for an offset that no instruction holds.
    """
    base, offset, index, scale, spread, pool = memory
    if not -OFFSET_MAX <= offset < OFFSET_MAX:
        raise OverflowError(f"an offset of {offset} bytes has more than 32 bits")
    if pool:
        return MemoryOperand(Physical.RIP, displ=offset, displ_size=8)
    first = physical(base, "", vectors)
    size = 1 if offset else 0
    if index is None:
        return MemoryOperand(first, displ=offset, displ_size=size, is_broadcast=spread)
    return MemoryOperand(first, physical(index, "", vectors), scale, displ=offset, displ_size=size,
                         is_broadcast=spread)


def disassembly(code: bytes, entry: int) -> str:
    """The instructions from `entry` on, one a line, in Intel syntax."""
    formatter = Formatter(FormatterSyntax.INTEL)
    decoder = Decoder(64, code[entry:], ip=entry)
    return "\n".join(f"{i.ip:6x}  {formatter.format(i)}" for i in decoder)
