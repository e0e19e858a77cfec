"""The innermost loops of micro-kernels: what is loaded, and that nothing else is in the way.

What they compute is tested with the forms that are made of them. Loops are made for AArch64 here,
on any computer: its encoder is Smalti's own.
"""

from __future__ import annotations

from collections import Counter

import pytest

from smalti.codegen.arm64.encoder import disassembly
from smalti.codegen.cpu.assembler import FeatureLevel
from smalti.codegen.cpu.lower import limits
from smalti.codegen.cpu.micro import Micro, Reduction, multiply, zero_sums
from smalti.codegen.cpu.operands import Address
from smalti.codegen.levels import level
from smalti.schedule.choose import BLOCK_TILES

NEON, DOT, BF16 = level("neon"), level("neon_dot"), level("neon_bf16")
LOADED = ("ldr.q", "ldur.q", "ldr.d", "ldur.d", "ldr.s", "ldur.s")


def innermost(shape: Micro, turn: int, level: FeatureLevel = NEON) -> Counter[str]:
    """How often each instruction is in the loop of a micro-kernel whose `a` moves `turn` bytes."""
    asm = level.assembler("micro")
    a, b = asm.argument(), asm.argument()
    sums = zero_sums(asm, shape.rows, shape.vectors)
    multiply(asm, shape, a, b, [Reduction(10, turn)], sums)
    for number, total in enumerate(total for row in sums for total in row):
        asm.store(Address(b, NEON.bytes * number), total)
    ((start, end),) = asm.loops
    at = {line.target: place for place, line in enumerate(asm.lines) if line.name == "label"}
    found = Counter(line.name for line in asm.lines[at[start] + 1:at[end]])
    asm.finish()
    return found


def loads(found: Counter[str]) -> int:
    return sum(found[name] for name in LOADED)


@pytest.mark.parametrize("vectors", [2, 3, 4])
def test_four_factors_of_a_row_are_loaded_at_once(vectors: int) -> None:
    rows = limits(NEON).rows(vectors, 1)
    found = innermost(Micro(rows, vectors, 128, 4, vectors * NEON.bytes, 4), 16)
    assert found.pop("fmla.4s.lane") == 4 * rows * vectors
    assert loads(found) == rows + 4 * vectors
    rest = found - Counter({name: found[name] for name in LOADED})
    assert rest == Counter({"add.x.immediate": 2, "subs.x.immediate": 1, "b.condition": 1})


def test_factors_of_rows_side_by_side_are_loaded_at_once() -> None:
    found = innermost(Micro(8, 3, 4, 192, 3 * NEON.bytes, 2), 2 * 192)
    assert found["fmla.4s.lane"] == 2 * 8 * 3
    assert loads(found) == 2 * (2 + 3)


def test_what_is_left_over_is_loaded_in_part() -> None:
    found = innermost(Micro(5, 2, 128, 4, 2 * NEON.bytes, 6), 24)
    assert found["fmla.4s.lane"] == 6 * 5 * 2
    assert found["ldr.d"] + found["ldur.d"] == 5  # the fifth and sixth factor of each row
    assert loads(found) == 2 * 5 + 6 * 2


def test_factors_far_apart_are_loaded_one_by_one() -> None:
    found = innermost(Micro(4, 2, 64, 192, 2 * NEON.bytes, 2), 2 * 192)
    assert found["ldr.s"] + found["ldur.s"] == 2 * 4


def test_rows_that_no_offset_reaches_have_pointers() -> None:
    near = innermost(Micro(7, 3, 33 * 16, 4, 3 * NEON.bytes, 4), 16)
    odd = innermost(Micro(7, 3, 33 * 4, 4, 3 * NEON.bytes, 4), 16)
    assert loads(near) == loads(odd) == 7 + 4 * 3
    assert near["add.x.immediate"] == 2
    assert odd["add.x.immediate"] == 2 + 4  # 132 bytes are near, 528 a multiple of a vector


def test_pairs_of_bf16_are_taken_by_lane_too() -> None:
    found = innermost(Micro(7, 3, 128, 4, 3 * NEON.bytes, 4, "pairs"), 16)
    assert found["bfdot.4s.lane"] == 4 * 7 * 3


@pytest.mark.parametrize("at, product, flips", [
    (DOT, "sdot.4s.lane", 0), (DOT, "sdot.4s.lane", 7), (BF16, "sudot.4s.lane", 0)])
def test_bytes_are_taken_by_lane_too(at: FeatureLevel, product: str, flips: int) -> None:
    """Bytes without a sign get one where products want it, four factors of a row at once."""
    found = innermost(Micro(7, 3, 128, 4, 3 * NEON.bytes, 4, "quads", flipped=flips > 0), 16, at)
    assert found[product] == 4 * 7 * 3 and found["eor.16b"] == flips
    assert loads(found) == 7 + 4 * 3


@pytest.mark.parametrize("factors, product", [
    ("blocks", "bfmmla.4s"), ("blocks of quads", "usmmla.4s")])
@pytest.mark.parametrize("rows, vectors", [(6, 4), (5, 4), (6, 3), (10, 2), (1, 8)])
def test_blocks_are_made_of_two_rows(rows: int, vectors: int, factors: str, product: str) -> None:
    found = innermost(Micro(rows, vectors, 128, 4, vectors * NEON.bytes, 4, factors), 16, BF16)
    pairs = -(-rows // 2)
    assert found[product] == 2 * 2 * vectors * pairs
    assert found["zip1.2d"] == found["zip2.2d"] == pairs
    assert loads(found) == 2 * pairs + 4 * vectors
    assert limits(BF16).needed(rows, vectors, blocks=True) <= BF16.vectors
    half = innermost(Micro(rows, vectors, 128, 4, vectors * NEON.bytes, 2, factors), 8, BF16)
    assert half[product] == 2 * vectors * pairs and half["zip2.2d"] == 0


def test_no_block_is_spilled_where_the_tile_is_chosen() -> None:
    for vectors, rows in BLOCK_TILES.items():
        asm = BF16.assembler("micro")
        a, b = asm.argument(), asm.argument()
        sums = zero_sums(asm, rows, vectors)
        multiply(asm, Micro(rows, vectors, 1344, 4, vectors * BF16.bytes, 4, "blocks"), a, b,
                 [Reduction(10, 16)], sums)
        for number, total in enumerate(total for row in sums for total in row):
            asm.store(Address(b, BF16.bytes * number), total)
        assert "[sp" not in disassembly(asm.finish().bytes, 0)


def test_rows_and_vectors_fill_the_registers() -> None:
    bounds = limits(NEON)
    assert [bounds.rows(vectors, 1) for vectors in (1, 2, 3, 4, 8)] == [15, 9, 7, 5, 2]
    for vectors in range(1, 9):
        rows = bounds.rows(vectors, 0)
        assert bounds.needed(rows, vectors) <= bounds.vectors < bounds.needed(rows + 1, vectors)
