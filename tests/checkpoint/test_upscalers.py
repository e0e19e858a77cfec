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


def changed(shapes: Shapes, **new: tuple[int, ...] | None) -> Shapes:
    merged = {**shapes, **{name.replace("__", "."): shape for name, shape in new.items()}}
    return {name: shape for name, shape in merged.items() if shape is not None}


ESRGAN, COMPACT = shapes_of(CONFIGS[0]), shapes_of(CONFIGS[-1])


@pytest.mark.parametrize(("shapes", "words"), [
    ({}, "a.pth is no upscaler that is known"),
    ({"layers.0.weight": (3, 3)}, "it holds layers.0.weight"),
    (changed(ESRGAN, conv_hr__bias=None), r"looks like Rrdb but 1 .* conv_hr.bias is missing"),
    (changed(ESRGAN, conv_hr__bias=(9,)), r"conv_hr.bias is \(9,\), expected \(8,\)"),
    (changed(ESRGAN, **{"body.0.rdb1.conv1x1.weight": (4, 8, 1, 1)}), "expected no such"),
    (changed(ESRGAN, conv_last__weight=(0, 8, 3, 3)), "no upscaler that is known"),
    (changed(ESRGAN, conv_first__weight=(8, 5, 3, 3)), "do not fit"),
    (changed(ESRGAN, **{"body.9999.rdb1.conv1.weight": (4, 8, 3, 3)}), "no upscaler"),
    (changed(COMPACT, body__1__weight=(7,)), r"looks like Srvgg but 1 .*body.1.weight is \(7,\)"),
])
def test_what_does_not_fit_is_named(shapes: Shapes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        upscaler_config("a.pth", shapes)
