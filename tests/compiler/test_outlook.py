"""What programs would be on devices that are not here."""

from __future__ import annotations

from pathlib import Path

import pytest

from smalti import machine, nn
from smalti.compiler.outlook import limits_of
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.runtime.compilation import compile_graph
from smalti.tune.objective import OBJECTIVES


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))


def small(side: int = 16) -> Graph:
    """A convolution, a product, a normalisation, attention, and one among other tokens."""
    graph = Graph("small")
    x = nn.conv2d(graph.input("x", (1, 16, side, side)), "first", 32, 3)
    tokens = nn.layer_norm(x.reshape(1, 32, side * side).transpose(0, 2, 1), "norm")
    with graph.scope("own"):
        graph.output("y", nn.cross_attention(tokens, tokens, 2))
    with graph.scope("other"):
        graph.output("z", nn.cross_attention(tokens, graph.input("c", (1, 7, 24)), 2))
    return graph


def milliseconds(text: str) -> float:
    """What the first line expects of a run."""
    return float(text.split("expected of a run: ")[1].split(" ms")[0])


@pytest.mark.parametrize("name", ["rtx_4060", "rx_7600", "m1", "core_i5_12400", "epyc_9654",
                                  "graviton_3"])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_every_kernel_has_a_line(name: str, precision: str) -> None:
    program = compile_graph(small(), threads=1, precision=precision)
    text = program.explain(name, all=True)
    lines = text.splitlines()
    assert lines[0].startswith(f"small on {machine.device(name).name}: ")
    assert "assumed: " in text and "guessed of this device: " in text
    kernels = [line for line in lines if " ms expected, " in line]
    assert len(kernels) == int(lines[0].split(": ")[1].split()[0]) >= 6
    total = sum(float(line.split()[0]) for line in kernels)
    assert milliseconds(text) == pytest.approx(total, abs=1e-3 * len(kernels))


def test_vectors_are_those_of_the_cpu() -> None:
    for name, lanes, vectors, by_lane in (("epyc_9654", 16, 32, False), ("core_i5_12400", 8, 16,
                                          False), ("cortex_a72", 4, 32, True)):
        found = limits_of(machine.device(name), 2)
        assert (found.lanes, found.vectors, found.by_lane) == (lanes, vectors, by_lane)
    assert limits_of(machine.device("graviton_3"), 2).blocks
    assert not limits_of(machine.device("raspberry_pi_5"), 2).blocks


def test_larger_images_take_longer_and_faster_devices_less() -> None:
    here = compile_graph(small(64), threads=1)
    assert milliseconds(here.explain("rtx_4060")) > milliseconds(
        compile_graph(small(16), threads=1).explain("rtx_4060"))
    assert milliseconds(here.explain("rtx_4090")) < milliseconds(here.explain("rtx_4060"))
    assert milliseconds(here.explain("core_i9_13900k")) < milliseconds(
        here.explain("core_i5_12400"))


def test_a_run_among_others_takes_longer_and_says_so() -> None:
    alone, among, saving = (compile_graph(small(64), threads=1, objective=name).explain(
        "core_i5_12400") for name in OBJECTIVES)
    assert "6 programs at once" in among and "1 threads" in among
    assert milliseconds(among) > milliseconds(alone)
    assert "objective energy" in saving and milliseconds(saving) >= milliseconds(alone)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(InputError, match="rtx_4060"):
        compile_graph(small(), threads=1).explain("rtx_4061")


def test_limits_are_those_of_the_line() -> None:
    wide, narrow = (limits_of(machine.device(name), 8) for name in ("ryzen_7_7700x",
                                                                     "ryzen_7_5800x"))
    assert (wide.lanes, wide.vectors, wide.pairs) == (16, 32, True)
    assert (narrow.lanes, narrow.vectors, narrow.pairs) == (8, 16, False)
    assert wide.l2_bytes == 1 << 20 and narrow.l2_bytes == 512 << 10
