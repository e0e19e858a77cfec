"""Records from JSON: what the annotations say, and nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from smalti.compiler.decoding import decoded


@dataclass(frozen=True)
class Inner:
    number: int
    name: str | None = None


@dataclass(frozen=True)
class Other:
    operation: str
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Outer:
    pairs: tuple[tuple[str, int], ...]
    ratio: float
    entries: list[Inner | Other] = field(default_factory=list)
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)


VALUE = Outer((("a", 1), ("b", 2)), 0.5, [Inner(3, "x"), Other("conv", {"pads": (1, (2, "y"))})],
              {"w": (1, 2), "s": ()})


def test_what_goes_to_json_comes_back() -> None:
    assert decoded(Outer, json.loads(json.dumps(asdict(VALUE)))) == VALUE


@pytest.mark.parametrize("change", [
    {"pairs": [["a"]]}, {"pairs": [["a", 1.0]]}, {"pairs": {"a": 1}}, {"ratio": "0.5"},
    {"ratio": None}, {"entries": [{"number": True}]}, {"entries": [{"number": 1, "more": 2}]},
    {"entries": [{}]}, {"sizes": {"w": 3}}, {"sizes": []}, {"unknown": 1},
])
def test_anything_else_is_refused(change: dict) -> None:
    with pytest.raises(ValueError, match="is no "):
        decoded(Outer, {**json.loads(json.dumps(asdict(VALUE))), **change})


def test_a_missing_field_is_refused_unless_it_has_a_default() -> None:
    assert decoded(Inner, {"number": 1}) == Inner(1)
    with pytest.raises(ValueError, match="is no Outer"):
        decoded(Outer, {"ratio": 1.0})
