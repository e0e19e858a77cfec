"""The list of passes: what goes from one to the next, and what is printed of them."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import pytest
from tiny_programs import MODELS

from smalti.compiler import options as all_options
from smalti.compiler import select
from smalti.compiler.encode import to_bytes
from smalti.compiler.kernel_cache import KernelCache
from smalti.compiler.key import module_key
from smalti.compiler.options import Options
from smalti.compiler.passes import PASSES, compiled
from smalti.compiler.select import EARLIER, Knowledge, Submit, lowered_before
from smalti.compiler.targets import TARGETS, target
from smalti.errors import DeviceError, InputError, UnsupportedError
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.schedule.group import GroupLimits

GIVEN = {"graph", "target", "limits", "options", "known", "progress", "submit"}
"""What there is before the first pass."""


def small() -> Graph:
    g = Graph("small")
    y = g.apply("mat_mul", g.input("x", (9, 16)), g.parameter("w", (16, 24)))
    g.output("y", g.apply("silu", y))
    return g


def test_each_pass_needs_only_what_was_given_before_it() -> None:
    have = set(GIVEN)
    for each in PASSES:
        assert set(each.needs) <= have, f"{each.name} needs {set(each.needs) - have}"
        have |= set(each.gives)
        assert each.why and each.function.__doc__
    assert len({each.name for each in PASSES}) == len(PASSES) and "module" in PASSES[-1].gives


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_goes_through_the_same_passes(name: str, monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SMALTI_SHOW", "passes")
    ticks = count()
    chosen = target(name)
    module = compiled(small(), chosen, chosen.usual, Options(), clock=lambda: next(ticks))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [each.name for each in PASSES]
    assert all(re.search(r" 1000\.0 ms  \w+", line) for line in lines), lines
    assert module.target == name and len(module.launches) >= 1 and module.kernels
    assert bool(module.shaders) == (chosen.interpret is not None)


@pytest.mark.parametrize("name", TARGETS)
def test_compiling_twice_gives_the_same_bytes(name: str) -> None:
    chosen, found = target(name), []
    for _ in range(2):
        EARLIER.clear()
        found.append(to_bytes(compiled(small(), chosen, chosen.usual, Options())))
    assert found[0] == found[1]


def test_kernels_that_two_programs_have_in_common_are_lowered_once() -> None:
    chosen = target("avx2")
    EARLIER.clear()
    first = compiled(small(), chosen, chosen.usual, Options())
    known = set(EARLIER)
    other = small()
    other.output("z", other.apply("exp", other.inputs["x"]))
    second = compiled(other, chosen, chosen.usual, Options())
    assert len(EARLIER) == len(known) + 1
    assert set(first.kernels) < set(second.kernels)
    assert len(known) == len(first.kernels)


def elsewhere(way: str, asked: list[Future]) -> Submit:
    """What takes kernels: lowered at once, begun with later, or failing."""
    def submit(seconds: float, function: Callable, *arguments: object) -> Future:
        future: Future = Future()
        asked.append(future)
        if way == "at once":
            future.set_running_or_notify_cancel()
            function, arguments = pickle.loads(pickle.dumps((function, arguments)))
            future.set_result(pickle.loads(pickle.dumps(function(*arguments))))
        elif way == "in vain":
            future.set_running_or_notify_cancel()
            future.set_exception(DeviceError("its process ended with code 1"))
        return future

    return submit


@pytest.mark.parametrize("way", ["at once", "never", "in vain"])
@pytest.mark.parametrize("name", ["avx2", "avx512_bf16", "neon"])
def test_kernels_that_are_lowered_elsewhere_give_the_same_bytes(way: str, name: str) -> None:
    chosen, asked = target(name), []
    EARLIER.clear()
    graph = MODELS["unet"]()
    here = to_bytes(compiled(graph, chosen, chosen.usual, Options()))
    EARLIER.clear()
    there = compiled(graph, chosen, chosen.usual, Options(), submit=elsewhere(way, asked))
    assert to_bytes(there) == here
    assert len(asked) == len(there.kernels)  # each once
    assert {future.cancelled() for future in asked} == {way == "never"}


def test_the_last_kernels_are_lowered_here_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that another process, which begins with the first, is met in the middle."""
    chosen, asked, order = target("avx2"), [], []
    EARLIER.clear()
    cancel = Future.cancel
    monkeypatch.setattr(Future, "cancel", lambda self: (
        order.append(asked.index(self)), cancel(self))[1])
    compiled(MODELS["text"](), chosen, chosen.usual, Options(), submit=elsewhere("never", asked))
    assert order == [*reversed(range(len(asked)))] and len(order) > 3


def test_kernels_that_are_no_plain_data_are_lowered_here() -> None:
    chosen, asked = target("spirv"), []
    compiled(small(), chosen, chosen.usual, Options(), submit=elsewhere("at once", asked))
    assert not asked


@pytest.mark.parametrize("way", ["at once", "never", "in vain"])
def test_the_first_kernel_that_cannot_be_lowered_is_named(way: str) -> None:
    chosen, asked = target("avx2"), []

    def lower(kernel: Kernel, *rest: object) -> None:
        if kernel.form != "map":
            return chosen.lower(kernel, *rest)
        raise OverflowError("no room")

    EARLIER.clear()
    refusing = replace(chosen, lower=lower, refusal=replace(
        chosen.refusal, errors=(*chosen.refusal.errors, OverflowError)))
    said = []
    for submit in (None, elsewhere("in vain" if way == "at once" else way, asked)):
        EARLIER.clear()
        with pytest.raises(UnsupportedError) as refused:
            compiled(MODELS["unet"](), refusing, chosen.usual, Options(), submit=submit)
        said.append(str(refused.value))
    assert said[0] == said[1]
    assert all(future.done() for future in asked)  # nothing is left to others


def test_kernels_that_are_known_are_not_given_away() -> None:
    chosen, asked = target("avx2"), []
    for kernels in (None, KernelCache()):
        EARLIER.clear()
        for new in (True, False):
            asked.clear()
            compiled(MODELS["text"](), chosen, chosen.usual, Options(), Knowledge(kernels=kernels),
                     submit=elsewhere("at once", asked))
            assert bool(asked) == new


def test_progress_is_told_of_kernels_that_are_lowered_from_the_end() -> None:
    chosen, told = target("avx2"), []
    for submit in (None, elsewhere("never", []), elsewhere("at once", [])):
        EARLIER.clear()
        told.clear()
        module = compiled(MODELS["text"](), chosen, chosen.usual, Options(), submit=submit,
                          progress=lambda done, count: told.append((done, count)))
        total = len(module.kernels)
        assert told == [(done, total) for done in range(1, total + 1)]


def test_kernels_are_kept_by_several_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "KERNELS_MAX", 20)
    EARLIER.clear()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: [lowered_before((number, each % 37), object)
                                      for each in range(5000)], range(4)))
    assert len(EARLIER) == 20
    EARLIER.clear()


def test_options_are_refused_by_name() -> None:
    def options(name: str, limits: object = None, **given: object) -> Options:
        return all_options.checked(small(), target(name), limits or target(name).usual, "a device",
                                   **{"precision": "f32", **given})

    for given, said in (({"precision": "f12"}, "'f12' is unknown; a device has auto, f32, bf16"),
                        ({"held": ("z",)}, "no input z to hold; the graph has x"),
                        ({"weights": {"w": "i4"}}, "not as i4"), ({"threads": 0}, "threads is 0"),
                        ({"objective": "beauty"}, "beauty")):
        with pytest.raises(InputError, match=re.escape(said)):
            options("avx2", **given)
    with pytest.raises(InputError, match="a device speaks WGSL, which has no bf16"):
        options("wgsl", precision="bf16")
    with pytest.raises(InputError, match="a device does not store 16 bits, which precision 'f16'"):
        options("spirv", GroupLimits(), precision="f16")
    assert options("spirv", precision="auto").precision == "f16"
    assert options("spirv", GroupLimits(), precision="auto").precision == "f32"
    assert options("avx512", precision="auto").precision == "f32"
    assert dict(options("spirv", weights={"w": "q8"}).weights) == {"w": "q8"}
    assert not options("spirv", GroupLimits(), weights={"w": "q8"}).weights


def test_what_modules_are_made_from_is_in_their_keys() -> None:
    chosen = target("avx2")
    keys = [module_key(small(), chosen, chosen.usual, each) for each in (
        Options(), Options("bf16"), Options(held=("x",)), Options(weights=(("w", "f16"),)),
        Options(winograd_sizes=(("w", 2),)))]
    keys.append(module_key(small(), target("avx512"), chosen.usual, Options()))
    keys.append(module_key(Graph("other"), chosen, chosen.usual, Options()))
    assert len({key.module for key in keys}) == len(keys)
    assert [keys.index(key) for key in keys if key.kernels == keys[0].kernels] == [0, 3, 4]


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(InputError, match="'sparc'; known: .*wgsl.*avx2, avx2_vnni, avx512, "):
        target("sparc")
