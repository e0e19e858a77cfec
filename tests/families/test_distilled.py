"""What names say of models and adapters that were distilled to few steps."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from smalti.diffusion.noise import NoiseLevels
from smalti.families import families
from smalti.families.distilled import (
    COMMON_WORDS,
    DISTILLED,
    DISTILLED_FLOW,
    distilled,
    distilled_adapter,
    words,
)

MODELS = {  # name as published, or as people name what they mixed -> word, steps
    "sd_xl_turbo_1.0_fp16": ("turbo", 4),
    "sdxl_lightning_8step_unet": ("lightning", 8),
    "juggernautXL_v9Rdphoto2Lightning": ("lightning", 4),
    "dreamshaperXL_lightningDPMSDE": ("lightning", 4),
    "juggernautXL_juggXILightningByRD": ("lightning", 4),
    "RealVisXLLightning": ("lightning", 4),
    "Hyper-SDXL-1step-Unet": ("hyper", 1),
    "realisticVisionV60B1_v51HyperVAE": ("hyper", 8),
    "dmd2_sdxl_4step_unet_fp16": ("dmd2", 4),
    "bigLove_xl3DMD2": ("dmd2", 4),
    "LCM_Dreamshaper_v7_4k": ("lcm", 6),
    "TCD-SDXL": ("tcd", 4),
}
ADAPTERS = {
    "sdxl_lightning_4step_lora": ("lightning", 4),
    "Hyper-SD15-8steps-lora": ("hyper", 8),
    "Hyper-FLUX.1-dev-16steps-lora": ("hyper", 16),
    "lcm-lora-sdv1-5": ("lcm", 6),
    "lcm-lora-sdxl": ("lcm", 6),
    "dmd2_sdxl_4step_lora_fp16": ("dmd2", 4),
    "TCD-SDXL-LoRA": ("tcd", 4),
    "sd_xl_turbo_lora_v1": ("turbo", 4),
    "FLUX.1-Turbo-Alpha": ("turbo", 4),
}
OTHERS = ("hyperrealism", "HyperRealism", "hyper_detailed_v2", "epicPhotogasm", "falcm",
          "turboprop", "enlightening", "model", "", "step by step", "12 steps to heaven")
STYLES = ("lightning", "Lightning in the sky", "turbo car", "hyper-sd", "porsche_911_turbo_v2",
          "krea2_turbo_castles_lora", "anima_turbo_lora_castles", "turbo_lora")
NEWER = {  # adapter that makes a model one of few steps -> the family, steps
    "krea2_turbo_lora_rank_64_bf16": ("krea2", 8), "Krea-2-Turbo-LoRA": ("krea2", 8),
    "anima-turbo-lora-v0.2": ("anima", 10), "anima_preview2_turbo_lora": ("anima", 10),
    "FLUX.2-dev-Turbo": ("flux2-dev", 8), "Flux_2-Turbo-LoRA_comfyui": ("flux2-dev", 8),
    "Qwen-Image-2512-Turbo-LoRA": ("qwen-image", 4),
    "Qwen-Image-Lightning-8steps-V1.0": ("qwen-image", 8),
    "Qwen-Image-2.1-Lightning": ("qwen-image21", 4),
    "qwen_image_2.1_turbo_lora_avg_rank_178_bf16": ("qwen-image21", 8),
    "Qwen-Image-2.1-Lightning pytorch_lora_weights": ("qwen-image21", 4)}


@pytest.mark.parametrize("name", MODELS)
def test_names_of_models(name: str) -> None:
    found = distilled(DISTILLED, name)
    assert found is not None and (found.word, found.values["steps"]) == MODELS[name]


@pytest.mark.parametrize("name", ADAPTERS)
def test_names_of_adapters(name: str) -> None:
    found = distilled_adapter(DISTILLED, name)
    assert found is not None and (found.word, found.values["steps"]) == ADAPTERS[name]


@pytest.mark.parametrize("name", NEWER)
def test_names_of_adapters_of_newer_families(name: str) -> None:
    family, steps = NEWER[name]
    found = distilled_adapter(families()[family].recommended, name)
    assert found is not None and (found.values["steps"], found.values["guidance"]) == (steps, 1)


def test_keys_and_values_in_the_name_of_an_adapter_are_no_klein_kv() -> None:
    """It would make pictures of the base in 4 steps without guidance."""
    table = families()["flux2"].recommended
    assert distilled(table, "flux-2-klein-9b-kv") and not distilled_adapter(table, "kv lora")


@pytest.mark.parametrize("name", OTHERS)
def test_names_that_say_nothing(name: str) -> None:
    assert distilled(DISTILLED, name) is None and distilled_adapter(DISTILLED, name) is None
    assert distilled({}, name) is None


@pytest.mark.parametrize("name", STYLES)
def test_an_adapter_may_be_of_what_the_word_means(name: str) -> None:
    assert distilled_adapter(DISTILLED, name) is None


def test_hyper_adapters_that_keep_guidance() -> None:
    found = distilled_adapter(DISTILLED, "Hyper-SDXL-12steps-CFG-lora")
    assert found is not None and found.values["guidance"] == 5 and found.values["steps"] == 12


def test_models_of_one_step() -> None:
    """Lightning's gives the picture itself, Hyper-SD's begins at training step 800."""
    found = distilled(DISTILLED, "sdxl_lightning_1step_x0")
    assert found is not None and (found.values["prediction"], found.values["steps"]) == (
        "sample", 1)
    levels = NoiseLevels.scaled_linear()
    found = distilled(DISTILLED, "Hyper-SDXL-1step-Unet")
    assert found is not None and found.values["sampler"] == "lcm"
    first, last = map(float, str(found.values["noise"]).split(","))
    assert abs(first / levels.sigmas[800] - 1) < 1e-4 and last == 0
    flow = distilled(DISTILLED_FLOW, "Hyper-FLUX-1step")
    assert flow is not None and flow.values == {"steps": 1, "guidance": 1.0}


@pytest.mark.parametrize("name", ["kontext_style", "krea-lora", "depth lora", "FLUX.1-Krea-dev"])
def test_adapters_are_not_the_models_that_they_are_named_after(name: str) -> None:
    """What is known of models of these names is of the model, not of few steps."""
    table = families()["flux"].recommended
    assert distilled(table, name) is not None and distilled_adapter(table, name) is None
    both = distilled_adapter(table, f"{name}-turbo-8steps")
    assert both is not None and both.word == "turbo"


def test_the_longest_of_two_words_counts() -> None:
    table = {**DISTILLED, "sd xl turbo": {"steps": 1, "width": 512}}
    found = distilled(table, "sd_xl_turbo_1.0")
    assert found is not None and found.word == "sd xl turbo"
    assert str(found) == "sd xl turbo: 1 steps, width 512"


@examples(30)
@given(st.text(max_size=40))
def test_any_text_is_a_name(name: str) -> None:
    for table in (DISTILLED, DISTILLED_FLOW):
        found, adapter = distilled(table, name), distilled_adapter(table, name)
        assert adapter in (None, found)
        if adapter is not None and adapter.word in COMMON_WORDS and not adapter.steps:
            assert any(base in words(name)
                       for base in ("sd", "xl", "flux", "qwen image", "krea", "anima"))
