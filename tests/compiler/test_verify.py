"""Images whose numbers point beyond what they have are refused, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from built_modules import built

from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.compiler.module import CodePacking, HostCall, Launch, Module, Operand, Place
from smalti.compiler.verify import verify
from smalti.errors import VerificationError
from smalti.graph import Graph


def image() -> Module:
    """Transformed and packed weights, constants, a table's rows, a host call and held inputs."""
    g = Graph("all")
    x, i = g.input("x", (1, 64, 32, 32)), g.input("i", (1,), "i32")
    h = g.apply("conv", x, g.parameter("w", (64, 64, 3, 3)), pads=(1, 1, 1, 1))
    t = g.apply("gather", g.parameter("table", (5, 64)), i).reshape(1, 64, 1, 1)
    h = g.apply("cast", g.apply("cast", h * t, to="i64"), to="f32")
    g.output("y", h + g.constant([0.5] * 32))
    return built(g, level("avx2"), limits(level("avx2")), "f32")


def changed(found: Module, field: str, kind: type, change: Callable) -> None:
    """Change the first entry of a list that is of `kind`."""
    entries = getattr(found, field)
    number = next(k for k, entry in enumerate(entries) if isinstance(entry, kind))
    entries[number] = change(entries[number])


def slot(**fields: object) -> Callable[[Module], None]:
    def change(found: Module) -> None:
        number = next(k for k, entry in enumerate(found.slots) if entry.kind == "packed")
        found.slots[number] = replace(found.slots[number], **fields)
    return change


def launch(**fields: object) -> Callable[[Module], None]:
    return lambda found: changed(found, "launches", Launch, lambda x: replace(x, **fields))


def call(**fields: object) -> Callable[[Module], None]:
    return lambda found: changed(found, "launches", HostCall, lambda x: replace(x, **fields))


FAR = Place(1 << 40, (2,), (4,))
CHANGES: dict[str, Callable[[Module], object]] = {
    "arena_bytes is": lambda x: setattr(x, "arena_bytes", -1),
    "launches run apart": lambda x: setattr(x, "steady", 10_000),
    "are not all inputs": lambda x: x.held.append("z"),
    "work takes": lambda x: setattr(x, "work_seconds", float("nan")),
    "outside of the code": lambda x: x.functions.append(len(x.code)),
    "parameter 'w' has shape": lambda x: x.parameters.update(w=(-1, 2)),
    "dtype 'other'": slot(dtype="other"),
    "stored as 'other'": slot(stored="other"),
    "no parameter 'v'": slot(name="v"),
    "bytes$": slot(bytes=1 << 60),
    "elements from": slot(start=1 << 30),
    "packing function": slot(packing=CodePacking(0, -1)),
    "winograd of": lambda x: slot(winograd=replace(
        next(s.winograd for s in x.slots if s.winograd), strides=(1 << 20, 9, 3, 1)))(x),
    "no function": launch(function=-1),
    "tiles": launch(tiles=1 << 40),
    "tiles 9 to 1": launch(first=9, tiles=1),
    "no barrier behind launch [0-9]+$": lambda x: x.launches.__setitem__(
        -1, replace(x.launches[-1], barrier=False)),
    "no barrier": lambda x: setattr(x, "launches", [
        *(replace(y, barrier=False) if isinstance(y, Launch) else y for y in x.launches[:-1]),
        x.launches[-1]]),
    "no region": launch(region=99),
    "operand at slot": launch(operands=(("slot", 99, 0),)),
    "operand at slot 0": launch(operands=(("slot", 0, 1 << 40),)),
    "operand at heap": launch(operands=(("heap", 0, 0),)),
    "no operation": call(operation="explode"),
    "no slot 99": call(operands=(Operand(99, Place(0, (), ())),)),
    "result of cast": call(result=FAR),
    "cast gives": call(result=Place(0, (2,), (4,))),
    "cast has no attribute": call(attributes={"to": "i64", "more": 1}),
    "input: it reaches": lambda x: x.inputs.update(x=FAR),
    "output: offset": lambda x: x.outputs.update(y=Place(0, (2,), (-4,))),
    "output: dtype": lambda x: x.outputs.update(y=Place(0, (2,), (4,), "complex")),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_what_points_beyond_its_end_is_refused(reason: str) -> None:
    found = image()
    assert any(entry.winograd for entry in found.slots)
    verify(found)
    CHANGES[reason](found)
    with pytest.raises(VerificationError, match=f"program all: .*{reason}"):
        verify(found)
