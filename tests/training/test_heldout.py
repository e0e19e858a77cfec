"""What a denoiser has understood, told by its errors on scenes that it was not trained on."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.peers


def test_the_error_is_less_with_the_own_caption_for_a_denoiser_that_knows_what_it_says() -> None:
    import torch
    from heldout import held_errors
    from models import signal_shares

    class Words(torch.nn.Module):
        """Says the latent itself for token k."""

        def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(last_hidden_state=latents[input_ids[:, 0]])

    class Denoiser(torch.nn.Module):
        """Its velocity belongs to the picture that the words say."""

        def forward(self, noisy: torch.Tensor, moment: torch.Tensor,
                    encoder_hidden_states: torch.Tensor) -> SimpleNamespace:
            share = signal_shares()[moment][:, None, None, None]
            picture = encoder_hidden_states
            return SimpleNamespace(
                sample=(share.sqrt() * noisy - picture) / (1 - share).sqrt())

    latents = torch.randn(6, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    run = SimpleNamespace(device=torch.device("cpu"), memory=lambda x: x,
                          cast=torch.no_grad, options=SimpleNamespace(pred="v"))
    held = {"pair": dict(z=latents, tok=torch.arange(6)[:, None])}
    own, others = held_errors(run, Denoiser(), Words(), held)["pair"]
    apart = float((latents - latents.roll(1, 0)).square().mean())
    assert own == 0
    assert others == pytest.approx(apart, abs=1e-3)


def test_scenes_are_held_out_of_each_kind_with_tokens_of_the_bank(tmp_path: Path) -> None:
    import torch
    from composed import Composer
    from heldout import HELD_KINDS, HELD_SCENES, held_scenes
    from plain_shapes import Shapes, listed
    from shortlist import read_list

    none = tmp_path / "none.txt"
    none.write_text("")
    entries = read_list(listed(tmp_path))
    composer, marking = (Composer(Shapes(), entries, none, marked=marked)
                         for marked in ((), ("pixel",)))
    told: list[str] = []

    def tokens(text: str) -> list[int]:
        told.append(text)
        return [900, 7, len(told)]

    bank = dict(vocab=[7, 900], mean=torch.zeros(4), std=torch.full((4,), 2.0))
    held, of_marked = (held_scenes(each, SimpleNamespace(tokenizer=tokens), bank,
                                   lambda images: torch.ones(len(images), 4, 2, 2),
                                   {"pixel": torch.full((4,), 9.0)})
                       for each in (composer, marking))
    moved = of_marked["alone"]["z"][:, 0, 0, 0] > 0.5
    assert 0 < int(moved.sum()) < HELD_SCENES, "those in squares"
    assert tuple(held) == HELD_KINDS
    assert all(scenes["z"].shape == (HELD_SCENES, 4, 2, 2) and float(scenes["z"].max()) == 0.5
               for scenes in held.values())
    assert held["alone"]["tok"][0].tolist() == [2, 1, 0]
    counts = told[HELD_SCENES:2 * HELD_SCENES]
    assert all(any(word in text for word in ("two", "three", "four")) for text in counts)


def test_things_stand_at_regular_places_in_the_share_asked_for(tmp_path: Path) -> None:
    from composed import REGULAR, REGULAR_SIZE, Composer
    from plain_shapes import Shapes, listed
    from shortlist import read_list

    none = tmp_path / "none.txt"
    none.write_text("")
    entries, rng = read_list(listed(tmp_path)), random.Random(4)
    for share in (0.0, 0.5, 1.0):
        made, regular = Composer(Shapes(), entries, none, regular=share, moved=0.0), 0
        for _ in range(200):
            things, _ = made._count(rng, "3d")
            regular += [(thing.x, thing.y, thing.size) for thing in things] == [
                (*at, REGULAR_SIZE) for at in REGULAR[len(things)]]
        assert abs(regular / 200 - share) < 0.15


@pytest.mark.parametrize("there", [True, False])
def test_bfloat16_is_used_where_it_is_multiplied(there: bool, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    import run
    from plain_runs import same_attention
    from train import parse

    monkeypatch.setattr(run, "multiplies_bfloat16", lambda device: there)
    monkeypatch.setattr(sys, "argv", ["train.py", "--preset", "smoke", "--data", "none.npz",
                                      "--out", str(tmp_path), "--device", "cpu"])
    with same_attention():
        assert run.Run(parse()).amp == ("bf16" if there else "none")
