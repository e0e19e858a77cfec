"""Programs are written as text that reads back as the same program."""

import pytest
from examples import examples
from group_program_strategies import programs
from hypothesis import given

from smalti.codegen.gpu.builder import Builder
from smalti.codegen.gpu.form import (
    F16,
    F32,
    I32,
    GroupProgram,
    Let,
    Number,
    Op,
    op,
    select,
    spread,
    vector,
)
from smalti.codegen.gpu.text import parse, show
from smalti.codegen.gpu.types import Matrix, VectorType
from smalti.errors import InputError

SHOWN = """\
program tile of 4 x 2 x 1 groups of 64 in subgroups of 32 {
  read x: f16[4096] by 4
  write y: f32[4096]
  shared part: f16[512]
  let t1 = group_x * 64 + invocation
  var sum2 = sum:f32[16, 16](0.0)
  for k3 from 0 below 64 step 16 {
    part[invocation] = x[t1 + k3] - f32(x[k3 as f16 where t1 < 7]) where invocation < 32
    barrier
    subgroup_barrier
    sum2 = matrix_multiply_add(part[k3 rows 16 as a:f16[16, 16]], \
x[k3 columns 64 as b:f16[16, 16]], sum2)
  }
  let wide4 = x[t1 * 4 as f32x4] * f32x4(2.0) + vector(1.0, -1.5, 1e-05, inf)
  if (t1 % 2 == 0) & not(lane >= 3) {
    y[t1] = -(component(wide4, 0) - (component(wide4, 1) - f32(-3i)))
  } else {
    y[t1 rows 16] = sum2
  }
}
"""


def test_a_program_shows_as_it_is_meant() -> None:
    b = Builder("tile", 64, 32)
    x, y = b.binding("x", "f16", 4096, "read", 4), b.binding("y", "f32", 4096, "write")
    part = b.shared("part", "f16", 512)
    t = b.let(b.group[0] * 64 + b.invocation)
    total = b.variable(0.0, "sum", Matrix("sum", 16, 16, "f32"))
    with b.loop(64, step=16) as k:
        half = b.load(x, k, where=t < 7, scalar="f16")
        b.store(part, b.invocation, b.load(x, t + k) - half.to("f32"), where=b.invocation < 32)
        b.barrier()
        b.barrier(subgroup=True)
        b.set(total, op("matrix_multiply_add", b.matrix(part, k, 16, Matrix("a", 16, 16, "f16")),
                        b.matrix(x, k, 64, Matrix("b", 16, 16, "f16"), True), total))
    some = vector(*(Number(value, F32) for value in (1.0, -1.5, 1e-5, float("inf"))))
    wide = b.let(b.load(x, t * 4, 4) * 2.0 + some, "wide")
    with b.branch((t % 2).equals(0) & op("not", b.lane >= 3)):
        b.store(y, t, -(wide.lane(0) - (wide.lane(1) - Number(-3, I32).to("f32"))))
    with b.otherwise():
        b.store_matrix(y, t, 16, total)
    program = b.finish((4, 2, 1))
    assert str(program) == show(program) == SHOWN
    assert parse(SHOWN) == program


@examples(60)
@given(programs())
def test_text_reads_back(program: GroupProgram) -> None:
    text = show(program)
    again = parse(text)
    assert again == program
    assert show(again) == text


@pytest.mark.parametrize("value", [
    -Number(2.0, F32), Number(-2.0, F32), Number(2.0, F16), Number(-2, I32), -Number(2, I32),
    spread(Number(-2.0, F16), 4), Number(-0.5, VectorType("f16", 4)),
    Number(True, VectorType("bool", 2)),
    Number(1.5, F32).to("f16"), Number(1.5, F32).bits("u32"), Number(float("-inf"), F16),
    Op("convert", (Number(0.0, Matrix("sum", 8, 8, "f32")),), Matrix("sum", 8, 8, "f16")),
    Number(-128, Matrix("a", 8, 32, "i8")), Number(7, Matrix("sum", 8, 8, "i32")),
    select(Number(True, VectorType("bool")), Number(1, I32), 2) << 3, -(Number(1.0, F32) * 2.0)])
def test_values_read_back(value: Op) -> None:
    b = Builder("value", 1)
    b.add(Let("t", value))
    program = b.finish((1, 1, 1))
    assert parse(show(program)) == program


@pytest.mark.parametrize("change,message", [
    (("y: f32[4096]", "y: f32[many]"), "line 3: .*: expected a whole number"),
    (("    barrier", "    barriers"), "line 10: .*: expected '\\[', found 'subgroup_barrier'"),
    (("lane >= 3", "lune >= 3"), "expected a name that is known here, found 'lune'"),
    (("t1 + k3", "t1 + 1.0"), "expected operands that fit .add of u32, f32."),
    (("x[k3 columns 64 as b:f16[16, 16]]", "1.0"),
     "expected operands that fit .matrix_multiply_add of a:f16.16, 16., f32 and sum:f32.16, 16.."),
    (("component(wide4, 0)", "component(sum2, 0)"),
     "expected a scalar or a vector, found the matrix sum:f32.16, 16."),
    (("as b:f16[16, 16]]", "as f16]"), "expected the type of a matrix, found 'f16'"),
    (("as f32x4]", "as a:f16[16, 16]]"), "expected the type of a scalar or a vector, found 'a'"),
    (("not(", "knot("), "expected an instruction; 'knot' is none"),
    (("x[k3 as", "z[k3 as"), "expected a buffer; 'z' is none"),
    (("f32(-3i)", "f32(-3i$)"), "this is no part of the notation"),
    (("sum2\n  }\n}", "sum2\n  }"), "expected .*, found 'the end'"),
    (("}\n}\n", "}\n}\n}"), "expected the end, found '}'")])
def test_text_that_does_not_parse_is_refused(change: tuple[str, str], message: str) -> None:
    assert change[0] in SHOWN
    with pytest.raises(InputError, match=message):
        parse(SHOWN.replace(*change))
