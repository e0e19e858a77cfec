"""Parts of a model under adapters: which weights are bound, when, and what is compiled for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_adapters import write_adapter
from tiny_model import TINY

from smalti import checkpoint
from smalti.checkpoint.adapters import Adapted, AdapterFile, WeightedAdapter
from smalti.diffusion.submodels import Submodels
from smalti.errors import InputError, NumericsError
from smalti.families.prefixes import TEXT, UNET
from smalti.runtime import compilation, order

TOKENS = {"tokens": np.arange(77, dtype=np.int32)[None] + 320}
LATENT = {"latent": np.random.default_rng(1).standard_normal((1, 4, 4, 4), np.float32),
          "timesteps": np.full(1, 500, np.float32),
          "context": np.random.default_rng(2).standard_normal((1, 77, 16), np.float32)}
RUNS_OF_UNET = "unet", (1, 4, 4, 77)
RUNS = {"text": ((1, 1), TOKENS), "unet": ((1, 4, 4, 77), LATENT)}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[AdapterFile]:
    folder = tmp_path_factory.mktemp("adapters")
    return [AdapterFile.open(write_adapter(folder / f"{seed}.safetensors", TINY, seed))
            for seed in (0, 1)]


def results(parts: Submodels) -> dict[str, bytes]:
    """What each part computes, as bytes."""
    return {part: next(iter(parts.run(part, shape, **inputs).values())).tobytes()
            for part, (shape, inputs) in RUNS.items()}


def merged(parts: Submodels, uses: list[WeightedAdapter]) -> dict[str, bytes]:
    """What the parts compute with weights that have the adapters in them from the start."""
    fresh, weights = Submodels(parts.checkpoint, threads=1), Adapted(parts.checkpoint, uses)
    found = {}
    for part, (shape, inputs) in RUNS.items():
        program = fresh.compiled(part, fresh.graph(part, shape))
        program.bind(weights.floats)
        found[part] = next(iter(program.run(inputs).values())).tobytes()
    return found


@pytest.fixture()
def parts(model_path: Path) -> Submodels:
    return Submodels(checkpoint.load(model_path), threads=1)


@pytest.fixture()
def compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, whatever would compile fails."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a program is compiled")

    def forbid() -> None:
        monkeypatch.setattr(order, "compiled", fail)
        monkeypatch.setattr(compilation, "compile_graph", fail)
        monkeypatch.setattr("smalti.diffusion.submodels.compile_graph", fail)

    return forbid


def test_adapters_come_and_go_without_compiling(
        parts: Submodels, adapters: list[AdapterFile],
        compiles_nothing: Callable[[], None]) -> None:
    base = results(parts)
    choices = [[WeightedAdapter(adapters[0])], [WeightedAdapter(adapters[0], 0.5, -2.0)],
               [WeightedAdapter(adapters[0], 0.5), WeightedAdapter(adapters[1], 0.25)],
               [WeightedAdapter(adapters[1], 0.0, 1.0)]]
    expected = [merged(parts, uses) for uses in choices]
    compiles_nothing()
    for uses, wanted in zip(choices, expected, strict=True):
        parts = parts.using(parts.adapted(uses))
        assert results(parts) == wanted != base
        parts = parts.using(parts.adapted([]))
        assert results(parts) == base


def test_only_parts_that_change_are_bound_again(
        parts: Submodels, adapters: list[AdapterFile], monkeypatch: pytest.MonkeyPatch) -> None:
    results(parts)
    read: list[str] = []
    floats = Adapted.floats
    monkeypatch.setattr(Adapted, "floats", lambda self, name: read.append(name) or floats(
        self, name))
    parts = parts.using(parts.adapted([WeightedAdapter(adapters[0], 0.0, 1.0)]))
    results(parts)
    assert read and all(name.startswith(TEXT) for name in read)
    assert not any("embeddings" in name for name in read)
    read.clear()
    parts = parts.using(parts.adapted([WeightedAdapter(adapters[0], 0.0, 1.0)]))
    results(parts)
    assert not read
    parts = parts.using(parts.adapted([WeightedAdapter(adapters[0], 1.0, 1.0)]))
    parts.bound("text", (1, 1))
    assert not read


def test_a_new_shape_takes_nothing_of_what_was_adapted_before(
        parts: Submodels, adapters: list[AdapterFile]) -> None:
    results(parts)
    parts = parts.using(parts.adapted([WeightedAdapter(adapters[0])]))
    wide = {**LATENT, "latent": np.zeros((1, 4, 4, 6), np.float32)}
    found = parts.run("unet", (1, 4, 6, 77), **wide)
    fresh = Submodels(parts.checkpoint, threads=1)
    fresh = fresh.using(fresh.adapted([WeightedAdapter(adapters[0])]))
    expected = fresh.run("unet", (1, 4, 6, 77), **wide)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_program_that_nobody_uses_makes_room_before_another_shape_is_bound(
        parts: Submodels, adapters: list[AdapterFile], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that fails: the first shape is then made again. A picture's own stay."""
    changed = parts.using(parts.adapted([WeightedAdapter(adapters[0])]))
    base, before = results(parts), parts.bound(*RUNS_OF_UNET)
    wide = {**LATENT, "latent": np.zeros((1, 4, 4, 6), np.float32)}
    floats, seen = Adapted.floats, []

    def broken(self: Adapted, name: str) -> np.ndarray:
        seen.append(before.bound)
        return np.full_like(floats(self, name), np.nan)

    monkeypatch.setattr(Adapted, "floats", broken)
    with pytest.raises(NumericsError, match="NaN"):
        changed.run("unet", (1, 4, 6, 77), **wide)
    assert seen and not any(seen)
    monkeypatch.setattr(Adapted, "floats", floats)
    assert results(parts) == base and parts.bound(*RUNS_OF_UNET) is not before
    used = parts.using(parts.adapted([]), user="a picture")
    held = used.bound(*RUNS_OF_UNET)
    parts.bound("unet", (1, 4, 6, 77))
    assert held.bound and used.bound(*RUNS_OF_UNET) is held


def test_a_program_that_is_lent_runs_when_another_has_its_place(parts: Submodels) -> None:
    lent = parts.lent(*RUNS_OF_UNET)
    expected = lent.run(LATENT)
    other = parts.bound("unet", (1, 4, 6, 77))
    assert other.bound and parts.residents.get(parts.key("unet")).program is other
    assert all(np.array_equal(lent.run(LATENT)[name], expected[name]) for name in expected)


def test_a_weight_of_another_winograd_size_begins_anew(
        parts: Submodels, adapters: list[AdapterFile], monkeypatch: pytest.MonkeyPatch) -> None:
    base = results(parts)
    programs = {part: parts.bound(part, shape) for part, (shape, _) in RUNS.items()}
    conv = f"{UNET}input_blocks.1.0.in_layers.2.weight"
    monkeypatch.setattr(programs["unet"], "winograd_sizes", {conv: 2})
    parts = parts.using(parts.adapted([WeightedAdapter(adapters[0], 0.5)]))
    assert results(parts) == merged(parts, [WeightedAdapter(adapters[0], 0.5)]) != base
    assert parts.bound("text", RUNS["text"][0]) is programs["text"]
    assert parts.bound("unet", RUNS["unet"][0]) is not programs["unet"]
    parts = parts.using(parts.adapted([]))
    assert results(parts) == base


def test_an_adapter_that_breaks_weights_leaves_the_model_usable(
        parts: Submodels, adapters: list[AdapterFile]) -> None:
    base = results(parts)
    parts = parts.using(parts.adapted([WeightedAdapter(adapters[0], 1e30)]))
    with pytest.raises(NumericsError, match="holds .* values that are NaN or infinite"):
        results(parts)
    with pytest.raises(InputError, match="is an adapter for Flux"):
        parts.adapted([WeightedAdapter(flux(adapters[0].path.parent))])
    parts = parts.using(parts.adapted([]))
    assert results(parts) == base


def flux(folder: Path) -> AdapterFile:
    """One for another kind of model."""
    save_file({"double_blocks.0.img_attn.qkv.lora_A.weight": np.ones((2, 8), np.float32),
               "double_blocks.0.img_attn.qkv.lora_B.weight": np.ones((24, 2), np.float32)},
              folder / "flux.safetensors")
    return AdapterFile.open(folder / "flux.safetensors")


def test_trying_schedules_is_paid_by_each_picture(parts: Submodels) -> None:
    watched = replace(parts, supervise=True)
    pictures = [watched.using(parts.weights, user=user) for user in "ab"]
    for picture in (pictures[0], *pictures):
        picture.run("text", *RUNS["text"][:1], **TOKENS)
    first, second = (picture.accounts["text"] for picture in pictures)
    assert first is not second and 0 < second.spent and 0 < first.spent
    (resident,) = parts.residents.all(parts.key("text"))
    assert resident.users == {"a", "b"} and resident.supervisor.account is second
