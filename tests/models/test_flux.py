"""Flux and its double-stream block: parameters, text, and what native code computes."""

from __future__ import annotations

import numpy as np
import pytest
from native_regions import EACH_LEVEL, LEVELS, arrays_for, check_graph
from peers_models import TINY_FLUX
from transformer_graphs import check_program

from smalti.errors import InputError
from smalti.fuse import partition
from smalti.graph import evaluate, parse, show, verify
from smalti.models import (
    FLUX_DEV,
    FLUX_SCHNELL,
    FluxConfig,
    flux_double_block_graph,
    flux_graph,
    flux_modulation_graph,
)

WHOLE = FluxConfig(hidden_size=64, heads=2, mlp_size=256, double_blocks=2, single_blocks=2,
                   in_channels=4, out_channels=4, context_dim=24, pooled_dim=20, axes=(4, 12, 16))


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    graph = flux_double_block_graph(FLUX_DEV, image_tokens=1024, text_tokens=256)
    verify(graph)
    assert show(parse(show(graph))) == show(graph)
    shapes = {name: value.shape for name, value in graph.parameters.items()}
    expected = {}
    for stream in ("img", "txt"):
        for name, out, width in (("mod.lin", 18432, 3072), ("attn.qkv", 9216, 3072),
                                 ("attn.proj", 3072, 3072), ("mlp.0", 12288, 3072),
                                 ("mlp.2", 3072, 12288)):
            expected[f"double_blocks.0.{stream}_{name}.weight"] = (out, width)
            expected[f"double_blocks.0.{stream}_{name}.bias"] = (out,)
        for name in ("query_norm", "key_norm"):
            expected[f"double_blocks.0.{stream}_attn.norm.{name}.scale"] = (128,)
    assert shapes == expected


@pytest.mark.parametrize("name, precision", [
    *((name, "f32") for name in LEVELS),
    *((name, "bf16") for name in LEVELS if name == "avx512_bf16")])
def test_native_code_computes_it(name: str, precision: str) -> None:
    check_graph(flux_double_block_graph(TINY_FLUX, 12, 5, batch=2), name, precision)


def test_nothing_is_copied() -> None:
    """Maps only turn queries and keys, into the place where attention reads them."""
    regions = partition(flux_double_block_graph(TINY_FLUX, 12, 5)).regions
    maps = [region for region in regions if region.kernel.form == "map"]
    assert len(maps) == 4 and all("concat reads it" in region.reason for region in maps)


def test_odd_heads_are_refused() -> None:
    with pytest.raises(InputError, match="an even d"):
        flux_double_block_graph(FluxConfig(hidden_size=9, heads=3, mlp_size=12), 4, 2)


def test_the_whole_model_is_that_of_the_checkpoint() -> None:
    """Counts of Black Forest Labs' files: 780 tensors of dev, 776 of schnell."""
    graph = flux_graph(FLUX_DEV, 1, 8, 8, 4)
    verify(graph)
    assert show(parse(show(graph))) == show(graph)
    assert len(graph.parameters) == 780 and len(flux_graph(FLUX_SCHNELL, 1, 8, 8, 4).parameters) \
        == 776
    prefix = "model.diffusion_model."
    shapes = {name.removeprefix(prefix): v.shape for name, v in graph.parameters.items()}
    assert shapes["img_in.weight"] == (3072, 64) and shapes["txt_in.weight"] == (3072, 4096)
    assert shapes["single_blocks.37.linear1.weight"] == (21504, 3072)
    assert shapes["single_blocks.37.linear2.weight"] == (3072, 15360)
    assert shapes["final_layer.adaLN_modulation.1.weight"] == (6144, 3072)
    assert shapes["final_layer.linear.weight"] == (64, 3072)


@EACH_LEVEL
def test_native_code_computes_the_whole_model(name: str) -> None:
    check_graph(flux_graph(WHOLE, 2, 6, 4, 5), name)


def test_the_program_computes_the_whole_model() -> None:
    check_program(flux_graph(WHOLE, 1, 8, 8, 9))


def test_modulations_are_made_once_for_all_steps() -> None:
    """What the whole model computes of three times, from vectors made of them together."""
    whole, rest = flux_graph(WHOLE, 1, 4, 6, 5), flux_graph(WHOLE, 1, 4, 6, 5, modulated=True)
    maker = flux_modulation_graph(WHOLE, 3)
    assert set(whole.parameters) == set(rest.parameters) | set(maker.parameters)
    assert not set(rest.parameters) & set(maker.parameters)
    inputs, parameters = arrays_for(whole)
    times = np.array([1000, 640, 80], np.float32)
    made = evaluate(maker, {"timesteps": times, "pooled": np.repeat(inputs["pooled"], 3, axis=0),
                            "guidance": np.repeat(inputs["guidance"], 3)}, parameters)
    for time, vectors in zip(times, made["modulation"], strict=True):
        expected = evaluate(whole, {**inputs, "timesteps": time[None]}, parameters)
        given = {name: inputs[name] for name in ("latent", "context")}
        found = evaluate(rest, {**given, "modulation": vectors[None]}, parameters)
        np.testing.assert_allclose(found["prediction"], expected["prediction"], rtol=1e-4,
                                   atol=1e-5)


def test_the_program_makes_modulations() -> None:
    check_program(flux_modulation_graph(WHOLE, 3))


@pytest.mark.parametrize("height, width", [(7, 8), (8, 0), (8, 5)])
def test_odd_latents_are_refused(height: int, width: int) -> None:
    with pytest.raises(InputError, match="positive and even"):
        flux_graph(WHOLE, 1, height, width, 5)


def test_axes_that_are_no_head_are_refused() -> None:
    with pytest.raises(InputError, match="do not make up a head"):
        flux_graph(FluxConfig(hidden_size=64, heads=2, mlp_size=256), 1, 8, 8, 5)


def test_a_second_picture_is_tokens_behind_the_first() -> None:
    """They are read by img_in, too, and the result has the shape of the first."""
    graph = flux_graph(WHOLE, 1, 8, 4, 3, referenced=((2, 6),))
    assert graph.inputs["latent"].shape == (1, WHOLE.in_channels, 8, 4)
    assert graph.inputs["reference.0"].shape == (1, WHOLE.in_channels, 2, 6)
    assert graph.outputs["prediction"].shape == (1, WHOLE.out_channels, 8, 4)
    assert set(graph.parameters) == set(flux_graph(WHOLE, 1, 8, 4, 3).parameters)
    blocks = WHOLE.double_blocks, WHOLE.single_blocks
    control = ((0,) * blocks[0], (-1,) * blocks[1])
    with pytest.raises(InputError, match="leave them out where another picture is read"):
        flux_graph(WHOLE, 1, 8, 4, 3, referenced=((8, 4),), control=control)
