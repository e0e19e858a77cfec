"""A whole run in little: words, denoiser, one file; stopped and gone on with."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers


def steps_of(log: list[dict], stage: str) -> list[int]:
    return [line["step"] for line in log if line.get("stage") == stage]


def test_a_run_stops_and_goes_on_and_a_finished_file_is_gone_on_from(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from plain_runs import trained
    from safetensors.torch import load_file

    from smalti.checkpoint.taught_words import TaughtWords
    from smalti.diffusion.pipeline import Pipeline

    log = trained(monkeypatch, tmp_path / "a", "--unet-minutes", "5", "--stop-after", "0.12")
    stopped = steps_of(log, "unet")
    assert stopped and not any(line.get("event") == "export" for line in log)
    log = trained(monkeypatch, tmp_path / "a", "--unet-minutes", "0.1")
    steps = steps_of(log, "unet")
    assert steps == sorted(set(steps)) and steps[-1] > stopped[-1]
    assert torch.initial_seed() == 1009 * stopped[-1]  # other batches than at first
    assert sum(line.get("event") == "bank" for line in log) == 1
    (file,) = [Path(line["file"]) for line in log if line.get("event") == "export"]
    taught = TaughtWords.beside(file)
    assert taught is not None
    assert taught.unknown("two boxes left of a disc, pixel art, on a blue background") == []
    picture = Pipeline.load(file, device="cpu")("a square", steps=2).images[0]
    assert picture.size == (64, 64)
    (tmp_path / "b" / "state").mkdir(parents=True)  # of an earlier run from nothing: not taken
    shutil.copy(tmp_path / "a" / "state" / "vae.pt", tmp_path / "b" / "state")
    log = trained(monkeypatch, tmp_path / "b", "--unet-minutes", "0.02", "--start", str(file),
                  "--decoder-minutes", "0.02", "--few-minutes", "0.02")
    assert {line["stage"] for line in log if "stage" in line} == {
        "text", "unet", "few", "decoder"}
    before, after = load_file(file), load_file(tmp_path / "b" / file.name)
    changed = {name.split(".")[1] for name in after if name.startswith("first_stage_model.")
               and not after[name].equal(before[name])}
    assert changed == {"decoder", "post_quant_conv"}
    config = json.loads((tmp_path / "b" / file.name).with_suffix(".json").read_text())
    assert config["train"]["before"]["preset"] == "smoke"
    (few,) = [Path(line["file"]) for line in log if "-lcm-" in line.get("file", "")]
    quick = Pipeline.load(few, device="cpu")
    assert (quick.config.default_steps, quick.config.default_guidance,
            quick.config.default_sampler) == (6, 1.0, "lcm")
    weights = load_file(few)
    assert {name.split(".")[0] for name in weights if not weights[name].equal(
        load_file(file.parents[1] / "b" / file.name)[name])} == {"model"}


def test_a_finished_file_learns_few_steps_as_it_is(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plain_runs import trained
    from safetensors.torch import load_file

    with pytest.raises(SystemExit, match="no trained denoiser: train one"):
        trained(monkeypatch, tmp_path / "a", "--stage", "export")
    log = trained(monkeypatch, tmp_path / "a", "--unet-minutes", "0.02")
    (file,) = [Path(line["file"]) for line in log if line.get("event") == "export"]
    asked = (monkeypatch, tmp_path / "b", "--start", str(file), "--few-minutes", "0.02")
    trained(*asked, "--stage", "bank")
    log = trained(*asked, "--stage", "few")
    assert steps_of(log, "few") and not steps_of(log, "unet")
    before, same, few = (load_file(path) for path in (
        file, tmp_path / "b" / file.name,
        *[Path(line["file"]) for line in log if "-lcm-" in line.get("file", "")]))
    assert all(same[name].equal(before[name]) for name in same)
    assert not all(few[name].equal(before[name]) for name in few)


@pytest.mark.parametrize(("pair", "said"), [
    ("moved=x", "--set moved=x: expected a number"),
    ("movd=1", "there is no 'movd'; known: .*moved"),
    ("moved=2", "expected a share from 0 to 1"), ("painted=nan", "expected a share from 0 to 1"),
    ("vae=1", "there is no 'vae'"), ("moved", "expected a number")])
def test_settings_that_cannot_be_are_refused(pair: str, said: str) -> None:
    from run import changed_preset

    options = Namespace(preset="smoke", styles=None, batch=None, lr=None, bank_k=None,
                        vae_batch=None, ema=None, set=["scenes=40", pair])
    with pytest.raises(SystemExit, match=said):
        changed_preset(options)
    options.set = ["scenes=40", "moved=0.25"]
    found = changed_preset(options)
    assert (found["scenes"], found["moved"]) == (40, 0.25)
