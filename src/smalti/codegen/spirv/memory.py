"""Elements of bindings and shared arrays: how they lie in memory, and become values.

A binding is seen through one or more variables of one descriptor: arrays of what it stores, of
vectors of that, or of 32-bit words that several elements share. So are 128 bits one load, and two
or four elements of bf16 or 8 bits no more than a word or two.

    stored      seen as                    becomes
    f32 …       f32, f32x2, f32x4          itself
    f16         f16, f16x2, f16x4          f32 by conversion
    bf16        u16, u32, u32x2            f32: its bits are the upper half
    f16, bf16   u32, u32x2, u32x4          the bits of 2, 4 or 8
    i8, u8      u8, u8x2, u32              i32 or u32: bits of the word, where there are four

A shared array is one variable, of vectors where it has lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from smalti.codegen.gpu.form import Binding, Shared, covered
from smalti.codegen.gpu.types import VectorType
from smalti.codegen.spirv.assembler import ModuleAssembler
from smalti.codegen.spirv.instructions import CONVERSIONS
from smalti.codegen.spirv.opcodes import NON_PRIVATE_POINTER
from smalti.errors import VerificationError
from smalti.graph.operation import HALVES
from smalti.schedule.group import GroupLimits

BYTES = {"f32": 4, "i32": 4, "u32": 4, "f16": 2, "bf16": 2, "u16": 2, "u8": 1}
LOG2 = {1: 0, 2: 1, 4: 2, 8: 3}
TO_EVEN = 0  # of FPRoundingMode
BF16_QUIET, BF16_HALF, BF16_UPPER = 0x400000, 0x7FFF, 0xFFFF0000
"""Of the bits of an f32: the one that keeps a NaN a NaN when the lower half is lost; just below
half of a unit of bf16, for rounding; and the upper half, which is the bf16."""


class ElementIndex(NamedTuple):
    """A u32: what gives the id of what varies, and a constant behind it; their sum does not wrap.

    Of a multiple of some lanes, `vectors` gives the ids of what adds up to it, counted in vectors
    of these, and a constant; no ids where that takes a division of all of it. `parted` gives the
    ids of what is no multiple and of what adds up to the rest, counted in vectors, and a constant.
    """

    base: Callable[[], int]
    more: int
    vectors: Callable[[int], tuple[list[int], int]]
    parted: Callable[[int], tuple[int | None, list[int], int]]


class SpirvMemory:
    """The bindings and shared arrays of a program; `vulkan`: under the memory model of that name.

    Indices count scalars.
    """

    def __init__(self, assembler: ModuleAssembler, bindings: tuple[Binding, ...],
                 shared: tuple[Shared, ...], limits: GroupLimits, vulkan: bool) -> None:
        self.assembler, self.limits, self.vulkan = assembler, limits, vulkan
        self._bindings = {binding.name: (binding, number)
                          for number, binding in enumerate(bindings)}
        self._offsets: dict[tuple[str, int], int] = {}
        self._pushed = 0
        self._views: dict[str, dict[VectorType, int]] = {name: {} for name in self._bindings}
        self._arrays = {array.name: array for array in shared}
        self._elements = {array.name: self._element(array) for array in shared}
        self.halves: set[int] = set()
        """Values of f32 that are bf16, and need not be rounded to be stored as that."""
        self._variables = {array.name: self._shared(array) for array in shared}

    def load(self, name: str, index: ElementIndex, type: VectorType) -> int:
        """Elements from `index` on, as many as the type has lanes, as values of it."""
        lanes = type.lanes
        if name in self._arrays:
            return self._widen(self._shared_load(name, index, lanes), self._arrays[name].dtype,
                               self._elements[name].scalar, type)
        dtype = self._bindings[name][0].dtype
        if dtype in ("i8", "u8"):
            return self._load_bytes(name, index, type)
        if covered(dtype, type) > lanes:
            return self._read(name, index, type, 2 * lanes)
        if dtype == "bf16" and lanes > 1:
            pairs = self._read(name, index, VectorType("u32", lanes // 2), lanes)
            return self._from_pairs(pairs, lanes)
        seen = VectorType("u16" if dtype == "bf16" else dtype, lanes)
        return self._widen(self._read(name, index, seen, lanes), dtype, seen.scalar, type)

    def stores(self, name: str, index: ElementIndex, value: int,
               type: VectorType) -> list[tuple[int, int]]:
        """What writes a value of `type` to the elements from `index` on: what goes to which
        pointer."""
        a, lanes = self.assembler, type.lanes
        if name in self._arrays:
            component = self._elements[name].scalar
            value = self._narrow(value, type, self._arrays[name].dtype, component)
            return self._shared_stores(name, index, value, lanes)
        dtype = self._bindings[name][0].dtype
        if dtype in ("i8", "u8"):
            raise VerificationError(f"{name} holds 8-bit integers, which are only read")
        if covered(dtype, type) > lanes:
            return [(self._pointer(name, self._place(name, index, 2 * lanes), type), value)]
        if dtype == "bf16" and lanes > 1:
            seen = VectorType("u32", lanes // 2)
            value = self._to_pairs(self._rounded(value, lanes), lanes)
        else:
            seen = VectorType("u16" if dtype == "bf16" else dtype, lanes)
            value = self._narrow(value, type, dtype, seen.scalar)
            if dtype == "f16" and type.scalar != "f16":
                a.decorate(value, "FPRoundingMode", TO_EVEN)
        return [(self._pointer(name, self._place(name, index, lanes), seen), value)]

    def dtype(self, name: str) -> str:
        """What a binding or a shared array holds."""
        return (self._arrays[name] if name in self._arrays else self._bindings[name][0]).dtype

    def lanes(self, name: str) -> int:
        """Elements of a shared array that lie in one vector of it; 1 in a binding, and where they
        are kept as bits of another type."""
        if name not in self._arrays or bits_of(self.dtype(name), self._elements[name].scalar):
            return 1
        return self._elements[name].lanes

    def matrix(self, name: str, index: ElementIndex, stride: int) -> tuple[int, int]:
        """A pointer to where a matrix begins, and its stride in what that points to."""
        a = self.assembler
        if name in self._arrays:
            element = self._elements[name]
            if stride % element.lanes:
                raise VerificationError(f"rows of a matrix lie {stride} elements apart in {name}, "
                                        f"which holds {element}")
            inner = index.more % element.lanes
            if inner:  # of matrices shallower than a vector: what varies is a multiple of that
                at = self._shifted(index.base(), index.more - inner, element.lanes)
                pointer = a.op("AccessChain",
                               a.pointer("Workgroup", a.type(VectorType(element.scalar))),
                               self._variables[name], at, a.number(inner))
                return pointer, stride
            at = self._shared_place(name, index)
            pointer = a.op("AccessChain", a.pointer("Workgroup", a.type(element)),
                           self._variables[name], at)
            return pointer, stride // element.lanes
        binding, _ = self._bindings[name]
        lanes = binding.lanes
        if binding.dtype in (*HALVES, "u32") and lanes * BYTES[binding.dtype] == 16 and (
                stride % lanes == 0 and index.vectors(lanes)[0]):
            # drivers read as much at once as they see that an address is a multiple of
            return self._pointer(name, self._place(name, index, lanes),
                                 VectorType("u32", 4)), stride // lanes
        seen = VectorType(binding.dtype)
        return self._pointer(name, self._place(name, index, 1), seen), stride

    def widened(self, words: int, dtype: str, type: VectorType) -> int:
        """The halves in words, as f32 values of `type`."""
        a = self.assembler
        if dtype == "bf16":
            return self._from_pairs(words, type.lanes)
        if self.limits.f16:
            halves = a.op("Bitcast", a.type(VectorType("f16", type.lanes)), words)
            return a.op("FConvert", a.type(type), halves)
        single, pair, scalars = a.type(VectorType("f32")), a.type(VectorType("f32", 2)), []
        for word in self._words(words, type.lanes // 2):
            both = a.op("UnpackHalf2x16", pair, word)
            scalars += [a.op("CompositeExtract", single, both, n) for n in (0, 1)]
        return self._vector(scalars, type)

    def narrowed(self, value: int, dtype: str, type: VectorType) -> int:
        """The words, of `type`, in which f32 values are halves."""
        a, lanes = self.assembler, 2 * type.lanes
        if dtype == "bf16":
            return self._to_pairs(self._rounded(value, lanes), lanes)
        if self.limits.f16:
            halves = a.op("FConvert", a.type(VectorType("f16", lanes)), value)
            return a.op("Bitcast", a.type(type), halves)
        single = a.type(VectorType("f32"))
        scalars = [a.op("CompositeExtract", single, value, n) for n in range(lanes)]
        pairs = [a.op("CompositeConstruct", a.type(VectorType("f32", 2)), *scalars[n:n + 2])
                 for n in range(0, lanes, 2)]
        return self._vector([a.op("PackHalf2x16", a.u32, pair) for pair in pairs], type)

    def _words(self, words: int, count: int) -> list[int]:
        a = self.assembler
        return [words] if count == 1 else [a.op("CompositeExtract", a.u32, words, n)
                                           for n in range(count)]

    def operands(self, name: str) -> tuple[int, ...]:
        """What accesses say under the Vulkan memory model, where others may see them."""
        seen = name in self._arrays or self._bindings[name][0].access == "read_write"
        return (NON_PRIVATE_POINTER,) if self.vulkan and seen else ()

    def finish(self) -> None:
        """Say of every binding that was used where it is bound, and what nobody does with it."""
        a = self.assembler
        meet = any(binding.access == "read_write" for binding, _ in self._bindings.values())
        for name, views in self._views.items():
            binding, number = self._bindings[name]
            said = {"read": ["NonWritable"], "write": ["NonReadable"],
                    "read_write": [] if self.vulkan else ["Coherent"]}[binding.access]
            if len(views) > 1 or meet and binding.access != "read":  # one may lie over the other
                said.append("Aliased")
            elif binding.access == "read":
                said.append("Restrict")
            for variable in views.values():
                a.decorate(variable, "DescriptorSet", 0)
                a.decorate(variable, "Binding", number)
                for word in said:
                    a.decorate(variable, word)

    # ------------------------------------------------------------------ bindings

    def _offset(self, name: str, elements: int = 1) -> int:
        """The push constant that says where a binding begins, counted by so many elements."""
        found = self._offsets.get((name, elements))
        if found is None and elements > 1:
            a = self.assembler
            found = self._offsets[name, elements] = a.begin(
                "ShiftRightLogical", a.u32, self._offset(name), a.number(LOG2[elements]))
        if found is None:
            a = self.assembler
            if not self._pushed:
                words = len(self._bindings)
                self._pushed = a.variable("PushConstant", a.block([a.u32] * words,
                                                                  range(0, 4 * words, 4)))
            pointer = a.begin("AccessChain", a.pointer("PushConstant", a.u32), self._pushed,
                              a.number(self._bindings[name][1]))
            found = self._offsets[name, 1] = a.begin("Load", a.u32, pointer)
        return found

    def _read(self, name: str, index: ElementIndex, seen: VectorType, elements: int) -> int:
        """What lies at `index` in a view of a binding, `elements` of it at once."""
        pointer = self._pointer(name, self._place(name, index, elements), seen)
        return self.assembler.op("Load", self.assembler.type(seen), pointer, *self.operands(name))

    def _place(self, name: str, index: ElementIndex, elements: int) -> int:
        """Where an element lies from the descriptor on, counted by so many elements. Where a
        binding begins is added to the last term, most often what is the same for a work-group."""
        a = self.assembler
        terms, more = index.vectors(elements)
        if terms and self._bindings[name][0].dtype not in ("i8", "u8"):  # may begin inside of words
            terms[-1] = a.op("IAdd", a.u32, terms[-1], self._offset(name, elements))
            return self.sum(terms, more)
        base = a.op("IAdd", a.u32, self._offset(name), index.base())
        return self._shifted(base, index.more, elements)

    def sum(self, terms: Sequence[int], more: int) -> int:
        """The id of a sum."""
        a, total = self.assembler, terms[0]
        for term in (*terms[1:], *([a.number(more)] if more else [])):
            total = a.op("IAdd", a.u32, total, term)
        return total

    def _shifted(self, base: int, more: int, lanes: int) -> int:
        """An index that counts vectors. What comes behind is a constant there, too."""
        a = self.assembler
        if more % lanes:
            base, more = self.sum([base], more), 0
        if lanes > 1:
            base = a.op("ShiftRightLogical", a.u32, base, a.number(LOG2[lanes]))
        return self.sum([base], more // lanes)

    def whole(self, index: ElementIndex) -> int:
        """The id of an index."""
        return self.sum([index.base()], index.more)

    def _pointer(self, name: str, place: int, seen: VectorType) -> int:
        """A pointer to an element of a view of a binding."""
        a = self.assembler
        view = self._views[name].get(seen)
        if view is None:
            bytes = BYTES[seen.scalar]
            if bytes < 4:
                a.need(f"StorageBuffer{8 * bytes}BitAccess")
            block = a.array(a.type(seen), bytes * seen.lanes)
            view = self._views[name][seen] = a.variable("StorageBuffer", block)
        return a.op("AccessChain", a.pointer("StorageBuffer", a.type(seen)), view, a.number(0),
                    place)

    def _load_bytes(self, name: str, index: ElementIndex, type: VectorType) -> int:
        """8-bit integers, by themselves or out of a word."""
        a, lanes = self.assembler, type.lanes
        signed = self._bindings[name][0].dtype == "i8"
        whole = VectorType("i32" if signed else "u32", lanes)
        if lanes < 4 and self.limits.storage8:
            value = self._read(name, index, VectorType("u8", lanes), lanes)
            value = a.op("SConvert" if signed else "UConvert", a.type(whole), value)
        else:
            single = VectorType(whole.scalar)
            word = self._read(name, index, single, 4)
            shift = a.number(0)
            if lanes < 4:
                part = a.op("BitwiseAnd", a.u32, self._place(name, index, 1), a.number(3))
                shift = a.op("ShiftLeftLogical", a.u32, part, a.number(3))
            extract = "BitFieldSExtract" if signed else "BitFieldUExtract"
            value = self._vector(
                [a.op(extract, a.type(single), word,
                      a.op("IAdd", a.u32, shift, a.number(8 * lane)), a.number(8))
                 for lane in range(lanes)], whole)
        return value if whole == type else a.op("Bitcast", a.type(type), value)

    def _from_pairs(self, words: int, lanes: int) -> int:
        """f32 values of the bf16 pairs in one or two words."""
        a = self.assembler
        bits = []
        for word in self._words(words, lanes // 2):
            bits += [a.op("ShiftLeftLogical", a.u32, word, a.number(16)),
                     a.op("BitwiseAnd", a.u32, word, a.number(BF16_UPPER))]
        value = a.op("Bitcast", a.type(VectorType("f32", lanes)),
                     self._vector(bits, VectorType("u32", lanes)))
        self.halves.add(value)
        return value

    def _to_pairs(self, bits: int, lanes: int) -> int:
        """The upper halves of two or four words, in one or two."""
        a = self.assembler
        words = []
        for lane in range(0, lanes, 2):
            low, high = (a.op("CompositeExtract", a.u32, bits, lane + i) for i in (0, 1))
            low = a.op("ShiftRightLogical", a.u32, low, a.number(16))
            words.append(a.op("BitwiseOr", a.u32, low,
                              a.op("BitwiseAnd", a.u32, high, a.number(BF16_UPPER))))
        return self._vector(words, VectorType("u32", lanes // 2))

    # ------------------------------------------------------------------ shared arrays

    def _element(self, array: Shared) -> VectorType:
        """What a shared array is made of: 16-bit floats that the device does not know, of bits, in
        words of their own where it has no integers of 16."""
        known = {"f16": self.limits.f16, "bf16": self.limits.bf16}.get(array.dtype, True)
        bits = "u16" if self.limits.int16 else "u32"
        return VectorType(array.dtype if known else bits, array.lanes)

    def _shared(self, array: Shared) -> int:
        """The variable of a shared array."""
        a, element = self.assembler, self._elements[array.name]
        if element.scalar == "f16":
            a.need("Float16")
        if element.scalar in ("u16", "bf16"):
            a.need("Int16")
        count = a.number(-(-array.elements // array.lanes))
        return a.variable("Workgroup", a.declare("TypeArray", a.type(element), count))

    def _shared_place(self, name: str, index: ElementIndex) -> int:
        """An index that begins a vector of a shared array, counted by those."""
        lanes = self._elements[name].lanes
        terms, more = index.vectors(lanes)
        if terms:
            return self.sum(terms, more)
        return self._shifted(index.base(), index.more, lanes)

    def _shared_pointers(self, name: str, index: ElementIndex, lanes: int) -> list[int]:
        """Pointers to what holds so many elements: one, or one to each where a part is wanted."""
        a, element, variable = self.assembler, self._elements[name], self._variables[name]
        if lanes == element.lanes:
            return [a.op("AccessChain", a.pointer("Workgroup", a.type(element)), variable,
                         self._shared_place(name, index))]
        at, first = self._component(index, element.lanes)
        pointer = a.pointer("Workgroup", a.type(VectorType(element.scalar)))
        return [a.op("AccessChain", pointer, variable, at, self.sum([first], lane))
                for lane in range(lanes)]

    def _component(self, index: ElementIndex, lanes: int) -> tuple[int, int]:
        """The vector that an index is in, and its place there. What is a multiple of `lanes` takes
        no part in the latter, which is then often the same for a subgroup, or a constant."""
        a = self.assembler
        rest, whole, more = index.parted(lanes)
        if rest is None:
            inner, at = a.number(more % lanes), whole
        else:
            behind = self.sum([rest], more % lanes)
            inner = a.op("BitwiseAnd", a.u32, behind, a.number(lanes - 1))
            at = [a.op("ShiftRightLogical", a.u32, behind, a.number(LOG2[lanes])), *whole]
        return self.sum(at, more // lanes) if at else a.number(more // lanes), inner

    def _shared_load(self, name: str, index: ElementIndex, lanes: int) -> int:
        a, scalar = self.assembler, self._elements[name].scalar
        pointers = self._shared_pointers(name, index, lanes)
        kind = a.type(VectorType(scalar, lanes // len(pointers)))
        return self._vector([a.op("Load", kind, pointer, *self.operands(name))
                             for pointer in pointers], VectorType(scalar, lanes))

    def _shared_stores(self, name: str, index: ElementIndex, value: int,
                       lanes: int) -> list[tuple[int, int]]:
        a = self.assembler
        scalar = a.type(VectorType(self._elements[name].scalar))
        pointers = self._shared_pointers(name, index, lanes)
        if len(pointers) == 1:
            return [(pointers[0], value)]
        return [(pointer, a.op("CompositeExtract", scalar, value, lane))
                for lane, pointer in enumerate(pointers)]

    # ------------------------------------------------------------------ stored and computed with

    def _vector(self, scalars: list[int], type: VectorType) -> int:
        a = self.assembler
        return scalars[0] if len(scalars) == 1 else a.op("CompositeConstruct", a.type(type),
                                                         *scalars)

    def _widen(self, value: int, dtype: str, component: str, type: VectorType) -> int:
        """What lies in memory, `component` by component, as values of `type`."""
        a, lanes = self.assembler, type.lanes
        if not bits_of(dtype, component):
            return value if dtype == type.scalar else a.op(CONVERSIONS[dtype, type.scalar],
                                                           a.type(type), value)
        if component == "bf16":
            value = a.op("Bitcast", a.type(VectorType("u16", lanes)), value)
        words = VectorType("u32", lanes)
        if component != "u32":
            value = a.op("UConvert", a.type(words), value)
        if dtype == "bf16":
            value = a.op("ShiftLeftLogical", a.type(words), value, a.constant(16, words))
            value = a.op("Bitcast", a.type(type), value)
            self.halves.add(value)
            return value
        pair, halves = a.type(VectorType("f32", 2)), []
        for lane in range(lanes):
            word = value if lanes == 1 else a.op("CompositeExtract", a.u32, value, lane)
            halves.append(a.op("CompositeExtract", a.type(VectorType("f32")),
                               a.op("UnpackHalf2x16", pair, word), 0))
        return self._vector(halves, type)

    def _narrow(self, value: int, type: VectorType, dtype: str, component: str) -> int:
        """A value of `type` as it lies in memory, `component` by component."""
        a, lanes = self.assembler, type.lanes
        stored, words = a.type(VectorType(component, lanes)), VectorType("u32", lanes)
        if not bits_of(dtype, component):
            return value if dtype == type.scalar else a.op(CONVERSIONS[type.scalar, dtype], stored,
                                                           value)
        if dtype == "bf16":
            value = a.op("ShiftRightLogical", a.type(words), self._rounded(value, lanes),
                         a.constant(16, words))
        else:
            one, packed = VectorType("f32"), []
            pair, zero = a.type(VectorType("f32", 2)), a.constant(0.0, one)
            for lane in range(lanes):
                part = value if lanes == 1 else a.op("CompositeExtract", a.type(one), value, lane)
                packed.append(a.op("PackHalf2x16", a.u32,
                                   a.op("CompositeConstruct", pair, part, zero)))
            value = self._vector(packed, words)
        if component == "u32":
            return value
        bits = a.op("UConvert", a.type(VectorType("u16", lanes)), value)
        return bits if component == "u16" else a.op("Bitcast", stored, bits)

    def _rounded(self, value: int, lanes: int) -> int:
        """Bits of f32 values whose upper halves are the nearest bf16, ties to even; NaN stays."""
        a, words = self.assembler, VectorType("u32", lanes)
        kind = a.type(words)
        bits = a.op("Bitcast", kind, value)
        if value in self.halves:
            return bits
        upper = a.op("ShiftRightLogical", kind, bits, a.constant(16, words))
        odd = a.op("BitwiseAnd", kind, upper, a.constant(1, words))
        near = a.op("IAdd", kind, a.op("IAdd", kind, bits, a.constant(BF16_HALF, words)), odd)
        quiet = a.op("BitwiseOr", kind, bits, a.constant(BF16_QUIET, words))
        nan = a.op("IsNan", a.type(VectorType("bool", lanes)), value)
        return a.op("Select", kind, nan, quiet, near)


def bits_of(dtype: str, component: str) -> bool:
    """Whether 16-bit floats lie in memory as something else than the device computes with."""
    return component in ("u16", "bf16") or component == "u32" and dtype in HALVES
