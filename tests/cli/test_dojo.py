"""`smalti dojo` as a user types it."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from smalti.cli.main import root


def test_an_agent_is_trained_and_scored(tmp_path: Path) -> None:
    agent, chart = tmp_path / "agent.npz", tmp_path / "regret.svg"
    trained = CliRunner().invoke(root, ["dojo", "train", "-o", str(agent), "--seconds", "1"])
    assert trained.exit_code == 0 and "trained for 1 s on perturbed devices" in trained.output
    scored = CliRunner().invoke(
        root, ["dojo", "score", "--agent", str(agent), "--chart", str(chart), "--tasks", "1"])
    assert scored.exit_code == 0 and "| perturbed | agent |" in scored.output
    assert "give their folder with --timings" in scored.output
    assert chart.read_text().startswith("<svg")


def test_what_cannot_be_used_is_one_message(tmp_path: Path) -> None:
    wrong = {"level 'moon'": ["train", "-o", str(tmp_path / "a.npz"), "--level", "moon"],
             "cannot be read": ["score", "--agent", str(tmp_path / "none.npz")],
             ".svg or .png": ["score", "--chart", "x.txt"],
             "published timings": ["score", "--timings", str(tmp_path)]}
    for message, arguments in wrong.items():
        done = CliRunner().invoke(root, ["dojo", *arguments])
        assert done.exit_code == 2 and message in done.output, done.output
    assert list(tmp_path.iterdir()) == []
