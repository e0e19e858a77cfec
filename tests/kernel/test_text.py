"""Kernels as text: what is printed reads back as the same kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from examples import examples
from hypothesis import given
from kernel_strategies import kernels, regions

from smalti.errors import InputError
from smalti.kernel.build import Window, contraction
from smalti.kernel.form import Buffer, Call, Const, Index, Kernel, Load, Stage, axis
from smalti.kernel.text import parse, show

EXAMPLE = """\
kernel contraction {
  input x0: f32[1, 4, 8, 8] strides [256, 1, 32, 4]
  parameter weight: f32[16, 4, 3, 3] strides [36, 9, 3, 1]
  parameter x1: f32[16] strides [1]
  output out: f32[1, 8, 8, 16] strides [1024, 128, 16, 1]
  local patch: f32[1, 10, 10, 4]
  local sum: f32[1, 8, 8, 16]
  patch[b < 1, y < 10, x < 10, c < 4] = silu(x0[b, c, y - 1, x - 1])
    where 0 <= y - 1 < 8, 0 <= x - 1 < 8
  sum[b < 1, y < 8, x < 8, o < 16] = sum over r < 3, s < 3, c < 4
    of patch[b, y + r, x + s, c] * weight[o, c, r, s]
  out[b < 1, y < 8, x < 8, o < 16] = sum[b, y, x, o] + x1[o]
}
"""


def example() -> Kernel:
    """The convolution of the text above."""
    b, y, x, o, c = map(axis, "byxoc")
    patch = Call("silu", (Load("x0", (b, c, y.plus(-1), x.plus(-1))),))
    result = Call("add", (Load("sum", (b, y, x, o)), Load("x1", (o,))))
    return contraction(Window(1, 8, 8, 4, 8, 8, 16, 3, 3, pad=(1, 1)), patch, result, [
        Buffer("x0", "input", (1, 4, 8, 8), (256, 1, 32, 4)),
        Buffer("weight", "parameter", (16, 4, 3, 3), (36, 9, 3, 1)),
        Buffer("x1", "parameter", (16,), (1,)),
        Buffer("out", "output", (1, 8, 8, 16), (1024, 128, 16, 1))])


def test_the_text_of_a_convolution() -> None:
    assert show(example()) == EXAMPLE == str(example())
    assert parse(EXAMPLE) == example()


@examples(100)
@given(kernels)
def test_what_is_printed_reads_back(kernel: Kernel) -> None:
    text = show(kernel)
    assert parse(text) == kernel, text
    assert show(parse(text)) == text


def test_the_kernels_of_a_cut_read_back() -> None:
    forms = set()
    for region in regions():
        forms.add(region.kernel.form)
        assert parse(show(region.kernel)) == region.kernel, show(region.kernel)
    assert forms == {"map", "contraction", "attention", "group_scale_shift", "layer_scale_shift",
                     "rms_scale"}


def one(value, guards=()) -> Kernel:
    return Kernel("map", (), (Stage("out", (("i", 4),), value, guards=guards),))


@pytest.mark.parametrize("value, text", [
    (Call("sub", (Load("a", ()), Call("sub", (Load("b", ()), Const(1.0))))), "a[] - (b[] - 1)"),
    (Call("sub", (Call("sub", (Load("a", ()), Load("b", ()))), Const(-1.5))), "a[] - b[] - -1.5"),
    (Call("mul", (Call("add", (Const(1e-05), Const(0.1))), Load("x", ()))), "(1e-05 + 0.1) * x[]"),
    (Call("div", (Load("x", ()), Call("mul", (Const(2.0), Const(3.0))))), "x[] / (2 * 3)"),
    (Call("neg", (Call("exp", (Const(float("-inf")),)),)), "neg(exp(-inf))"),
    (Load("t", (Load("ids", (axis("i"),)), Index((("i", 1),), 3, 2))), "t[ids[i], (i + 3) // 2]"),
    (Load("x", (Index((("i", -2), ("j", 1)), -1), Index((), 0), Index((("i", 0),), 0))),
     "x[-2 * i + j - 1, 0, 0 * i]"),
])
def test_expressions(value, text: str) -> None:
    assert show(one(value)).splitlines()[1].strip() == f"out[i < 4] = {text}"
    assert parse(show(one(value))) == one(value)


def test_kernels_that_differ_differ_in_text() -> None:
    kernel = example()
    changed = [replace(kernel, form="map"), replace(kernel, options=(("scale", 0.5),)),
               replace(kernel, stages=kernel.stages[:2]), replace(kernel, buffers=())]
    for number, stage in enumerate(kernel.stages):
        for other in (replace(stage, guards=((axis("b"), 1),)), replace(stage, value=Const(2.0)),
                      replace(stage, reduced=(("k", 2),), reducer="max")):
            stages = list(kernel.stages)
            stages[number] = other
            changed.append(replace(kernel, stages=tuple(stages)))
    assert len({show(each) for each in [kernel, *changed]}) == len(changed) + 1


@pytest.mark.parametrize("text, message", [
    ("", "expected 'kernel', found 'the end'"),
    ("kernel map", "expected '{', found 'the end'"),
    ("kernel map {\n  input x f32[1]\n}", "line 2.*"),
    ("kernel map {\n  out[i < n] = 1\n}", "line 2: .*a whole number, found 'n'"),
    ("kernel map {\n  out[i < 4] = x[i] +\n}", "line 3.*a number, found '}'"),
    ("kernel map {\n  out[i < 4] = x[i] @ 2\n}", "line 2.*: '@' is not part"),
    ("kernel map {\n}\nkernel", "line 3.*the end, found 'kernel'"),
    ("kernel map {\n  out[i < 4] = exp(1", "line 2.*',', found 'the end'"),
])
def test_what_does_not_parse_is_shown(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(text)
