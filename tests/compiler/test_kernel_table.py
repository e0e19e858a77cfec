"""How the kernels of a program are told: a summary that fits a screen, and a list of all."""

from __future__ import annotations

import pytest

from smalti.compiler.kernel_table import COLUMNS_MIN, LONGEST, KernelRow, KernelTable

LONG = "a_name_without_a_space_" * 10
ROWS = [KernelRow(0, "contraction", "first", 4_000_000, 0.003, None, "arithmetic",
                  details=("ContractionSchedule(tile=1)", "fusion ends here: a reason " * 9)),
        KernelRow(1, "contraction", LONG, 1_000_000, 0.001, None, "memory"),
        KernelRow(2, "map", "bound", 10, None, None, "", "once, when weights are bound"),
        KernelRow(3, "host", "sort", 0)]


def table(rows: list[KernelRow] = ROWS) -> KernelTable:
    return KernelTable("small: 3 kernels", ["memory: weights 2 MB"], rows, "expected: 4.000 ms")


def test_forms_have_their_share_and_their_limits() -> None:
    lines = table().text().splitlines()
    assert "contraction        2  100.0 %    4.000 ms  arithmetic 75%, memory 25%" in lines
    assert lines[0] == "small: 3 kernels" and "expected: 4.000 ms" in lines
    assert "besides, 1 kernel runs once, when weights are bound" in lines


def test_the_longest_come_first_and_ends_of_long_names_are_kept() -> None:
    lines = table().text().splitlines()
    at = lines.index("the longest 3, 100% of the time")
    assert "first" in lines[at + 2] and lines[at + 3].endswith("a_name_without_a_space_")
    many = [KernelRow(n, "map", f"layer.{n}.", 1, n * 1e-3, limit="memory") for n in range(40)]
    text = table(many).text()
    assert text.count(" layer.") == LONGEST and " layer.39." in text and " layer.29." not in text
    assert table(many).text(all=True).count(" layer.") == 40 + LONGEST


def test_measured_times_count_where_there_are_any() -> None:
    rows = [KernelRow(0, "map", "a", 2_000_000, 0.001, 0.004, "memory"),
            KernelRow(1, "map", "b", 2_000_000, 0.003, 0.001, "memory")]
    lines = table(rows).text(all=True).splitlines()
    assert any(line.startswith(" 80.0 %    4.000 ms      0.5  memory") for line in lines)
    assert "       4.000 ms 0.5 GFLOP/s; 1.000 ms expected, memory" in lines


def test_without_any_times_arithmetic_decides() -> None:
    rows = [KernelRow(0, "map", "little", 1), KernelRow(1, "contraction", "much", 9)]
    lines = table(rows).text().splitlines()
    at = lines.index("the 2 with most arithmetic, as no time is known")
    assert "much" in lines[at + 2] and "little" in lines[at + 3]


@pytest.mark.parametrize("columns", [1, 60, 80, 100, 200])
@pytest.mark.parametrize("all", [False, True])
def test_no_line_is_longer_than_asked_for(columns: int, all: bool) -> None:
    assert max(map(len, table().text(all, columns).splitlines())) <= max(columns, COLUMNS_MIN)


def test_no_kernels_are_no_error() -> None:
    assert table([]).text().startswith("small: 3 kernels\nmemory: weights 2 MB\nexpected: 4.000")
