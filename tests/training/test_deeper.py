"""Finished weights learn pictures of twice the side: latents and denoiser are what they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers


def test_an_autoencoder_with_one_more_level_draws_what_it_drew_with_four_pixels_for_one() -> None:
    import torch
    from deeper import deeper_preset, deeper_vae, half
    from layout import to_single_file
    from models import latent_side, make_vae
    from presets import PRESETS

    torch.manual_seed(1)
    before = PRESETS["smoke"]
    preset = deeper_preset(before)
    assert preset["px"] == 128 and latent_side(preset) == latent_side(before) == 8
    old = make_vae(before).eval()
    new = deeper_vae(preset, to_single_file(old, "vae", before), before).eval()
    latent = torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        drawn, was = new.decode(latent).sample, old.decode(latent).sample
        assert drawn.shape[2:] == (128, 128)
        near = (half(drawn) - was)[:, :, 2:-2, 2:-2].square().mean() / was.var()
        assert near < 0.4
        image = torch.ones(1, 3, 128, 128) * torch.tensor([0.5, -0.3, 0.1])[:, None, None]
        given = new.encode(image).latent_dist.mean, old.encode(half(image)).latent_dist.mean
    error = (given[0] - given[1])[..., 2:-2, 2:-2].square().mean()
    assert error < 0.4 * given[1].square().mean(), "of an even picture similar latents"


def test_latents_that_stay_cost_nothing() -> None:
    import torch
    from deeper import held_latents

    mean, logvar = torch.randn(1, 4, 2, 2), torch.randn(1, 4, 2, 2)
    assert float(held_latents(mean, logvar, mean, logvar)) == 0
    moved = [float(held_latents(mean + a, logvar + b, mean, logvar))
             for a, b in ((0.1, 0), (0.2, 0), (0, 0.1))]
    assert moved[1] == pytest.approx(4 * moved[0]) and moved[2] > 0


def test_a_finished_file_learns_to_draw_larger_pictures(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plain_runs import trained
    from safetensors.torch import load_file

    from smalti.diffusion.pipeline import Pipeline

    log = trained(monkeypatch, tmp_path / "a", "--unet-minutes", "0.02")
    (file,) = [Path(line["file"]) for line in log if line.get("event") == "export"]
    asked = (monkeypatch, tmp_path / "b", "--start", str(file), "--px", "128", "--unet-minutes",
             "0", "--text-minutes", "0")
    with pytest.raises(SystemExit, match="64 pixels a side, and the run is for 128: give larger"):
        trained(*asked, "--stage", "vae")
    with pytest.raises(SystemExit, match="no finished autoencoder for --px or --latents: train it"):
        trained(*asked, "--stage", "bank", px=128)
    with pytest.raises(SystemExit, match="which has to learn: give it minutes"):
        trained(*asked, "--stage", "vae", "--vae-minutes", "0", px=128)
    trained(*asked, "--stage", "vae", px=128)
    trained(*asked, "--stage", "decoder", "--decoder-minutes", "0.02", px=128)
    trained(*asked, "--stage", "bank", px=128)
    log = trained(*asked, "--stage", "export", px=128)
    assert {line["stage"] for line in log if "stage" in line} == {"vae", "decoder"}
    (large,) = [Path(line["file"]) for line in log if line.get("event") == "export"]
    assert large.name == "emoji-128.safetensors"
    config = json.loads(large.with_suffix(".json").read_text())
    assert config["vae"]["downsample"] == 16 and config["default"]["width"] == 128
    before, after = load_file(file), load_file(large)
    others = {name for name in before if not name.startswith("first_stage_model.")}
    assert others and all(after[name].equal(before[name]) for name in others)
    pipe = Pipeline.load(large, device="cpu")
    assert pipe.config.vae.downscale == 16
    assert pipe("a square", steps=2).images[0].size == (128, 128)
    log = trained(monkeypatch, tmp_path / "c", "--start", str(large), "--unet-minutes", "0.02",
                  px=128)
    assert any(line.get("event") == "export" for line in log)
    with pytest.raises(SystemExit, match="was begun with --px or --latents: give that again"):
        trained(monkeypatch, tmp_path / "b", "--start", str(file), "--stage", "export", px=128)
    with pytest.raises(SystemExit, match="--px 96: expected twice the 64 pixels of a file"):
        trained(monkeypatch, tmp_path / "d", "--start", str(file), "--px", "96")
    with pytest.raises(SystemExit, match="--px 128: expected twice"):
        trained(monkeypatch, tmp_path / "d", "--px", "128")
    with pytest.raises(SystemExit, match="--px and --latents: expected one of them"):
        trained(monkeypatch, tmp_path / "d", "--start", str(file), "--px", "128", "--latents", "6")


def test_latents_are_roughened_to_the_share_that_is_said() -> None:
    import torch
    from stage_vae import ROUGH, roughened

    torch.manual_seed(2)
    scale = torch.tensor([1.0, 10.0])[:, None, None]
    latent = torch.randn(400, 2, 8, 8) * scale
    noise = ((roughened(latent) - latent) / scale).std((1, 2, 3))
    assert noise.max() < 1.3 * ROUGH and noise.min() < 0.1 * ROUGH
    assert float(noise.mean()) == pytest.approx(ROUGH / 2, rel=0.1)
