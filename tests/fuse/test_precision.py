"""Which values are stored as bf16, and that nothing else of a partition changes."""

from __future__ import annotations

from dataclasses import replace

from peers_models import TINY_UNET

from smalti.fuse import Partition, held, narrowed, partition
from smalti.fuse.precision import ELEMENTS_MIN
from smalti.graph import Graph
from smalti.kernel import verify
from smalti.models import unet_graph
from smalti.rewrite import rewrite


def unet() -> Partition:
    return partition(rewrite(unet_graph(TINY_UNET, 1, 8, 8, tokens=5)))


def chain(rows: int) -> Graph:
    """Three products: the first two results are stored between kernels."""
    g = Graph("chain")
    x = g.input("x", (rows, 64))
    for name in ("a", "b", "c"):
        x = g.apply("mat_mul", x, g.parameter(name, (64, 64)))
    g.output("y", x)
    return g


def test_values_between_kernels_are_narrow_and_nothing_else_is() -> None:
    found = narrowed(unet(), 0)
    ends = {view.storage for view in (*found.inputs.values(), *found.outputs.values())}
    assert all(storage.dtype != "bf16" for storage in ends)
    for region in found.regions:
        verify(region.kernel, "precision")
        for buffer in region.kernel.buffers:
            if buffer.role == "local":
                assert buffer.dtype == "f32"
                continue
            storage = region.views[buffer.name].storage
            assert buffer.dtype == storage.dtype
            if buffer.role == "parameter" or buffer.name in ("scale", "shift"):
                assert buffer.dtype != "bf16", f"{buffer.name} of {region.scope}"
            if buffer.name == "out":
                assert buffer.dtype == ("f32" if storage in ends else "bf16")


def test_only_dtypes_of_storages_change() -> None:
    before, after = unet(), narrowed(unet(), 0)
    for old, new in zip(before.regions, after.regions, strict=True):
        wide = tuple(replace(b, dtype="f32") if b.dtype == "bf16" else b
                     for b in new.kernel.buffers)
        assert replace(new.kernel, buffers=wide) == old.kernel
        assert (new.scope, new.reason, new.flops) == (old.scope, old.reason, old.flops)
        assert {n: (v.offset, v.shape, v.strides) for n, v in new.views.items()} \
            == {n: (v.offset, v.shape, v.strides) for n, v in old.views.items()}


def test_parameters_are_held_as_they_are_given_where_kernels_can_read_them_so() -> None:
    before = unet()
    names = {v.storage.name for p in before.regions for v in p.views.values()
             if v.storage.kind == "parameter"}
    given = {name: "bf16" if name.endswith("0.weight") else "f16" for name in names}
    after = held(before, given, 0)
    for old, new in zip(before.regions, after.regions, strict=True):
        verify(new.kernel, "precision")
        for buffer in new.kernel.buffers:
            if buffer.role != "parameter":
                assert buffer in old.kernel.buffers
            elif buffer.name == "weight":
                assert buffer.dtype == given[new.views["weight"].storage.name]
            elif buffer.name in ("gamma", "beta"):
                assert buffer.dtype == "f32"
    assert held(before, {}).regions == before.regions


def test_small_parameters_stay_f32() -> None:
    for extent, dtype in ((ELEMENTS_MIN // 64, "f16"), (ELEMENTS_MIN // 64 - 1, "f32")):
        g = Graph("one")
        g.output("y", g.apply("mat_mul", g.input("x", (9, 64)), g.parameter("w", (64, extent))))
        (region,) = held(partition(g), {"w": "f16"}).regions
        assert region.views["weight"].storage.dtype == dtype


def test_views_of_one_storage_stay_so() -> None:
    before, after = unet(), narrowed(unet(), 0)
    pairs = {(old.views[name].storage, new.views[name].storage)
             for old, new in zip(before.regions, after.regions) for name in old.views}
    arena = [(a, b) for a, b in pairs if a.kind == "arena"]
    assert len({a for a, _ in arena}) == len({b for _, b in arena}) == len(arena)


def test_small_values_stay_f32() -> None:
    rows = ELEMENTS_MIN // 64
    for extent, dtype in ((rows, "bf16"), (rows - 1, "f32")):
        regions = narrowed(partition(chain(extent))).regions
        assert [p.views["out"].storage.dtype for p in regions] == [dtype, dtype, "f32"]
