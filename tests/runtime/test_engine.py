"""Engine files: the same program from a file, on the machines it was made for, and no others."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from examples import examples
from fuzz.engine_files import sections_of, written
from hypothesis import given
from hypothesis import strategies as st
from mixed_graphs import mixed_graphs
from native_regions import LEVELS
from safetensors.numpy import save_file

import smalti
from smalti.codegen.levels import LEVELS as ALL_LEVELS
from smalti.errors import CheckpointError, EngineError, InputError, OutputError
from smalti.graph import Graph, evaluate, show
from smalti.graph.quantised import FORMATS, quantised
from smalti.runtime import engine, engine_writer, order
from smalti.runtime.compilation import compile_graph
from smalti.runtime.container import Container
from smalti.runtime.cpu.adapter import cpu
from smalti.runtime.cpu.recipe import recipe_of
from smalti.runtime.engine_file import EngineFile

X = np.random.default_rng(0).standard_normal((2, 8, 6, 6), np.float32)


def graph(side: int = 6) -> Graph:
    g = Graph("small")
    x = g.input("x", (2, 8, side, side))
    with g.scope("block"):
        h = g.apply("conv", x, g.parameter("weight", (16, 8, 3, 3)), pads=(1, 1, 1, 1))
        h = g.apply("silu", h + g.parameter("bias", (16,)).reshape(1, 16, 1, 1))
    g.output("y", h * g.constant(np.float32(2)))
    return g


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"block.weight": rng.standard_normal((16, 8, 3, 3), np.float32),
            "block.bias": rng.standard_normal(16, np.float32)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with code for every level, made with the first weights, which are not in it."""
    path = tmp_path_factory.mktemp("engine") / "small.smalti"
    engine_writer.save(recipe_of(graph(), "f32", (), 1), path, targets=tuple(ALL_LEVELS),
                weights=weights())
    return path


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_gives_the_same_bytes_as_the_program(path: Path, name: str, threads: int,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_TARGET", name)
    program = compile_graph(graph(), threads=1)
    loaded = smalti.load(path, threads=threads)
    assert loaded.module.target == name and loaded.threads == threads
    for seed in (0, 1):
        program.bind(weights(seed))
        loaded.bind(weights(seed))
        np.testing.assert_array_equal(loaded.run({"x": X})["y"], program.run({"x": X})["y"])


def test_a_file_keeps_what_weights_are_held_as(tmp_path: Path) -> None:
    g = Graph("product")
    g.output("y", g.apply("mat_mul", g.input("x", (9, 128)), g.parameter("w", (128, 128))))
    given = {"w": np.random.default_rng(0).standard_normal((128, 128)).astype(np.float16)}
    program = compile_graph(g, threads=1, weights={"w": "f16"})
    program.bind(given)
    program.save(tmp_path / "product.smalti", weights=given, with_weights=True)
    x = {"x": np.ones((9, 128), np.float32)}
    for recompile in (False, True):
        loaded = smalti.load(tmp_path / "product.smalti", threads=1, recompile=recompile)
        assert [slot.dtype for slot in loaded.module.slots] == ["f16"]
        np.testing.assert_array_equal(loaded.run(x)["y"], program.run(x)["y"])


@pytest.mark.parametrize("dtype", FORMATS)
def test_embedded_weights_stay_quantised(dtype: str, tmp_path: Path) -> None:
    g, path = Graph("window"), tmp_path / "a.smalti"
    x = g.input("x", (1, 64, 16, 16))
    g.output("y", g.apply("conv", x, g.parameter("w", (40, 64, 3, 3)), pads=(1, 1, 1, 1)))
    random = np.random.default_rng(0)
    given = {"w": quantised(random.standard_normal((40, 64, 3, 3), np.float32), dtype)}
    program = compile_graph(g, threads=1, weights={"w": dtype})
    program.bind(given)
    program.save(path, weights=given, with_weights=True)
    x = {"x": random.standard_normal((1, 64, 16, 16), np.float32)}
    expected = program.run(x)
    file = EngineFile(path)
    found = file.array("w")
    assert found.dtype == dtype and found.shape == (40, 64, 3, 3)
    np.testing.assert_array_equal(found.words, given["w"].words)
    assert file.sizes()["weights"] == found.words.nbytes
    for recompile in (False, True):
        loaded = smalti.load(path, threads=1, recompile=recompile)
        np.testing.assert_array_equal(loaded.run(x)["y"], expected["y"])
    other = compile_graph(g, threads=1)  # as f32
    other.bind(path)
    np.testing.assert_array_equal(other.run(x)["y"], expected["y"])


@pytest.mark.parametrize("change, said", [
    (dict(dtype="q8_min"), "lies outside"), (dict(shape=(7, 3)), "no whole groups of 32"),
    (dict(dtype="q5"), "is of 'q5'"), (dict(shape=(32, 1 << 40)), "lies outside"),
    (dict(offset=-64), "lies outside"), (dict(sha256="0"), "is damaged")], ids=str)
def test_what_a_file_says_of_quantised_weights_is_checked(change: dict, said: str,
                                                          tmp_path: Path) -> None:
    g, path = Graph("product"), tmp_path / "a.smalti"
    w = g.apply("transpose", g.parameter("w", (128, 128)), perm=(1, 0))
    g.output("y", g.apply("mat_mul", g.input("x", (1, 128)), w))
    given = {"w": quantised(np.ones((128, 128), np.float32), "q8")}
    compile_graph(g, threads=1, weights={"w": "q8"}).save(path, weights=given, with_weights=True)
    sections = sections_of(path.read_bytes())
    about = json.loads(sections["about"])
    about["parameters"][0] |= change
    sections["about"] = json.dumps(about).encode()
    path.write_bytes(written(sections))
    with pytest.raises(EngineError, match=said):
        smalti.load(path)


def test_weights_held_as_halves_are_measured_as_halves(tmp_path: Path) -> None:
    g = Graph("winograd")
    x = g.input("x", (1, 64, 32, 32))
    g.output("y", g.apply("conv", x, g.parameter("w", (64, 64, 3, 3)), pads=(1, 1, 1, 1)))
    given = {"w": np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float16)}
    program = compile_graph(g, threads=1, weights={"w": "f16"})
    assert any(slot.winograd and slot.dtype == "f16" for slot in program.module.slots)
    program.save(tmp_path / "a.smalti", weights=given)
    assert smalti.load(tmp_path / "a.smalti", threads=1).module == program.module


def test_nothing_is_compiled_when_a_file_is_loaded(path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(order, "compiled", refuse)
    smalti.load(path).bind(weights())


def test_the_best_level_of_this_machine_is_taken(path: Path) -> None:
    assert EngineFile(path).targets == tuple(ALL_LEVELS)
    assert smalti.load(path).module.target == LEVELS[-1]


@examples(25)
@given(mixed_graphs(), st.sampled_from(["f32", "bf16"]))
def test_any_graph_comes_back(g: Graph, precision: str) -> None:
    program = compile_graph(g, precision=precision, threads=1)
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in g.inputs.items()}
    values = {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in g.parameters.items()}
    with TemporaryDirectory() as folder:
        program.save(Path(folder) / "a.smalti", weights=values, with_weights=True)
        loaded = smalti.load(Path(folder) / "a.smalti")
    program.bind(values)
    for name, expected in program.run(inputs).items():
        np.testing.assert_array_equal(loaded.run(inputs)[name], expected)
    assert str(loaded.recipe.graph) == str(g)
    assert loaded.module == program.module


def test_operations_on_the_host_come_back(tmp_path: Path) -> None:
    g = Graph("host")
    x = g.input("x", (2, 3))
    g.output("y", g.apply("cast", g.apply("cast", x * 4.0, to="i32"), to="f32") + 1.0)
    compile_graph(g, threads=1).save(tmp_path / "a.smalti")
    given = np.arange(6, dtype=np.float32).reshape(2, 3) / 3
    np.testing.assert_array_equal(smalti.load(tmp_path / "a.smalti").run({"x": given})["y"],
                                  np.trunc(given * 4) + 1)


# ---------------------------------------------------------------------- weights


def test_weights_are_not_in_the_file_unless_asked_for(path: Path, tmp_path: Path) -> None:
    file, values = EngineFile(path), weights()
    assert not file.has_weights
    assert values["block.weight"].tobytes() not in path.read_bytes()
    assert set(file.parameters) == set(values)
    with pytest.raises(InputError, match="no weights are bound"):
        smalti.load(path).run({"x": X})
    program = compile_graph(graph(), threads=1)
    program.save(tmp_path / "whole.smalti", weights=values, with_weights=True)
    whole = EngineFile(tmp_path / "whole.smalti")
    assert {n: p.sha256 for n, p in whole.parameters.items()} == {
        n: p.sha256 for n, p in file.parameters.items()}
    np.testing.assert_array_equal(whole.array("block.weight"), values["block.weight"])
    program.bind(values)
    np.testing.assert_array_equal(smalti.load(tmp_path / "whole.smalti").run({"x": X})["y"],
                                  program.run({"x": X})["y"])


def test_embedded_weights_bind_other_programs_and_give_way_to_others(tmp_path: Path) -> None:
    program, whole = compile_graph(graph(), threads=1), tmp_path / "whole.smalti"
    program.save(whole, weights=weights(), with_weights=True)
    program.bind(whole)
    first = program.run({"x": X})["y"]
    loaded = smalti.load(whole)
    np.testing.assert_array_equal(loaded.run({"x": X})["y"], first)
    loaded.bind(weights(1))
    assert np.abs(loaded.run({"x": X})["y"] - first).max() > 0.1


def test_merged_weights_take_the_place_of_others(path: Path, monkeypatch) -> None:
    """A low-rank change of a weight, as a LoRA makes it: the same code and memory, new results."""
    program, base = smalti.load(path), weights()
    program.bind(base)
    first = program.run({"x": X})["y"]
    image, places = program.module, [memory.ctypes.data for memory in program._weights]
    rng = np.random.default_rng(2)
    up, down = rng.standard_normal((16, 2), np.float32), rng.standard_normal((2, 72), np.float32)
    merged = {**base, "block.weight": base["block.weight"] + (up @ down).reshape(16, 8, 3, 3)}
    monkeypatch.setattr(order, "compiled", None)
    program.bind(lambda name: merged[name])
    assert program.module is image
    assert [memory.ctypes.data for memory in program._weights] == places
    second = program.run({"x": X})["y"]
    np.testing.assert_allclose(second, evaluate(graph(), {"x": X}, merged)["y"], rtol=1e-4,
                               atol=1e-3)
    assert np.abs(second - first).max() > 1
    program.bind(base)
    np.testing.assert_array_equal(program.run({"x": X})["y"], first)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_embedded_weights_keep_their_number_type(dtype: type, tmp_path: Path) -> None:
    values = {name: array.astype(dtype) for name, array in weights().items()}
    compile_graph(graph(), threads=1).save(tmp_path / "a.smalti", weights=values,
                                           with_weights=True)
    found = EngineFile(tmp_path / "a.smalti").array("block.weight")
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values["block.weight"])


def test_a_damaged_weight_is_named_and_the_rest_still_loads(tmp_path: Path) -> None:
    whole, values = tmp_path / "whole.smalti", weights()
    compile_graph(graph(), threads=1).save(whole, weights=values, with_weights=True)
    data = bytearray(whole.read_bytes())
    data[data.index(values["block.weight"].tobytes()) + 100] ^= 1
    whole.write_bytes(data)
    EngineFile(whole).array("block.bias")
    with pytest.raises(EngineError, match="weight 'block.weight' is damaged"):
        smalti.load(whole)


# ---------------------------------------------------------------------- machines


def test_a_file_without_code_for_this_machine_says_so_and_can_be_recompiled(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has AVX-512, but not BF16."""
    path = tmp_path / "other.smalti"
    engine_writer.save(recipe_of(graph(), "f32", (), 1), path, targets=("avx512_bf16",))
    for name in ("avx512", "avx2"):
        other = replace(cpu(), name="other", features=tuple(ALL_LEVELS[name].needs))
        for module in (sys.modules[cpu.__module__], engine):
            monkeypatch.setattr(module, "cpu", lambda other=other: other)
        with pytest.raises(EngineError, match=f"holds code for avx512_bf16, and other has.*{name};"
                                              f".*--target.*recompile=True"):
            smalti.load(path)
    program = smalti.load(path, recompile=True)
    assert program.module.target == "avx2"
    program.bind(weights())
    np.testing.assert_allclose(program.run({"x": X})["y"],
                               evaluate(graph(), {"x": X}, weights())["y"], rtol=1e-4, atol=1e-3)


def test_a_file_of_another_program_form_can_only_be_recompiled(path: Path, tmp_path: Path,
                                                               monkeypatch) -> None:
    monkeypatch.setattr("smalti.compiler.encode.MAGIC", b"SMALTI\0\xfe")
    with pytest.raises(EngineError, match="not a program of this version"):
        smalti.load(path)
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    assert smalti.load(path, recompile=True).inputs == {"x": (2, 8, 6, 6)}


@pytest.mark.parametrize("targets", [("sse",), ("avx2", "mmx"), (["avx2"],)])
def test_unknown_targets_are_refused_before_anything_is_written(targets: tuple[str, ...],
                                                                tmp_path: Path) -> None:
    with pytest.raises(InputError, match="targets are .*known: .*avx2"):
        compile_graph(graph(), threads=1).save(tmp_path / "a.smalti", targets=targets)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_saved_says_why(tmp_path: Path) -> None:
    program = compile_graph(graph(), threads=1)
    with pytest.raises(InputError, match="say where|said where"):
        program.save(tmp_path / "a.smalti", with_weights=True)
    with pytest.raises(InputError, match="'block.bias' is missing"):
        program.save(tmp_path / "a.smalti", weights={"block.weight": weights()["block.weight"]})
    with pytest.raises(OutputError, match="no-folder"):
        program.save(tmp_path / "no-folder" / "a.smalti")
    for call in (program.save, smalti.load):
        with pytest.raises(InputError, match="a path has no NUL in it"):
            call("a\0.smalti")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- damage


def test_sections_that_were_exchanged_are_refused(path: Path, tmp_path: Path) -> None:
    from smalti.runtime.container import write

    file, broken = Container(path), tmp_path / "broken.smalti"
    sections = {name: bytes(file.section(name)) for name in file.names()}
    sections["module avx2"], sections["module avx512"] = (sections["module avx512"],
                                                          sections["module avx2"])
    write(broken, len(sections), ((n, [data], True) for n, data in sections.items()))
    with pytest.raises(EngineError, match="says that it is for"):
        EngineFile(broken).module("avx2")
    sections["graph"] = show(graph(side=8)).encode()
    write(broken, len(sections), ((n, [data], True) for n, data in sections.items()))
    with pytest.raises(EngineError, match="avx512_bf16 has other inputs or outputs"):
        EngineFile(broken).module("avx512_bf16")
    del sections["about"]
    write(broken, len(sections), ((n, [data], True) for n, data in sections.items()))
    with pytest.raises(EngineError, match="no section 'about'"):
        smalti.load(broken)


# ---------------------------------------------------------------------- binding from files


@pytest.fixture
def bound() -> smalti.Program:
    return compile_graph(graph(), threads=1)


def test_weights_come_from_a_file_a_folder_a_mapping_or_a_function(bound, tmp_path: Path) -> None:
    values, folder = weights(), tmp_path / "folder"
    folder.mkdir()
    save_file(values, tmp_path / "all.safetensors")
    for number, (name, array) in enumerate(values.items()):
        save_file({name: array}, folder / f"part-{number}.safetensors")
    bound.bind(values.__getitem__)
    expected = bound.run({"x": X})["y"]
    for source in (values, tmp_path / "all.safetensors", str(folder)):
        bound.bind(weights(1))
        bound.bind(source)
        np.testing.assert_array_equal(bound.run({"x": X})["y"], expected)


def test_everything_that_does_not_fit_is_listed(bound) -> None:
    bound.bind(weights())
    before = bound.run({"x": X})["y"]
    with pytest.raises(InputError) as caught:
        bound.bind({"block.weight": np.zeros((3, 3)), "other": np.zeros(1), "more": np.zeros(1)})
    text = str(caught.value)
    for part in ("'block.bias' is missing", "'block.weight' has shape [3, 3], expected "
                 "[16, 8, 3, 3]", "'other' is unknown", "'more' is unknown"):
        assert part in text
    np.testing.assert_array_equal(bound.run({"x": X})["y"], before)
    bound.bind({**weights(), "other": np.zeros(1)}, strict=False)
    np.testing.assert_array_equal(bound.run({"x": X})["y"], before)


@pytest.mark.parametrize("weights", [3, b"bytes", ["list"]])
def test_other_kinds_of_weights_are_refused(bound, weights: object) -> None:
    with pytest.raises(InputError, match="expected a path, a mapping"):
        bound.bind(weights)


def test_files_that_hold_no_weights_are_refused(bound, path: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no weights"):
        bound.bind(path)
    with pytest.raises(InputError, match="holds no .safetensors"):
        bound.bind(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        bound.bind(tmp_path / "missing.safetensors")
    for name in ("a", "b"):
        save_file({"block.bias": np.zeros(16, np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(InputError, match="is in a.safetensors and in b.safetensors"):
        bound.bind(tmp_path)


def test_a_file_keeps_the_objective_of_its_schedules(tmp_path: Path) -> None:
    path = tmp_path / "many.smalti"
    compile_graph(graph(), objective="throughput").save(path, targets=LEVELS[:1])
    for recompile in (False, True):
        found = smalti.load(path, recompile=recompile)
        assert (found.recipe.options.objective, found.threads) == ("throughput", 1)
    with pytest.raises(InputError, match="known: latency"):
        smalti.compile(graph(), objective="speed")
