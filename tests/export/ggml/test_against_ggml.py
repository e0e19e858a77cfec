"""Projects built with a real ggml, against ONNX Runtime; each operation against the reference."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from ggml_builds import Project, build, built_ggml
from ggml_graphs import hostile_graph, operations_graph, weights_of
from tiny_suite import TINY_CASES

from smalti.benchmark.agreement import largest_error, relative_error
from smalti.benchmark.engines import ENGINES, Job
from smalti.benchmark.engines import export as export_onnx
from smalti.export.ggml import export
from smalti.export.ggml.names import identifier
from smalti.frontend.onnx import load
from smalti.graph import Graph, evaluate

pytestmark = pytest.mark.peers

ERROR_MAX = 1e-5
"""The bound is 1e-3; what is found is below 2e-6."""
F16_ERROR_MAX = 5e-3
WARNINGS = "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"


@pytest.fixture(scope="session")
def prefix() -> Path:
    """Where ggml is installed."""
    return built_ggml()


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ONNX files are."""
    return tmp_path_factory.mktemp("onnx")


def project_of(graph: Graph, weights: Mapping[str, np.ndarray], folder: Path, prefix: Path,
               **options: str) -> Project:
    export(graph, weights, folder, **options)
    return build(folder, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", WARNINGS)


def in_order(graph: Graph, found: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Arrays of files in the order of the graph's outputs."""
    return [found[identifier(name)] for name in graph.outputs]


@pytest.mark.parametrize("name", TINY_CASES)
def test_models_agree_with_onnx_runtime(name: str, prefix: Path, exports: Path,
                                        tmp_path: Path) -> None:
    """Our own graph and the import of the ONNX file, both with the weights of the PyTorch module
    that the file was exported from."""
    case = TINY_CASES[name]
    job = Job(case, "f32", 1, exports)
    export_onnx(job)
    expected = ENGINES["onnxruntime"].prepare(job).outputs()
    graph, imported = case.graph(), load(job.onnx)
    for folder, source, weights in (("own", graph, weights_of(graph)),
                                    ("onnx", imported.graph, imported.parameters)):
        project = project_of(source, weights, tmp_path / folder, prefix)
        found = in_order(source, project.run(case.inputs()))
        assert largest_error(found, expected) <= ERROR_MAX, folder
        found = in_order(source, project.run(case.inputs(), "--conv-direct"))
        assert largest_error(found, expected) <= ERROR_MAX, f"{folder}, direct convolution"


def test_f16_weights_cost_little(prefix: Path, tmp_path: Path) -> None:
    case = TINY_CASES["unet"]
    graph = case.graph()
    weights = weights_of(graph)
    expected = evaluate(graph, case.inputs(), weights)
    project = project_of(graph, weights, tmp_path / "f16", prefix, precision="f16")
    (error,) = (relative_error(project.run(case.inputs())[name], expected[name])
                for name in expected)
    assert 1e-6 < error <= F16_ERROR_MAX


def test_operations_agree_with_the_reference(prefix: Path, tmp_path: Path) -> None:
    graph, inputs = operations_graph()
    weights = weights_of(graph)
    expected = evaluate(graph, inputs, weights)
    found = project_of(graph, weights, tmp_path / "a", prefix).run(inputs)
    assert len(found) == len(expected)
    wrong = []
    for name, array in expected.items():
        result = found[identifier(name)]
        size = max(np.abs(array.astype(np.float64)).max(), 1.0)
        if result.shape != array.shape or not np.abs(result - array).max() <= 2e-6 * size:
            wrong.append(name)
    assert not wrong


def test_hostile_names_compile_and_run(prefix: Path, tmp_path: Path) -> None:
    graph = hostile_graph()
    inputs = {name: np.random.default_rng(i).standard_normal(3, np.float32)
              for i, name in enumerate(graph.inputs)}
    expected = evaluate(graph, inputs, weights_of(graph))
    found = project_of(graph, weights_of(graph), tmp_path / "a", prefix).run(inputs)
    assert len(found) == len(expected)
    assert relative_error(found["sum"], expected["sum"]) <= ERROR_MAX
    assert relative_error(found["class_"], expected["class"]) <= ERROR_MAX


# ---------------------------------------------------------------------- the program


@pytest.fixture(scope="module")
def gathering(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """table[ids] * x, of a table [5, 2]."""
    g = Graph("gathering")
    table = g.parameter("table", (5, 2))
    y = g.apply("gather", table, g.input("ids", (3,), "i64"))
    g.output("y", y * g.input("x", (3, 2)))
    g.input("unread", (1,))
    return project_of(g, {"table": np.arange(10, dtype=np.float32).reshape(5, 2)},
                      tmp_path_factory.mktemp("gathering") / "a", prefix)


IDS, X, UNREAD = np.array([4, 0, 2]), np.full((3, 2), 2, np.float32), np.zeros(1, np.float32)
EXPECTED = [[16, 18], [0, 2], [8, 10]]


@pytest.mark.parametrize("ids", [IDS, IDS.astype(np.int32)])
@pytest.mark.parametrize("x", [X, X.astype(np.float64)])
def test_numbers_of_either_size_are_read(gathering: Project, ids: np.ndarray,
                                         x: np.ndarray) -> None:
    assert gathering.run({"ids": ids, "x": x, "unread": UNREAD})["y"].tolist() == EXPECTED


def started(project: Project, *arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run([str(project.program), *map(str, arguments)], capture_output=True,
                          text=True, check=False, timeout=60, cwd=project.folder)


def test_raw_elements_are_read_and_runs_repeat(gathering: Project, tmp_path: Path) -> None:
    for name, array in (("ids", IDS.astype(np.int32)), ("x", X), ("unread", UNREAD)):
        (tmp_path / name).write_bytes(array.tobytes())
    done = started(gathering, *(f"{name}={tmp_path / name}" for name in ("ids", "x", "unread")),
                   "-o", tmp_path, "--repeat", 3, "--device", "CPU", "--threads", 2)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("CPU ") == 3
    assert np.load(tmp_path / "y.npy").tolist() == EXPECTED


def test_the_folder_of_outputs_is_made(gathering: Project, tmp_path: Path) -> None:
    for name, array in (("ids", IDS), ("x", X), ("unread", UNREAD)):
        np.save(tmp_path / f"{name}.npy", array)
    done = started(gathering, *(f"{name}={tmp_path / name}.npy" for name in ("ids", "x", "unread")),
                   "-o", tmp_path / "new" / "results")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "new" / "results" / "y.npy").tolist() == EXPECTED


def test_help_lists_inputs_and_outputs(gathering: Project) -> None:
    done = started(gathering, "--help")
    assert done.returncode == 0 and "  input   ids i32(3,)" in done.stdout
    assert "  output  y f32(3,2,) -> y.npy" in done.stdout and "here: CPU" in done.stdout


@pytest.mark.parametrize(("change", "said"), [
    ({"ids": None}, "the input ids is missing"),
    ({"x": np.zeros((2, 3), np.float32)}, "its shape is (2,3,); (3,2,) is expected"),
    ({"x": np.zeros((3, 2), np.int32)}, "its elements are <i4; <f4 or <f8 is expected"),
    ({"x": np.asfortranarray(X)}, "Fortran order"),
    ({"ids": np.array([0, 1, 2**40])}, "element 2 does not fit 32 bits"),
    ({"x": b"1234"}, "it has 4 bytes; 24 are expected"),
    ({"x": b"\x93NUMPY\x01\x00\xff\xff{"}, "its header is cut off"),
    ({"x": b"\x93NUMPY\x01\x00\x02\x00{}"}, "the header has no shape"),
    ({"y": X}, "is none of the inputs"),
    ({"x": "no-such-file"}, "it cannot be read"),
])
def test_inputs_that_do_not_fit_are_refused(gathering: Project, tmp_path: Path, change: dict,
                                            said: str) -> None:
    arguments = []
    for name, given in {"ids": IDS, "x": X, "unread": UNREAD, **change}.items():
        path = tmp_path / f"{name}.npy"
        if isinstance(given, bytes):
            path.write_bytes(given)
        elif isinstance(given, np.ndarray):
            np.save(path, given)
        if given is not None:
            arguments.append(f"{name}={given if isinstance(given, str) else path}")
    done = started(gathering, *arguments, "-o", tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and said in done.stderr


@pytest.mark.parametrize(("options", "said"), [
    (("--device", "TPU0"), "no device is named 'TPU0'"), (("--threads", "0"), "whole number"),
    (("--repeat",), "needs a value"), (("--weights", "no-such-file"), "cannot be read"),
    (("--weights", "cut.gguf"), "cut off"),
    (("-o", "cut.gguf"), "cannot write to the folder cut.gguf")])
def test_options_that_cannot_be_used_are_refused(gathering: Project, tmp_path: Path,
                                                 options: tuple, said: str) -> None:
    weights = (gathering.folder / "weights.gguf").read_bytes()
    (gathering.folder / "cut.gguf").write_bytes(weights[:-40])
    arguments = []
    for name, array in (("ids", IDS), ("x", X), ("unread", UNREAD)):
        np.save(tmp_path / f"{name}.npy", array)
        arguments.append(f"{name}={tmp_path / f'{name}.npy'}")
    done = started(gathering, *arguments, *options)
    assert done.returncode == 2 and said in done.stderr
