"""Each command, with good input and with every kind of bad input that the README promises about."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from safetensors.numpy import save_file
from tiny_model import METADATA, write_model

import smalti
from smalti.cli.explain import where
from smalti.cli.main import root
from smalti.diffusion import job, pipeline
from smalti.runtime.vulkan import VulkanAdapter

Weights = dict[str, np.ndarray]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(root, [str(argument) for argument in arguments])


def refused(result: Result, *parts: str) -> None:
    """Exit code 2, one message that holds `parts`, no traceback, nothing on standard output."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("Error: ") and "Traceback" not in result.stderr
    assert not result.stdout
    for part in parts:
        assert part in result.stderr


def test_version() -> None:
    assert run("--version").stdout.strip() == f"smalti, version {smalti.__version__}"


def test_devices_of_the_library() -> None:
    result = run("devices", "rtx_4060")
    assert result.exit_code == 0 and "specified" in result.output
    assert run("devices", "rtx_4061").exit_code == 2


def test_devices() -> None:
    result = run("devices")
    assert "not calibrated" in result.output and "guessed" in result.output
    assert result.exit_code == 0 and result.stdout.startswith("cpu  ")
    for name in ("vulkan", "wgpu"):
        assert f"\n{name}:" in result.stdout  # a device, or why there is none


def test_inspect_the_model_that_ships() -> None:
    result = run("inspect", pipeline.SHIPPED_MODEL)
    assert result.exit_code == 0
    assert "Stable Diffusion 1.x" in result.stdout and "v_prediction" in result.stdout


def test_explain_shows_all_parts_or_one(model_path: Path) -> None:
    result = run("explain", model_path, "--threads", 1)
    assert result.exit_code == 0
    assert all(f"# {part}\n" in result.stdout for part in ("text", "unet", "vae"))
    result = run("explain", model_path, "--part", "vae", "--size", "16x24", "--threads", 1)
    assert "# vae\n" in result.stdout and "# unet" not in result.stdout


def test_explain_begins_with_a_summary_and_shows_all_kernels_on_request(model_path: Path) -> None:
    arguments = ("explain", model_path, "--part", "unet", "--threads", 1)
    summary, whole = run(*arguments).stdout, run(*arguments, "--all").stdout
    assert len(summary.splitlines()) <= 31 and "`smalti explain --all`" in summary
    assert "the longest 10, " in summary and "memory: packed weights" in summary
    assert "Schedule(" not in summary and "Schedule(" in whole
    assert whole.startswith(summary[:summary.index("`smalti explain --all`")])
    for text in (summary, whole):
        assert max(map(len, text.splitlines())) <= 100


def test_explain_foretells_a_device_that_is_not_here(model_path: Path) -> None:
    result = run("explain", model_path, "--part", "vae", "--size", "16x24", "--threads", 1,
                 "--device", "rtx_4060")
    assert result.exit_code == 0 and "on GeForce RTX 4060: " in result.stdout
    assert "assumed: " in result.stdout and "expected of a run: " in result.stdout
    refused(run("explain", model_path, "--device", "rtx_4061"), "near names: rtx_4060")


def test_explain_and_profile_take_a_gpu_that_is_here(adapter: VulkanAdapter, model_path: Path,
                                                     tmp_path: Path) -> None:
    options = ("--part", "vae", "--size", "16x24", "--device", "vulkan:0", "--precision", "f32")
    result = run("explain", model_path, *options)
    assert result.exit_code == 0, result.output
    assert f"programs for {adapter.name} (vulkan:0)" in result.stdout
    result = run("profile", model_path, *options, "--runs", 1, "--top", 1, "--trace",
                 tmp_path / "t.json")
    assert result.exit_code == 0 and "| contraction " in result.stdout, result.output
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert all(event["dur"] > 0 for event in events if event["ph"] == "X")
    refused(run("explain", model_path, "--device", "vulkan:99"), "no device is named 'vulkan:99'")
    refused(run("profile", model_path, "--device", "rtx_4060"), "no device is named 'rtx_4060'")


def test_explain_takes_devices_of_parts(model_path: Path) -> None:
    assert where("text=cpu,wgpu:0") == ("text=cpu,wgpu:0", None)
    result = run("explain", model_path, "--part", "vae", "--size", "16x24", "--threads", 1,
                 "--device", "denoiser=cpu,decoder=cpu")
    assert result.exit_code == 0 and result.stdout.startswith("# vae\n")
    refused(run("explain", model_path, "--device", "unet=cpu"), "known parts: text, text_2")


def test_explain_refuses_an_unknown_part(model_path: Path) -> None:
    refused(run("explain", model_path, "--part", "lora"), "text, unet, vae")


# ---------------------------------------------------------------------- profile and bench


def test_profile_shows_kernels_and_writes_a_trace(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    result = run("profile", model_path, "--part", "vae", "--size", "16x24", "--threads", 1,
                 "--runs", 2, "--top", 3, "--trace", path)
    assert result.exit_code == 0, result.output
    assert "GB/s read from memory" in result.stdout and "| contraction " in result.stdout
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["tid"] for event in events if event["ph"] == "X"} == {0, 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("arguments, said", [
    (("no-such-file",), "no-such-file"), (("--part", "lora"), "text, unet, vae"),
    (("unet", "--part", "text"), "fixed shape"), (("--precision", "f8"), "f8"),
    (("--threads", 0), "1 to 256"), (("--part", "vae", "--size", "7"), "7"),
    (("--trace", "no-such-folder/t.json"), "there is no folder")])
def test_profile_refuses_what_it_cannot_use(arguments: tuple, said: str) -> None:
    refused(run("profile", *arguments), said)


@pytest.mark.sweep
def test_bench_measures_and_writes(tmp_path: Path) -> None:
    data, drawing = tmp_path / "a.json", tmp_path / "a.svg"
    result = run("bench", "--models", "tiny_cnn", "--threads", 1, "--rounds", 1, "--json", data,
                 "--chart", drawing)
    assert result.exit_code == 0, result.output
    assert "| TinyCNN 32x32 " in result.stdout
    (found,) = json.loads(data.read_text())["results"]
    assert found["model"] == "tiny_cnn" and found["alone_seconds"][0] > 0
    assert drawing.read_text().startswith("<svg") and "TinyCNN" in drawing.read_text()


@pytest.mark.sweep
def test_bench_measures_a_gpu_and_compares_its_results(
        adapter: VulkanAdapter, tmp_path: Path) -> None:
    data = tmp_path / "a.json"
    result = run("bench", "--models", "tiny_cnn", "--device", "vulkan:0", "--precision", "f16",
                 "--peers", "onnxruntime", "--rounds", 1, "--json", data)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("| yes |") == 1 and "on the CPU only" in result.stderr
    found = json.loads(data.read_text())
    assert found["machine"]["device"] == "vulkan:0" and found["machine"]["name"] == adapter.name
    (found,) = found["results"]
    assert found["precision"] == "f16" and 0 < found["agreement"]["error"] < 1e-2
    assert found["bound"] is None and found["alone_seconds"][0] > 0


@pytest.mark.parametrize("arguments, said", [
    (("--models", "unit"), "known: "), (("--precision", "f8"), "f8"),
    (("--precision", "f16"), "expected some of f32, bf16"),
    (("--device", "vulkan:99"), "vulkan:99"),
    (("--objective", "speed"), "known: latency"),
    (("--peers", "tensorrt"), "known: smalti_onnx"), (("--threads", 0), "1 to 256"),
    (("--chart", "a.pdf"), ".svg or .png"), (("--json", "no-such-folder/a"), "no folder"),
    (("--exports", __file__, "--peers"), "--exports"),
    (("--target", "sse"), "can be held to avx2, avx2_vnni, avx512, ")])
def test_bench_refuses_what_it_cannot_use(arguments: tuple, said: str) -> None:
    refused(run("bench", *arguments), said)


def test_bench_holds_no_gpu_to_a_level_of_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smalti.runtime.choice.chosen", lambda name: name)
    refused(run("bench", "--target", "avx2", "--device", "vulkan:0"), "leave one of them away")


# ---------------------------------------------------------------------- generate


def test_generate_writes_a_picture_and_says_what_it_did(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "apple.png"
    result = run("generate", "a red apple", "-o", path, "-m", model_path, "--threads", 1)
    assert result.exit_code == 0, result.output
    assert f"{path}: 16x16, seed 7, tiny" in result.stdout
    assert "3 steps of euler_a (karras)" in result.stdout
    with Image.open(path) as image:
        assert image.size == (16, 16)
        assert image.info["parameters"].startswith("a red apple\nSteps: 3, Sampler: Euler a")
    assert list(tmp_path.iterdir()) == [path]


def test_generate_gives_every_option_to_the_pipeline(model_path: Path, tmp_path: Path) -> None:
    result = run(
        "generate", "a red apple", "-o", tmp_path / "a%02d.png", "-m", model_path,
        "--negative-prompt", "dog", "--steps", 2, "--sampler", "dpm++_2m", "--noise", "normal",
        "--size", "24x16", "--seed", 40, "--batch", 2, "--guidance", 2.5, "--rng", "cuda",
        "--device", "cpu", "--threads", 2, "--precision", "f32")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a01.png", "a02.png"]
    with Image.open(tmp_path / "a02.png") as image:
        assert image.info["parameters"].startswith(
            "a red apple\nNegative prompt: dog\nSteps: 2, Sampler: DPM++ 2M, "
            "Schedule type: Normal, CFG scale: 2.5, Seed: 41, Size: 24x16, RNG: NV, Model: tiny")


def test_the_same_command_writes_the_same_bytes(model_path: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for threads, path in enumerate(paths, 1):
        run("generate", "a red apple", "-o", path, "-m", model_path, "--threads", threads)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_random_seed_is_told(model_path: Path, tmp_path: Path) -> None:
    result = run("generate", "x", "-o", tmp_path / "a.png", "-m", model_path, "--seed", -1)
    assert result.exit_code == 0 and "seed -1" not in result.stdout


def test_a_prompt_of_20000_characters_makes_a_picture_and_a_warning(
        model_path: Path, tmp_path: Path) -> None:
    result = run("generate", "red apple " * 2000, "-o", tmp_path / "a.png", "-m", model_path)
    assert result.exit_code == 0 and (tmp_path / "a.png").exists()
    assert result.stderr.startswith("Warning: the prompt is longer than the 32 times 75 tokens")


@pytest.mark.parametrize(("options", "message"), [
    (["--size", "18"], "multiples of 4 pixels"),
    (["--size", "0"], "width is 0"),
    (["--size", "999999999"], "from 4 to 4096 pixels"),
    (["--size", "99999999999999999999"], "such as 512 or 512x768"),
    (["--size", "16x"], "such as 512 or 512x768"),
    (["--size", "-16"], "such as 512 or 512x768"),
    (["--steps", "0"], "steps is 0"),
    (["--batch", "0"], "batch_size is 0"),
    (["--batch", "1000000000"], "batch_size is 1000000000"),
    (["--seed", "-5"], "seed is -5"),
    (["--guidance", "nan"], "guidance_scale is nan"),
    (["--guidance-rescale", "2"], "guidance rescale is 2.0"),
    (["--guidance-time", "1", "0"], "from 1.0 to 0.0 of the way"),
    (["--apg", "--guidance-rescale", "0.5"], "choose one of them"),
    (["--skip-layers", "7"], "of Stable Diffusion 3 only"),
    (["--skip-layers", "seven"], "such as 7,8,9"),
    (["--sampler", "plms"], "known: euler"),
    (["--noise", "sigma"], "known: normal"),
    (["--rng", "xpu"], "known: cpu, cuda"),
    (["--device", "gpu"], "known: auto, cpu"),
    (["--threads", "0"], "threads is 0"),
    (["--precision", "int4"], "known: auto"),
    (["--objective", "speed"], "known: latency"),
])
def test_generate_refuses_options_it_cannot_use(
        model_path: Path, tmp_path: Path, options: list[str], message: str) -> None:
    path = tmp_path / "a.png"
    refused(run("generate", "x", "-o", path, "-m", model_path, *options), message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("prompts", [["\udcff"], ["x", "--negative-prompt", "a\ud800"]])
def test_bytes_that_are_no_text_are_refused_before_the_work(
        model_path: Path, tmp_path: Path, prompts: list[str]) -> None:
    refused(run("generate", *prompts, "-o", tmp_path / "a.png", "-m", model_path), "no UTF-8 text")


@pytest.mark.parametrize("options", [["--steps", "many"], ["--colour", "red"], ["--seed", "1.5"]])
def test_what_click_refuses_is_exit_code_2_too(options: list[str]) -> None:
    result = run("generate", "x", *options)
    assert result.exit_code == 2 and "Traceback" not in result.output


@pytest.mark.parametrize("name", ["no-such-folder/a.png", "a.jpg", "folder.png"])
def test_an_unwritable_output_is_found_before_the_model_is_opened(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "folder.png").mkdir()

    def load(*arguments: object, **options: object) -> None:
        raise AssertionError("the model was opened")

    monkeypatch.setattr(smalti.Pipeline, "load", load)
    refused(run("generate", "x", "-o", tmp_path / name), "a.jpg" if "jpg" in name else name)


# ---------------------------------------------------------------------- damaged models


def truncated(path: Path, weights: Weights) -> None:
    write_model(path, weights)
    path.write_bytes(path.read_bytes()[:-1000])


def header_only(path: Path, weights: Weights) -> None:
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")


def wrong_dtype(path: Path, weights: Weights) -> None:
    name = "model.diffusion_model.out.2.weight"
    write_model(path, {**weights, name: np.zeros(weights[name].shape, np.int32)})


def missing_key(path: Path, weights: Weights) -> None:
    write_model(path, {name: array for name, array in weights.items()
                       if name != "model.diffusion_model.out.2.weight"})


def wrong_shape(path: Path, weights: Weights) -> None:
    name = "model.diffusion_model.out.2.weight"
    write_model(path, {**weights, name: weights[name][:, :, :1]})


def unknown_family(path: Path, weights: Weights) -> None:
    save_file({"transformer.weight": np.zeros((4, 4), np.float32)}, path, METADATA)


def a_picture(path: Path, weights: Weights) -> None:
    Image.new("RGB", (8, 8)).save(path, format="PNG")


def empty(path: Path, weights: Weights) -> None:
    path.touch()


def an_empty_folder(path: Path, weights: Weights) -> None:
    path.mkdir()


def absent(path: Path, weights: Weights) -> None:
    assert not path.exists()


def foolish_metadata(path: Path, weights: Weights) -> None:
    save_file(weights, path, {"arch_config": json.dumps({"unet": {"num_heads": 0}})})


def other_positions(path: Path, weights: Weights) -> None:
    (name,) = (name for name in weights if name.endswith("position_embedding.weight"))
    write_model(path, {**weights, name: np.repeat(weights[name], 2, 0)})


def other_context(path: Path, weights: Weights) -> None:
    write_model(path, {name: np.repeat(array, 2, 1) if ".attn2.to_k." in name
                       or ".attn2.to_v." in name else array for name, array in weights.items()})


def not_a_number(path: Path, weights: Weights) -> None:
    name = "model.diffusion_model.out.2.weight"
    write_model(path, {**weights, name: np.full_like(weights[name], np.nan)})


DAMAGES: dict[Callable[[Path, Weights], None], str] = {
    truncated: "damaged.safetensors",
    header_only: "header",
    wrong_dtype: "model.diffusion_model.out.2.weight",
    missing_key: "model.diffusion_model.out.2.weight",
    wrong_shape: "model.diffusion_model.out.2.weight",
    unknown_family: "damaged.safetensors",
    a_picture: "PNG",
    empty: "damaged.safetensors",
    an_empty_folder: "damaged.safetensors",
    absent: "damaged.safetensors",
    foolish_metadata: "num_heads",
    other_positions: "damaged.safetensors: 154 positions of the text encoder, but 77",
    other_context: "of the UNet's context",
    not_a_number: "model.diffusion_model.out.2.weight",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_model_is_one_error(
        damage: Callable[[Path, Weights], None], tmp_path: Path, weights: Weights) -> None:
    path, output = tmp_path / "damaged.safetensors", tmp_path / "out" / "a.png"
    output.parent.mkdir()
    damage(path, weights)
    refused(run("generate", "x", "-m", path, "-o", output, "--threads", 1), DAMAGES[damage])
    assert not list(output.parent.iterdir())


@pytest.mark.parametrize("damage", [truncated, header_only, a_picture, empty, an_empty_folder,
                                    absent], ids=lambda damage: damage.__name__)
def test_inspect_refuses_what_is_no_model(
        damage: Callable[[Path, Weights], None], tmp_path: Path, weights: Weights) -> None:
    path = tmp_path / "damaged.safetensors"
    damage(path, weights)
    refused(run("inspect", path))


# ---------------------------------------------------------------------- stopping


def test_ctrl_c_between_steps_is_exit_code_130(
        model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job.PictureJob, "_decoded", stop)
    result = run("generate", "x", "-o", tmp_path / "a.png", "-m", model_path, "--threads", 1)
    assert result.exit_code == 130 and "stopped" in result.stderr
    assert "Traceback" not in result.output and not list(tmp_path.iterdir())


def test_too_little_memory_is_one_error(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr(job.PictureJob, "_decoded", fail)
    refused(run("generate", "x", "-m", model_path, "--threads", 1), "Unable to allocate", "--size")


def test_a_bug_shows_its_traceback(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(job.PictureJob, "_decoded", fail)
    result = run("generate", "x", "-m", model_path, "--threads", 1)
    assert isinstance(result.exception, ZeroDivisionError)


def test_every_command_says_what_it_does_in_a_line_that_is_not_cut_off() -> None:
    listed = [line for command in ((), ("export",), ("dojo",))
              for line in run(*command, "--help").stdout.partition("Commands:")[2].splitlines()]
    assert len([line for line in listed if line]) >= 18
    assert not [line for line in listed if line.endswith("...")]
