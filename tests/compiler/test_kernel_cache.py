"""Lowered kernels that are kept: a program takes those that it has in common with another."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from smalti import machine
from smalti.codegen.cpu import target as native
from smalti.compiler import kernel_cache
from smalti.compiler.encode import to_bytes
from smalti.compiler.kernel_cache import KernelCache
from smalti.compiler.module import Module
from smalti.compiler.options import Options
from smalti.compiler.passes import compiled
from smalti.compiler.select import Knowledge
from smalti.compiler.targets import target
from smalti.graph import Graph
from smalti.kernel.form import Kernel
from smalti.schedule.group import GroupLimits
from smalti.tune.objective import Objective

AIM = Objective.on(machine.device("ryzen_9_9950x"), 1, "latency")
FOUR_BITS = {"a": "q4", "b": "q4"}


def layers() -> Graph:
    """Two linear layers of different sizes, and a softmax."""
    g = Graph("layers")
    x = g.input("x", (8, 256))
    for name, (outputs, inputs) in {"a": (128, 256), "b": (160, 128)}.items():
        weight = g.parameter(name, (outputs, inputs))
        x = g.apply("mat_mul", x, g.apply("transpose", weight, perm=(1, 0)))
    g.output("y", g.apply("softmax", x, axis=1))
    return g


def made(weights: dict[str, str], kernels: KernelCache) -> Module:
    """The module of the layers for weights of these dtypes, with and for kernels that are kept."""
    chosen, options = target("avx2"), Options(weights=tuple(sorted(weights.items())))
    return compiled(layers(), chosen, chosen.usual, options, Knowledge(objective=AIM,
                                                                       kernels=kernels))


@pytest.fixture()
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels that are lowered from now on."""
    kernels: list[Kernel] = []
    lower: Callable = native.lower
    monkeypatch.setattr(native, "lower", lambda kernel, *rest: (
        kernels.append(kernel), lower(kernel, *rest))[1])
    return kernels


def test_only_kernels_of_other_weights_are_lowered(lowered: list[Kernel]) -> None:
    first = KernelCache()
    plain = to_bytes(made(FOUR_BITS, first))
    assert first.changed and len(set(lowered)) > 2
    lowered.clear()
    kept = KernelCache.from_bytes(first.to_bytes())
    changed = to_bytes(made({**FOUR_BITS, "b": "q8"}, kept))
    assert {buffer.dtype for kernel in lowered for buffer in kernel.buffers
            if buffer.role == "parameter"} == {"q8"}
    assert kept.changed
    assert changed == to_bytes(made({**FOUR_BITS, "b": "q8"}, KernelCache()))
    lowered.clear()
    again = KernelCache.from_bytes(kept.to_bytes())
    assert to_bytes(made(FOUR_BITS, again)) == plain
    assert not lowered and not again.changed


def test_what_was_used_last_is_kept(monkeypatch: pytest.MonkeyPatch,
                                    lowered: list[Kernel]) -> None:
    kernels = KernelCache()
    made(FOUR_BITS, kernels)
    alone = len(kernels.to_bytes())
    made(dict.fromkeys(FOUR_BITS, "q8"), kernels)
    made(FOUR_BITS, kernels)
    everything = len(kernels.to_bytes())
    monkeypatch.setattr(kernel_cache, "BYTES_MAX", alone)
    data = kernels.to_bytes()
    assert len(data) < everything
    lowered.clear()
    made(FOUR_BITS, KernelCache.from_bytes(data))
    assert not lowered
    monkeypatch.setattr(kernel_cache, "BYTES_MAX", 0)
    made(FOUR_BITS, KernelCache.from_bytes(kernels.to_bytes()))
    assert lowered


def test_targets_whose_kernels_are_no_plain_data_keep_none() -> None:
    kernels, chosen = KernelCache(), target("spirv")
    compiled(layers(), chosen, GroupLimits(), Options(), Knowledge(kernels=kernels))
    assert not kernels.changed and kernels.to_bytes() == KernelCache().to_bytes()


def test_kernels_of_integers_come_back(lowered: list[Kernel]) -> None:
    """Of weights in blocks, rounded ones and plain ones, each with its way to be packed."""
    g = Graph("layers")
    x = g.input("x", (32, 128))
    for name in "abcd":
        weight = g.apply("transpose", g.parameter(name, (128, 128)), perm=(1, 0))
        x = g.apply("tanh", g.apply("mat_mul", x, weight))
    g.output("y", x)
    chosen, first = target("avx512_vnni"), KernelCache()
    options = Options(weights=(("b", "q4_min"),), rounded=True)

    def module(kernels: KernelCache) -> bytes:
        return to_bytes(compiled(g, chosen, chosen.usual, options, Knowledge(
            objective=AIM, kernels=kernels)))

    plain = module(first)
    assert lowered
    lowered.clear()
    assert module(KernelCache.from_bytes(first.to_bytes())) == plain
    assert not lowered
