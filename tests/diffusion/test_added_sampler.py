"""The worked example of docs/pipeline.md: a sampler takes one file."""

from __future__ import annotations

from worked_example import printed


def test_a_sampler_takes_one_file() -> None:
    assert printed("added_sampler.py") == "1 file\n"
