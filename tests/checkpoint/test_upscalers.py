"""Upscalers in files: three spellings of ESRGAN's keys, hyperparameters, what does not fit."""

from __future__ import annotations

import re

import pytest

from smalti.checkpoint.keys import upscaler_config, upscaler_renaming
from smalti.errors import CheckpointError
from smalti.models import RrdbConfig, SrvggConfig, upscaler_graph

Shapes = dict[str, tuple[int, ...]]
CONFIGS = [RrdbConfig(channels=8, growth=4, blocks=3, doublings=n, unshuffle=u, image_channels=c)
           for n, u, c in ((2, 1, 3), (2, 2, 3), (2, 4, 3), (1, 1, 3), (3, 1, 3), (0, 1, 1))]
CONFIGS += [SrvggConfig(channels=8, convolutions=n, scale=s) for n, s in ((16, 4), (2, 2), (1, 1))]


def shapes_of(config: RrdbConfig | SrvggConfig) -> Shapes:
    side = getattr(config, "unshuffle", 1)
    return {name: value.shape
            for name, value in upscaler_graph(config, 1, side, side).parameters.items()}


def in_a_row(name: str, config: RrdbConfig) -> str:
    """What ESRGAN's first code calls it: layers counted with the activations between."""
    ups = {f"conv_up{i + 1}": f"model.{3 + 3 * i}" for i in range(config.doublings)}
    after = 2 + 3 * config.doublings
    ends = ups | {"conv_first": "model.0", "conv_body": f"model.1.sub.{config.blocks}",
                  "conv_hr": f"model.{after}", "conv_last": f"model.{after + 2}"}
    path, leaf = name.rsplit(".", 1)
    if path in ends:
        return f"{ends[path]}.{leaf}"
    return re.sub(r"body\.(\d+)\.rdb(\d)\.conv(\d)", r"model.1.sub.\1.RDB\2.conv\3.0", name)


def in_words(name: str) -> str:
    """What ESRGAN's second code calls it."""
    for ours, theirs in (("conv_body", "trunk_conv"), ("conv_hr", "HRconv"), ("conv_up", "upconv"),
                         ("body", "RRDB_trunk"), ("rdb", "RDB")):
        name = name.replace(ours, theirs)
    return name


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_hyperparameters_are_seen_in_the_shapes(config: RrdbConfig | SrvggConfig) -> None:
    assert upscaler_config("a.pth", shapes_of(config)) == config


@pytest.mark.parametrize("config", [c for c in CONFIGS if isinstance(c, RrdbConfig)], ids=str)
def test_every_spelling_gives_the_same_names(config: RrdbConfig) -> None:
    names = list(shapes_of(config))
    for spelled in (names, [in_a_row(name, config) for name in names], list(map(in_words, names))):
        assert len(set(spelled)) == len(names)
        rename = upscaler_renaming(spelled)
        assert [rename(name) for name in spelled] == names


def test_the_compact_network_keeps_its_names() -> None:
    names = list(shapes_of(SrvggConfig()))
    assert [upscaler_renaming(names)(name) for name in names] == names


@pytest.mark.parametrize("shapes", [
    {}, {"layers.0.weight": (3, 3)}, {"body.0.weight": (3, 3)}, {"body.9999.weight": (3, 3, 3, 3)},
    {"conv_first.weight": (8, 3, 3, 3), "body.0.rdb1.conv1.weight": (4, 8, 3, 3),
     "conv_last.weight": (0, 8, 3, 3)},
    {"body.0.weight": (8, 0, 3, 3), "body.4.weight": (3, 8, 3, 3)},
])
def test_other_networks_are_refused(shapes: Shapes) -> None:
    with pytest.raises(CheckpointError, match="a.pth is no ControlNet, TAESD or upscaler that"):
        upscaler_config("a.pth", shapes)
