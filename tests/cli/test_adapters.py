"""Adapters and embeddings on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from safetensors.numpy import save_file
from tiny_adapters import write_adapter
from tiny_model import TINY

from smalti.cli.main import root
from smalti.diffusion import metadata


def run(*arguments: object) -> Result:
    return CliRunner().invoke(root, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapters") / "style.safetensors", TINY)


def test_adapters_change_the_picture_and_stand_in_its_text(
        model_path: Path, adapter: Path, tmp_path: Path) -> None:
    pictures = []
    twice = ("--lora", f"{adapter}:0.5", "--lora", f"{adapter}:1:0")
    for number, options in enumerate(((), twice)):
        path = tmp_path / f"{number}.png"
        result = run("generate", "apple", "-m", model_path, "-o", path, "--threads", 1, *options)
        assert result.exit_code == 0, result.output
        pictures.append(Image.open(path))
    assert pictures[0].tobytes() != pictures[1].tobytes()
    said = [metadata.parse(picture.text["parameters"]).pairs.get("Lora") for picture in pictures]
    assert said == [None, "style:0.5, style:0:1"]


def test_prompts_name_adapters_and_embeddings_of_folders(
        model_path: Path, adapter: Path, tmp_path: Path) -> None:
    save_file({"emb_params": np.ones((2, 16), np.float32)}, tmp_path / "zq-pet.safetensors")
    prompt, pictures = "a zq-pet <lora:style:0.5>", []
    for options in ((), ("--lora-dir", adapter.parent), ("--embedding-dir", tmp_path),
                    ("--embedding", tmp_path / "zq-pet.safetensors")):
        path = tmp_path / f"{len(pictures)}.png"
        result = run("generate", prompt, "-m", model_path, "-o", path, "--threads", 1, *options)
        assert result.exit_code == 0, result.output
        assert ("'style' in the prompt is an adapter, and no folder" in result.stderr) == (
            "--lora-dir" not in options)
        pictures.append(Image.open(path).tobytes())
    assert len(set(pictures)) == 3 and pictures[2] == pictures[3]


@pytest.mark.parametrize(("option", "words"), [
    ("missing.safetensors:0.5", "missing.safetensors cannot be read"),
    ("missing.safetensors:much", "missing.safetensors:much cannot be read"),
])
def test_what_is_no_adapter_is_an_error(model_path: Path, option: str, words: str) -> None:
    result = run("generate", "apple", "-m", model_path, "--lora", option)
    assert result.exit_code == 2 and words in result.stderr


def test_inspect_tells_what_an_adapter_is(adapter: Path, tmp_path: Path) -> None:
    text = run("inspect", adapter).stdout
    assert "an adapter for a UNet for prompts 16 wide" in text and "rank        2" in text
    tensors = {"lora_unet_conv_in.lora_down.weight": np.ones((4, 8), np.float32),
               "lora_unet_conv_in.lora_up.weight": np.ones((8, 4), np.float32),
               "lora_unet_conv_in.dora_scale": np.ones((8, 1), np.float32),
               "lora_unet_conv_in.alpha": np.array(1, np.float32),
               "odd": np.ones(3, np.float32), "bundle_emb.cat.emb_params": np.ones((2, 768))}
    save_file(tensors, tmp_path / "dora.safetensors")
    lines = dict(line.split(None, 1) for line in
                 run("inspect", tmp_path / "dora.safetensors").stdout.splitlines())
    assert lines["changes"] == "1 layers: DoRA of LoRA"
    assert (lines["rank"], lines["alpha"], lines["embeddings"]) == ("4", "1", "cat (2)")
    assert lines["not"] == "used    1: odd"


def test_inspect_tells_what_an_embedding_is(tmp_path: Path) -> None:
    save_file({"emb_params": np.ones((3, 1024), np.float32)}, tmp_path / "cat.safetensors")
    text = run("inspect", tmp_path / "cat.safetensors").stdout
    assert "vectors     3 x 1024 for Stable Diffusion 2.x" in text and "word        cat" in text
