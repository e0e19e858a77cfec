"""The list of tests that are left out on Windows names tests that there are, each with a reason."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from left_out import LIST, reasons

ROOT = Path(__file__).parents[1]
BOTH = ("windows", "wine")


def functions(path: Path) -> set[str]:
    """The names of a file's tests, classes before them, as pytest writes them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", sorted(reasons(BOTH)))
def test_what_is_left_out_exists(name: str) -> None:
    file, _, test = name.partition("::")
    assert (ROOT / file).exists(), f"{LIST.name} names {file}, which there is not"
    assert not test or test in functions(ROOT / file), f"{LIST.name}: {file} has no test {test}"


def test_nothing_is_named_twice() -> None:
    text = LIST.read_text(encoding="utf-8")
    for name in reasons(BOTH):
        assert text.count(f'"{name}"') == 1, name


def test_what_a_whole_folder_leaves_out_is_not_named_again() -> None:
    named = reasons(BOTH)
    for name in named:
        assert not {parent.as_posix() for parent in Path(name.partition("::")[0]).parents} \
            & set(named), name
