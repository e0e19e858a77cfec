"""Programs: binding again, wrong inputs, numbers that are not finite, and the reference."""

from __future__ import annotations

import errno
import mmap
import re
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest

from smalti import nn
from smalti.errors import DeviceError, InputError, NumericsError
from smalti.graph import Graph, evaluate
from smalti.graph.operation import DTYPES
from smalti.runtime import engine
from smalti.runtime.compilation import compile_graph
from smalti.runtime.cpu.program import NativeProgram
from smalti.runtime.interface import Program
from smalti.runtime.reference import ReferenceProgram

KINDS = ("native", "reference")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    monkeypatch.delenv("SMALTI_SHOW", raising=False)


def graph() -> Graph:
    g = Graph("model")
    x, i = g.input("x", (2, 6)), g.input("i", (2,), "i32")
    with g.scope("first"):
        x = g.apply("silu", g.apply("mat_mul", x, g.parameter("weight", (6, 8))))
    with g.scope("table"):
        x = x + g.apply("gather", g.parameter("weight", (5, 8)), i)
    with g.scope("root"):
        x = g.apply("sqrt", g.apply("mat_mul", x, g.parameter("weight", (8, 3))) + 4.0)
    g.output("y", x)
    g.output("z", x * 2.0)
    return g


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(v.shape, np.float32) * np.float32(0.3)
            for name, v in graph().parameters.items()}


INPUTS = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6),
          "i": np.array([0, 4], np.int32)}


def make(kind: str, bound: bool = True) -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        program = (ReferenceProgram(graph()) if kind == "reference"
                   else compile_graph(graph(), threads=2))
    if bound:
        program.bind(weights().__getitem__)
    return program


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_their_names(kind: str) -> None:
    program = make(kind)
    assert program.name == "model"
    assert program.inputs == {"x": (2, 6), "i": (2,)}
    expected = evaluate(graph(), INPUTS, weights())
    found = program.run(INPUTS)
    assert list(found) == ["y", "z"]
    for name, array in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], array, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_other_weights_without_compiling_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = make(kind)

    def never(*_, **__) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("smalti.runtime.order.compiled", never)
    monkeypatch.setattr("smalti.compiler.select.Selection.lowered", never)
    first = program.run(INPUTS)["y"]
    program.bind(weights(1).__getitem__)
    second = program.run(INPUTS)["y"]
    assert np.abs(first - second).max() > 0.05
    np.testing.assert_allclose(second, evaluate(graph(), INPUTS, weights(1))["y"], rtol=1e-5)
    program.bind(weights().__getitem__)
    np.testing.assert_array_equal(program.run(INPUTS)["y"], first)


def normalised() -> Graph:
    g = Graph("normalised")
    g.output("y", nn.relu6(nn.batch_norm(g.input("x", (1, 3, 4, 5)), "norm")))
    return g


def test_what_depends_on_weights_only_is_computed_when_they_are_bound() -> None:
    program = compile_graph(normalised(), threads=2)
    assert isinstance(program, NativeProgram) and program.module.steady == 2
    x = {"x": np.linspace(-9, 9, 60, dtype=np.float32).reshape(1, 3, 4, 5)}
    for seed in (0, 1, 0):
        rng = np.random.default_rng(seed)
        given = {name: rng.uniform(0.5, 2, v.shape).astype(np.float32)
                 for name, v in normalised().parameters.items()}
        program.bind(given.__getitem__)
        expected = evaluate(normalised(), x, given)["y"]
        for _ in range(2):
            np.testing.assert_allclose(program.run(x)["y"], expected, rtol=1e-5, atol=1e-5)
        assert (program.seconds[:2] == 0).all() and program.seconds[2] > 0
    program.release()
    program.bind(given.__getitem__)
    np.testing.assert_allclose(program.run(x)["y"], expected, rtol=1e-5, atol=1e-5)
    assert "besides, 2 kernels run once, when weights are bound" in program.explain()


def attending() -> Graph:
    g = Graph("attending")
    x, context = g.input("x", (6, 8)), g.input("context", (5, 8))
    keys = g.apply("tanh", g.apply("mat_mul", context, g.parameter("k", (8, 5))))
    g.output("y", g.apply("mat_mul", x, g.parameter("w", (8, 5))) + g.apply(
        "reduce_sum", keys, axes=(0,), keepdims=True))
    return g


@pytest.mark.parametrize("precision, allowed", [("f32", 1e-5), ("bf16", 2e-2)])
def test_what_depends_on_held_inputs_only_is_computed_when_they_change(
        precision: str, allowed: float) -> None:
    rng = np.random.default_rng(0)
    graph, program = attending(), compile_graph(attending(), precision=precision, threads=2,
                                                held=("context",))
    parameters = {name: rng.standard_normal(v.shape).astype(np.float32)
                  for name, v in graph.parameters.items()}
    program.bind(parameters.__getitem__)
    contexts = [rng.standard_normal((5, 8)).astype(np.float32) for _ in range(2)]
    for number, times in ((0, 3), (1, 2), (0, 1)):
        for _ in range(times):
            inputs = {"x": rng.standard_normal((6, 8)).astype(np.float32),
                      "context": contexts[number].copy()}
            expected = evaluate(graph, inputs, parameters)["y"]
            found = program.run(inputs)["y"]
            assert np.abs(found - expected).max() <= allowed * np.abs(expected).max()
    assert program.module.changing and (program.seconds[:program.module.changing] == 0).all()
    assert program.seconds[program.module.changing:].sum() > 0
    parameters["k"] = parameters["k"][::-1].copy()
    for again in (program.bind, lambda read: (program.release(), program.bind(read))):
        again(parameters.__getitem__)
        expected = evaluate(graph, inputs, parameters)["y"]
        assert np.abs(program.run(inputs)["y"] - expected).max() <= allowed * 9
    assert "when context changes" in program.explain()


def test_an_input_changed_in_place_is_noticed() -> None:
    program = compile_graph(attending(), threads=1, held=("context",))
    rng = np.random.default_rng(1)
    parameters = {"k": rng.standard_normal((8, 5)).astype(np.float32),
                  "w": rng.standard_normal((8, 5)).astype(np.float32)}
    program.bind(parameters.__getitem__)
    inputs = {"x": np.ones((6, 8), np.float32), "context": np.ones((5, 8), np.float32)}
    first = program.run(inputs)["y"]
    inputs["context"] *= -1
    assert np.abs(program.run(inputs)["y"] - first).max() > 0.1


def test_an_input_that_is_not_there_cannot_be_held() -> None:
    with pytest.raises(InputError, match="no input prompt to hold; the graph has x, context"):
        compile_graph(attending(), held=("prompt",))


def scaled(rows: int, layers: int) -> Graph:
    g = Graph("scaled")
    x = g.input("x", (rows, 64))
    for _ in range(layers):
        x = g.apply("mat_mul", x, g.parameter("w", (64, 64)))
    g.output("y", x)
    return g


@pytest.mark.parametrize("rows, layers, threads, brief", [
    (2, 3, 1, True), (512, 8, 2, True), (4096, 64, 2, False)])
def test_threads_are_woken_where_that_pays(rows: int, layers: int, threads: int,
                                           brief: bool) -> None:
    program = compile_graph(scaled(rows, layers), threads=2)
    assert (program.crew, program._brief) == (threads, brief)
    program.bind({"w": np.eye(64, dtype=np.float32)}.__getitem__)
    x = np.random.default_rng(0).standard_normal((rows, 64), np.float32)
    for scale in (1, 2):
        np.testing.assert_allclose(program.run({"x": scale * x})["y"], scale * x, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_the_callers_own(kind: str) -> None:
    program = make(kind)
    first = program.run(INPUTS)["y"]
    kept = first.copy()
    program.run({**INPUTS, "x": INPUTS["x"] + 1})
    np.testing.assert_array_equal(first, kept)
    first[...] = 0
    np.testing.assert_array_equal(program.run(INPUTS)["y"], kept)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change, why", [
    ({"x": np.zeros((6, 2))}, r"'x' has shape \[6, 2\], the program expects \[2, 6\]"),
    ({"x": np.zeros(12)}, r"'x' has shape \[12\]"), ({"i": 3}, r"'i' has shape \[\]"),
    ({"i": [0.5, 1]}, r"'i' holds 0.5 at \[0\], which i32 \(whole numbers"),
    ({"x": np.zeros((2, 6), complex)}, "'x' is of complex128, the program expects f32"),
    ({"x": np.full((2, 6), "1")}, "'x' is of <U1, the program expects f32"),
    ({"extra": np.zeros(1)}, "'extra' is unknown: the inputs of model are 'x' of shape"),
])
def test_wrong_inputs_are_named(kind: str, change: dict, why: str) -> None:
    with pytest.raises(InputError, match=why):
        make(kind).run({**INPUTS, **change})


@pytest.mark.parametrize("kind", KINDS)
def test_missing_inputs_are_named(kind: str) -> None:
    with pytest.raises(InputError, match="'i' is missing: the inputs of model are 'x' of shape"):
        make(kind).run({"x": INPUTS["x"]})
    with pytest.raises(InputError, match="'i' is missing, 3 is unknown"):
        make(kind).run({"x": INPUTS["x"], 3: 4})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given, said", [
    (np.ones((2, 3)), r"run is given an array of shape \[2, 3\]; expected a mapping of arrays by"),
    ([1], r"run is given a list; .* such as run\(\{'x': array\}\)"), (None, "run is given None; "),
    ({"x": None, "i": None}, "input 'x' is None"), ({"x": "a", "i": 1}, "input 'x' is of <U1"),
    ({**INPUTS, "i": None}, "input 'i' is None")])
def test_what_is_no_mapping_of_arrays_is_refused(kind: str, given: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make(kind).run(given)


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    program = make("native")
    for call, said in (
            (lambda: program.bind(3), "weights are int; expected a path, a mapping of arrays"),
            (lambda: program.save(None), "save is given None; expected the path"),
            (lambda: program.save(tmp_path / "a", targets="avx2"), "targets is 'avx2'; expected"),
            (lambda: program.save(tmp_path / "a", targets=3), "targets is 3; expected several"),
            (lambda: program.explain(3), "a device is named 3; expected a text"),
            (lambda: engine.load(3), "load is given 3; expected the path of an engine file")):
        with pytest.raises(InputError, match=said):
            call()


def test_a_program_shows_what_it_is() -> None:
    assert repr(make("native")) == (
        "<smalti.Program 'model' on cpu, f32: x [2, 6], i [2] -> y [2, 3], z [2, 3]>")
    assert repr(make("reference", bound=False)).endswith("; no weights are bound>")


@pytest.mark.parametrize("rows", [[0, 5], [-1, 0], [2**31 - 1, 0], [0, -2**31]])
def test_rows_outside_of_a_table_are_never_read(rows: list[int]) -> None:
    with pytest.raises(InputError, match="rows 0 to 4 of a table are expected"):
        make("native").run({**INPUTS, "i": np.array(rows, np.int32)})


def test_lists_other_dtypes_and_strided_arrays_are_taken() -> None:
    program = make("native")
    expected = program.run(INPUTS)["y"]
    wide = np.zeros((6, 4))
    wide[:, ::2] = INPUTS["x"].T
    for x in (INPUTS["x"].tolist(), INPUTS["x"].astype(np.float64), wide[:, ::2].T):
        np.testing.assert_array_equal(program.run({"x": x, "i": [0.0, 4]})["y"], expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [
    np.array([2**32 - 1], np.uint32), np.array([2**40]), np.array([0.5]), np.array([np.nan]),
    np.array([-1.5], DTYPES["bf16"]),
])
def test_numbers_that_an_integer_cannot_hold_are_refused(kind: str, given: np.ndarray) -> None:
    g = Graph("twice")
    i = g.input("i", (1,), "i32")
    g.output("y", i + i)
    program = compile_graph(g) if kind == "native" else ReferenceProgram(g)
    assert program.run({"i": np.array([-3], DTYPES["bf16"])})["y"] == [-6]
    with pytest.raises(InputError, match="i32 .whole numbers from .* cannot hold; round, clip"):
        program.run({"i": given})


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize("kind", ["native", "reference"])
def test_unbound_programs_say_so(kind: str) -> None:
    program = make(kind, bound=False)
    assert not program.bound
    with pytest.raises(InputError, match="no weights are bound; call bind first"):
        program.run(INPUTS)
    assert make(kind).bound


def test_release_gives_memory_back_until_bind() -> None:
    program = make("native")
    expected = program.run(INPUTS)["y"]
    for _ in range(2):
        arena = weakref.ref(program._arena.base)
        program.release()
        assert program._weights is None and program._arena is None
        assert arena() is None, "results lie in it, and nothing may keep these"
        assert program.seconds is None and not program.timings
        with pytest.raises(InputError, match="call bind first"):
            program.run(INPUTS)
        program.bind(weights().__getitem__)
        np.testing.assert_array_equal(program.run(INPUTS)["y"], expected)


def test_a_program_without_parameters_is_always_bound() -> None:
    g = Graph("free")
    g.output("y", g.apply("silu", g.input("x", (40,)) + g.constant(np.arange(40.0))))
    program = compile_graph(g, threads=1)
    x = np.linspace(-1, 1, 40, dtype=np.float32)
    expected = program.run({"x": x})["y"]
    np.testing.assert_allclose(expected, evaluate(g, {"x": x}, {})["y"], rtol=1e-5)
    program.release()
    np.testing.assert_array_equal(program.run({"x": x})["y"], expected)


def test_two_programs_do_not_share_memory() -> None:
    one, other = make("native"), make("native")
    other.bind(weights(1).__getitem__)
    first = one.run(INPUTS)["y"]
    other.run(INPUTS)
    np.testing.assert_array_equal(one.run(INPUTS)["y"], first)


# ---------------------------------------------------------------------- not finite


@pytest.mark.parametrize("kind", KINDS)
def test_run_checked_returns_what_run_does(kind: str) -> None:
    program = make(kind)
    np.testing.assert_array_equal(program.run_checked(INPUTS)["y"], program.run(INPUTS)["y"])


@pytest.mark.parametrize("kind, place", [("native", "the contraction of first"),
                                         ("reference", "mat_mul first")])
def test_the_first_kernel_that_made_it_is_named(kind: str, place: str) -> None:
    program, large = make(kind), weights()
    large["first.weight"] = np.full((6, 8), 3e38, np.float32)
    program.bind(large.__getitem__)
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(NumericsError) as raised:
        program.run_checked({**INPUTS, "x": np.full((2, 6), 10, np.float32)})
    assert f"model: NaN or Inf appeared first in {place};" in str(raised.value)


@pytest.mark.parametrize("kind, place", [("native", "the contraction of root"),
                                         ("reference", "sqrt root")])
def test_a_later_kernel_is_named_when_the_first_are_fine(kind: str, place: str) -> None:
    program, negative = make(kind), weights()
    negative["table.weight"][4] = 9.0
    negative["root.weight"][...] = -1.0
    program.bind(negative.__getitem__)
    with np.errstate(invalid="ignore"), pytest.raises(NumericsError, match=place):
        program.run_checked(INPUTS)
    finite = program.run_checked({**INPUTS, "i": np.array([0, 1], np.int32)})["y"]
    assert np.isfinite(finite).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_input_is_named(kind: str, bad: float) -> None:
    x = INPUTS["x"].copy()
    x[1, 2] = bad
    with np.errstate(invalid="ignore"), pytest.raises(NumericsError, match="input 'x' holds NaN"):
        make(kind).run_checked({**INPUTS, "x": x})


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_weight_is_named(kind: str) -> None:
    bad = weights()
    bad["table.weight"][2, 7] = np.nan
    with pytest.raises(NumericsError, match=r"'table.weight' holds 1 values .* at \[2, 7\]"):
        make(kind).bind(bad.__getitem__)


# ---------------------------------------------------------------------- what it says of itself


def test_explain_tells_everything_of_every_kernel() -> None:
    program = make("native")
    before = program.explain(all=True)
    assert program.timings == {}
    assert "GFLOP/s" not in before and "measured" not in before
    program.run(INPUTS)
    after = program.explain(all=True, columns=80)
    assert max(map(len, after.splitlines())) <= 80
    assert f"{len(program.recipe.graph.nodes)} operations of a graph became" in after
    flat = " ".join(after.split())
    for number, region in enumerate(program.module.regions):
        (start,) = re.findall(rf"^ +{number}  {region.form}.*$", after, re.M)
        assert region.scope in start
        assert region.schedule in flat and f"fusion ends here: {region.reason}" in flat
    assert after.count(" GFLOP/s") == len(program.module.regions) + 1
    assert set(program.timings) == {region.form for region in program.module.regions}
    assert sum(program.timings.values()) == pytest.approx(float(program.seconds.sum()))


def test_memory_is_told_before_it_is_used() -> None:
    program = make("native", bound=False)
    assert program.arena_bytes >= program.module.arena_bytes + 2 * program.module.scratch_bytes
    assert program._arena is None and program._weights is None


# ---------------------------------------------------------------------- the reference


def test_without_a_code_generator_the_reference_runs_and_says_so_once(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smalti.runtime.cpu.compilation.best_level", lambda: None)
    monkeypatch.setattr(ReferenceProgram, "_said", False)
    with pytest.warns(RuntimeWarning, match="numpy reference, which is many times slower") as seen:
        programs = [compile_graph(graph()) for _ in range(2)]
    assert len(seen) == 1
    assert all(isinstance(program, ReferenceProgram) for program in programs)
    programs[0].bind(weights().__getitem__)
    native = make("native")
    assert isinstance(native, ReferenceProgram)  # patched as well: the numbers come from evaluate
    expected = evaluate(graph(), INPUTS, weights())["y"]
    np.testing.assert_array_equal(programs[0].run(INPUTS)["y"], expected)
    assert "numpy reference" in programs[0].explain()


def test_the_reference_agrees_with_native_code() -> None:
    native, reference = make("native"), make("reference")
    assert isinstance(native, NativeProgram)
    np.testing.assert_allclose(native.run(INPUTS)["y"], reference.run(INPUTS)["y"], rtol=1e-5)


class Refusing(mmap.mmap):
    """Memory of a system that refuses large pages, and more than 1 MiB at a time."""

    def __new__(cls, number: int, length: int, **options: int) -> Refusing:
        if length > 1 << 20:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return super().__new__(cls, number, length, **options)

    def madvise(self, *arguments: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


@pytest.mark.parametrize(("rows", "refused"), [(4, False), (1 << 16, True)])
def test_memory_that_the_system_refuses(
        monkeypatch: pytest.MonkeyPatch, rows: int, refused: bool) -> None:
    graph = Graph("twice")
    x = graph.input("x", (rows, 16))
    graph.output("y", x + x)
    program = compile_graph(graph, threads=1)
    monkeypatch.setattr(mmap, "mmap", Refusing)
    given = {"x": np.ones((rows, 16), np.float32)}
    if refused:
        with pytest.raises(DeviceError, match="refuses .* MiB of memory .Cannot allocate"):
            program.run(given)
    else:
        assert program.run(given)["y"].sum() == 2 * rows * 16
