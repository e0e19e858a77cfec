"""Devices that tests of WGSL run on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from smalti.runtime.webgpu import WebGpu, adapters
from smalti.runtime.webgpu.adapter import F16, IMMEDIATES


@pytest.fixture(scope="session")
def webgpu() -> Iterator[WebGpu]:
    """The first device that `wgpu` finds."""
    with WebGpu(adapters()[0]) as gpu:
        yield gpu


@pytest.fixture(scope="session")
def plain_webgpu() -> Iterator[WebGpu]:
    """The same, as if it had neither f16 nor immediates."""
    adapter = adapters()[0]
    limits = replace(adapter.limits, push_bytes=0, f16=False, storage16=False)
    features = adapter.features - {F16, IMMEDIATES}
    with WebGpu(replace(adapter, limits=limits, features=features)) as gpu:
        yield gpu
