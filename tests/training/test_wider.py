"""Finished weights get more channels of latents: what they were is unchanged, and a run learns the
others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers

FEW, MANY = 4, 12


def sizes() -> tuple[dict, dict]:
    """The sizes of a model with the fewer channels and with more."""
    from presets import PRESETS

    before = PRESETS["smoke"]
    return before, {**before, "vae": {**before["vae"], "z": MANY}}


def test_an_autoencoder_keeps_its_first_channels_and_what_it_makes_of_them() -> None:
    import torch
    from layout import to_single_file
    from models import make_vae
    from wider import QUIET, wider_vae

    torch.manual_seed(1)
    before, preset = sizes()
    old = make_vae(before).eval()
    new = wider_vae(preset, to_single_file(old, "vae", before), before).eval()
    image = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        was, now = old.encode(image).latent_dist, new.encode(image).latent_dist
        assert torch.allclose(now.mean[:, :FEW], was.mean, atol=1e-5)
        assert torch.allclose(now.logvar[:, :FEW], was.logvar, atol=1e-5)
        assert float(now.logvar[:, FEW:].mean()) == pytest.approx(QUIET, abs=1.0)
        latent = torch.cat([was.mean, torch.zeros(2, MANY - FEW, 8, 8)], 1)
        assert torch.allclose(new.decode(latent).sample, old.decode(was.mean).sample, atol=1e-4)


def test_a_denoiser_says_what_it_said_whatever_the_added_channels_are() -> None:
    import torch
    from layout import to_single_file
    from models import make_unet
    from wider import wider_unet

    torch.manual_seed(2)
    before, preset = sizes()
    old = make_unet(before).eval()
    new = wider_unet(preset, to_single_file(old, "unet", before), before).eval()
    noisy, words = torch.randn(2, MANY, 8, 8), torch.randn(2, 77, preset["text"]["width"])
    with torch.no_grad():
        was = old(noisy[:, :FEW], 500, encoder_hidden_states=words).sample
        now = new(noisy, 500, encoder_hidden_states=words).sample
    assert torch.allclose(now[:, :FEW], was, atol=1e-5)
    assert not now[:, FEW:].any()


def test_details_are_absent_in_the_share_that_is_said() -> None:
    import torch
    from wider import ABSENT, without_details

    latent = torch.ones(2000, MANY, 1, 1)
    found = without_details(latent, FEW, torch.Generator().manual_seed(3))
    assert found[:, :FEW].all()
    absent = (found[:, FEW:] == 0).flatten(1)
    assert (absent.all(1) == absent.any(1)).all()
    assert float(absent.float().mean()) == pytest.approx(ABSENT, abs=0.03)


def test_a_run_from_finished_weights_learns_channels_that_are_added(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plain_runs import trained
    from safetensors.torch import load_file

    from smalti.diffusion.pipeline import Pipeline

    log = trained(monkeypatch, tmp_path / "a", "--unet-minutes", "0.02")
    (file,) = [Path(line["file"]) for line in log if line.get("event") == "export"]
    log = trained(monkeypatch, tmp_path / "b", "--unet-minutes", "0.02", "--start", str(file),
                  "--latents", str(MANY))
    assert {line["stage"] for line in log if "stage" in line} == {"vae", "text", "unet"}
    (bank,) = [line for line in log if line.get("event") == "bank"]
    assert bank["mean"][:FEW] == [0.0] * FEW and len(bank["std"]) == MANY
    wide = tmp_path / "b" / file.name
    config = json.loads(wide.with_suffix(".json").read_text())
    assert (config["vae"]["z_channels"], config["unet"]["in_channels"]) == (MANY, MANY)
    weights = load_file(wide)
    assert weights["model.diffusion_model.out.2.weight"][FEW:].any()
    pipe = Pipeline.load(wide, device="cpu")
    assert pipe.config.vae.z_channels == MANY
    assert pipe("a square", steps=2).images[0].size == (64, 64)
    with pytest.raises(SystemExit, match="has 12 channels of latents, and none can be taken away"):
        trained(monkeypatch, tmp_path / "c", "--start", str(wide), "--latents", str(FEW))
    with pytest.raises(SystemExit, match="--latents -3: expected a number of channels"):
        trained(monkeypatch, tmp_path / "c", "--latents", "-3")


def test_a_sheet_is_drawn_with_as_many_channels_as_there_are() -> None:
    import torch
    from diffusers import EulerDiscreteScheduler
    from models import make_text, make_unet, make_vae
    from verify import draw

    torch.manual_seed(1)
    _, preset = sizes()
    models = (make_unet(preset).eval(), make_vae(preset).eval(), make_text(preset, 20).eval(),
              lambda prompt: [1] * 77, 8)
    pictures = draw(models, ["a", "b"], EulerDiscreteScheduler(), steps=2, guidance=2.0, seed=0)
    assert [tuple(each.shape) for each in pictures] == [(3, 64, 64)] * 2
    assert all(bool(each.isfinite().all()) for each in pictures)
