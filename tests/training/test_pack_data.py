"""What is packed first where not everything has room."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.peers


def test_the_short_list_comes_first_then_what_is_held_out() -> None:
    from pack_data import in_order
    from pictures import held_out

    labels = [f"thing {number}" for number in range(40)] + ["cat face", "banana"]
    concepts = [{"label": label, "files": {"fluent3d": "a", "noto": "b"}} for label in labels]
    concepts[0]["files"] = {"noto": "b"}
    order = in_order(concepts, ["fluent3d", "fluentflat", "noto"])
    assert order[:4] == [("fluent3d", 40), ("noto", 40), ("fluent3d", 41), ("noto", 41)]
    rest = [held_out(labels[index]) for _, index in order[4:]]
    assert 0 < sum(rest) < 16 and rest == sorted(rest, reverse=True)
    assert len(order) == 83 and ("fluent3d", 0) not in order
