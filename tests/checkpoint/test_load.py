"""Single files and folders become one `Checkpoint`; what is missing or foreign is said by name."""

import errno
import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoint.samples import CONFIGS, TINY, folder_weights, random_weights
from safetensors.numpy import save_file

from smalti.checkpoint import inspect, load, open_tensors
from smalti.errors import CheckpointError, UnknownFamilyError
from smalti.families.expected import expected_tensors
from smalti.models.config import SD15, UNetConfig, VaeConfig

ARCH = {
    "prediction_type": "v_prediction",
    "unet": {"num_heads": 4, "norm_num_groups": 16},
    "vae": {"norm_num_groups": 8, "scaling_factor": 0.5},
    "text": {"num_attention_heads": 2, "hidden_act": "gelu"},
    "scheduler": {"beta_start": 0.001, "beta_end": 0.02, "num_train_timesteps": 500},
    "default": {"width": 64, "height": 96, "steps": 5, "cfg_scale": 3, "cfg_interval": [0, 0.6]},
}


def test_what_is_expected_is_asked_for_once(tiny_file, monkeypatch):
    """It takes the graphs of all parts."""
    asked, module = [], sys.modules["smalti.checkpoint.load"]  # as a name it is the function
    monkeypatch.setattr(module, "expected_tensors",
                        lambda config: asked.append(config) or expected_tensors(config))
    assert set(load(tiny_file).names()) == set(expected_tensors(TINY))
    assert asked == [TINY]


def test_single_file(tiny_file, tiny_weights):
    checkpoint = load(tiny_file)
    assert checkpoint.config == TINY
    assert checkpoint.expected() == expected_tensors(TINY)
    assert set(checkpoint.names()) == set(tiny_weights)
    for name in checkpoint.names():
        assert checkpoint.dtype(name) == "F16" and name in checkpoint
        assert checkpoint.shape(name) == tiny_weights[name].shape
        np.testing.assert_array_equal(checkpoint.raw(name), tiny_weights[name])
    name = checkpoint.names()[0]
    assert checkpoint.read(name).dtype == np.float32
    with pytest.raises(CheckpointError, match="no tensor 'nothing'"):
        checkpoint.read("nothing")


def test_metadata_tells_what_shapes_do_not(tmp_path, tiny_weights):
    path = tmp_path / "a.safetensors"
    save_file(tiny_weights, path, metadata={"arch_config": json.dumps(ARCH)})
    config = load(path).config
    assert config.denoiser == replace(TINY.denoiser, heads=4, norm_groups=16)
    assert config.vae == replace(TINY.vae, norm_groups=8, scaling_factor=0.5)
    assert config.texts["clip_l"] == replace(TINY.texts["clip_l"], heads=2, activation="gelu")
    assert (config.prediction, config.beta_start, config.train_steps) == ("v_prediction", 1e-3, 500)
    assert (config.default_width, config.default_height) == (64, 96)
    assert (config.default_steps, config.default_guidance) == (5, 3.0)
    assert config.default_guidance_time == (0.0, 0.6)
    assert "guidance 3 from 0 to 0.6 of the way" in str(inspect(path))


def test_modelspec_metadata(tmp_path, tiny_weights):
    path = tmp_path / "a.safetensors"
    metadata = {"modelspec.prediction_type": "v", "modelspec.resolution": "256x128"}
    save_file(tiny_weights, path, metadata=metadata)
    config = load(path).config
    assert (config.prediction, config.default_width, config.default_height) == (
        "v_prediction",
        256,
        128,
    )


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("unet", "num_heads", 0),
        ("unet", "num_heads", "8"),
        ("unet", "num_heads", True),
        ("unet", "num_heads", 7),
        ("unet", "norm_num_groups", 5),
        ("vae", "norm_num_groups", 24),
        ("vae", "scaling_factor", -1),
        ("vae", "scaling_factor", float("nan")),
        ("text", "hidden_act", "swish"),
        ("scheduler", "beta_schedule", "linear"),
        ("scheduler", "beta_start", 0.5),
        ("scheduler", "beta_start", 1e-300),
        ("scheduler", "beta_end", 0.9999),
        ("scheduler", "num_train_timesteps", 1_000_000),
        ("unet", "norm_eps", 10**400),
        ("default", "steps", 1.5),
        ("default", "cfg_interval", 0.5),
        ("default", "cfg_interval", [0.5, 0.5]),
        ("default", "cfg_interval", [0, 1.1]),
        ("default", "cfg_interval", [0, 0.5, 1]),
        ("default", "cfg_interval", ["0", "1"]),
    ],
)
def test_senseless_metadata_is_refused(tmp_path, tiny_weights, section, key, value):
    path = tmp_path / "a.safetensors"
    save_file(tiny_weights, path, metadata={"arch_config": json.dumps({section: {key: value}})})
    with pytest.raises(CheckpointError, match="a.safetensors"):
        load(path)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_damaged_metadata_is_refused(tmp_path, tiny_weights, text):
    path = tmp_path / "a.safetensors"
    save_file(tiny_weights, path, metadata={"arch_config": text})
    with pytest.raises(CheckpointError, match="arch_config"):
        load(path)


LEVELS = {
    "sd 1.5 in small": ((32, 32, 64, 64), 2, (True, True, True, False), (1, 1, 1, 0), 2),
    "three levels": ((32, 64, 96), 1, (False, True, True), (0, 1, 1), 1),
    "deep": ((32, 32), 3, (True, True), (1, 2), 3),
    "one level": ((32,), 1, (True,), (1,), 1),
}


@pytest.mark.parametrize("what", LEVELS)
def test_configuration_comes_back_from_shapes(tmp_path, what):
    widths, blocks, attention, depth, vae_blocks = LEVELS[what]
    unet = UNetConfig(4, 4, widths, blocks, attention, 8, None, depth, 40)
    config = replace(TINY, denoiser=unet, vae=VaeConfig(64, (64, 32, 32), vae_blocks, 4))
    path = tmp_path / "a.safetensors"
    save_file(random_weights(config), path)
    assert load(path).config == config


def test_one_weight_under_two_names(tmp_path, tiny_weights):
    name = "cond_stage_model.transformer.text_model.final_layer_norm.bias"
    other = name.replace(".text_model", "")
    path = tmp_path / "merged.safetensors"
    save_file({**tiny_weights, other: tiny_weights[name]}, path)
    np.testing.assert_array_equal(load(path).raw(name), tiny_weights[name])
    save_file({**tiny_weights, other: tiny_weights[name] + 1}, path)
    with pytest.raises(CheckpointError, match="two different tensors for one weight"):
        load(path)


def test_old_files_lack_text_model(tmp_path, tiny_weights):
    path = tmp_path / "a.safetensors"
    save_file({n.replace(".text_model", ""): v for n, v in tiny_weights.items()}, path)
    checkpoint = load(path)
    assert checkpoint.config == TINY and not checkpoint.report.ignored


def test_training_leftovers_are_ignored(tmp_path, tiny_weights):
    path = tmp_path / "a.safetensors"
    extra = {
        "model_ema.decay": np.zeros(1, np.float32),
        "alphas_cumprod": np.zeros(1000, np.float32),
        "cond_stage_model.transformer.text_model.embeddings.position_ids": np.arange(77)[None],
    }
    save_file({**tiny_weights, **extra}, path)
    checkpoint = load(path)
    assert set(checkpoint.report.ignored) == set(extra)
    assert set(checkpoint.names()) == set(tiny_weights)


def test_all_missing_and_wrong_tensors_are_counted(tmp_path, tiny_weights):
    weights = dict(tiny_weights)
    gone = [name for name in weights if ".middle_block." in name][:12]
    for name in gone:
        del weights[name]
    bent = "model.diffusion_model.time_embed.0.weight"
    weights[bent] = np.zeros((3, 3), np.float16)
    whole = "first_stage_model.quant_conv.weight"
    weights[whole] = np.zeros((8, 8, 1, 1), np.int8)
    path = tmp_path / "a.safetensors"
    save_file(weights, path)
    with pytest.raises(
        CheckpointError, match="missing .12. or of another shape or dtype than expected .2."
    ) as caught:
        load(path)
    assert all(name in str(caught.value) for name in gone[:10])
    assert "and 4 more" in str(caught.value)
    report = inspect(path)
    assert set(report.missing) == set(gone) and not report.loadable
    assert f"{bent}: found shape (3, 3), expected (128, 32)" in report.misfits
    assert f"{whole}: found dtype I8, expected a floating-point one" in report.misfits


@pytest.mark.parametrize("part", ["cond_stage_model.", "first_stage_model."])
def test_a_whole_part_is_missing(tmp_path, tiny_weights, part):
    path = tmp_path / "a.safetensors"
    save_file({n: v for n, v in tiny_weights.items() if not n.startswith(part)}, path)
    with pytest.raises(CheckpointError, match="incomplete"):
        load(path)


def test_any_single_missing_tensor_is_named(tmp_path, tiny_weights):
    small = {name: value for name, value in tiny_weights.items()}
    for name in [n for n in small if n.endswith(".weight")][::7]:
        path = tmp_path / f"{name}.safetensors"
        save_file({n: v for n, v in small.items() if n != name}, path)
        with pytest.raises(CheckpointError, match="missing .1. or") as caught:
            load(path)
        assert name in str(caught.value)


def test_block_numbers_cannot_inflate_the_table(tmp_path, tiny_weights):
    path = tmp_path / "a.safetensors"
    mark = "cond_stage_model.transformer.text_model.encoder.layers.{}.layer_norm1.bias"
    for number in ("999", "9" * 400):
        save_file({**tiny_weights, mark.format(number): np.zeros(64, np.float16)}, path)
        if len(number) > 4:
            assert load(path).config == TINY
        else:
            with pytest.raises(CheckpointError, match="fewer than 64"):
                load(path)


def test_report_has_about_fifteen_lines(tiny_file):
    text = str(inspect(tiny_file))
    assert 12 <= len(text.splitlines()) <= 16
    assert "a Stable Diffusion 1.x checkpoint" in text and "epsilon" in text
    assert text.endswith("loads       yes")


def test_sd15_has_its_known_size():
    table = expected_tensors(SD15)
    total = sum(int(np.prod(shape)) for shape in table.values())
    assert total == 859_520_964 + 83_653_863 + 123_060_480  # UNet, autoencoder, CLIP ViT-L/14


class TestAhead:
    """What has the system read files that are wanted soon."""

    @pytest.fixture
    def asked(self, monkeypatch) -> list[tuple[int, int, int]]:
        """What the system is asked to read, of which file number from and to which byte; threads
        run at once."""
        found: list[tuple[int, int, int]] = []
        monkeypatch.setattr(os, "posix_fadvise", lambda stream, start, size, advice: found.append(
            (os.fstat(stream).st_ino, start, start + size)), raising=False)
        monkeypatch.setattr(os, "POSIX_FADV_WILLNEED", 3, raising=False)
        monkeypatch.setattr(threading.Thread, "start", lambda thread: thread.run())
        return found

    def test_all_of_a_file_in_the_order_of_the_architecture_once(self, tiny_file, asked):
        checkpoint, file = load(tiny_file), open_tensors(tiny_file)
        checkpoint.ahead(10**9)
        checkpoint.ahead(10**9)
        number = tiny_file.stat().st_ino
        places = [(number, file.entry(name).start, file.entry(name).end)
                  for name in dict.fromkeys(
                      stored for each in checkpoint.names()
                      for stored in checkpoint._tensor(each).stored_names)]
        assert asked == places

    def test_all_files_of_a_folder(self, tiny_folder, asked):
        load(tiny_folder).ahead(10**9)
        files = {path.stat().st_ino for path in tiny_folder.rglob("*.safetensors")}
        assert {number for number, _, _ in asked} == files

    def test_nothing_that_would_have_to_go_again(self, tiny_file, asked):
        size = tiny_file.stat().st_size
        load(tiny_file).ahead(int(1.9 * size))
        assert not asked
        load(tiny_file).ahead(int(2.1 * size))
        assert asked

    def test_a_system_without_such_a_call_is_asked_nothing(self, tiny_file, asked, monkeypatch):
        monkeypatch.delattr(os, "posix_fadvise")
        load(tiny_file).ahead(10**9)
        assert not asked

    def test_a_call_that_fails_is_a_hint_that_is_lost(self, tiny_file, asked, monkeypatch):
        def refused(*given):
            asked.append(given)
            raise OSError(35, "not now")

        monkeypatch.setattr(os, "posix_fadvise", refused)
        load(tiny_file).ahead(10**9)
        assert len(asked) == 1

    def test_a_system_that_gives_no_thread_makes_the_picture_all_the_same(
            self, tiny_file, monkeypatch):
        def refused(thread):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refused)
        load(tiny_file).ahead(10**9)

    def test_a_file_that_has_gone_is_no_fault(self, tiny_file, asked):
        checkpoint = load(tiny_file)
        tiny_file.unlink()
        checkpoint.ahead(10**9)
        assert not asked


class TestFolder:
    def test_is_presented_under_internal_names(self, tiny_folder, tiny_weights):
        checkpoint = load(tiny_folder)
        text = replace(TINY.texts["clip_l"], heads=4)
        vae = replace(TINY.vae, scaling_factor=0.2)
        expected = replace(TINY, texts={"clip_l": text}, vae=vae, prediction="v_prediction")
        assert checkpoint.config == replace(expected, default_width=32, default_height=32)
        for name, value in tiny_weights.items():
            np.testing.assert_array_equal(checkpoint.raw(name), value, err_msg=name)
            assert checkpoint.read(name).shape == value.shape

    def test_old_attention_names(self, tiny_folder, tiny_weights):
        old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
        weights = {}
        for name, value in folder_weights(tiny_weights, "vae").items():
            for new, before in old.items():
                name = name.replace(f".{new}.", f".{before}.")
            weights[name] = value
        save_file(weights, tiny_folder / "vae" / "diffusion_pytorch_model.safetensors")
        name = "first_stage_model.decoder.mid.attn_1.proj_out.weight"
        np.testing.assert_array_equal(load(tiny_folder).raw(name), tiny_weights[name])

    def test_text_encoder_without_text_model(self, tiny_folder, tiny_weights):
        weights = folder_weights(tiny_weights, "text_encoder")
        bare = {name.removeprefix("text_model."): value for name, value in weights.items()}
        save_file(bare, tiny_folder / "text_encoder" / "model.safetensors")
        assert set(load(tiny_folder).names()) == set(tiny_weights)

    def test_shards(self, tiny_folder, tiny_weights):
        place = tiny_folder / "unet"
        (place / "diffusion_pytorch_model.fp16.safetensors").unlink()
        weights = folder_weights(tiny_weights, "unet")
        names = list(weights)
        parts = {"one.safetensors": names[:100], "two.safetensors": names[100:]}
        table = {}
        for file, inside in parts.items():
            save_file({name: weights[name] for name in inside}, place / file)
            table.update(dict.fromkeys(inside, file))
        index = place / "diffusion_pytorch_model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": table}))
        assert set(load(tiny_folder).names()) == set(tiny_weights)
        index.write_text(json.dumps({"weight_map": {**table, "ghost": "one.safetensors"}}))
        with pytest.raises(CheckpointError, match="ghost"):
            load(tiny_folder)
        index.write_text(json.dumps({"weight_map": {**table, "\x1b[31m": "one.safetensors"}}))
        with pytest.raises(CheckpointError, match=r"hold: '\\x1b\[31m'"):
            load(tiny_folder)

    @pytest.mark.parametrize("name", ["../../one", "/one", "a\0", "\ud800", "\x1b[31m"])
    def test_shards_elsewhere_or_with_impossible_names(self, tiny_folder, name):
        place = tiny_folder / "unet"
        (place / "diffusion_pytorch_model.fp16.safetensors").unlink()
        table = {"weight_map": {"a": f"{name}.safetensors"}}
        (place / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(table))
        with pytest.raises(CheckpointError, match="beside"):
            load(tiny_folder)

    def test_without_index(self, tmp_path):
        (tmp_path / "readme.txt").write_text("x")
        with pytest.raises(CheckpointError, match=r"without model_index.json \(found readme.txt\)"):
            load(tmp_path)

    def test_without_weights(self, tiny_folder):
        (tiny_folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
        with pytest.raises(CheckpointError, match="holds no weights"):
            load(tiny_folder)

    def test_damaged_config(self, tiny_folder):
        (tiny_folder / "unet" / "config.json").write_text("{")
        with pytest.raises(CheckpointError, match="no JSON"):
            load(tiny_folder)

    def test_heads_may_be_listed_per_level(self, tiny_folder):
        config = tiny_folder / "unet" / "config.json"
        config.write_text(json.dumps({**CONFIGS["unet"], "attention_head_dim": [4, 4]}))
        assert load(tiny_folder).config.denoiser.heads == 4
        config.write_text(json.dumps({**CONFIGS["unet"], "attention_head_dim": [4, 8]}))
        assert load(tiny_folder).config.denoiser.head_dim == 8
        config.write_text(json.dumps({**CONFIGS["unet"], "attention_head_dim": [4, 16]}))
        with pytest.raises(CheckpointError, match="attention_head_dim"):
            load(tiny_folder)

    def test_a_folder_that_may_not_be_entered(self, tiny_folder, monkeypatch):
        def refuse(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

        monkeypatch.setattr(Path, "is_file", refuse)
        with pytest.raises(CheckpointError, match=r"model_index\.json cannot be read: Permission"):
            load(tiny_folder)

    def test_a_name_longer_than_the_system_takes(self, tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            load(tmp_path / ("x" * 5000))

    def test_other_pipelines_are_named(self, tiny_folder):
        index = {"_class_name": "StableDiffusionUpscalePipeline"}
        (tiny_folder / "model_index.json").write_text(json.dumps(index))
        with pytest.raises(UnknownFamilyError, match="upscaler"):
            load(tiny_folder)

    def test_missing_tokenizer_is_noted(self, tiny_folder):
        (tiny_folder / "tokenizer").rmdir()
        assert "tokenizer" in str(inspect(tiny_folder))
