"""The verifier: what the partition holds is valid, and every rule names what breaks it."""

from __future__ import annotations

import pytest
from kernel_strategies import regions

from smalti.errors import VerificationError
from smalti.kernel.text import parse
from smalti.kernel.verifier import verify

VALID = """\
kernel map {
  input x: f32[4, 8] strides [8, 1]
  input ids: i32[4] strides [1]
  parameter table: f32[100, 8] strides [8, 1]
  output out: f32[4, 8] strides [8, 1]
  local row: f32[4]
  row[i < 4] = sum over j < 8
    of x[i, j] * 0.5
  out[i < 4, j < 8] = x[i, j] + row[i] + table[ids[i], j]
}
"""


def test_the_kernels_of_a_cut_are_valid() -> None:
    for region in regions():
        verify(region.kernel)


def test_the_example_is_valid() -> None:
    verify(parse(VALID))


@pytest.mark.parametrize("before, after, message", [
    ("input x:", "input y:", r"stage 0 \(row\): expected reads of listed buffers, found x"),
    ("local row", "local x", "each buffer listed once, found a second x"),
    ("f32[4, 8] strides [8, 1]\n  input", "f32[4, 8] strides [8]\n  input", "2 strides for input"),
    ("local row: f32[4]", "local row: f32[4] strides [1]", "0 strides for local row"),
    ("f32[100, 8]", "f32[0, 8]", "extents of 1 or more in table"),
    ("input x: f32", "input x: f33", "a dtype of .* found f33"),
    ("row[i < 4] =", "x[i < 4] =", "a result that is local or an output, found input x"),
    ("row[i < 4] =", "column[i < 4] =", "a result that is listed, found column"),
    ("row[i < 4] =", "row[i < 3] =", r"axes that fill row \[4\], found \[3\]"),
    ("over j < 8", "over i < 8", "axes that differ"),
    ("sum over", "mean over", "a reducer sum or max, found 'mean'"),
    ("+ row[i]", "+ row[i, j]", "1 indices for row, found 2"),
    ("+ row[i]", "+ row[k]", r"indices over i, j, found \['k'\]"),
    ("+ row[i]", "+ row[i + 1]", r"reads inside row \[4\], found index i \+ 1 of dimension 0"
                                 " from 1 to 4"),
    ("+ row[i]", "+ row[i - 1]", "from -1 to 2"),
    ("+ row[i]", "+ row[2 * i]", "from 0 to 6"),
    ("+ row[i]", "+ out[i, j]", "out written before it is read"),
    ("x[i, j] * 0.5", "row[i]", "row written before it is read"),
    ("table[ids[i], j]", "table[row[i], j]", "an index of i32 or i64, found row of f32"),
    ("x[i, j] * 0.5", "concat(x[i, j])", "a pointwise operation, found concat"),
    ("x[i, j] * 0.5", "conv(x[i, j])", "a pointwise operation, found conv"),
    ("x[i, j] * 0.5", "exp(x[i, j], 1)", "1 arguments for exp, found 2"),
    ("    of x[i, j] * 0.5", "    of x[i, j] where 0 <= j < 3", "a guard on i, found j"),
    ("output out: f32[4, 8] strides [8, 1]\n",
     "output out: f32[4, 8] strides [8, 1]\n  output more: f32[1] strides [1]\n",
     "output more to be written"),
    ("out[i < 4, j < 8] =", "row[i < 4, j < 8] =", "each buffer written once"),
])
def test_a_broken_rule_is_named(before: str, after: str, message: str) -> None:
    assert before in VALID
    kernel = parse(VALID.replace(before, after, 1))
    with pytest.raises(VerificationError, match=message) as raised:
        verify(kernel, "breaking")
    assert str(raised.value).startswith("after breaking, kernel map")


def one(read: str, guards: str) -> str:
    return (f"kernel map {{ input x: f32[8] strides [1] output out: f32[9, 3] strides [3, 1] "
            f"out[i < 9, j < 3] = x[{read}] {guards} }}")


@pytest.mark.parametrize("read, guards", [
    ("i - 1", "where 0 <= i - 1 < 8"),
    ("i - 1", "where 0 <= 2 * i - 2 < 16"),
    ("7 - i", "where 0 <= -i + 7 < 8"),
    ("7 - i", "where 0 <= i < 8"),
    ("(i - 1) // 2", "where 0 <= i - 1 < 8"),
    ("i + 1", "where 0 <= (i + 1) // 2 < 4"),
    ("i + j", "where 0 <= i + j < 8"),
    ("j + i - 1", "where 0 <= i + j - 1 < 8"),
    ("i + j + 20", "where 0 <= i - 20 < 3"),
    ("(i + j) // 2", ""),
])
def test_guards_bound_what_is_read(read: str, guards: str) -> None:
    verify(parse(one(read, guards)))


@pytest.mark.parametrize("read, guards", [
    ("i", ""), ("i - 1", "where 0 <= i < 8"), ("i", "where 0 <= j < 2"),
    ("i", "where 0 <= i < 9"), ("i + j", "where 0 <= i + j < 9"), ("i + 2", "where 0 <= i < 7"),
])
def test_guards_that_do_not_bound_enough(read: str, guards: str) -> None:
    with pytest.raises(VerificationError, match="reads inside x"):
        verify(parse(one(read, guards)))


def test_the_message_shows_the_stages_around() -> None:
    with pytest.raises(VerificationError) as raised:
        verify(parse(VALID.replace("+ row[i]", "+ row[i + 1]")), "shifting")
    assert str(raised.value).splitlines()[1:] == [
        "    row[i < 4] = sum over j < 8",
        "      of x[i, j] * 0.5",
        "  > out[i < 4, j < 8] = x[i, j] + row[i + 1] + table[ids[i], j]",
    ]
