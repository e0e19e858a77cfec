"""What models are loaded with is checked before anything is read."""

from __future__ import annotations

import pytest

from smalti.diffusion import load_options
from smalti.diffusion.load_options import LoadOptions
from smalti.errors import InputError


def test_integers_of_8_bits_are_for_cpus(monkeypatch) -> None:
    assert LoadOptions(device="cpu", precision="int8").precision == "int8"
    monkeypatch.setattr(load_options, "precisions", lambda device: ("auto", "f32", "f16"))
    with pytest.raises(InputError, match="int8 needs a CPU .* has auto, f32, f16 .or give device"):
        LoadOptions(device="cpu", precision="int8")
