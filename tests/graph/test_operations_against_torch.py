"""The larger operations against PyTorch, at sizes where plain loops are too slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from smalti.benchmark.agreement import relative_error
from smalti.graph import OPERATIONS

pytestmark = pytest.mark.peers

Case = tuple[str, tuple[tuple[int, ...], ...], dict[str, Any], Callable[..., Any]]


def cases() -> dict[str, Case]:
    import torch
    from torch.nn import functional as F

    def attention(q, k, v, heads: int, **options: Any):
        q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2).flatten(2)

    image, wide = (2, 32, 17, 23), (2, 60, 80)
    return {
        "conv": ("conv", (image, (48, 32, 3, 3), (48,)), {"pads": (1, 1, 1, 1)},
                 lambda x, w, b: F.conv2d(x, w, b, padding=1)),
        "conv, stride 2, pads below and right": (
            "conv", (image, (8, 32, 3, 3)), {"strides": (2, 2), "pads": (0, 0, 1, 1)},
            lambda x, w: F.conv2d(F.pad(x, (0, 1, 0, 1)), w, stride=2)),
        "conv, depthwise, dilated": (
            "conv", (image, (32, 1, 5, 5), (32,)), {"group": 32, "dilations": (2, 2)},
            lambda x, w, b: F.conv2d(x, w, b, groups=32, dilation=2)),
        "attention, head dimension 40": (
            "attention", (wide, (2, 77, 80), (2, 77, 80)), {"num_heads": 2},
            lambda q, k, v: attention(q, k, v, 2)),
        "attention, causal": (
            "attention", (wide,) * 3, {"num_heads": 5, "is_causal": 1, "scale": 0.1},
            lambda q, k, v: attention(q, k, v, 5, is_causal=True, scale=0.1)),
        "group_normalization": (
            "group_normalization", (image, (32,), (32,)), {"num_groups": 8, "epsilon": 1e-6},
            lambda x, s, b: F.group_norm(x, 8, s, b, 1e-6)),
        "layer_normalization": (
            "layer_normalization", (wide, (80,), (80,)), {},
            lambda x, s, b: F.layer_norm(x, (80,), s, b)),
        "rms_normalization": (
            "rms_normalization", (wide, (80,)), {"epsilon": 1e-6},
            lambda x, s: F.rms_norm(x, (80,), s, 1e-6)),
        "softmax": ("softmax", (wide,), {"axis": 1}, lambda x: F.softmax(x, 1)),
        "resize": ("resize", (image,), {"scales": (1, 1, 2, 2)},
                   lambda x: F.interpolate(x, scale_factor=2, mode="nearest")),
        "silu": ("silu", (wide,), {}, F.silu),
        "gelu": ("gelu", (wide,), {}, F.gelu),
        "gelu_tanh": ("gelu_tanh", (wide,), {}, lambda x: F.gelu(x, approximate="tanh")),
        "quick_gelu": ("quick_gelu", (wide,), {}, lambda x: x * torch.sigmoid(1.702 * x)),
        "erf": ("erf", (wide,), {}, torch.erf),
        "mat_mul": ("mat_mul", ((2, 1, 30, 40), (3, 40, 50)), {}, torch.matmul),
    }


NAMES = ("conv", "conv, stride 2, pads below and right", "conv, depthwise, dilated",
         "attention, head dimension 40", "attention, causal", "group_normalization",
         "layer_normalization", "rms_normalization", "softmax", "resize", "silu", "gelu",
         "gelu_tanh", "quick_gelu", "erf", "mat_mul")


@pytest.mark.parametrize("name", NAMES)
def test_meaning(name: str) -> None:
    import torch

    operation, shapes, attributes, peer = cases()[name]
    rng = np.random.default_rng(5)
    arrays = [3 * rng.standard_normal(shape, np.float32) for shape in shapes]
    record = OPERATIONS[operation]
    found = record.meaning(*arrays, **record.complete(attributes))
    expected = peer(*map(torch.tensor, arrays)).numpy()
    assert relative_error(found, expected) <= 2e-6


def test_all_cases_are_run() -> None:
    assert set(NAMES) == set(cases())
