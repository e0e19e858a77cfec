"""PyTorch on a GPU with CUDA: eagerly, images channels-last, everything on the device."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from smalti.benchmark.suite import Case

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def absence(device: str) -> str:
    """Why PyTorch does not run on the GPU of this name; nothing where it does."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return "it finds no device of CUDA"
    name = torch.cuda.get_device_name()
    return "" if name == device else f"its device is {name}, not {device}"


def tensor(array: np.ndarray, precision: str) -> Any:
    """An array on PyTorch's device: floats in a precision, images channels-last."""
    import torch

    found = torch.tensor(array).cuda()
    if not found.is_floating_point():
        return found
    last = torch.channels_last if found.dim() == 4 else torch.preserve_format
    return found.to(getattr(torch, DTYPES[precision]), memory_format=last)


def call(case: Case, precision: str) -> Callable[[], Any]:
    """A model of the suite on PyTorch's device, with its inputs there."""
    import torch

    module = case.module().to("cuda", getattr(torch, DTYPES[precision]),
                              memory_format=torch.channels_last).eval()
    return partial(module, *(tensor(array, precision) for array in case.inputs().values()))
