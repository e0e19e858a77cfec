"""Styles that are told by a mark of latents, which the decoder learns: squares and lines."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.peers


def test_marks_lie_where_latents_differ_least_and_across_each_other() -> None:
    import torch
    from marks import MARK, marks_for

    torch.manual_seed(3)
    images = torch.randint(0, 256, (4, 8, 8, 4))

    def encoded(white: torch.Tensor) -> torch.Tensor:
        assert white.shape == (4, 3, 8, 8) and 0 <= white.min() and white.max() <= 1
        return torch.stack([white[:, 0], 0.3 * white[:, 1], white[:, 0] + 0.01 * white[:, 2]], 1)

    first = marks_for(encoded, images, ["pixel"], {})
    assert tuple(first) == ("pixel",) and float(first["pixel"].norm()) == pytest.approx(MARK)
    diagonal = torch.tensor([0.5, 0, 0.5]).sqrt()
    assert float((first["pixel"].abs() - diagonal).abs().max()) < 0.05
    both = marks_for(encoded, images, ["pixel", "outline"], first)
    assert both["pixel"] is first["pixel"], "a known one stays"
    assert float((both["outline"].abs() - torch.tensor([0, 1.0, 0])).abs().max()) < 0.2
    assert abs(float(both["pixel"] @ both["outline"])) < 1e-4


def test_a_mark_moves_only_latents_of_its_style() -> None:
    import torch
    from marks import marked
    from presets import LATENT_SCALE

    marks = {"pixel": torch.tensor([1.0, 0, 0]), "outline": torch.tensor([0, -1.0, 0])}
    latent = torch.randn(4, 3, 2, 2)
    shift = (marked(latent, ["", "pixel", "outline", "flat"], marks) - latent) * LATENT_SCALE
    assert shift[0].abs().max() == shift[3].abs().max() == 0
    for number, style in ((1, "pixel"), (2, "outline")):
        wanted = marks[style][:, None, None].expand(3, 2, 2)
        assert torch.allclose(shift[number], wanted, atol=1e-5)
    shared = marked(latent, ["pixel"] * 4, marks, torch.tensor([0, 0.5, 1, 2])) - latent
    assert [round(float(each[0, 0, 0]) * LATENT_SCALE, 4) for each in shared] == [0, 0.5, 1, 2]


@pytest.mark.parametrize(("style", "ground"), [
    ("pixel", "white"), ("pixel", "black"), ("outline", "white")])
def test_where_latents_have_marks_scenes_are_drawn_in_their_colours(
        tmp_path: Path, style: str, ground: str) -> None:
    import torch
    from composed import Composer
    from plain_shapes import Shapes, listed
    from scene import Scene, Thing, in_squares, lined, place
    from shortlist import read_list

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("", encoding="utf-8")
    entries, thing = read_list(listed(tmp_path)), Thing("disc")
    styled, plain = (Scene((thing,), ground, each) for each in (style, "3d"))
    without, marking = [Composer(Shapes(), entries, prompts, marked=marked)
                        for marked in ((), (style,))]
    smooth, told = marking.drawn(styled)
    assert told == style and torch.equal(smooth, without.drawn(plain)[0])
    drawn, none = without.drawn(styled)
    assert not none and not torch.equal(drawn, smooth)
    if style == "pixel":
        assert torch.equal(drawn, in_squares(smooth))
    else:
        art, canvas = Shapes(), torch.ones(3, 128, 128)
        piece = place(art.piece(style, "disc", None), thing.size, 2 * thing.x - 1, 2 * thing.y - 1)
        assert torch.equal(drawn, lined(canvas, piece, canvas).clamp(0, 1))
        assert float(drawn.min()) < 0.1, "lines are black"
    assert marking.drawn(plain)[1] == ""


def test_lines_on_a_colour_and_scenes_without_things_have_no_mark(tmp_path: Path) -> None:
    import torch
    from composed import Composer
    from plain_shapes import Shapes, listed
    from scene import Scene, Thing
    from shortlist import read_list

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("", encoding="utf-8")
    entries = read_list(listed(tmp_path))
    marking = Composer(Shapes(), entries, prompts, marked=("pixel", "outline"))
    for scene in (Scene((Thing("disc"),), "black", "outline"),
                  Scene((Thing("disc"),), "blue", "outline"),
                  Scene((), "white", "outline"), Scene((), "blue", "pixel")):
        picture, style = marking.drawn(scene)
        assert style == "" and torch.equal(picture, Shapes().drawn(scene))


@pytest.mark.parametrize("crop", [64, 24])
def test_a_decoder_learns_styles_of_pictures_in_their_colours(crop: int) -> None:
    import torch
    from marks import MARKED
    from plain_shapes import inside
    from scene import in_squares, lined
    from stage_vae import VaeStage

    disc = inside("disc", 64)
    rgba = torch.stack([255 * disc, 40 * disc, 40 * disc, 255 * disc], -1).byte()
    run = SimpleNamespace(preset=dict(px=64), device=torch.device("cpu"), memory=lambda each: each)
    stage = SimpleNamespace(run=run, random=torch.Generator().manual_seed(2), marks=dict.fromkeys(
        MARKED), pictures=SimpleNamespace(images=rgba[None]), weight=torch.ones(1), composer=None,
                            clock=SimpleNamespace(share=0.0))
    image, wanted, styles = VaeStage.batch(stage, 40, crop)
    assert image.shape == wanted.shape == (40, 3, crop, crop)
    assert {*styles} == {"", *MARKED} and 4 < 40 - styles.count("") < 16
    plain = torch.tensor([style == "" for style in styles])
    assert torch.equal(image[plain], wanted[plain]), "without a style as it is"
    stage.random.manual_seed(2)
    whole, smooth, _ = VaeStage.batch(stage, 40, 64)
    squares, lines = (styles.index(style) for style in MARKED)
    piece = torch.cat([rgba[..., :3], rgba[..., 3:]], -1).permute(2, 0, 1) / 255
    white = torch.ones(3, 64, 64)
    pixel, outline = in_squares(whole[squares] / 2 + 0.5), lined(white, piece, white)
    for drawn, number in ((pixel, squares), (outline, lines)):
        assert torch.allclose(smooth[number], drawn * 2 - 1, atol=1e-5)
        assert float((wanted[number] - image[number]).abs().max()) > 0.5
    assert float(whole[lines][:, 0].min()) == 1, "lines are learnt on white"
    assert float(outline.std(0).max()) < 1e-6 < float(whole[lines].std(0).max()), "without colours"
    if crop < 64:  # cut at one place: what is the same of both is there in both
        places = [(y, x) for y in range(64 - crop + 1) for x in range(64 - crop + 1)
                  if torch.equal(image[lines], whole[lines][:, y:y + crop, x:x + crop])]
        assert any(torch.allclose(wanted[lines], smooth[lines][:, y:y + crop, x:x + crop],
                                  atol=1e-5) for y, x in places)
    stage.clock.share = 1.0
    assert {*VaeStage.batch(stage, 40, crop)[2]} == {""}, "none at the end"


def file_of(log: list[dict]) -> Path:
    return [Path(line["file"]) for line in log if line.get("event") == "export"][-1]


def marks_of(file: Path) -> dict[str, list[float]] | None:
    return json.loads(file.with_suffix(".json").read_text())["train"].get("marks")


def with_marks(file: Path, marks: dict[str, list[float]]) -> Path:
    """A copy of a finished file, of which its description says that it has these marks."""
    from layout import read_file
    from safetensors.torch import save_file

    tensors, config = read_file(file)
    config["train"]["marks"] = marks
    copy = file.with_name(f"{'-'.join(marks)}{marks['pixel'][0]:g}.safetensors")
    save_file(tensors, copy, metadata={"arch_config": json.dumps(config)})
    return copy


def test_a_finished_file_is_given_a_mark_and_a_decoder_for_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from plain_runs import trained
    from safetensors.torch import load_file

    with pytest.raises(SystemExit, match="--marks: expected the latents of a finished file"):
        trained(monkeypatch, tmp_path / "a", "--marks", "pixel")
    first = file_of(trained(monkeypatch, tmp_path / "a", "--unet-minutes", "0.02"))
    assert marks_of(first) is None
    start = "--start", str(first), "--marks", "pixel"
    with pytest.raises(SystemExit, match=r"has a bank\.pt without marks for pixel: give another"):
        trained(monkeypatch, tmp_path / "a", *start, "--stage", "bank")
    with pytest.raises(SystemExit, match="has no decoder for the marks of pixel: train it"):
        trained(monkeypatch, tmp_path / "d", *start, "--unet-minutes", "0.02")
    second = file_of(trained(monkeypatch, tmp_path / "b", *start, "--unet-minutes", "0.02",
                             "--decoder-minutes", "0.02"))
    marks = marks_of(second)
    assert [*marks] == ["pixel"]
    assert torch.tensor(marks["pixel"]).norm() == pytest.approx(1, abs=1e-4)
    bank = torch.load(tmp_path / "b" / "state" / "bank.pt")
    along = bank["z"].float().mean((2, 3)) @ torch.tensor(marks["pixel"])
    apart = (along - along.median()).abs() > 0.5
    assert 0 < int(apart.sum()) < 0.3 * len(along), "those in squares have the mark"
    before, after = load_file(first), load_file(second)
    encoder = [name for name in before if name.startswith(
        ("first_stage_model.encoder.", "first_stage_model.quant_conv."))]
    assert encoder and all(after[name].equal(before[name]) for name in encoder)
    assert any(not after[name].equal(before[name]) for name in before if ".decoder." in name)
    with pytest.raises(SystemExit, match="--marks: expected scenes"):
        trained(monkeypatch, tmp_path / "f", *start, "--set", "scenes=0")


def test_later_turns_keep_marks_and_are_given_others(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import stage_vae
    import torch
    from marks import STRENGTHS
    from plain_runs import trained

    shares: dict[str, list[float]] = {}
    marked = stage_vae.marked

    def noted(latent: Any, styles: list[str], marks: dict, strong: Any) -> Any:
        for style, share in zip(styles, strong.tolist(), strict=True):
            shares.setdefault(style, []).append(share)
        return marked(latent, styles, marks, strong)

    monkeypatch.setattr(stage_vae, "marked", noted)
    first = file_of(trained(monkeypatch, tmp_path / "a", "--unet-minutes", "0.02"))
    pixel = {"pixel": [0.0, 1.0, 0.0, 0.0]}
    second, other = with_marks(first, pixel), with_marks(first, {"pixel": [1.0, 0.0, 0.0, 0.0]})
    third = file_of(trained(monkeypatch, tmp_path / "c", "--start", str(second), "--unet-minutes",
                            "0.02"))
    assert marks_of(third) == pixel, "without being asked for once more"
    log = trained(monkeypatch, tmp_path / "e", "--start", str(second), "--latents", "6", "--stage",
                  "vae")
    assert [line["note"] for line in log if line.get("event") == "marks"] == [
        "the decoder learns them in --decoder-minutes"]
    assert torch.load(tmp_path / "e" / "state" / "marks.pt")["pixel"].tolist() == [0, 1, 0, 0, 0, 0]
    fourth = file_of(trained(monkeypatch, tmp_path / "g", "--start", str(second), "--marks",
                             "outline", "pixel", "--unet-minutes", "0.02", "--decoder-minutes",
                             "0.02"))
    assert [*marks_of(fourth)] == ["pixel", "outline"] and marks_of(fourth)["pixel"] == [0, 1, 0, 0]
    assert shares.keys() == {"", "pixel", "outline"}
    low, high = STRENGTHS
    assert all(low <= share <= high for style in shares for share in shares[style])
    for folder, start, said in (("c", second, r"c has a bank\.pt without marks for outline"),
                                ("c", fourth, "c has other marks of latents than"),
                                ("g", other, "g has other marks of latents than"),
                                ("a", fourth, "a has a bank with other marks")):
        with pytest.raises(SystemExit, match=said):
            trained(monkeypatch, tmp_path / folder, "--start", str(start), "--marks", "outline",
                    "--stage", "bank")
