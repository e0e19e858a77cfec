"""Devices that tests of WGSL run on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from gpu_devices import absent

from smalti.errors import DeviceError
from smalti.runtime.webgpu import WebAdapter, WebGpu, adapters
from smalti.runtime.webgpu.adapter import F16, IMMEDIATES


def first() -> WebAdapter:
    """The best adapter of `wgpu`."""
    try:
        return adapters()[0]
    except DeviceError as error:
        absent(str(error), "mesa-vulkan-drivers")


@pytest.fixture(scope="session")
def webgpu() -> Iterator[WebGpu]:
    """The best device of `wgpu`."""
    with WebGpu(first()) as gpu:
        yield gpu


@pytest.fixture(scope="session")
def plain_webgpu() -> Iterator[WebGpu]:
    """The same, as if it had neither f16 nor immediates."""
    adapter = first()
    limits = replace(adapter.limits, f16=False, storage16=False)
    features = adapter.features - {F16, IMMEDIATES}
    with WebGpu(replace(adapter, limits=limits, features=features)) as gpu:
        yield gpu
