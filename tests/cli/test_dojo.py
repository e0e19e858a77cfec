"""`smalti dojo` as a user types it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from smalti import dojo as room
from smalti.cli.dojo import write_chart
from smalti.cli.main import root


@pytest.mark.sweep
def test_an_agent_is_trained_and_scored(tmp_path: Path) -> None:
    agent = tmp_path / "agent.npz"
    trained = CliRunner().invoke(root, ["dojo", "train", "-o", str(agent), "--seconds", "1"])
    assert trained.exit_code == 0 and "trained for 1 s on perturbed devices" in trained.output
    scored = CliRunner().invoke(
        root, ["dojo", "score", "--agent", str(agent), "--tasks", "1"])
    assert scored.exit_code == 0 and "| perturbed | agent |" in scored.output
    assert "give their folder with --timings" in scored.output


def test_what_cannot_be_used_is_one_message(tmp_path: Path) -> None:
    wrong = {"level 'moon'": ["train", "-o", str(tmp_path / "a.npz"), "--level", "moon"],
             "cannot be read": ["score", "--agent", str(tmp_path / "none.npz")],
             ".svg or .png": ["score", "--chart", "x.txt"],
             "published timings": ["score", "--timings", str(tmp_path)]}
    for message, arguments in wrong.items():
        done = CliRunner().invoke(root, ["dojo", *arguments])
        assert done.exit_code == 2 and message in done.output, done.output
    assert list(tmp_path.iterdir()) == []


def test_a_chart_has_a_curve_for_each_contender(tmp_path: Path) -> None:
    space = room.Space("rows", ("tile",), np.arange(1, 9)[:, None])
    task = room.Task("rows", space, np.zeros(1, np.float32), np.ones(8), np.arange(1.0, 9.0))
    for name, start in (("regret.svg", b"<svg"), ("regret.png", b"\x89PNG")):
        write_chart(tmp_path / name, room.Policy.new(space, features=1), task)
        assert (tmp_path / name).read_bytes().startswith(start)
    assert (tmp_path / "regret.svg").read_text().count("<polyline") > 3  # and those of the grid
