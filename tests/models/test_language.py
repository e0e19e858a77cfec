"""Language models as text encoders: parameters, taps, what native code and other programs compute.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from native_regions import EACH_LEVEL, arrays_for, check_graph, relative_error
from transformer_graphs import check_program
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.checkpoint.blocks import dequantise
from smalti.checkpoint.quantise import quantise
from smalti.checkpoint.tensors import held, held_as
from smalti.errors import InputError
from smalti.graph import evaluate, parse, show, verify
from smalti.models import GEMMA2_2B, QWEN3_4B, LanguageConfig, language_graph
from smalti.models.language import PREFIX
from smalti.runtime.compilation import compile_graph
from smalti.runtime.gpu.compilation import compile_for
from smalti.runtime.gpu.interface import Gpu

TINY = LanguageConfig(96, hidden_size=40, mlp_size=56, layers=3, heads=4, kv_heads=2, head_dim=16,
                      qk_norm=True)
WIDE = LanguageConfig(96, hidden_size=128, mlp_size=192, layers=2, heads=4, kv_heads=2,
                      head_dim=64, qk_norm=True)
PLAIN = replace(TINY, qk_norm=False, qkv_bias=True)
GEMMA = replace(TINY, qk_norm=False, rotary_base=1e4, sandwiched=True, gate="gelu_tanh",
                softcap=2.0, query_size=4, window=6)
GEMMA_WIDE = replace(GEMMA, hidden_size=128, mlp_size=192, layers=2, head_dim=64, window=40)


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    graph = language_graph(QWEN3_4B, 1, 8, taps=[35])
    verify(graph)
    shapes = {name.removeprefix(f"{PREFIX}."): v.shape for name, v in graph.parameters.items()}
    layer = {"input_layernorm.weight": (2560,), "post_attention_layernorm.weight": (2560,),
             "self_attn.q_proj.weight": (4096, 2560), "self_attn.k_proj.weight": (1024, 2560),
             "self_attn.v_proj.weight": (1024, 2560), "self_attn.o_proj.weight": (2560, 4096),
             "self_attn.q_norm.weight": (128,), "self_attn.k_norm.weight": (128,),
             "mlp.gate_proj.weight": (9728, 2560), "mlp.up_proj.weight": (9728, 2560),
             "mlp.down_proj.weight": (2560, 9728)}
    expected = {f"layers.{i}.{name}": shape for i in range(35) for name, shape in layer.items()}
    assert shapes == expected | {"embed_tokens.weight": (151936, 2560)}


def test_those_of_gemma_have_four_norms_a_layer() -> None:
    """2.61 billion numbers in 26 layers, of which 25 are read."""
    graph = language_graph(GEMMA2_2B, 1, 8, taps=[25, 26], final_norm=True)
    verify(graph)
    shapes = {name.removeprefix(f"{PREFIX}."): v.shape for name, v in graph.parameters.items()}
    assert sum(map(math.prod, shapes.values())) == 2_614_341_888
    assert shapes["layers.0.self_attn.k_proj.weight"] == (1024, 2304)
    norms = {name for name in shapes if name.startswith("layers.25.") and "norm" in name}
    assert norms == {f"layers.25.{name}_layernorm.weight" for name in (
        "input", "post_attention", "pre_feedforward", "post_feedforward")}


@pytest.mark.parametrize("config", [TINY, GEMMA], ids=["qwen", "gemma"])
def test_its_text_form_is_read_back(config: LanguageConfig) -> None:
    graph = language_graph(config, 1, 8, taps=[1, 3], final_norm=True)
    assert show(parse(show(graph))) == show(graph)


def test_scores_that_may_grow_far_are_those_of_plain_attention() -> None:
    """Also where a token sees but some of those before it, and where others fill up."""
    far = replace(GEMMA, softcap=1e4)
    inputs, weights = arrays_for(language_graph(far, 2, 9, taps=[3], masked=True))
    inputs["mask"] = (np.arange(9) < np.array([[9], [5]])).astype(np.float32)
    found, expected = (evaluate(language_graph(config, 2, 9, taps=[3], masked=True), inputs,
                                weights)["context"] for config in (far, replace(far, softcap=0.0)))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    near, wide = (evaluate(language_graph(config, 2, 9, taps=[3], masked=True), inputs,
                           weights)["context"]
                  for config in (replace(far, softcap=2.0), replace(far, window=0)))
    assert np.abs(near - found).max() > 1e-2 and np.abs(wide - found)[:, 6:].max() > 1e-2


def test_states_of_several_layers_stand_side_by_side() -> None:
    random = np.random.default_rng(0)
    whole = language_graph(TINY, 2, 9, taps=[1, 3])
    weights = {name: random.standard_normal(value.shape, np.float32) / 6
               for name, value in whole.parameters.items()}
    tokens = {"tokens": random.integers(0, 96, (2, 9), np.int32)}
    found = evaluate(whole, tokens, weights)["context"]
    alone = [evaluate(language_graph(TINY, 2, 9, taps=[tap]), tokens, weights)["context"]
             for tap in (1, 3)]
    np.testing.assert_array_equal(found, np.concatenate(alone, axis=2))


@pytest.mark.parametrize("taps", [[], [0], [4]])
def test_states_that_the_model_has_not_are_refused(taps: list[int]) -> None:
    with pytest.raises(InputError, match="has the layers 1 to 3"):
        language_graph(TINY, 1, 8, taps=taps)


def test_no_token_sees_what_stands_behind_it() -> None:
    graph, random = language_graph(TINY, 1, 6, taps=[3]), np.random.default_rng(0)
    weights = {n: random.standard_normal(v.shape, np.float32) for n, v in graph.parameters.items()}
    one, other = (evaluate(graph, {"tokens": np.array([[5, 3, 8, 1, *rest]], np.int32)},
                           weights)["context"] for rest in ((0, 0), (40, 41)))
    np.testing.assert_array_equal(one[:, :4], other[:, :4])


@pytest.mark.parametrize("config", [TINY, PLAIN], ids=["norms", "biases"])
@EACH_LEVEL
def test_native_code_computes_it(name: str, config: LanguageConfig) -> None:
    check_graph(language_graph(config, 2, 9, taps=[2], masked=config is TINY), name)


@pytest.mark.sweep
@pytest.mark.parametrize("config", [WIDE, GEMMA_WIDE], ids=["qwen", "gemma"])
@pytest.mark.parametrize("device, precision, error_max", [
    ("vulkan", "f32", 1e-5), ("vulkan", "f16", 2e-3), ("vulkan", "bf16", 1e-2),
    ("webgpu", "f16", 2e-3)])
def test_gpus_compute_it(request: pytest.FixtureRequest, device: str, precision: str,
                         error_max: float, config: LanguageConfig) -> None:
    """The last tokens of the second text fill up, and see those of the text alone."""
    gpu: Gpu = request.getfixturevalue(device)
    graph = language_graph(config, 2, 64, taps=[1], masked=True)
    inputs, parameters = arrays_for(graph)
    inputs["mask"] = (np.arange(64) < np.array([[64], [40]])).astype(np.float32)
    program = compile_for(gpu, graph, precision=precision)
    program.bind(parameters.__getitem__)
    (found,), (expected,) = (each.values() for each in (
        program.run(inputs), evaluate(graph, inputs, parameters)))
    assert relative_error(found, expected) < error_max


@pytest.mark.parametrize("config", [TINY, replace(GEMMA, layers=2)], ids=["qwen", "gemma"])
def test_the_program_computes_it(config: LanguageConfig) -> None:
    check_program(language_graph(config, 2, 20, taps=[config.layers], final_norm=True))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K", "Q6_K"])
def test_quantised_weights(name: str) -> None:
    """Blocks of a file, as programs hold them, give what their numbers give."""
    graph = language_graph(replace(WIDE, hidden_size=256, mlp_size=256), 1, 16, taps=[1])
    inputs, parameters = arrays_for(graph)
    given, dtypes = dict[str, Any](parameters), {}
    for key, value in parameters.items():
        if value.ndim == 2:
            blocks = quantise(name, value).reshape(len(value), -1)
            parameters[key] = dequantise(name, blocks).reshape(value.shape)
            given[key], dtypes[key] = held(name, blocks, value.shape), held_as(name)
    program = compile_graph(graph, threads=1, weights=dtypes)
    program.bind(given.__getitem__)
    (found,), (expected,) = (each.values() for each in (
        program.run(inputs), evaluate(graph, inputs, parameters)))
    assert relative_error(found, expected) < 1e-3


def hidden(module: Any, tokens: np.ndarray, mask: np.ndarray | None = None,
           places: np.ndarray | None = None) -> list[np.ndarray]:
    """All hidden states of a module of transformers."""
    import torch

    with torch.no_grad():
        found = module(torch.tensor(tokens, dtype=torch.int64), output_hidden_states=True,
                       attention_mask=None if mask is None else torch.tensor(mask),
                       position_ids=None if places is None else torch.tensor(places))
    return [state.numpy() for state in found.hidden_states]


@pytest.mark.peers
@pytest.mark.parametrize("tap, final_norm", [(2, False), (3, True)])
@pytest.mark.parametrize("kind", ["Qwen3", "Qwen2", "Mistral", "Gemma2"])
def test_as_transformers(kind: str, tap: int, final_norm: bool) -> None:
    import transformers
    from transformer_peers import filled

    config = {"Qwen3": TINY, "Qwen2": PLAIN, "Mistral": replace(PLAIN, qkv_bias=False),
              "Gemma2": replace(GEMMA, rotary_base=1e6)}[kind]
    more = {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 4, "sliding_window": 6}
    given = getattr(transformers, f"{kind}Config")(
        vocab_size=96, hidden_size=40, intermediate_size=56, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        **(more if kind == "Gemma2" else {}))
    module = filled(getattr(transformers, f"{kind}Model")(given))
    weights = {f"{PREFIX}.{name}": value.numpy() for name, value in module.state_dict().items()}
    tokens = np.random.default_rng(1).integers(0, 96, (2, 70), np.int32)
    states = hidden(module, tokens)
    found = evaluate(language_graph(config, 2, 70, taps=[tap], final_norm=final_norm),
                     {"tokens": tokens}, weights)["context"]
    np.testing.assert_allclose(found, states[tap], rtol=0, atol=1e-5 * np.abs(states[tap]).max())


@pytest.mark.peers
@pytest.mark.parametrize(("factor", "before"), [(16.0, 16384), (4.0, 32), (1.0, 64)])
def test_positions_are_stretched_as_in_transformers(factor: float, before: int) -> None:
    """Ministral 3, with scores as they are, and a text that is longer than what was stretched."""
    import transformers
    from transformer_peers import filled

    config = replace(PLAIN, qkv_bias=False, stretched=factor, stretched_from=before)
    given = transformers.Ministral3Config(
        vocab_size=96, hidden_size=40, intermediate_size=56, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, "factor": factor,
                         "original_max_position_embeddings": before, "beta_fast": 32.0,
                         "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "llama_4_scaling_beta": 0.0})
    module = filled(transformers.Ministral3Model(given))
    weights = {f"{PREFIX}.{name}": value.numpy() for name, value in module.state_dict().items()}
    tokens = np.random.default_rng(1).integers(0, 96, (2, 70), np.int32)
    states = hidden(module, tokens)[2]
    found = evaluate(language_graph(config, 2, 70, taps=[2]), {"tokens": tokens},
                     weights)["context"]
    np.testing.assert_allclose(found, states, rtol=0, atol=1e-5 * np.abs(states).max())


@pytest.mark.peers
def test_what_fills_up_is_read_as_transformers_reads_it() -> None:
    """Of a text that is filled up, whose filling is read, too, as of FLUX.2 klein."""
    import transformers
    from transformer_peers import filled

    given = transformers.Qwen3Config(
        vocab_size=96, hidden_size=40, intermediate_size=56, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    module = filled(transformers.Qwen3Model(given))
    weights = {f"{PREFIX}.{name}": value.numpy() for name, value in module.state_dict().items()}
    tokens = np.random.default_rng(1).integers(0, 96, (2, 30), np.int32)
    mask = (np.arange(30) < np.array([[12], [30]])).astype(np.int64)
    states = hidden(module, tokens, mask)
    graph = language_graph(TINY, 2, 30, taps=[1, 2], masked=True)
    given = {"tokens": tokens, "mask": mask.astype(np.float32)}
    found = evaluate(graph, given, weights)["context"]
    np.testing.assert_allclose(found, np.concatenate(states[1:3], axis=2), atol=1e-4)
    placed = language_graph(TINY, 2, 30, taps=[1, 2], masked=True, filled_at=1)  # as of FLUX.3
    places = np.where(mask == 1, np.arange(30), 1)
    states = hidden(module, tokens, mask, places)
    found = evaluate(placed, given, weights)["context"]
    np.testing.assert_allclose(found, np.concatenate(states[1:3], axis=2), atol=1e-4)
