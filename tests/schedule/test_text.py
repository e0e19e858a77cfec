"""Schedules as text."""

from __future__ import annotations

import pytest

from smalti.errors import InputError
from smalti.schedule import (
    AttentionSchedule,
    ContractionSchedule,
    DepthwiseSchedule,
    Direct,
    InPlace,
    MapSchedule,
    MomentsSchedule,
    Planar,
    ReductionSchedule,
    Winograd,
    parse,
)
from smalti.schedule.group import (
    GroupAttention,
    GroupContraction,
    GroupMap,
    GroupMatrixAttention,
    GroupReduction,
)
from smalti.schedule.line_attention import GroupLineAttention

TILED = ("ContractionSchedule(tile_b=1, tile_y=8, tile_x=16, panels=2, chunk=64, rows=14, "
         "vectors=2")


@pytest.mark.parametrize("schedule", [
    *(ContractionSchedule(1, 8, 16, 2, 64, 14, 2, weights="bf16", algorithm=algorithm)
      for algorithm in (Direct(), InPlace(), Planar(), Winograd(4, transformed="tile"))),
    DepthwiseSchedule(7, 2, 14), DepthwiseSchedule(7, 2, 7, 3, sliding=True),
    ReductionSchedule(1, 4), MapSchedule(4, inner=2),
    MomentsSchedule(8, 1), AttentionSchedule(2, 56, 14, dtype="bf16"),
    GroupMap(64, 4), GroupReduction(256, 32, 4, 2, 32), GroupAttention(8, 16, 2, 64),
    GroupContraction(64, 64, 16, 4, 4, pad=0, ahead=True, matrix="16x16x16", subgroup=32),
    GroupMatrixAttention(4, 2, 32, "16x16x16", 32),
    GroupLineAttention(4, 1, 32, "8x8x8", 8, held=True, words=True)], ids=str)
def test_the_text_of_a_schedule_parses_back(schedule) -> None:
    assert parse(str(schedule)) == schedule


@pytest.mark.parametrize("text, why", [
    ("", "no schedule"), ("4", "no schedule"), ("Other(grain=1)", "no schedule"),
    ("MapSchedule(4)", "no schedule"), ("MapSchedule(grain=f())", "no schedule"),
    ("MapSchedule(grain=1, grain=2)", "no schedule"), ("MapSchedule(**{})", "no schedule|has no"),
    ("MapSchedule()", "missing"), ("MapSchedule(grain='4')", "has no grain='4'"),
    ("MapSchedule(grain=True)", "has no grain=True"), ("MapSchedule(size=4)", "has no size=4"),
    ("MapSchedule(grain=0)", "no size"), ("MapSchedule(grain=99999999999)", "no size"),
    ("GroupMap(size=0)", "no size"), ("GroupMap(size=64, lanes=-1)", "no size"),
    ("(" * 500, "no schedule"), ("Winograd(size=4)", "no schedule"),
    (f"{TILED}, winograd=4)", "has no winograd=4"), (f"{TILED}, algorithm=4)", "no algorithm=4"),
    (f"{TILED}, algorithm=MapSchedule(grain=1))", "no schedule"),
    (f"{TILED}, algorithm=Winograd())", "missing"),
    (f"{TILED}, algorithm=Winograd(size=0))", "no size"),
    (f"{TILED}, algorithm=Winograd(size=4, transformed='now'))", "only 'binding', 'run', 'tile'"),
    (f"{TILED}, algorithm=Direct(size=4))", "Direct has no size=4"),
    ("MapSchedule(grain=Direct())", "has no grain=Direct")])
def test_what_is_no_schedule_is_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse(text)
