"""Processes that learn together."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers


def met(options: argparse.Namespace, place) -> None:
    """One of the processes: two parameters, gradients of its own, one exchange."""
    import torch
    from peers import Peers

    layers = [torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last), torch.nn.Linear(4, 1)]
    parameters = [each for layer in layers for each in layer.parameters()]
    peers = Peers(place, parameters)
    factor = 1.0 + 2 * place.rank
    (sum(each.square().sum() for each in parameters) * factor / 2).backward()
    told = peers.meet(10.0 + place.rank, place.rank == 1)
    torch.save(dict(told=told, parameters=[each.data for each in parameters],
                    gradients=[each.grad for each in parameters]),
               Path(options.out) / f"{place.rank}.pt")


def test_processes_begin_alike_and_take_the_mean_of_their_gradients(tmp_path: Path) -> None:
    import torch
    from peers import helpers

    options = argparse.Namespace(out=str(tmp_path))
    with helpers(2, met, options) as place:
        met(options, place)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first["told"] == second["told"] == (10.5, True)
    for key in ("parameters", "gradients"):
        for one, other in zip(first[key], second[key], strict=True):
            assert torch.equal(one, other)
    for value, gradient in zip(first["parameters"], first["gradients"], strict=True):
        torch.testing.assert_close(gradient, 2 * value)  # the mean of 1 and 3 times the value


def test_the_others_end_where_the_first_fails(tmp_path: Path) -> None:
    import multiprocessing

    from peers import helpers

    with pytest.raises(ValueError, match="broken"), helpers(
            2, met, argparse.Namespace(out=str(tmp_path))):
        raise ValueError("broken")
    assert not multiprocessing.active_children() and not [*tmp_path.iterdir()]


def test_a_run_of_two_processes_trains_and_is_exported(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plain_runs import trained

    log = trained(monkeypatch, tmp_path / "run", "--processes", "2", "--unet-minutes", "0.03",
                  "--few-minutes", "0.03")
    for stage in ("unet", "few"):
        steps = [line["step"] for line in log if line.get("stage") == stage]
        assert steps and steps == sorted(set(steps))
    assert sum(line.get("event") == "start" for line in log) == 1
    assert sum(line.get("event") == "export" for line in log) == 2


def test_less_than_one_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plain_runs import trained

    with pytest.raises(SystemExit, match=re.escape("--processes 0: expected 1 or more")):
        trained(monkeypatch, tmp_path / "run", "--processes", "0")


def test_processes_share_gradients_on_processor_cores_alone(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from train import parse

    monkeypatch.setattr("sys.argv", ["train.py", "--data", "d", "--out", "o", "--device", "cuda",
                                     "--processes", "2"])
    with pytest.raises(SystemExit, match="--processes 2: .* processor cores"):
        parse()
    assert not torch.distributed.is_initialized()
