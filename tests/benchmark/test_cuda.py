"""PyTorch on a GPU: where there is none, the reason."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest

from smalti.benchmark import cuda


def test_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cuda.absence("NVIDIA H200") == "torch is not installed"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    found = {"is_available": lambda: False, "get_device_name": lambda: "NVIDIA H200"}
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(**found)))
    assert cuda.absence("NVIDIA H200") == "it finds no device of CUDA"
    found["is_available"] = lambda: True
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(**found)))
    assert cuda.absence("NVIDIA H200") == ""
    assert cuda.absence("llvmpipe") == "its device is NVIDIA H200, not llvmpipe"
