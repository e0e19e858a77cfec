"""Every family in its published layouts: whole files, and parts in files of their own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny

from smalti.checkpoint import Checkpoint, inspect, load
from smalti.checkpoint.hints import arch_config, folder_hints, metadata_hints
from smalti.errors import CheckpointError, InputError
from smalti.families import families
from smalti.families.expected import expected_tensors

FAMILIES = tiny.WORDLESS
VELOCITY_NORM = "output_blocks.11.1.transformer_blocks.0.norm1.bias"


def assert_same(found: Checkpoint, config, weights) -> None:
    assert found.config.texts == config.texts
    assert (found.config.denoiser, found.config.vae) == (config.denoiser, config.vae)
    assert found.config.family == config.family and found.config.prediction == config.prediction
    assert set(found.names()) == set(expected_tensors(config)) <= set(weights)
    for name in found.names():
        value = weights[name]
        np.testing.assert_array_equal(found.floats(name), value, name)
        assert found.shape(name) == value.shape and found.dtype(name) == "F16"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_file(tmp_path: Path, family: str) -> None:
    config = FAMILIES[family]
    weights = tiny.random_weights(config)
    path = tiny.write_whole(tmp_path / "model.safetensors", config, weights)
    assert_same(load(path), config, weights)
    report = inspect(path)
    assert report.loadable and report.kind.family == family
    assert set(report.ignored) == set(tiny.unread(config)) - set(expected_tensors(config))
    assert str(report).endswith("loads       yes")


@pytest.mark.parametrize(("family", "prefix"), [
    *((family, prefix) for family in ("sd3", *tiny.NEWER)
      for prefix in ("", "model.", "diffusion_model.", "model.diffusion_model.")),
    ("anima", "net.")])
def test_separate_files(tmp_path: Path, family: str, prefix: str) -> None:
    config = FAMILIES[family]
    weights = tiny.random_weights(config)
    path = tiny.write(tmp_path / "model.safetensors", tiny.part(weights, tiny.DENOISER, prefix))
    report = inspect(path)
    assert report.absent == (*config.texts, "vae")[:-2 if family == "sd3" else None] + (
        ("vae",) if family == "sd3" else ())
    assert not report.loadable and "--text-encoder" in str(report)
    with pytest.raises(CheckpointError, match="it lacks the text encoder .* and the") as caught:
        load(path)
    for text in families()[family].texts:
        if text.encoder.name in report.absent:
            assert f"--text-encoder {text.file or text.encoder.file}" in str(caught.value)
    vae_file = families()[family].vae_file
    assert f"--vae {vae_file}, from Python with text_encoders=" in str(caught.value)
    texts = [tiny.write(tmp_path / f"{name}.safetensors",
                        tiny.text_encoder(config, weights, name)) for name in config.texts]
    vae = tiny.write(tmp_path / "ae.safetensors", tiny.autoencoder(config, weights))
    assert_same(load(path, texts, vae), config, weights)


def test_sd3_without_t5(tmp_path: Path) -> None:
    config = FAMILIES["sd3"]
    config = replace(config, texts={name: config.texts[name] for name in ("clip_l", "clip_g")})
    weights = tiny.random_weights(config)
    path = tiny.write_whole(tmp_path / "model.safetensors", config, weights)
    assert_same(load(path), config, weights)


@pytest.mark.parametrize("family", ["sd1", "sdxl", "flux"])
def test_another_autoencoder_takes_the_place_of_the_own_one(tmp_path: Path, family: str) -> None:
    config = FAMILIES[family]
    weights, others = (tiny.random_weights(config, seed) for seed in range(2))
    path = tiny.write_whole(tmp_path / "model.safetensors", config, weights)
    vae = tiny.write(tmp_path / "vae.safetensors", tiny.part(others, tiny.VAE))
    found = load(path, vae=vae)
    assert_same(found, config, {name: (others if name.startswith(tiny.VAE) else weights)[name]
                                for name in weights})
    whole = tiny.write(tmp_path / "other.safetensors", tiny.single_file(config, others))
    name = "first_stage_model.decoder.conv_in.weight"
    np.testing.assert_array_equal(load(path, vae=whole).read(name), others[name])
    assert "vae.safetensors" in str(found.report)


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    """Tensors are lost, bent, moved to other blocks, or those of other families."""
    files = [tiny.single_file(config, tiny.random_weights(config)) for config in FAMILIES.values()]
    random = np.random.default_rng(0)
    for _ in range(24):
        stored = dict(files[random.integers(len(files))])
        for _ in range(random.choice([1, 2, 20])):
            name = str(random.choice(list(stored)))
            value, how = stored.pop(name), random.integers(4)
            if how == 0:
                shape = random.choice([0, 1, 2, 3, 32, 64], random.integers(5))
                stored[name] = np.zeros(shape, np.float16)
            elif how == 1:
                stored[name.replace(".0.", f".{random.choice([1, 63, 64, 999])}.", 1)] = value
            elif how == 2:
                other = files[random.integers(len(files))]
                stored[str(random.choice(list(other)))] = value
        path = tiny.write(tmp_path / "damaged.safetensors", stored)
        for read in (load, inspect):
            try:
                str(read(path))
            except CheckpointError as error:
                assert "damaged.safetensors" in str(error)


def test_a_file_without_the_part_that_is_asked_of_it(tmp_path: Path) -> None:
    config = FAMILIES["sd1"]
    weights = tiny.random_weights(config)
    path = tiny.write_whole(tmp_path / "model.safetensors", config, weights)
    vae = tiny.write(tmp_path / "vae.safetensors", tiny.part(weights, tiny.VAE))
    text = tiny.write(tmp_path / "text.safetensors", tiny.text_encoder(config, weights, "clip_l"))
    with pytest.raises(CheckpointError, match="holds no text encoder.*--text-encoder"):
        load(path, [vae])
    with pytest.raises(CheckpointError, match="holds no autoencoder.*--vae"):
        load(path, vae=text)
    flux = FAMILIES["flux"]
    t5 = tiny.write(tmp_path / "t5.safetensors",
                    tiny.text_encoder(flux, tiny.random_weights(flux), "t5xxl"))
    with pytest.raises(CheckpointError, match="T5-XXL, which a Stable Diffusion 1.x checkpoint does"
                                              " not read; it reads the text encoder CLIP-L"):
        load(path, [t5])
    for alone, option in ((vae, "--vae"), (text, "--text-encoder")):
        with pytest.raises(CheckpointError, match=f"alone; .*{option} beside a model"):
            load(alone)
        assert f"{option} beside a model" in str(inspect(alone))
    assert "4 channels, as those of Stable Diffusion 1.x" in str(inspect(vae))


@pytest.mark.parametrize(("channels", "family"), [(9, "sd1-inpaint"), (8, "sd1-pix2pix")])
def test_models_that_change_pictures(tmp_path: Path, channels: int, family: str) -> None:
    config = FAMILIES["sd1"]
    config = replace(config, denoiser=replace(config.denoiser, in_channels=channels))
    weights = tiny.random_weights(config)
    path = tiny.write_whole(tmp_path / "model.safetensors", config, weights)
    found = load(path)
    assert found.config.denoiser.in_channels == channels and found.report.kind.id == family
    assert f"it changes a picture: {channels} channels" in str(found.report)


MARKS = {"v_pred": "v_prediction", "edm_vpred.sigma_max": "edm_v"}


@pytest.mark.parametrize("mark", MARKS)
def test_tensors_that_tell_what_sdxl_predicts(tmp_path: Path, mark: str) -> None:
    config = FAMILIES["sdxl"]
    stored = tiny.single_file(config, tiny.random_weights(config))
    extra = {mark: np.array(120.0, np.float32), "ztsnr": np.zeros(0, np.float32)}
    path = tiny.write(tmp_path / "model.safetensors", {**stored, **extra})
    found = load(path).config
    assert found.prediction == MARKS[mark] and found.zero_terminal_snr
    assert found.sigma_max == (120 if mark.startswith("edm") else 80)
    assert load(path, prediction="epsilon").config.prediction == "epsilon"
    with pytest.raises(InputError, match="known: epsilon, v_prediction"):
        load(path, prediction="velocity")


@pytest.mark.parametrize(("name", "metadata", "expected"), [
    ("noobaiXLNAIXL_vPred10Version", {}, ("v_prediction", False)),
    ("illustriousXL_v35VPred", {}, ("v_prediction", False)),
    ("mix-v-pred-ztsnr", {}, ("v_prediction", True)),
    ("model", {"modelspec.prediction_type": "V"}, ("v_prediction", False)),
    ("model", {"ss_v_parameterization": "True", "ss_zero_terminal_snr": "True"},
     ("v_prediction", True)),
    ("vpred", {"modelspec.prediction_type": "epsilon"}, ("epsilon", False)),
    ("vpredictor_epsilonPred", {"ss_zero_terminal_snr": "False"}, ("epsilon", False))])
def test_names_and_metadata_tell_what_sdxl_predicts(
        tmp_path: Path, name: str, metadata: dict[str, str], expected: tuple[str, bool]) -> None:
    """Marks of trainers count more than names; what the caller knows counts most."""
    config = FAMILIES["sdxl"]
    stored = tiny.single_file(config, tiny.random_weights(config))
    path = tiny.write(tmp_path / f"{name}.safetensors", stored, metadata)
    found = load(path)
    assert (found.config.prediction, found.config.zero_terminal_snr) == expected
    velocity = (28, 5.0, "euler", "sgm_uniform")
    defaults = (found.config.default_steps, found.config.default_guidance,
                found.config.default_sampler, found.config.default_noise)
    assert (defaults == velocity) == (expected[0] == "v_prediction")
    assert ("that it predicts v_prediction" in str(found.report)) == (
        expected[0] == "v_prediction" and name != "model")
    other = load(path, prediction="epsilon", zero_terminal_snr=not expected[1]).config
    assert (other.prediction, other.zero_terminal_snr) == ("epsilon", not expected[1])
    assert other.default_sampler == "euler_a"


def test_noise_that_is_known_otherwise(tmp_path: Path) -> None:
    config = FAMILIES["sdxl"]
    stored = tiny.single_file(config, tiny.random_weights(config))
    path = tiny.write(tmp_path / "model.safetensors", {**stored, "ztsnr": np.zeros(0, np.float32)})
    assert load(path).config.zero_terminal_snr
    assert not load(path, zero_terminal_snr=False).config.zero_terminal_snr
    with pytest.raises(InputError, match="zero_terminal_snr is 'yes'; expected True or False"):
        load(path, zero_terminal_snr="yes")


@pytest.mark.parametrize(("name", "channels", "told"), [
    ("flux1-dev", 16, (20, 3.5, False)), ("flux1-dev-kontext_fp8_scaled", 16, (28, 2.5, True)),
    ("FLUX.1-Krea-dev", 16, (28, 4.5, False)), ("flux1-fill-dev", 36, (20, 30.0, False)),
    ("flux1-canny-dev", 32, (20, 30.0, False)), ("flux1-depth-dev", 32, (20, 10.0, False))])
def test_names_tell_models_of_flux(tmp_path: Path, name: str, channels: int,
                                   told: tuple[int, float, bool]) -> None:
    """What they are told of guidance, and whether they read a picture as tokens."""
    config = FAMILIES["flux"]
    config = replace(config, denoiser=replace(config.denoiser, in_channels=channels))
    stored = tiny.single_file(config, tiny.random_weights(config))
    found = load(tiny.write(tmp_path / f"{name}.safetensors", stored)).config
    assert (found.default_steps, found.default_distilled_guidance,
            found.denoiser.reference) == told
    assert found.distilled is None
    titled = load(tiny.write(tmp_path / "model.safetensors", stored, {"modelspec.title": name}))
    assert titled.config == found


MEAN, STD = [-1.6574, 1.886, -1.383, 2.5155], [8.4927, 5.9022, 6.5498, 5.2299]
"""As published with Playground 2.5."""


def playground(folder: Path, **changed: list[float]) -> Path:
    config = FAMILIES["sdxl"]
    statistics = {"edm_mean": MEAN, "edm_std": STD, **changed}
    return tiny.write(folder / "p.safetensors", {
        **tiny.single_file(config, tiny.random_weights(config)),
        **{name: np.array(values, np.float32).reshape(1, -1, 1, 1)
           for name, values in statistics.items() if values}})


def test_playground_is_told_by_the_statistics_of_its_latents(tmp_path: Path) -> None:
    opened = load(playground(tmp_path))
    found = opened.config
    assert found.prediction == "edm" and found.vae.scaling_factor == 0.5
    np.testing.assert_allclose(found.vae.latents_mean, MEAN, rtol=1e-6)
    np.testing.assert_allclose(found.vae.latents_std, STD, rtol=1e-6)
    assert (found.default_steps, found.default_guidance, found.default_sampler,
            found.default_noise) == (50, 3.0, "dpm++_2m", "karras")
    text = str(opened.report)
    assert "scaling 0.5, means and deviations of its own" in text and "levels 0.002 to 80" in text


@pytest.mark.parametrize(("table", "expected"), [
    ({"prediction_type": "epsilon", "sigma_data": 0.5}, ("edm", None, None)),
    ({}, ("edm", None, None)),
    ({"prediction_type": "v_prediction", "sigma_data": 1.0, "sigma_min": 0.01, "sigma_max": 120.0},
     ("edm_v", 0.01, 120.0))])
def test_schedulers_of_edm(table: dict[str, object], expected: tuple) -> None:
    for name in ("EDMEulerScheduler", "EDMDPMSolverMultistepScheduler"):
        hints = folder_hints("x", {"scheduler": {"_class_name": name, **table},
                                   "vae": {"latents_mean": MEAN, "latents_std": STD}})
        assert (hints.prediction, hints.sigma_min, hints.sigma_max) == expected
        assert hints.latents_mean == tuple(MEAN) and hints.latents_std == tuple(STD)
        assert metadata_hints("x", {"arch_config": arch_config(hints)}) == hints
    other = {"scheduler": {"_class_name": "EulerDiscreteScheduler", "sigma_max": 20.0, **table}}
    assert folder_hints("x", other).sigma_max is None


@pytest.mark.parametrize(("tables", "said"), [
    ({"scheduler": {"_class_name": "EDMEulerScheduler", "sigma_data": 0.7}}, "sigma_data 0.7"),
    ({"scheduler": {"_class_name": "EDMEulerScheduler", "prediction_type": "v_prediction"}},
     "is 'v_prediction' with sigma_data 0.5; Smalti knows 'epsilon' with 0.5"),
    ({"scheduler": {"_class_name": "EDMEulerScheduler", "sigma_max": "x"}}, "sigma_max is 'x'"),
    ({"vae": {"latents_mean": "x"}}, "latents_mean is 'x'; expected a row of numbers"),
    ({"vae": {"latents_std": [1.0, True]}}, "expected a row of numbers")])
def test_what_a_folder_states_of_edm_and_cannot_be(tables: dict, said: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(said)):
        folder_hints("x", tables)


@pytest.mark.parametrize("changed", [
    {"edm_std": []}, {"edm_std": [1.0, 2.0]}, {"edm_std": [1.0, 2.0, 0.0, 1.0]},
    {"edm_mean": [1.0, 2.0, float("nan"), 1.0]}, {"edm_mean": MEAN * 2, "edm_std": STD * 2}])
def test_statistics_that_cannot_be_are_refused(tmp_path: Path,
                                               changed: dict[str, list[float]]) -> None:
    with pytest.raises(CheckpointError, match="expected 4 numbers each, the deviations above 0"):
        load(playground(tmp_path, **changed))


@pytest.mark.parametrize(("family", "name", "defaults"), [
    ("sdxl", "sd_xl_turbo_1.0", (4, 1.0, "euler_a", "trailing")),
    ("sdxl", "dmd2_sdxl_4step_unet", (4, 1.0, "lcm", "trailing")),
    ("sdxl", "dreamshaperXL_lightning8Steps", (8, 1.0, "euler", "sgm_uniform")),
    ("sd1", "LCM_Dreamshaper", (6, 1.5, "lcm", "lcm")),
    ("sd3", "sd3.5_large_turbo", (4, 1.0, "euler", "simple")),
    ("sd1", "turboprop", (20, 7.0, "euler_a", "karras"))])
def test_names_tell_models_of_few_steps(tmp_path: Path, family: str, name: str, defaults) -> None:
    config = FAMILIES[family]
    stored = tiny.single_file(config, tiny.random_weights(config))
    found = load(tiny.write(tmp_path / f"{name}.safetensors", stored))
    assert defaults == (found.config.default_steps, found.config.default_guidance,
                        found.config.default_sampler, found.config.default_noise)
    assert ("its name says" in str(found.report)) == (defaults[0] < 20)
    titled = load(tiny.write(tmp_path / "model.safetensors", stored, {"modelspec.title": name}))
    assert titled.config == found.config
    if family == "sdxl":
        assert found.config.default_width == (512 if name == "sd_xl_turbo_1.0" else 1024)


@pytest.mark.parametrize("name", ["clip_l", "clip_g", "t5xxl"])
def test_a_text_encoder_alone_is_called_by_its_name(tmp_path: Path, name: str) -> None:
    """By its width, which these have not but for T5, and the one that is asked for by the model."""
    config = FAMILIES["sd3"]
    stored = tiny.text_encoder(config, tiny.random_weights(config), name)
    report = inspect(tiny.write(tmp_path / "text.safetensors", stored))
    assert report.kind.id == "text-encoder"
    assert ("it is the text encoder T5-XXL" in str(report)) == (name == "t5xxl")
    widths = {"clip_l": 768, "clip_g": 1280}
    if name in widths:
        shape = (widths[name],)
        wide = {"text_model.final_layer_norm.bias": np.zeros(shape, np.float16),
                "text_model.encoder.layers.0.layer_norm1.bias": np.zeros(shape, np.float16),
                "text_projection.weight": np.zeros((8, *shape), np.float16)}
        report = inspect(tiny.write(tmp_path / "wide.safetensors", wide))
        assert {"clip_l": "CLIP-L", "clip_g": "OpenCLIP-bigG"}[name] in str(report)


def test_transformers_predict_flows(tmp_path: Path) -> None:
    config = FAMILIES["sd3"]
    stored = tiny.single_file(config, tiny.random_weights(config))
    path = tiny.write(tmp_path / "model.safetensors", stored)
    assert load(path, prediction="flow").config.prediction == "flow"
    with pytest.raises(InputError, match="'epsilon', which models like a Stable Diffusion 3"):
        load(path, prediction="epsilon")


@pytest.mark.parametrize(("deviation", "prediction", "size"), [
    (0.2, "v_prediction", 768), (0.02, "epsilon", 512)])
def test_what_sd2_predicts(tmp_path: Path, deviation: float, prediction: str, size: int) -> None:
    """Four levels as in the published files, so that the norm that tells is there."""
    config = FAMILIES["sd2"]
    config = replace(config, denoiser=replace(
        config.denoiser, block_channels=(64, 64, 64, 64), res_blocks=2,
        attention=(True, True, True, False), transformer_depth=(1, 1, 1, 0)))
    weights = tiny.random_weights(config)
    name = tiny.DENOISER + VELOCITY_NORM
    weights[name] = np.resize([deviation, -deviation], weights[name].shape).astype(np.float16)
    path = tiny.write_whole(tmp_path / "model.safetensors", config, weights)
    found = load(path).config
    assert (found.prediction, found.default_width) == (prediction, size)
    assert found.denoiser == config.denoiser
