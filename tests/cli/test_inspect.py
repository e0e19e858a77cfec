"""`smalti inspect` of what pictures would take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.test_commands import refused, run
from tiny_model import tiny_weights, write_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("inspect") / "tiny.safetensors", tiny_weights())


def test_a_picture_is_foretold_on_a_computer_that_is_not_here(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "plan.json"
    told = run("inspect", path, "--device", "cortex_a76", "--memory", "4GB", "--size", "32x16",
               "--steps", 5, "--json", written)
    assert told.exit_code == 0, told.output
    lines = dict(line.split(maxsplit=1) for line in told.stdout.splitlines())
    assert lines["device"] == "4 cores Cortex-A76, cpu" and lines["runs"] == "yes"
    assert lines["picture"] == "32x16, steps: 5"
    assert lines["unet"].startswith("f32, ") and "of weights, resident; " in lines["unet"]
    assert "; 5 x " in lines["unet"] and "; 1 x " in lines["text"]
    assert lines["memory"].endswith(", of the 4.00 GB that it may take")
    assert " a step, " in lines["time"]
    assert "within 40 %, this CPU was not measured" in lines["time"]
    document = json.loads(written.read_text())
    assert (document["runs"], document["steps"], document["width"]) == (True, 5, 32)
    assert [part["part"] for part in document["parts"]] == ["text", "unet", "vae"]


def test_parts_may_be_on_several_devices(path: Path) -> None:
    told = run("inspect", path, "--device", "rtx_3060,text=raspberry_pi_5", "--memory", "4GB",
               "--gpu-memory", "2GB")
    lines = dict(line.split(maxsplit=1) for line in told.stdout.splitlines())
    assert lines["text"].endswith("; on library:raspberry_pi_5"), told.output
    assert lines["unet"].endswith("; on library:rtx_3060_12_gb")
    assert "of the 2.00 GB that it may take of the device's, and " in lines["memory"]


def test_what_cannot_be_is_refused_before_anything_is_written(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "plan.json"
    for options, why in (
            (("--device", "rtx_3061"), "near names: rtx_3060"),
            (("--device", "vulkan:99"), "no device is named 'vulkan:99'"),
            (("--device", "cpu", "--gpu-memory", "1GB"), "computes in main memory; give memory"),
            (("--device", "rtx_3060", "--memory", "many"), "memory is 'many'"),
            (("--device", "rtx_3060", "--precision", "f64"), "f64"),
            (("--device", "m1"), "is not known; give memory (--memory)"),
            (("--device", "denoiser=rtx_3060,engine=cpu"), "'engine'; known parts: text, "),
            (("--size", "33"), "multiples of 4 pixels"), (("--steps", 0), "steps is 0")):
        refused(run("inspect", path, *options, "--json", written), why)
        assert not written.exists()
    refused(run("inspect", path.with_name("none.safetensors"), "--device", "rtx_3060"), "none.safe")
    refused(run("inspect", path, "--json", tmp_path / "none" / "plan.json"), "none")
    for name in ("a.onnx", "a.smalti", "a.png"):
        refused(run("inspect", name, "--device", "cpu"), f"{name} is none; smalti explain")


def test_a_slip_in_a_name_is_told_with_what_is_near(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    for given in (("inspect", "sdxl-trubo"), ("inspect", "sdxl-trubo", "--device", "rtx_3060"),
                  ("generate", "a cat", "-m", "sdxl-trubo", "-o", picture),
                  ("models", "get", "sdxl-trubo")):
        refused(run(*given), "sdxl-trubo is neither a file", "did you mean sdxl-turbo?")
    refused(run("inspect", "nothing-like-it"), "nothing-like-it cannot be read")


def test_int8_is_foretold_for_this_computer_only(path: Path) -> None:
    refused(run("inspect", path, "--device", "core_i5_12400", "--precision", "int8"),
            "for the CPU of this computer only", "core_i5_12400 auto, f32, bf16 are")


def test_pictures_of_redux_are_foretold(path: Path) -> None:
    refused(run("inspect", path, "--redux", 2), "redux is for models of FLUX.1")
    for number in (-1, 11, "a.png"):
        assert "Invalid value for '--redux'" in run("inspect", path, "--redux", number).stderr
