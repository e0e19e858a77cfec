"""Models that are published in several files: which others bring what one lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_families as tiny

from smalti.checkpoint import inspect
from smalti.diffusion.completing import Completed, completed

CONFIG = tiny.FAMILIES["flux"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Flux as ComfyUI has it, beside parts of other models."""
    root = tmp_path_factory.mktemp("parts")
    tiny.write_parts(root, CONFIG)
    small = tiny.WORDLESS["chroma"]  # of fewer tokens than there are words
    tiny.write(root / "text_encoders" / "another-t5.safetensors", tiny.text_encoder(
        small, tiny.random_weights(small), "t5xxl"))
    other = tiny.WORDLESS["sd1"]
    tiny.write(root / "vae" / "a-vae.safetensors", tiny.autoencoder(
        other, tiny.random_weights(other)))
    return root


def found(folder: Path, *names: str) -> Completed | None:
    """What files bring to the model."""
    reports = {path: inspect(path) for name in names for path in folder.glob(f"*/{name}.*")}
    return completed(inspect(folder / "diffusion_models" / "flux.safetensors"), {
        path: [part for part, count in report.parameters.items() if count]
        for path, report in reports.items()})


def test_files_that_fit_are_taken_among_others(folder: Path) -> None:
    made = found(folder, "a-vae", "another-t5", "t5xxl", "ae", "clip_l")
    assert made is not None and made.report.loadable
    assert [each.name for each in made.text_encoders] == ["clip_l.safetensors", "t5xxl.safetensors"]
    assert made.vae == folder / "vae" / "ae.safetensors"


@pytest.mark.parametrize("names", [
    (), ("t5xxl", "ae"), ("clip_l", "t5xxl", "a-vae"), ("clip_l", "another-t5", "ae")])
def test_what_is_not_all_or_does_not_fit_is_none(folder: Path, names: tuple[str, ...]) -> None:
    assert found(folder, *names) is None


def test_a_whole_model_needs_nothing(model_path: Path, folder: Path) -> None:
    assert completed(inspect(model_path), {folder / "ae.safetensors": ["vae"]}) is None


def test_a_file_that_is_called_as_usual_goes_before_others(folder: Path) -> None:
    usual, other = folder / "vae" / "ae.safetensors", folder / "vae" / "0.safetensors"
    other.write_bytes(usual.read_bytes())
    made = found(folder, "0", "ae", "t5xxl", "clip_l")
    assert made is not None and made.vae == usual
