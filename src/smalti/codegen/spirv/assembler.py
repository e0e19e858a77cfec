"""A module of SPIR-V in the making: ids, and the sections that a module has in order.

Types, constants and whatever else is declared once are shared by all who ask for them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from math import copysign

from smalti.codegen.gpu.types import Matrix, VectorType
from smalti.codegen.spirv.opcodes import (
    CAPABILITIES,
    DECORATIONS,
    EXTENSIONS,
    GLSL,
    MODES,
    OPCODES,
    SCOPES,
    STORAGE,
)

MAGIC = 0x07230203  # the first word of a module
ROLES = {"a": 0, "b": 1, "sum": 2}
BFLOAT16_ENCODING = 0  # FPEncoding BFloat16KHR
GLSL_ID = 1  # the id that the imported set of instructions is given
_CODES = {**{name: (code, ()) for name, (code, _) in OPCODES.items()},
          **{name: (OPCODES["ExtInst"][0], (GLSL_ID, number)) for name, number in GLSL.items()}}
"""Of an instruction its code, and the words between its result and its operands."""
INTEGERS = {"i32": (32, 1), "u32": (32, 0), "u16": (16, 0), "u8": (8, 0), "i8": (8, 1)}


class ModuleAssembler:
    """A module with one entry point, `main`, in SPIR-V 1.`minor`."""

    def __init__(self, minor: int) -> None:
        self.minor = minor
        self.code: list[int] = []
        """The body of `main`, without what begins it."""
        self._capabilities = {"Shader": None}
        self._decorations: list[int] = []
        self._declarations: list[int] = []
        self._registers: list[int] = []
        self._beginning: list[int] = []
        self._interface: list[int] = []
        self._known: dict[object, int] = {}
        self.ids = GLSL_ID
        self.main = self.id()
        self.u32 = self.type(VectorType("u32"))

    def id(self) -> int:
        """An id of its own."""
        self.ids += 1
        return self.ids

    def need(self, capability: str) -> None:
        """Declare that the module uses something that not every device has."""
        self._capabilities[capability] = None

    def needs(self, capability: str) -> bool:
        """Whether that was declared."""
        return capability in self._capabilities

    def do(self, name: str, *words: int) -> None:
        """Add an instruction without a result to the body."""
        self.code += ((len(words) + 1) << 16 | OPCODES[name][0], *words)

    def op(self, name: str, type: int, *operands: int) -> int:
        """Add an instruction with a result of this type to the body; gives its id."""
        self.ids += 1
        code, prefix = _CODES[name]
        self.code += ((len(operands) + len(prefix) + 3) << 16 | code, type, self.ids, *prefix,
                      *operands)
        return self.ids

    def begin(self, name: str, type: int, *operands: int) -> int:
        """Add an instruction with a result to what `main` begins with; gives its id."""
        made = self.id()
        self._beginning += ((len(operands) + 3) << 16 | OPCODES[name][0], type, made, *operands)
        return made

    def decorate(self, target: int, name: str, *values: int) -> None:
        """Say something about an id."""
        self._decorations += ((len(values) + 3) << 16 | OPCODES["Decorate"][0], target,
                              DECORATIONS[name], *values)

    # ------------------------------------------------------------------ what is declared once

    def type(self, type: VectorType | Matrix) -> int:
        """The type of a value."""
        found = self._known.get(type)
        if found is not None:
            return found
        if isinstance(type, Matrix):
            self.need("CooperativeMatrixKHR")
            if type.scalar == "f16":
                self.need("Float16")
            if type.scalar == "bf16":
                self.need("BFloat16CooperativeMatrixKHR")
            if type.scalar == "i8":
                self.need("Int8")
            made = self.declare(
                "TypeCooperativeMatrixKHR", self.type(VectorType(type.scalar)),
                *map(self.number, (SCOPES["Subgroup"], type.rows, type.columns, ROLES[type.role])))
        elif type.lanes > 1:
            made = self.declare("TypeVector", self.type(VectorType(type.scalar)), type.lanes)
        elif type.scalar in INTEGERS:
            made = self.declare("TypeInt", *INTEGERS[type.scalar])
        elif type.scalar == "bool":
            made = self.declare("TypeBool")
        elif type.scalar == "bf16":
            self.need("BFloat16TypeKHR")
            made = self.declare("TypeFloat", 16, BFLOAT16_ENCODING)
        else:
            made = self.declare("TypeFloat", {"f32": 32, "f16": 16}[type.scalar])
        self._known[type] = made
        return made

    def pointer(self, storage: str, type: int) -> int:
        """The type of pointers to a type."""
        return self.declare("TypePointer", STORAGE[storage], type)

    def declare(self, name: str, *words: int) -> int:
        """A type, once for each spelling."""
        found = self._known.get((name, words))
        if found is None:
            found = self._known[name, words] = self.id()
            self._declarations += ((len(words) + 2) << 16 | OPCODES[name][0], found, *words)
        return found

    def array(self, element: int, bytes: int) -> int:
        """A block that holds a run-time array of elements of so many bytes."""
        found = self._known.get(("block", element))
        if found is None:
            elements = self.declare("TypeRuntimeArray", element)
            self.decorate(elements, "ArrayStride", bytes)
            found = self._known["block", element] = self.block([elements], [0])
        return found

    def block(self, members: list[int], offsets: Iterable[int]) -> int:
        """A structure as buffers and push constants hold it."""
        made = self.declare("TypeStruct", *members)
        self.decorate(made, "Block")
        for number, offset in enumerate(offsets):
            self._decorations += (5 << 16 | OPCODES["MemberDecorate"][0], made, number,
                                  DECORATIONS["Offset"], offset)
        return made

    def number(self, value: int) -> int:
        """A u32 constant."""
        found = self._known.get(value)
        if found is None:
            found = self._known[value] = self._constant(self.u32, value & 0xFFFFFFFF)
        return found

    def constant(self, value: float | int | bool, type: VectorType | Matrix) -> int:
        """A constant: in all lanes of a vector, in all elements of a matrix."""
        distinct = value if value and value == value else repr(value)  # 0.0 == -0.0, NaN != NaN
        key = (type.scalar, type if isinstance(type, Matrix) else type.lanes, distinct)
        found = self._known.get(key)
        if found is not None:
            return found
        if isinstance(type, Matrix):
            parts = [self.constant(value, VectorType(type.scalar))]
        elif type.lanes > 1:
            parts = [self.constant(value, VectorType(type.scalar))] * type.lanes
        else:
            made = self._scalar(value, type.scalar)
            self._known[key] = made
            return made
        made = self.id()
        self._declarations += ((len(parts) + 3) << 16 | OPCODES["ConstantComposite"][0],
                               self.type(type), made, *parts)
        self._known[key] = made
        return made

    def variable(self, storage: str, type: int) -> int:
        """A variable of the module, or a register of `main`."""
        made, pointer = self.id(), self.pointer(storage, type)
        words = self._registers if storage == "Function" else self._declarations
        words += (4 << 16 | OPCODES["Variable"][0], pointer, made, STORAGE[storage])
        if storage == "Input" or (storage != "Function" and self.minor >= 4):
            self._interface.append(made)
        return made

    def _scalar(self, value: float | int | bool, scalar: str) -> int:
        if scalar == "u32":
            return self.number(int(value))
        type = self.type(VectorType(scalar))
        if scalar == "bool":
            made = self.id()
            name = "ConstantTrue" if value else "ConstantFalse"
            self._declarations += (3 << 16 | OPCODES[name][0], type, made)
            return made
        if scalar in ("i32", "i8"):  # bytes fill their word with the sign
            return self._constant(type, int(value) & 0xFFFFFFFF)
        return self._constant(type, float_bits(float(value), scalar))

    def _constant(self, type: int, word: int) -> int:
        made = self.id()
        self._declarations += (4 << 16 | OPCODES["Constant"][0], type, made, word)
        return made

    # ------------------------------------------------------------------ the module

    def finish(self, size: int, entry: int, modes: Iterable[tuple[str, int]]) -> bytes:
        """The module, for work-groups of `size` invocations, with further execution modes; `entry`
        is the label of the block that the body begins in."""
        void = self.declare("TypeVoid")
        kind = self.declare("TypeFunction", void)
        words = array("I", [MAGIC, 1 << 16 | self.minor << 8, 0, self.ids + 1, 0])

        def put(name: str, *operands: int) -> None:
            words.extend(((len(operands) + 1) << 16 | OPCODES[name][0], *operands))

        for name in self._capabilities:
            put("Capability", CAPABILITIES[name])
        found = [EXTENSIONS.get(name, ("", 0)) for name in self._capabilities]
        for extension in dict.fromkeys(name for name, minor in found if self.minor < minor):
            put("Extension", *_text(extension))
        put("ExtInstImport", GLSL_ID, *_text("GLSL.std.450"))
        vulkan = "VulkanMemoryModel" in self._capabilities
        put("MemoryModel", 0, 3 if vulkan else 1)
        put("EntryPoint", 5, self.main, *_text("main"), *self._interface)
        put("ExecutionMode", self.main, MODES["LocalSize"], size, 1, 1)
        for name, value in modes:
            put("ExecutionMode", self.main, MODES[name], value)
        words.extend(self._decorations)
        words.extend(self._declarations)
        put("Function", void, self.main, 0, kind)
        put("Label", entry)
        words.extend(self._registers)
        words.extend(self._beginning)
        words.extend(self.code)
        put("Return")
        put("FunctionEnd")
        return words.tobytes()


def float_bits(value: float, scalar: str) -> int:
    """The bits of a number as f32, f16 or bf16, rounded to even; of too large ones infinity's.

    >>> hex(float_bits(1.0, "f16")), hex(float_bits(1e39, "f32")), hex(float_bits(-1.0, "bf16"))
    ('0x3c00', '0x7f800000', '0xbf80')
    """
    try:
        packed = struct.pack("<e" if scalar == "f16" else "<f", value)
    except OverflowError:
        packed = struct.pack("<e" if scalar == "f16" else "<f", copysign(float("inf"), value))
    bits = int.from_bytes(packed, "little")
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 if scalar == "bf16" else bits


def _text(text: str) -> tuple[int, ...]:
    """Words of a text that ends in a zero byte."""
    data = text.encode() + b"\0" * (4 - len(text) % 4)
    return struct.unpack(f"<{len(data) // 4}I", data)
