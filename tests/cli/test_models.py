"""`compile`, `run`, `inspect` and `explain` of ONNX models and engine files."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from cli.test_commands import refused, run
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from safetensors.numpy import save_file

from smalti.cli.arrays import file_names, parse_shapes, read_inputs, write_outputs
from smalti.errors import InputError
from smalti.graph import Graph
from smalti.runtime import engine_writer
from smalti.runtime.cpu.recipe import recipe_of
from smalti.runtime.engine_file import EngineFile
from smalti.runtime.vulkan import VulkanAdapter

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((8, 4)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = relu(x w + 1), of as many rows as there are, and how many of them."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
             helper.make_node("Add", ["h", "one"], ["s"]),
             helper.make_node("Relu", ["s"], ["/model/y"]),
             helper.make_node("Shape", ["x"], ["shape"])]
    graph = helper.make_graph(
        nodes, "small", [helper.make_tensor_value_info("x", T.FLOAT, ["rows", 8])],
        [helper.make_tensor_value_info("/model/y", T.FLOAT, ["rows", 4]),
         helper.make_tensor_value_info("shape", T.INT64, [2])],
        [numpy_helper.from_array(WEIGHT, "w"),
         numpy_helper.from_array(np.array(1, np.float32), "one")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    onnx.save(proto, tmp_path / "small.onnx")
    np.save(tmp_path / "x.npy", np.arange(24, dtype=np.float32).reshape(3, 8) / 24)
    return tmp_path / "small.onnx"


def expected(weight: np.ndarray = WEIGHT) -> np.ndarray:
    x = np.arange(24, dtype=np.float32).reshape(3, 8) / 24
    return np.maximum(x @ weight + 1, 0)


def test_a_model_is_compiled_and_run(model: Path, tmp_path: Path) -> None:
    engine, out = tmp_path / "other.smalti", tmp_path / "out"
    result = run("compile", model, "-o", engine, "--shape", "rows=3", "--target", "avx2,avx512")
    assert result.exit_code == 0, result.output
    assert "avx2, avx512, f32" in result.stdout and "without weights" in result.stdout
    assert EngineFile(engine).targets == ("avx2", "avx512")
    for source in (model, engine):
        weights = () if source == model else ("--weights", model)
        result = run("run", source, f"x={tmp_path / 'x.npy'}", *weights, "-o", out)
        assert result.exit_code == 0, result.output
        found = np.load(out / "_model_y.npy")
        np.testing.assert_allclose(found, expected(), rtol=1e-5)
        assert "first run" in result.stderr and "/model/y: float32[3, 4]" in result.stdout
    assert np.load(out / "shape.npy").tolist() == [3, 8]


def test_weights_in_the_file_or_beside_it(model: Path, tmp_path: Path) -> None:
    other = {"w": RNG.standard_normal((8, 4)).astype(np.float32)}
    save_file(other, tmp_path / "other.safetensors")
    assert run("compile", model, "--shape", "x=3,8", "--with-weights").exit_code == 0
    engine, given = model.with_suffix(".smalti"), f"x={tmp_path / 'x.npy'}"
    for options, weight in (((), WEIGHT),
                            (("--weights", tmp_path / "other.safetensors"), other["w"]),
                            (("--recompile",), WEIGHT)):
        result = run("run", engine, given, "-o", tmp_path / "out.npz", *options)
        assert result.exit_code == 0, result.output
        np.testing.assert_allclose(np.load(tmp_path / "out.npz")["/model/y"], expected(weight),
                                   rtol=1e-5)


def test_an_engine_file_without_weights_asks_for_them(model: Path, tmp_path: Path) -> None:
    run("compile", model, "--shape", "rows=3")
    engine = model.with_suffix(".smalti")
    refused(run("run", engine, f"x={tmp_path / 'x.npy'}"), "small.smalti holds no weights",
            "give --weights FILE")
    refused(run("run", engine, "--random", "--weights", engine), "holds no weights")
    refused(run("compile", engine, "--target", "avx2"), "give another with -o")
    refused(run("compile", engine, "-o", tmp_path / "b.smalti", "--with-weights"),
            "small.smalti holds no weights", "give --weights FILE")
    refused(run("run", engine, "--random", "--weights", model, "--precision", "bf16"),
            "--precision to `smalti compile`")


def test_other_weights_are_put_into_a_file(model: Path, tmp_path: Path) -> None:
    save_file({"w": 2 * WEIGHT}, tmp_path / "other.safetensors")
    run("compile", model, "--shape", "rows=3")
    for source, shape in ((model, ("--shape", "rows=3")), (model.with_suffix(".smalti"), ())):
        result = run("compile", source, *shape, "-o", tmp_path / "whole.smalti", "--weights",
                     tmp_path / "other.safetensors", "--with-weights")
        assert result.exit_code == 0, result.output
        np.testing.assert_array_equal(EngineFile(tmp_path / "whole.smalti").array("w"), 2 * WEIGHT)


def test_random_inputs_and_times(model: Path) -> None:
    result = run("run", model, "--random", "--shape", "rows=2", "--runs", 3)
    assert result.exit_code == 0, result.output
    assert "/model/y: float32[2, 4]" in result.stdout and "median of 3 runs" in result.stderr


def test_an_engine_file_is_compiled_for_other_targets(model: Path, tmp_path: Path) -> None:
    run("compile", model, "-o", tmp_path / "a.smalti", "--shape", "rows=3", "--with-weights")
    result = run("compile", tmp_path / "a.smalti", "-o", tmp_path / "b.smalti", "--target", "avx2",
                 "--with-weights")
    assert result.exit_code == 0, result.output
    file = EngineFile(tmp_path / "b.smalti")
    assert file.targets == ("avx2",) and file.has_weights
    np.testing.assert_array_equal(file.array("w"), WEIGHT)


def test_what_is_held_as_halves_stays_so_for_other_targets(tmp_path: Path) -> None:
    g = Graph("halves")
    g.output("y", g.apply("mat_mul", g.input("x", (9, 128)), g.parameter("w", (128, 128))))
    given = {"w": RNG.standard_normal((128, 128)).astype(np.float16)}
    recipe = recipe_of(g, "f32", (), 1, {"w": "f16"})
    engine_writer.save(recipe, tmp_path / "a.smalti", targets=("avx2",),
                       weights=given, with_weights=True)
    result = run("compile", tmp_path / "a.smalti", "-o", tmp_path / "b.smalti", "--target",
                 "avx512", "--with-weights", "--threads", 1)
    assert result.exit_code == 0, result.output
    file = EngineFile(tmp_path / "b.smalti")
    assert file.about.weights == (("w", "f16"),) and file.array("w").dtype == np.float16
    assert [slot.dtype for slot in file.module("avx512").slots] == ["f16"]


def test_inspect_and_explain(model: Path, tmp_path: Path) -> None:
    engine = tmp_path / "small.smalti"
    run("compile", model, "-o", engine, "--shape", "rows=3")
    result = run("inspect", model)
    assert result.exit_code == 0, result.output
    assert "MatMul 1" in result.stdout and "f32[rows, 8]" in result.stdout
    assert "leaves dimensions open" in result.stdout
    assert "yes: 1 kernels; as numpy on the host: " in run(
        "inspect", model, "--shape", "rows=3").stdout
    result = run("inspect", engine)
    assert "hashes of 1 are noted" in result.stdout and "f32[3, 8]" in result.stdout
    for source, options in ((model, ("--shape", "rows=3")), (engine, ())):
        result = run("explain", source, *options)
        assert result.exit_code == 0 and "contraction" in result.stdout, result.output


def test_engine_files_are_explained_for_devices_that_they_have_code_for(
        model: Path, tmp_path: Path, adapter: VulkanAdapter) -> None:
    engine = tmp_path / "small.smalti"
    run("compile", model, "-o", engine, "--shape", "rows=3")
    refused(run("explain", engine, "--device", "vulkan:0"), "and vulkan:0 runs spirv")
    run("compile", model, "-o", engine, "--shape", "rows=3", "--target", "vulkan")
    for source, options in ((model, ("--shape", "rows=3")), (engine, ())):
        result = run("explain", source, *options, "--device", "vulkan:0")
        assert result.exit_code == 0 and adapter.name in result.stdout, result.output


@pytest.mark.parametrize("arguments, said", [
    (("run", "missing.onnx", "--random"), "missing.onnx"),
    (("run", "small.onnx"), "or on the command line --shape x=1,8"),
    (("run", "small.onnx", "--shape", "rows=3"), "inputs x f32[3, 8]; none given. Give x=FILE.npy"),
    (("run", "small.onnx", "--random", "--shape", "n=3"), "x: [rows, 8] (axis 0 named 'rows')"),
    (("run", "x.npy", "--random"), "give an .onnx file"),
    (("run", "small.onnx", "x"), "NAME=FILE.npy"),
    (("run", "small.onnx", "x=small.onnx"), "cannot be read as an array"),
    (("run", "small.onnx", "y=x.npy"), "shapes are given for y"),
    (("run", "small.onnx", "x=x.npy", "--random"), "--random makes all"),
    (("run", "small.onnx", "x=x.npy", "--recompile"), "for engine files"),
    (("run", "small.onnx", "x=x.npy", "-o", "no/out"), "no folder no"),
    (("run", "small.onnx", "x=x.npy", "-o", "out.npy"), "ends in .npz"),
    (("run", "small.onnx", "x=x.npy", "-o", "x.npy"), "ends in .npz"),
    (("run", "x.npy", "--random"), "ONNX"),
    (("compile", "."), ". is no file"),
    (("profile", "none"), "none is neither a file nor a model of the suite"),
    (("compile", "small.onnx", "--shape", "rows=3", "-o", "small.onnx"), "would replace"),
    (("export", "mlir", "small.onnx", "--shape", "rows=3", "-o", "small.onnx"), "would replace"),
    (("run", "small.onnx", "x=x.npy", "x=x.npy"), "given twice"),
    (("compile", "small.onnx"), "leaves dimensions open"),
    (("compile", "small.onnx", "--shape", "rows"), "--shape is 'rows'"),
    (("compile", "small.onnx", "--shape", "rows=3", "--target", "sse"), "known: neon, neon_dot, "),
    (("compile", "small.onnx", "--shape", "rows=3", "--target", ""), "--target is ''; expected"),
    (("compile", "small.onnx", "--shape", "rows=3", "-o", "a.onnx"), "a name that ends in .smalti"),
    (("run", "small.onnx", "x="), "the input is 'x='; expected NAME=FILE.npy"),
    (("run", "small.onnx", "=x.npy"), "the input is '=x.npy'; expected NAME=FILE.npy"),
    (("bench", "--models", ""), "--models is ''; expected some of tiny_cnn"),
    (("tune", "--import", "missing"), "missing cannot be read: No such file or directory; give"),
    (("dojo", "score", "--agent", "x.npy"), "is no agent that `smalti dojo train` wrote"),
    (("devices", "nix"), "by the names of their makers, such as rtx_4060"),
    (("compile", "small.onnx", "--shape", "rows=3", "-o", "no/a.smalti"), "no folder"),
    (("compile", "small.onnx", "--shape", "rows=3", "--precision", "f8"), "f8"),
    (("compile", "small.onnx", "--shape", "rows=3", "--objective", "x"), "known: latency"),
    (("inspect", "x.npy"), "x.npy"),
    (("explain", "small.onnx", "--part", "unet"), "for checkpoints"),
])
def test_bad_input_is_one_message(model: Path, tmp_path: Path, arguments: tuple[str, ...],
                                  said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    refused(run(*arguments), said)
    assert sorted(tmp_path.iterdir()) == before


def test_shapes_that_depend_on_values_run_in_stages(tmp_path: Path) -> None:
    graph = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"], "places")], "where",
                              [helper.make_tensor_value_info("x", T.FLOAT, ["n"])],
                              [helper.make_tensor_value_info("y", T.INT64, [1, None])])
    model = tmp_path / "where.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), model)
    np.save(tmp_path / "x.npy", np.array([0, 1, 2], np.float32))
    refused(run("compile", model, "--shape", "n=3"), "`smalti run`", "places: NonZero")
    said = run("inspect", model, "--shape", "n=3").stdout
    assert "in stages, while it runs" in said and "places: NonZero" in said
    assert "y: int64[1, 2], 1 to 2" in run("run", model, f"x={tmp_path / 'x.npy'}").stdout


def test_a_model_is_profiled_and_tuned(model: Path) -> None:
    result = run("profile", model, "--shape", "rows=3", "--runs", 1, "--threads", 1)
    assert result.exit_code == 0 and "| contraction " in result.stdout, result.output
    result = run("tune", model, "--shape", "rows=3", "--budget", 1, "--threads", 1)
    assert result.exit_code == 0, result.output
    for command in ("profile", "tune"):
        refused(run(command, model), "leaves dimensions open")
        refused(run(command, "tiny_cnn", "--shape", "x=1"), "--shape is for .onnx models")
    refused(run("profile", model, "--part", "vae"), "is an .onnx file; --part and --size are for")


@pytest.mark.parametrize("command", ["profile", "tune"])
def test_a_cpu_without_a_feature_level_has_no_kernels_to_measure(
        command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smalti.runtime.cpu.driver.available_levels", lambda: ())
    refused(run(command, "tiny_cnn"), "there is no code for this CPU")


def test_a_damaged_engine_file_is_one_message(model: Path, tmp_path: Path) -> None:
    engine = tmp_path / "small.smalti"
    run("compile", model, "-o", engine, "--shape", "rows=3")
    engine.write_bytes(engine.read_bytes()[:-5])
    for command in (("run", engine, "--random"), ("inspect", engine), ("explain", engine),
                    ("compile", engine, "-o", tmp_path / "b.smalti")):
        refused(run(*command), "small.smalti", "smalti compile")


def test_objects_in_array_files_are_never_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read as an array"):
        read_inputs([f"x={tmp_path / 'a.npy'}"])
    np.savez(tmp_path / "b.npz", x=np.ones(2), y=np.zeros(3))
    assert {n: a.tolist() for n, a in read_inputs([str(tmp_path / "b.npz")]).items()} == {
        "x": [1, 1], "y": [0, 0, 0]}


def test_results_may_have_any_name_in_an_archive(tmp_path: Path) -> None:
    outputs = {name: np.full(3, number, np.float32)
               for number, name in enumerate(("file", "allow_pickle", "/model/y"))}
    path = tmp_path / "out.npz"
    assert write_outputs(path, outputs) == [path]
    with np.load(path) as found:
        assert {name: found[name].tolist() for name in found.files} == {
            name: array.tolist() for name, array in outputs.items()}


@pytest.mark.parametrize("zipped", [False, True])
def test_no_size_of_an_array_file_is_believed(tmp_path: Path, zipped: bool) -> None:
    """A header of 96 bytes that says 576 GB, alone and in an archive."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (18000000000, 8), }".ljust(117)
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.encode() + b"\n" + bytes(96)
    path = tmp_path / ("a.npz" if zipped else "a.npy")
    if zipped:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("x.npy", content)
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"float32\[18000000000, 8\], which is 576,000,000,000 "
                                         r"bytes; there are 96\); give a .npy"):
        read_inputs([str(path) if zipped else f"x={path}"])


@pytest.mark.parametrize("content, why", [
    (None, "is no file; give"), (b"", "does not begin as .npy files do"),
    (b"\x93NUMPY\x03\x00", "version 3.0 of the format"), (b"PK\x05\x06" + bytes(17), "npy")])
def test_what_is_no_array_file_is_refused(tmp_path: Path, content: bytes | None,
                                          why: str) -> None:
    path = tmp_path / "a.npy"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=why):
        read_inputs([f"x={path}"])


def test_arrays_without_elements_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((0, 8), np.float32))
    assert read_inputs([f"x={tmp_path / 'a.npy'}"])["x"].shape == (0, 8)


def test_inputs_that_memory_cannot_hold_are_refused_before_they_are_made(model: Path) -> None:
    refused(run("run", model, "--random", "--shape", "rows=18000000000"), " GB of memory, and ",
            "GB are free; choose smaller shapes")


@pytest.mark.parametrize("value, said", [
    (1e300, "holds 1e+300 at [0, 0], which f32 (up to 3.40282e+38) cannot hold; scale or clip"),
    (16777217, "holds 16777217 at [0, 0], which f32 cannot hold exactly")])
def test_numbers_that_an_input_cannot_hold_are_refused(model: Path, tmp_path: Path,
                                                       value: float, said: str) -> None:
    np.save(tmp_path / "a.npy", np.full((3, 8), value))
    refused(run("run", model, f"x={tmp_path / 'a.npy'}"), said)


def test_results_never_leave_their_folder() -> None:
    assert file_names(["../a", "..", "a/b", "a_b", "A_B", "", "ü"]) == [
        ".._a", ".._2", "a_b", "a_b_2", "A_B_3", "_2", "_"]


def test_shapes() -> None:
    assert parse_shapes(["x=", "n=1", "y=1,2"]) == {"x": (), "n": 1, "y": (1, 2)}
    with pytest.raises(InputError, match="once a name"):
        parse_shapes(["x=1", "x=2"])


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_no_half_file(environment: dict[str, str], tmp_path: Path) -> None:
    """Interrupted while it writes the weights."""
    code = ("import sys, time\n"
            "import smalti.runtime.engine_writer as e\n"
            "from smalti.graph import Graph\n"
            "from smalti.runtime.cpu.recipe import recipe_of\n"
            "g = Graph('g'); x = g.input('x', (1, 4))\n"
            "g.output('y', x * g.parameter('w', (4,)))\n"
            "class Slow(dict):\n"
            "    def __getitem__(self, name):\n"
            "        print('reading', flush=True); time.sleep(60)\n"
            "import numpy as np\n"
            "e.save(recipe_of(g, 'f32', (), 1), sys.argv[1], targets=('avx2',),\n"
            "       weights=Slow(w=np.ones(4, np.float32)), with_weights=True)\n")
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "a.smalti")],
                               env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    assert process.stdout.readline() == "reading\n"
    assert [p.suffix for p in tmp_path.iterdir()] == [".part"]
    time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert not list(tmp_path.iterdir())


def test_random_rows_of_a_table_are_among_those_it_has(tmp_path: Path) -> None:
    """Of 2 rows, as drawn for any integers, a model with one row has too few."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["w", "i"], ["y"])], "table",
        [helper.make_tensor_value_info("i", T.INT64, [64])],
        [helper.make_tensor_value_info("y", T.FLOAT, [64, 4])],
        [numpy_helper.from_array(WEIGHT[:1], "w")])
    path = tmp_path / "table.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    result = run("run", path, "--random")
    assert result.exit_code == 0, result.output
