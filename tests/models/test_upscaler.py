"""Upscalers against PyTorch modules written here after the published architectures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smalti.benchmark.agreement import relative_error
from smalti.benchmark.weights import seeded
from smalti.errors import InputError
from smalti.graph import evaluate, parse, show, verify
from smalti.models import RrdbConfig, SrvggConfig, upscaler_graph

ERROR_MAX = 1e-5
TINY = RrdbConfig(channels=8, growth=4, blocks=2)
CONFIGS: dict[str, RrdbConfig | SrvggConfig] = {
    "ESRGAN x4": TINY,
    "ESRGAN x8": RrdbConfig(channels=8, growth=4, blocks=1, doublings=3),
    "Real-ESRGAN x2": RrdbConfig(channels=8, growth=4, blocks=1, unshuffle=2),
    "Real-ESRGAN x1": RrdbConfig(channels=8, growth=4, blocks=1, unshuffle=4),
    "compact x4": SrvggConfig(channels=8, convolutions=3),
    "compact x2": SrvggConfig(channels=8, convolutions=1, scale=2),
}


def rrdb(config: RrdbConfig, read: Any, x: Any) -> Any:
    """Figures 3 and 4 of arXiv:1809.00219."""
    import torch
    from torch.nn import functional

    def conv(x: Any, name: str) -> Any:
        return functional.conv2d(x, read(f"{name}.weight"), read(f"{name}.bias"), padding=1)

    def act(x: Any) -> Any:
        return functional.leaky_relu(x, 0.2)

    def dense(x: Any, name: str) -> Any:
        parts = [x]
        for i in range(1, 5):
            parts.append(act(conv(torch.cat(parts, 1), f"{name}.conv{i}")))
        return x + 0.2 * conv(torch.cat(parts, 1), f"{name}.conv5")

    first = y = conv(functional.pixel_unshuffle(x, config.unshuffle), "conv_first")
    for i in range(config.blocks):
        z = y
        for j in (1, 2, 3):
            z = dense(z, f"body.{i}.rdb{j}")
        y = y + 0.2 * z
    y = first + conv(y, "conv_body")
    for i in range(config.doublings):
        y = act(conv(functional.interpolate(y, scale_factor=2, mode="nearest"), f"conv_up{i + 1}"))
    return conv(act(conv(y, "conv_hr")), "conv_last")


def srvgg(config: SrvggConfig, read: Any, x: Any) -> Any:
    """Real-ESRGAN's `SRVGGNetCompact`."""
    from torch.nn import functional

    y, number = x, 0
    for number in range(0, 2 * config.convolutions + 2, 2):
        y = functional.conv2d(y, read(f"body.{number}.weight"), read(f"body.{number}.bias"),
                              padding=1)
        y = functional.prelu(y, read(f"body.{number + 1}.weight"))
    last = f"body.{number + 2}"
    y = functional.conv2d(y, read(f"{last}.weight"), read(f"{last}.bias"), padding=1)
    return functional.pixel_shuffle(y, config.scale) + functional.interpolate(
        x, scale_factor=config.scale, mode="nearest")


@pytest.mark.peers
@pytest.mark.parametrize("name", CONFIGS)
def test_what_the_published_network_computes(name: str) -> None:
    import torch

    config = CONFIGS[name]
    graph = upscaler_graph(config, 2, 8, 4)
    weights = {key: seeded(key, value.shape) - 0.8 * (value.shape == (8,) and "body" in key)
               for key, value in graph.parameters.items()}
    image = np.random.default_rng(1).random((2, 3, 8, 4), np.float32)
    peer = rrdb if isinstance(config, RrdbConfig) else srvgg
    with torch.no_grad():
        expected = peer(config, lambda key: torch.tensor(weights[key]), torch.tensor(image))
    found = evaluate(graph, {"image": image}, weights)["image"]
    assert relative_error(found, expected.numpy()) <= ERROR_MAX


@pytest.mark.parametrize("name", CONFIGS)
def test_graphs_are_valid_and_of_the_right_size(name: str) -> None:
    config = CONFIGS[name]
    graph = upscaler_graph(config, 2, 8, 4)
    verify(graph)
    assert show(parse(show(graph))) == show(graph)
    assert graph.outputs["image"].shape == (2, 3, 8 * config.scale, 4 * config.scale)


def test_published_networks_have_the_size_that_is_known_of_them() -> None:
    millions = {RrdbConfig(): 16.698, RrdbConfig(blocks=6): 4.468,
                RrdbConfig(unshuffle=2): 16.703, SrvggConfig(): 0.621,
                SrvggConfig(convolutions=32): 1.213}
    for config, size in millions.items():
        graph = upscaler_graph(config, 1, 8, 8)
        found = sum(value.type.size for value in graph.parameters.values())
        assert found / 1e6 == pytest.approx(size, abs=5e-4), config


def test_a_size_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="image of 7 x 8 pixels .* multiples of 2"):
        upscaler_graph(RrdbConfig(unshuffle=2), 1, 7, 8)
