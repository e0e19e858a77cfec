"""Time of a convolution on a GPU, by algorithm.

* implicit_gemm: the product [pixels, channels × window] times [channels × window, filters], whose
  first factor is gathered from the image as it is read.
* winograd: F(2×2, 3×3) in one kernel: 16 products of [tiles, channels] × [channels, filters].
* winograd_nonfused: F(4×4, 3×3): 36 products, with transformed images written to memory and read.
* fft: products at every frequency of 32×32 tiles, written to memory and read as well.

The last three are for 3×3 windows with a stride of 1. Other names, such as those of a library's
solvers, are timed as the algorithm that the name contains.
"""

from __future__ import annotations

import numpy as np

from smalti.machine.device import BYTES, DeviceModel
from smalti.machine.family import Constants, KernelFamily, Sizes, Timing
from smalti.machine.product import CONSTANTS as PRODUCT
from smalti.machine.product import product

ALGORITHMS = ("implicit_gemm", "winograd", "winograd_nonfused", "fft")
FIELDS = ("n", "channels", "height", "width", "filters", "kernel_height", "kernel_width",
          "out_height", "out_width", "groups")
FFT_TILE = 32
"""Side of the tiles into which a convolution by Fourier transforms is cut, as cuDNN does."""


def traffic(dtype: str, sizes: Sizes) -> np.ndarray:
    """Bytes of image, weights and result, each once: [problems]."""
    s = sizes
    image = s["n"] * s["channels"] * s["height"] * s["width"]
    weights = s["filters"] * s["channels"] / s["groups"] * s["kernel_height"] * s["kernel_width"]
    result = s["n"] * s["filters"] * s["out_height"] * s["out_width"]
    return BYTES[dtype] * (image + weights + result)


def flops(sizes: Sizes) -> np.ndarray:
    """Floating-point operations of the direct algorithm, in which all algorithms are counted."""
    s = sizes
    return (2 * s["n"] * s["out_height"] * s["out_width"] * s["filters"] * s["channels"]
            / s["groups"] * s["kernel_height"] * s["kernel_width"])


def implicit_gemm(device: DeviceModel, dtype: str, constants: Constants, sizes: Sizes) -> Timing:
    """The timing as one product that reads each pixel of the image from memory once."""
    s = sizes
    found = product(device, dtype, constants, {
        "batch": s["groups"], "m": s["n"] * s["out_height"] * s["out_width"],
        "n": s["filters"] / s["groups"],
        "k": s["channels"] / s["groups"] * s["kernel_height"] * s["kernel_width"]})
    return found._replace(flops=flops(s), bytes=np.minimum(found.bytes, traffic(dtype, s)))


def _winograd(device: DeviceModel, dtype: str, constants: Constants, sizes: Sizes, out: int,
              points: int) -> tuple[Timing, np.ndarray]:
    """The timing of the products at the `points` points of tiles of `out` × `out` results, and the
    bytes of the transformed images."""
    s = sizes
    tiles = s["n"] * np.ceil(s["out_height"] / out) * np.ceil(s["out_width"] / out)
    channels, filters = s["channels"] / s["groups"], s["filters"] / s["groups"]
    found = product(device, dtype, constants, {
        "batch": points * s["groups"], "m": tiles, "n": filters, "k": channels})
    transformed = BYTES[dtype] * points * (tiles * (s["channels"] + s["filters"])
                                           + channels * s["filters"])
    return found._replace(flops=flops(s)), transformed


def winograd(device: DeviceModel, dtype: str, constants: Constants, sizes: Sizes) -> Timing:
    """The timing of F(2×2, 3×3), all in one kernel."""
    found, _ = _winograd(device, dtype, constants, sizes, 2, 16)
    return found._replace(bytes=traffic(dtype, sizes))


def winograd_nonfused(device: DeviceModel, dtype: str, constants: Constants,
                      sizes: Sizes) -> Timing:
    """The timing of F(4×4, 3×3) in four kernels."""
    found, transformed = _winograd(device, dtype, constants, sizes, 4, 36)
    moved = (traffic(dtype, sizes) + transformed) * constants["transform"]
    return found.later(moved / (device.bandwidth * constants["memory"]) + 3 * device.launch, moved)


def fft(device: DeviceModel, dtype: str, constants: Constants, sizes: Sizes) -> Timing:
    """The timing by Fourier transforms: complex products at half of the frequencies of a tile, the
    other half being their conjugates."""
    out = FFT_TILE - 2
    found, transformed = _winograd(device, dtype, constants, sizes, out, 2 * FFT_TILE**2)
    moved = (traffic(dtype, sizes) + transformed) * constants["transform"]
    return found.later(moved / (device.bandwidth * constants["memory"]) + 3 * device.launch, moved)


CONSTANTS = {**PRODUCT, "launch": 5.0, "transform": 1.3}
MODELS = {"implicit_gemm": implicit_gemm, "winograd": winograd,
          "winograd_nonfused": winograd_nonfused, "fft": fft}


def family(algorithm: str) -> KernelFamily:
    """The family of kernels of an algorithm, or of a library's solver."""
    plain = algorithm.lower()
    kind = algorithm if algorithm in MODELS else (
        "winograd" if "winograd" in plain else "fft" if "fft" in plain else "implicit_gemm")
    return KernelFamily(f"conv:{algorithm}", FIELDS, CONSTANTS, MODELS[kind])


def legal(window: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int],
          groups: int) -> tuple[str, ...]:
    """The algorithms that can compute a convolution.

    >>> legal((1, 1), (1, 1), (1, 1), 1)
    ('implicit_gemm',)
    """
    if window == (3, 3) and strides == (1, 1) and dilations == (1, 1) and groups == 1:
        return ALGORITHMS[:3]
    return ALGORITHMS[:1]
