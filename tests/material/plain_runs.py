"""Runs of training in little, on the art of `plain_shapes`, by a clock that ticks by itself. The
files of `training` have to be importable by their names alone."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Ticking:
    """A clock by which every look takes a tenth of a second, so that runs do not depend on how
    busy a computer is."""

    def __init__(self) -> None:
        self.seconds = 1e9

    def __call__(self) -> float:
        self.seconds += 0.1
        return self.seconds


@contextmanager
def same_attention() -> Iterator[None]:
    """Put back at the end how PyTorch computes attention, which a run in bfloat16 changes in all of
    the process."""
    import torch

    cuda = torch.backends.cuda
    before = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()
    try:
        yield
    finally:
        cuda.enable_flash_sdp(before[0])
        cuda.enable_mem_efficient_sdp(before[1])


def trained(monkeypatch: pytest.MonkeyPatch, out: Path, *more: str, px: int = 64) -> list[dict]:
    """Run the program on pictures of `px` pixels a side; returns the lines of its log."""
    from plain_shapes import listed, packed
    from train import main

    data, concepts = packed(out.parent, px), listed(out.parent)
    with monkeypatch.context() as changed:
        ticking = Ticking()
        changed.setattr(time, "time", ticking)
        changed.setattr(time, "process_time", ticking)
        changed.setattr(sys, "argv", [
            "train.py", "--preset", "smoke", "--data", str(data), "--out", str(out), "--device",
            "cpu", "--threads", "1", "--concepts", str(concepts), "--log-every", "1", "--set",
            "scenes=40", "--text-minutes", "0.01", "--vae-minutes", "0.02", "--steps", "2", *more])
        with same_attention():
            main()
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
