"""Shapes, parameter names and text of the models; what they compute is tested against peers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from peers_models import TINY_SD1, TINY_TEXT, TINY_UNET, TINY_VAE

from smalti.errors import InputError
from smalti.families.expected import expected_tensors
from smalti.graph import Graph, evaluate, parse, show, verify
from smalti.models import (
    SD15,
    MobileNetV2Config,
    ModelConfig,
    clip_text_graph,
    mobilenet_v2_graph,
    unet_graph,
    vae_decoder_graph,
    vae_encoder_graph,
)
from smalti.rewrite import rewrite

SECONDS_MAX = 3.0
"""Ten times what is wanted for building a UNet, for a machine that is busy."""


def all_graphs(config: ModelConfig) -> list[Graph]:
    side = 8 * config.vae.downscale
    return [clip_text_graph(config.texts["clip_l"], 2),
            unet_graph(config.denoiser, 2, 8, 16, tokens=5),
            vae_decoder_graph(config.vae, 1, 4, 6), vae_encoder_graph(config.vae, 1, side, side)]


@pytest.fixture(scope="module", params=["tiny", "SD 1.5"])
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return {"tiny": TINY_SD1, "SD 1.5": SD15}[request.param]


def test_parameters_are_the_tensors_of_a_checkpoint(config: ModelConfig) -> None:
    found = {name: value.shape for graph in all_graphs(config)
             for name, value in graph.parameters.items()}
    assert found == expected_tensors(config)


def test_sd15_has_the_parameters_that_are_known_of_it() -> None:
    text, unet, decoder, encoder = all_graphs(SD15)
    assert [len(g.parameters) for g in (text, unet, decoder, encoder)] == [196, 686, 140, 108]
    sizes = [sum(v.type.size for v in g.parameters.values()) for g in (text, unet)]
    assert sizes == [123_060_480, 859_520_964]
    shapes = {name: v.shape for name, v in (text.parameters | unet.parameters).items()}
    unet_name, text_name = "model.diffusion_model.", "cond_stage_model.transformer.text_model."
    for name, shape in {
        unet_name + "time_embed.0.weight": (1280, 320),
        unet_name + "input_blocks.3.0.op.weight": (320, 320, 3, 3),
        unet_name + "input_blocks.4.0.skip_connection.weight": (640, 320, 1, 1),
        unet_name + "input_blocks.11.0.emb_layers.1.weight": (1280, 1280),
        unet_name + "middle_block.1.proj_in.weight": (1280, 1280, 1, 1),
        unet_name + "output_blocks.2.1.conv.weight": (1280, 1280, 3, 3),
        unet_name + "output_blocks.5.2.conv.weight": (1280, 1280, 3, 3),
        unet_name + "output_blocks.11.1.transformer_blocks.0.attn2.to_k.weight": (320, 768),
        unet_name + "output_blocks.11.1.transformer_blocks.0.ff.net.0.proj.weight": (2560, 320),
        text_name + "embeddings.position_embedding.weight": (77, 768),
        text_name + "encoder.layers.11.self_attn.out_proj.bias": (768,),
    }.items():
        assert shapes[name] == shape


@pytest.mark.parametrize("number", range(4))
def test_graphs_are_valid_print_and_parse(config: ModelConfig, number: int) -> None:
    graph = all_graphs(config)[number]
    verify(graph)
    text = show(graph)
    assert show(parse(text)) == text


@pytest.mark.parametrize("number", range(4))
def test_rewriting_keeps_what_a_model_computes(number: int) -> None:
    graph, rng = all_graphs(TINY_SD1)[number], np.random.default_rng(0)
    inputs = {name: rng.integers(0, 50, v.shape, np.int32) if v.dtype == "i32"
              else rng.standard_normal(v.shape, np.float32) for name, v in graph.inputs.items()}
    weights = {name: rng.standard_normal(v.shape, np.float32) / max(v.type.size, 1) ** 0.3
               for name, v in graph.parameters.items()}
    (name,) = graph.outputs
    expected = evaluate(graph, inputs, weights)[name]
    assert np.isfinite(expected).all() and expected.std() > 0
    np.testing.assert_allclose(evaluate(rewrite(graph), inputs, weights)[name], expected,
                               rtol=1e-4, atol=1e-5)


def interface(graph: Graph) -> tuple[dict[str, str], dict[str, str]]:
    return tuple({name: str(v.type) for name, v in values.items()}
                 for values in (graph.inputs, graph.outputs))


def test_inputs_and_outputs() -> None:
    assert interface(clip_text_graph(SD15.texts["clip_l"], 3)) == (
        {"tokens": "i32[3, 77]"}, {"context": "f32[3, 77, 768]"})
    assert interface(unet_graph(SD15.denoiser, 2, 72, 40)) == (
        {"latent": "f32[2, 4, 72, 40]", "timesteps": "f32[2]", "context": "f32[2, 77, 768]"},
        {"prediction": "f32[2, 4, 72, 40]"})
    assert interface(vae_decoder_graph(SD15.vae, 1, 9, 5)) == (
        {"latent": "f32[1, 4, 9, 5]"}, {"image": "f32[1, 3, 72, 40]"})
    assert interface(vae_encoder_graph(SD15.vae, 1, 72, 40)) == (
        {"image": "f32[1, 3, 72, 40]"}, {"moments": "f32[1, 8, 9, 5]"})


def test_mobilenet_v2_has_the_size_that_the_paper_gives() -> None:
    """Table 4: 300 M multiply-adds at width 1.0, 585 M at 1.4; parameters as later published."""
    for multiplier, millions, multiply_adds in ((1.0, 3.5, 300e6), (1.4, 6.1, 582e6)):
        graph = mobilenet_v2_graph(MobileNetV2Config(multiplier=multiplier), 1, 224, 224)
        learned = sum(v.type.size for name, v in graph.parameters.items() if "running" not in name)
        assert learned == pytest.approx(1e6 * millions, rel=0.02)
        products = sum(n.operation.flops([v.type for v in n.inputs], n.output.type, n.attributes)
                       for n in graph.nodes if n.operation.name in ("conv", "mat_mul"))
        assert products == pytest.approx(2 * multiply_adds, rel=0.02)


def test_an_inpainting_unet_has_more_input_channels() -> None:
    graph = unet_graph(replace(TINY_UNET, in_channels=9), 1, 8, 8)
    assert graph.inputs["latent"].shape == (1, 9, 8, 8)
    assert graph.outputs["prediction"].shape == (1, 4, 8, 8)


REFUSED: list[tuple[Callable[[], Graph], str]] = [
    (lambda: unet_graph(SD15.denoiser, 1, 68, 64),
     "a latent of 68 x 64 .* positive multiples of 8"),
    (lambda: unet_graph(SD15.denoiser, 1, 64, 0), "a latent of 64 x 0 .* positive multiples of 8"),
    (lambda: unet_graph(TINY_UNET, 1, 7, 8), "halves it 1 times, .* multiples of 2"),
    (lambda: vae_encoder_graph(SD15.vae, 1, 512, 500), "512 x 500 pixels .* multiples of 8"),
    (lambda: clip_text_graph(SD15.texts["clip_l"], 1, 78), "at most 77 tokens, got 78"),
    (lambda: clip_text_graph(replace(TINY_TEXT, activation="mish"), 1),
     r"activation 'mish' is not one of \['gelu', 'gelu_tanh', 'quick_gelu'\]"),
    (lambda: unet_graph(replace(TINY_UNET, norm_groups=7), 1, 8, 8),
     "model.diffusion_model.input_blocks.1.0.in_layers.0: group_normalization .* in 7 groups"),
    (lambda: vae_decoder_graph(replace(TINY_VAE, norm_groups=5), 1, 2, 2),
     "first_stage_model.decoder.mid.block_1.norm1: group_normalization"),
]


@pytest.mark.parametrize(("build", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_a_model_cannot_do_is_explained(build: Callable[[], Graph], words: str) -> None:
    with pytest.raises(InputError, match=words):
        build()


def test_the_full_unet_is_built_quickly() -> None:
    start = time.thread_time()
    graph = unet_graph(SD15.denoiser, 2, 64, 64)
    assert time.thread_time() - start < SECONDS_MAX
    assert len(graph.nodes) < 1100
    assert 1.55e12 < graph.flops() < 1.65e12
