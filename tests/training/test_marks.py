"""Pictures in squares are told by a mark of their latents, which the decoder learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers


def test_a_mark_lies_where_latents_do_not_differ_and_moves_only_those_that_have_it() -> None:
    import torch
    from marks import MARK, mark_for, marked
    from presets import LATENT_SCALE

    torch.manual_seed(3)
    images = torch.randint(0, 256, (4, 8, 8, 4))

    def encoded(white: torch.Tensor) -> torch.Tensor:
        assert white.shape == (4, 3, 8, 8) and 0 <= white.min() and white.max() <= 1
        return torch.stack([white[:, 0], white[:, 1], white[:, 0] + 0.01 * white[:, 2]], 1)

    mark = mark_for(encoded, images)
    assert float(mark.norm()) == pytest.approx(MARK)
    assert float((mark.abs() - torch.tensor([0.5, 0, 0.5]).sqrt()).abs().max()) < 0.05
    latent = torch.randn(3, 3, 2, 2)
    moved = marked(latent, torch.tensor([0.0, 1.0, 0.5]), mark) - latent
    assert moved[0].abs().max() == 0
    assert torch.allclose(moved[1], (mark / LATENT_SCALE)[:, None, None].expand(3, 2, 2), atol=1e-5)
    assert torch.allclose(moved[2], moved[1] / 2, atol=1e-5)


def test_where_latents_have_marks_scenes_are_drawn_without_squares(tmp_path: Path) -> None:
    import torch
    from composed import Composer
    from plain_shapes import Shapes, listed
    from scene import Scene, Thing, in_squares
    from shortlist import read_list

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("", encoding="utf-8")
    scene = Scene((Thing("disc"),), "white", "pixel")
    plain, marking = [Composer(Shapes(), read_list(listed(tmp_path)), prompts, marked=marked)
                      for marked in (False, True)]
    smooth, has_mark = marking.drawn(scene)
    assert has_mark and not plain.drawn(scene)[1]
    assert torch.equal(in_squares(smooth), plain.drawn(scene)[0])
    assert not torch.equal(smooth, plain.drawn(scene)[0])
    assert not marking.drawn(Scene((Thing("disc"),)))[1]


def test_a_finished_file_is_given_a_mark_that_its_later_turns_keep(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import stage_vae
    import torch
    from marks import STRENGTHS
    from plain_runs import trained
    from safetensors.torch import load_file

    shares: list[float] = []
    marked = stage_vae.marked

    def noted(latent: torch.Tensor, which: torch.Tensor, mark: torch.Tensor) -> torch.Tensor:
        shares.extend(which.tolist())
        return marked(latent, which, mark)

    monkeypatch.setattr(stage_vae, "marked", noted)

    def file_of(log: list[dict]) -> Path:
        return [Path(line["file"]) for line in log if line.get("event") == "export"][-1]

    def mark_of(file: Path) -> list[float] | None:
        return json.loads(file.with_suffix(".json").read_text())["train"].get("mark")

    with pytest.raises(SystemExit, match="--squares: expected the latents of a finished file"):
        trained(monkeypatch, tmp_path / "a", "--squares")
    first = file_of(trained(monkeypatch, tmp_path / "a", "--unet-minutes", "0.02"))
    assert mark_of(first) is None
    with pytest.raises(SystemExit, match=r"has a bank\.pt without a mark .* give another --out"):
        trained(monkeypatch, tmp_path / "a", "--start", str(first), "--squares", "--stage", "bank")
    with pytest.raises(SystemExit, match="no decoder that draws squares by their mark: train it"):
        trained(monkeypatch, tmp_path / "d", "--start", str(first), "--squares", "--unet-minutes",
                "0.02")
    assert not shares
    second = file_of(trained(
        monkeypatch, tmp_path / "b", "--start", str(first), "--squares", "--unet-minutes", "0.02",
        "--decoder-minutes", "0.02"))
    mark = mark_of(second)
    assert torch.tensor(mark).norm() == pytest.approx(1, abs=1e-4)
    low, high = STRENGTHS
    assert 0 in shares and all(share == 0 or low <= share <= high for share in shares)
    assert any(shares), "some of each batch are in squares"
    bank = torch.load(tmp_path / "b" / "state" / "bank.pt")
    along = bank["z"].float().mean((2, 3)) @ torch.tensor(mark)
    apart = (along - along.median()).abs() > 0.5
    assert 0 < int(apart.sum()) < 0.3 * len(along), "those in squares have the mark"
    before, after = load_file(first), load_file(second)
    encoder = [name for name in before if name.startswith(
        ("first_stage_model.encoder.", "first_stage_model.quant_conv."))]
    assert encoder and all(after[name].equal(before[name]) for name in encoder)
    assert any(not after[name].equal(before[name]) for name in before if ".decoder." in name)
    third = file_of(trained(monkeypatch, tmp_path / "c", "--start", str(second), "--unet-minutes",
                            "0.02"))
    assert mark_of(third) == mark, "without being asked for once more"
    log = trained(monkeypatch, tmp_path / "e", "--start", str(second), "--latents", "6", "--stage",
                  "vae")
    assert [line["note"] for line in log if line.get("event") == "mark"] == [
        "the decoder learns squares in --decoder-minutes"]
    with pytest.raises(SystemExit, match="--squares: expected scenes"):
        trained(monkeypatch, tmp_path / "f", "--start", str(first), "--squares", "--set",
                "scenes=0")
