"""Which products of integers are computed in integers: what the model of a device expects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smalti.compiler.integers import IntegerChoice
from smalti.compiler.targets import TARGETS
from smalti.fuse import partition
from smalti.graph import Graph, Node, Value
from smalti.kernel.form import Kernel
from smalti.machine.library import device
from smalti.machine.unit_rates import unit_rates
from smalti.schedule.group import GroupLimits, GroupSchedule, MatrixShape

TARGET = TARGETS["spirv"]
UNIT = (MatrixShape(16, 16, 16, "f16", "f32"),)
OF_BYTES = (MatrixShape(16, 16, 32, "i8", "i32"), *UNIT)


def choice(name: str = "a100_pcie_40_gb", precision: str = "f16", **limits: object
           ) -> IntegerChoice:
    """That of a GPU of the library whose driver says that dot products are fast, with a matrix unit
    for halves, but for `limits`."""
    found = device(name)
    told = {"dot_i8": True, "fast_dot_i8": True, "matrices": UNIT, "subgroup_choice": True,
            "subgroup_operations": True, "subgroup_min": 32, "units": found.units,
            "rates": unit_rates(found), **limits}
    return IntegerChoice(TARGET, replace(TARGET.usual, **told), precision)


def product(rows: int, depth: int, columns: int, steady: bool = True, sign: str = "u8") -> Node:
    found = product_in(Graph(), rows, depth, columns, steady, sign).node
    assert found is not None
    return found


def product_in(g: Graph, rows: int, depth: int, columns: int, steady: bool, sign: str) -> Value:
    a = g.input("a", (rows, depth), sign)
    b = (g.parameter if steady else g.input)("b", (depth, columns), "i8")
    return g.apply("mat_mul_integer", a, b, g.constant(3, sign), g.constant(0, "i8"))


LARGE = product(4096, 320, 320)


@pytest.mark.parametrize(("limits", "taken"), [
    ({"precision": "f32", "matrices": ()}, True),
    ({"precision": "f32", "matrices": (), "fast_dot_i8": False}, False),
    ({"precision": "f32", "matrices": (), "dot_i8": False, "fast_dot_i8": False}, False),
    ({}, False), ({"matrices": OF_BYTES}, True),
    ({"matrices": OF_BYTES, "dot_i8": False, "fast_dot_i8": False}, True)],
    ids=["dot products", "slow ones", "none", "beside a matrix unit of halves",
         "in a matrix unit", "there without dot products"])
def test_the_fastest_way_is_taken(limits: dict, taken: bool) -> None:
    found = choice(**limits)
    assert found.computes(LARGE) is found.stands(LARGE) is taken


@pytest.mark.parametrize(("name", "least", "most"), [
    ("a100_pcie_40_gb", 4, 9), ("rtx_4060", 3, 5), ("rx_9070_xt", 3, 5), ("rx_7900_xtx", 1, 1.5)])
def test_matrices_of_bytes_are_taken_by_their_rate(name: str, least: float, most: float) -> None:
    """How many times as fast as by dot products a large product is: those of RX 7900 XTX multiply
    as many bytes as its matrix unit."""
    found, without = (choice(name, matrices=shapes) for shapes in (OF_BYTES, UNIT))
    (kernel,) = [each.kernel for each in partition(deep(), (), TARGET.functions).regions]
    clocks = {}
    for each in (found, without):
        schedule = TARGET.likely(kernel, each.limits, "f16")
        clocks[schedule.matrix] = TARGET.cost(kernel, each.limits, schedule)
        assert schedule.dtype == "i8"
    assert clocks.keys() == {"16x16x32", ""}
    assert least < clocks[""] / clocks["16x16x32"] < most
    assert found.stands(product(2048, 2048, 2048))


def deep() -> Graph:
    """A product whose sums are its result."""
    g = Graph()
    g.output("y", product_in(g, 2048, 2048, 2048, True, "u8"))
    return g


def test_sums_that_floats_would_take_in_parts_are_taken_in_integers() -> None:
    """Kernels do not add the parts."""
    long = product(4096, 1280, 320)
    found = choice()
    assert found.computes(long) and not found.stands(long)


def test_few_rows_are_bound_by_the_bytes_of_their_weight() -> None:
    found, row = choice(), product(1, 512, 4096)
    assert found.computes(row) and found.stands(row)


def test_each_product_is_weighed_once_and_cpus_weigh_none() -> None:
    asked: list[Kernel] = []

    def same(kernel: Kernel, limits: GroupLimits, schedule: GroupSchedule) -> float:
        asked.append(kernel)
        return 1.0

    weighing = IntegerChoice(replace(TARGET, cost=same), TARGET.usual, "f32")
    assert all(weighing.computes(product(8, 64, 16)) for _ in range(3))
    assert len(asked) == 2 and len(set(asked)) == 2
    assert weighing.computes(product(8, 64, 16, steady=False)) and len(asked) > 2
    before = len(asked)
    assert weighing.stands(product(8, 1280, 16)) and weighing.computes(product(8, 1280, 16))
    assert len(asked) == before + 2
    cpu = TARGETS["avx2"]
    assert cpu.cost is None and IntegerChoice(cpu, cpu.usual, "f32").computes(LARGE)


def test_what_no_kernel_computes_is_not_weighed() -> None:
    assert not choice().computes(product(8, 63, 16))
