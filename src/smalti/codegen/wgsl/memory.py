"""How WGSL reads and writes buffers: a declaration of each, and a function for each kind of access.

A buffer has one declared type of elements. Of f32, f16, i32 and u32 it is as wide as the buffer's
`lanes`; narrower reads name components of it. Who writes a component may write the whole vector
(Metal's compiler reads it, and puts the component in), so where less is written elements are
scalars. What WGSL has no type for (bf16, 8-bit integers,
and f16 where the device does not compute with it) lies in words of 32 bits, from which bits are
taken. Of such a word only a half is written by atomic operations, for its neighbour may be written
at the same time by another invocation.

Indices count scalars. To those of a binding its offset is added, which the launch gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from smalti.codegen.gpu.form import (
    Binding,
    Expr,
    GroupLoad,
    Op,
    Shared,
    Statement,
    Store,
    covered,
)
from smalti.codegen.gpu.types import VectorType, vector_type
from smalti.codegen.wgsl.instructions import type_name
from smalti.dataclass import dataclass
from smalti.errors import VerificationError
from smalti.graph.operation import HALVES

WORDS_8 = ("i8", "u8")
BF16_BITS = """\
fn bf16_bits(x: f32) -> u32 {
    let u = bitcast<u32>(x);
    let nan = (u & 0x7fffffffu) > 0x7f800000u;
    return select((u + 0x7fffu + ((u >> 16u) & 1u)) >> 16u, (u >> 16u) | 64u, nan);
}
"""


@dataclass(frozen=True)
class WgslArray:
    """A binding, or an array of the work-group, as WGSL declares it under `name`.

    `words`: elements of fewer bits than 32 lie in words; `atomic`: halves of words are written;
    `whole`: nothing narrower than the buffer's lanes is.
    """

    name: str
    buffer: Binding | Shared
    words: bool
    atomic: bool
    whole: bool = True

    @property
    def width(self) -> int:
        """Words, or scalars, of one element of the declared array."""
        if not self.words:
            return self.buffer.lanes if self.whole else 1
        halves = self.buffer.dtype in HALVES and self.whole
        return self.buffer.lanes // 2 if halves and self.buffer.lanes > 2 else 1

    @property
    def packed(self) -> int:
        """Scalars in a word."""
        return 1 if not self.words else 2 if self.buffer.dtype in HALVES else 4

    @property
    def scalar(self) -> str:
        """What an element of the declared array is made of."""
        return "u32" if self.words else self.buffer.dtype

    def declaration(self, number: int) -> str:
        """The variable. Every binding may be written: memory between kernels is one buffer, and no
        buffer is bound both to be read and to be written in one launch."""
        element = type_name(VectorType(self.scalar, self.width))
        element = "atomic<u32>" if self.atomic else element
        if isinstance(self.buffer, Shared):
            count = -(-self.buffer.elements // (self.packed * self.width))
            return f"var<workgroup> {self.name}: array<{element}, {count}>;"
        return (f"@group(0) @binding({number}) "
                f"var<storage, read_write> {self.name}: array<{element}>;")

    # ------------------------------------------------------------------ accesses

    def reader(self, type: VectorType, masked: bool) -> str:
        """The name of the function that reads a value of `type`."""
        return f"read_{self.name}_{type.scalar}x{type.lanes}{'_where' if masked else ''}"

    def writer(self, type: VectorType) -> str:
        """The name of the function that writes a value of `type`."""
        return f"write_{self.name}_{type.scalar}x{type.lanes}"

    def reading(self, type: VectorType, masked: bool) -> str:
        """The function that reads a value of `type`, or 0 where the last argument is false."""
        result, parameter, index = type_name(type), "", "i"
        if masked:
            parameter, index = ", mask: bool", "select(0u, i, mask)"
        scalar, value = self._loaded(type)
        if scalar != type.scalar:
            value = f"{result}({value})"
        if masked:
            value = f"select({result}(), {value}, mask)"
        return (f"fn {self.reader(type, masked)}(i: u32{parameter}) -> {result} {{\n"
                f"    let e = {self._place(index)};\n"
                f"    let w = {self._whole(covered(self.buffer.dtype, type))};\n"
                f"    return {value};\n}}\n")

    def writing(self, type: VectorType) -> str:
        """The function that writes a value of `type`."""
        lines = "".join(f"    {line}\n" for line in self._stored(type))
        return (f"fn {self.writer(type)}(i: u32, v: {type_name(type)}) {{\n"
                f"    let e = {self._place('i')};\n{lines}}}\n")

    def _place(self, index: str) -> str:
        return index if isinstance(self.buffer, Shared) else f"offsets.{self.name} + {index}"

    def _element(self, part: int = 0) -> str:
        """The scalar, or word, number `part` of those that begin at element `e`."""
        place = "e" if self.packed == 1 else f"(e >> {log2(self.packed)}u)"
        further = f" + {part}u" if part else ""
        if self.width == 1:
            return f"{self.name}[{place}{further}]"
        return f"{self._wide()}[({place} & {self.width - 1}u){further}]"

    def _wide(self) -> str:
        """The element of the declared array that holds element `e`."""
        return f"{self.name}[e >> {log2(self.packed * self.width)}u]"

    def _whole(self, lanes: int) -> str:
        """All scalars, or words, of an access: in one where it is as wide as an element."""
        count = max(1, lanes // self.packed)
        if count == self.width > 1:
            return self._wide()
        parts = [self._element(part) for part in range(count)]
        if self.atomic:
            parts = [f"atomicLoad(&{part})" for part in parts]
        if count == 1:
            return parts[0]
        return f"{type_name(VectorType(self.scalar, count))}({', '.join(parts)})"

    def _loaded(self, type: VectorType) -> tuple[str, str]:
        """The scalar type that comes from memory, and the value, from what is read as `w`."""
        lanes = type.lanes
        if not self.words:
            return self.buffer.dtype, "w"
        if covered(self.buffer.dtype, type) > lanes:
            return "u32", "w"
        if self.buffer.dtype in WORDS_8:
            return self._bytes(lanes)
        if lanes == 1:
            return "f32", self._halves("(w >> ((e & 1u) * 16u))") + "[0]"
        if lanes == 2:
            return "f32", self._halves("w")
        return "f32", f"vec4<f32>({self._halves('w[0]')}, {self._halves('w[1]')})"

    def _halves(self, word: str) -> str:
        """The two floats in a word."""
        if self.buffer.dtype == "f16":
            return f"unpack2x16float({word})"
        return f"bitcast<vec2<f32>>(vec2<u32>({word} << 16u, {word} & 0xffff0000u))"

    def _bytes(self, lanes: int) -> tuple[str, str]:
        """The integers in a word, or some of them."""
        scalar = "i32" if self.buffer.dtype == "i8" else "u32"
        if lanes == 4:
            return scalar, f"unpack4x{self.buffer.dtype.upper()}(w)"
        parts = [f"extractBits(bitcast<{scalar}>(w), (e & 3u) * 8u + {8 * part}u, 8u)"
                 for part in range(lanes)]
        return scalar, parts[0] if lanes == 1 else f"vec2<{scalar}>({', '.join(parts)})"

    def _stored(self, type: VectorType) -> list[str]:
        """The statements that write `v`."""
        bits = covered(self.buffer.dtype, type) > type.lanes
        scalar = "u32" if bits else "f32" if self.words else self.buffer.dtype
        value = "v" if type.scalar == scalar else f"{type_name(VectorType(scalar, type.lanes))}(v)"
        if self.words and type.lanes == 1 and not bits:
            return ["let s = (e & 1u) * 16u;", f"let bits = {self._bits(value)} << s;",
                    f"atomicAnd(&{self._element()}, ~(0xffffu << s));",
                    f"atomicOr(&{self._element()}, bits);"]
        parts = [f"x[{part}]" for part in range(type.lanes)] if type.lanes > 1 else ["x"]
        if self.words and not bits:
            parts = [f"({self._bits(low)} | ({self._bits(high)} << 16u))"
                     for low, high in zip(parts[::2], parts[1::2])]
        lines = [f"let x = {value};"]
        if len(parts) == self.width > 1:
            whole = f"vec{self.width}<u32>({', '.join(parts)})" if self.words else "x"
            return [*lines, f"{self._wide()} = {whole};"]
        form = "atomicStore(&{}, {});" if self.atomic else "{} = {};"
        return lines + [form.format(self._element(k), part) for k, part in enumerate(parts)]

    def _bits(self, value: str) -> str:
        """The lower half of a word that holds an f32, rounded."""
        if self.buffer.dtype == "f16":
            return f"pack2x16float(vec2<f32>({value}, 0f))"
        return f"bf16_bits({value})"


def log2(count: int) -> int:
    """The exponent of a power of two."""
    return count.bit_length() - 1


def accesses(parts: Iterable[Expr],
             steps: Iterable[Statement]) -> Iterator[tuple[GroupLoad | Store, VectorType]]:
    """Every load and store, with the type of its value."""
    yield from ((part, part.type) for part in parts if isinstance(part, GroupLoad))
    yield from ((step, vector_type(step.value.type)) for step in steps if isinstance(step, Store))


def memories(buffers: Sequence[tuple[str, Binding | Shared]], parts: Sequence[Expr],
             steps: Sequence[Statement], f16: bool) -> dict[str, WgslArray]:
    """How each buffer of a program is declared. `f16`: WGSL's type of that name may be used.

    Raises VerificationError where single bytes are written.
    """
    dtypes = {buffer.name: buffer.dtype for _, buffer in buffers}
    written = {(s.buffer, covered(dtypes[s.buffer], s.value.type))
               for s in steps if isinstance(s, Store)}
    moved = {access.buffer for access, type in accesses(parts, steps)
             if dtypes[access.buffer] in HALVES and type.scalar == "u32"}
    found = {}
    for name, buffer in buffers:
        words = (buffer.dtype in ("bf16", *WORDS_8) or buffer.dtype == "f16" and not f16
                 or buffer.name in moved)
        if buffer.dtype in WORDS_8 and any(b == buffer.name for b, _ in written):
            raise VerificationError(f"{buffer.name} of {buffer.dtype} is written; 8-bit integers "
                                    "are only read")
        whole = all(lanes >= buffer.lanes for b, lanes in written if b == buffer.name)
        found[buffer.name] = WgslArray(name, buffer, words, words and (buffer.name, 1) in written,
                                       whole)
    return found


def access_functions(found: dict[str, WgslArray], parts: Sequence[Expr],
                     steps: Sequence[Statement]) -> list[str]:
    """The functions of every kind of access in a program, each once."""
    reads = {(part.buffer, part.type, part.where is not None): None for part in parts
             if isinstance(part, GroupLoad)}
    writes = {(step.buffer, vector_type(step.value.type)): None for step in steps
              if isinstance(step, Store)}
    functions = [*(found[name].reading(type, masked) for name, type, masked in reads),
                 *(found[name].writing(type) for name, type in writes)]
    rounds = any("bf16_bits" in text for text in functions) or any(
        isinstance(part, Op) and part.instruction == "narrow_bf16" for part in parts)
    return [*([BF16_BITS] if rounds else []), *functions]
