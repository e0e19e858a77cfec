"""Modules that other processes compile before this one needs them."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from soon import soon
from tiny_programs import MODELS

import smalti
from smalti.compiler.encode import to_bytes
from smalti.compiler.options import Options
from smalti.compiler.select import EARLIER, Knowledge
from smalti.compiler.targets import TARGETS
from smalti.errors import DeviceError, InputError
from smalti.graph import Graph
from smalti.runtime import ahead, cache
from smalti.runtime.cpu.recipe import recipe_of
from smalti.runtime.order import ModuleOrder, entries_of
from smalti.runtime.recipe import Recipe


def recipe_for(graph: Graph, **options: object) -> Recipe:
    return recipe_of(graph, threads=2, **options)


def ordered(recipe: Recipe) -> ModuleOrder:
    return recipe.order(recipe.usual)


def far(order: ModuleOrder) -> dict[str, bytes]:
    """What another process would send back."""
    EARLIER.clear()
    return entries_of(pickle.loads(pickle.dumps(order)))


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without entries, and one helper."""
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    monkeypatch.setenv("SMALTI_HELPERS", "1")
    monkeypatch.setattr(ahead, "NODE_SECONDS", 1.0)
    return tmp_path


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled in this process."""
    def refused(*_: object) -> None:
        raise AssertionError("it is compiled here")

    monkeypatch.setattr(ModuleOrder, "made", refused)


@pytest.mark.parametrize(("name", "target"), [
    ("text", "avx2"), ("decoder", "avx2"), ("unet", "avx2"), ("text", "avx512_bf16"),
    ("encoder", "neon"), ("text", "spirv"), ("text", "wgsl")])
def test_what_is_sent_makes_the_same_bytes(name: str, target: str) -> None:
    chosen = TARGETS[target]
    graph = MODELS[name]()
    parameters = list(graph.parameters)
    options = Options(precision=chosen.automatic, weights=tuple(sorted(
        {parameters[0]: "f16", parameters[-1]: "bf16"}.items())) if target == "avx2" else ())
    made = Recipe(graph, options, chosen, (chosen,), lambda target, options: target.usual,
                  lambda target, options: Knowledge())
    here = ordered(made).with_kernels().made()[1]
    assert far(ordered(made).with_kernels()) == here


def test_kernels_that_are_kept_travel(empty: Path) -> None:
    graph = MODELS["text"]()
    matrix = next(name for name, value in graph.parameters.items()
                  if len(value.type.shape) == 2 and value.type.shape[1] % 32 == 0)
    recipe = recipe_for(graph, weights={matrix: "q8"})
    here = ordered(recipe).with_kernels().made()[1]
    there = far(ordered(recipe).with_kernels())
    assert there == here and len(here) == 3
    for key, payload in here.items():
        cache.put(key, payload)
    again = ordered(recipe).with_kernels()
    assert len(entries_of(pickle.loads(pickle.dumps(again)))) == 2  # nothing is lowered again


def test_a_helper_compiles_and_the_cache_has_it(empty: Path, refusing: None) -> None:
    recipe, told = recipe_for(MODELS["decoder"]()), []
    order = ordered(recipe)
    ahead.begin([order], None)
    ahead.begin([order], None)  # is on its way
    begun = ahead.coming(order)
    assert begun is not None
    assert soon(lambda: begun.running() or begun.done())
    module = recipe.module(recipe.usual, missing=lambda: told.append("missing"))
    assert not told
    assert soon(lambda: ahead.coming(order) is None)
    assert order.kept() == to_bytes(module)
    ahead.begin([order], None)
    assert ahead.coming(order) is None


def test_what_a_helper_makes_is_what_is_made_here(empty: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_for(MODELS["unet"]())
    ahead.begin([ordered(recipe)], None)
    begun = ahead.coming(ordered(recipe))
    assert begun is not None and soon(begun.running)
    there = to_bytes(recipe.module(recipe.usual))
    monkeypatch.setenv("SMALTI_CACHE", str(empty / "other"))
    monkeypatch.setenv("SMALTI_HELPERS", "0")
    EARLIER.clear()
    told: list[str] = []
    assert to_bytes(recipe.module(recipe.usual, missing=lambda: told.append("missing"))) == there
    assert told == ["missing"]
    recipe.module(recipe.usual, missing=lambda: told.append("again"))
    assert told == ["missing"]


def test_what_nobody_has_begun_with_is_made_here(empty: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    future: Future = Future()
    monkeypatch.setattr(ahead, "submitting", lambda threads: lambda *work: future)
    recipe = recipe_for(MODELS["text"]())
    ahead.begin([ordered(recipe)], None)
    monkeypatch.undo()
    monkeypatch.setenv("SMALTI_CACHE", str(empty))
    assert recipe.module(recipe.usual).launches
    assert future.cancelled() and ahead.coming(ordered(recipe)) is None


def test_where_a_helper_fails_it_is_made_here_and_said(
        empty: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    future: Future = Future()
    monkeypatch.setattr(ahead, "submitting", lambda threads: lambda *work: future)
    recipe = recipe_for(MODELS["text"]())
    ahead.begin([ordered(recipe)], None)
    monkeypatch.setattr(ahead, "submitting", lambda threads: None)
    future.set_running_or_notify_cancel()
    threading.Timer(0.2, future.set_exception, [DeviceError("its process ended")]).start()
    assert recipe.module(recipe.usual).launches
    assert "its process ended" in caplog.text
    assert ahead.coming(ordered(recipe)) is None


def test_what_the_cache_does_not_keep_is_used_all_the_same(
        empty: Path, refusing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    empty.joinpath("file").write_text("")
    monkeypatch.setenv("SMALTI_CACHE", str(empty / "file"))
    recipe = recipe_for(MODELS["text"]())
    order = ordered(recipe)
    ahead.begin([order], None)
    begun = ahead.coming(order)
    assert begun is not None and soon(begun.done)
    assert recipe.module(recipe.usual).launches and recipe.module(recipe.usual).launches
    ahead._coming.clear()


def test_modules_for_different_objectives_are_different(empty: Path) -> None:
    orders = [ordered(recipe_for(MODELS["text"](), objective=objective))
              for objective in ("latency", "energy")]
    assert orders[0].key == orders[1].key and orders[0].name != orders[1].name


if hasattr(os, "fork"):
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_process_that_is_forked_waits_for_nobody(empty: Path) -> None:
        future: Future = Future()
        future.set_running_or_notify_cancel()
        recipe = recipe_for(MODELS["text"]())
        ahead._coming[ordered(recipe).name] = future
        child = os.fork()
        if not child:
            os._exit(len(ahead._coming))
        assert os.waitpid(child, 0)[1] == 0
        ahead._coming.clear()


@pytest.mark.parametrize(("variable", "threads", "count"), [
    (None, None, 3), (None, 1, 0), (None, 2, 1), (None, 9, 3), ("0", None, 0), ("7", 1, 7),
    ("", 4, 3)])
def test_there_is_a_helper_for_each_core_beside_this_process(
        variable: str | None, threads: int | None, count: int,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMALTI_HELPERS")
    monkeypatch.setenv("SMALTI_THREADS", "8")
    if variable is not None:
        monkeypatch.setenv("SMALTI_HELPERS", variable)
    assert ahead.helpers_for(threads) == count


@pytest.mark.parametrize("text", ["-1", "many", "257", "1.5"])
def test_a_number_of_helpers_is_a_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_HELPERS", text)
    with pytest.raises(InputError, match="SMALTI_HELPERS is .*from 0 to 256"):
        ahead.helpers_for(None)


def test_programs_that_bring_their_interpreter_have_no_helpers(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_HELPERS", "1")
    assert ahead.helpers_for(None) == 1
    for executable, frozen in (("", False), (sys.executable, True)):
        monkeypatch.setattr(sys, "executable", executable)
        monkeypatch.setattr(sys, "frozen", frozen, raising=False)
        assert ahead.helpers_for(None) == 0 and ahead.submitting(None) is None


def test_stages_that_are_shown_are_gone_through_here(empty: Path,
                                                     monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SMALTI_SHOW", "kernel")
    recipe = recipe_for(MODELS["text"]())
    ahead.begin([ordered(recipe)], None)
    assert ahead.coming(ordered(recipe)) is None
    assert recipe.module(recipe.usual).launches and "kernel" in capsys.readouterr().out


def test_a_helper_is_started_once_where_the_cache_is_new(
        empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for new, count in ((False, 0), (True, 1), (True, 1)):
        monkeypatch.setattr(cache, "is_new", lambda new=new: new)
        ahead._expect.cache_clear() if count == 0 else None
        ahead.expect(None)
        assert ahead._expect.cache_info().currsize == count
    assert soon(lambda: ahead._helpers(1)._running == 1)
    ahead._expect.cache_clear()


def test_pictures_do_not_depend_on_helpers(model_path: Path, empty: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    begin = ahead.begin

    def noted(orders: list[ModuleOrder], threads: int | None) -> None:
        begun.extend(order.graph.name for order in orders)
        begin(orders, threads)

    monkeypatch.setattr(ahead, "begin", noted)
    pictures = []
    for count in ("1", "0"):
        EARLIER.clear()
        monkeypatch.setenv("SMALTI_CACHE", str(empty / count))
        monkeypatch.setenv("SMALTI_HELPERS", count)
        pipe = smalti.Pipeline.load(model_path, threads=2, device="cpu")
        result = pipe("a red apple", seed=3, steps=1)
        pictures.append(result.images[0].tobytes())
    assert pictures[0] == pictures[1]
    decoder = pipe._submodels.graph("vae", (4, 4)).name
    # missed first is the text encoder, then the denoiser; the decoder is not begun for itself
    assert begun and set(begun) == {decoder}
    entries = [{path.name for path in (empty / count / "programs").iterdir()} for count in "10"]
    assert entries[0] == entries[1]

