"""The public names, and compiling a graph of one's own."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import smalti
from smalti.runtime.cpu.adapter import cpu

PACKAGES = [module.name for module in pkgutil.walk_packages(smalti.__path__, "smalti.")
            if module.ispkg]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_that_a_package_exports_is_there(name: str) -> None:
    package = importlib.import_module(name)
    missing = [each for each in getattr(package, "__all__", ()) if not hasattr(package, each)]
    assert not missing, f"{name} exports names that it does not have: {missing}"


def test_a_pipeline_for_the_cpu_loads_nothing_of_gpus_and_servers() -> None:
    """Importing takes the longest of what a small model waits for."""
    code = "import smalti.diffusion.pipeline, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True,
                            text=True).stdout.split()
    late = ("smalti.codegen.gpu.lower", "smalti.codegen.spirv.emit", "smalti.codegen.wgsl.emit",
            "smalti.runtime.gpu.program", "smalti.runtime.doctor", "smalti.fetch.remote", "ssl")
    assert "smalti.runtime.cpu.program" in loaded
    assert not {*late} & {*loaded}


@pytest.mark.parametrize("name", smalti.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(smalti, name) is not None
    assert name in dir(smalti)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pipeline_of_dreams'"):
        _ = smalti.pipeline_of_dreams


def linear() -> smalti.Graph:
    graph = smalti.Graph("linear")
    x, weight = graph.input("x", (3, 8)), graph.parameter("weight", (8, 5))
    graph.output("y", graph.apply("mat_mul", x, weight))
    return graph


def test_a_compiled_graph_computes_what_it_says() -> None:
    random = np.random.default_rng(0)
    x, weight = random.standard_normal((3, 8), np.float32), random.standard_normal((8, 5))
    program = smalti.compile(linear(), threads=1)
    program.bind({"weight": weight.astype(np.float32)}.__getitem__)
    np.testing.assert_allclose(program.run({"x": x})["y"], x @ weight, rtol=1e-5, atol=1e-5)


def test_compile_refuses_what_is_no_graph() -> None:
    with pytest.raises(smalti.InputError, match="takes the path of an ONNX file.*got list"):
        smalti.compile(["model.onnx"])


def test_compile_refuses_an_unknown_device() -> None:
    with pytest.raises(smalti.InputError, match="'cuda'; known: auto, cpu"):
        smalti.compile(linear(), device="cuda")


def test_compile_refuses_an_unknown_precision() -> None:
    with pytest.raises(smalti.InputError, match="f8"):
        smalti.compile(linear(), precision="f8")


@pytest.mark.parametrize("arguments, said", [
    ((None, {}), "got NoneType"), ((3, {}), "got int"),
    (("graph", {"device": 3}), "device is 3; expected \"auto\", or the id of one of"),
    (("graph", {"like": 3}), "like is a int; expected a program"),
    (("graph", {"threads": True}), "threads is True; expected a whole number"),
    ((smalti.Graph("empty"), {}), "the graph 'empty' has no outputs; name what is to be computed")])
def test_compile_refuses_other_misuse(arguments: tuple, said: str) -> None:
    model, options = arguments
    with pytest.raises(smalti.InputError, match=said):
        smalti.compile(linear() if model == "graph" else model, **options)


@pytest.mark.parametrize("load", [smalti.load, smalti.Pipeline.load, smalti.Upscaler.load,
                                  smalti.Preview.load])
def test_what_is_no_path_is_refused(load: Callable[[object], object]) -> None:
    with pytest.raises(smalti.InputError, match="is given 3; expected the path of a"):
        load(3)


def test_a_device_shows_what_one_asks_for_first() -> None:
    text = repr(smalti.devices()[0])
    assert text.startswith("Device(id='cpu', name=") and text.endswith(f"cores={cpu().cores})")


ELSEWHERE = """
import importlib, pkgutil, platform, sys
sys.modules["iced_x86"] = None
platform.machine = lambda: "riscv64"
import numpy, smalti
for module in pkgutil.walk_packages(smalti.__path__, "smalti."):
    if module.name not in %r and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
graph = smalti.Graph("sum")
graph.output("y", graph.apply("add", graph.input("x", (4,)), graph.input("z", (4,))))
x = numpy.arange(4, dtype="float32")
print(smalti.compile(graph, device="cpu").run({"x": x, "z": x})["y"].tolist())
from smalti.codegen.x86.encoding import encode
try:
    encode((), None, 0, 0)
except smalti.InputError as error:
    print(error)
"""
"""What is imported on a processor that there is no code generator for, what a graph computes there,
and what is said where code for x86 is asked for."""
NEEDS_MORE = ("smalti.codegen.x86.encoder", "smalti.runtime.webgpu.library")
"""Modules that import packages which are not installed everywhere; others call them when used."""


def test_other_processors_do_without_the_encoder_of_x86(
        environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", ELSEWHERE % (NEEDS_MORE,)], capture_output=True,
                          text=True, timeout=100, check=True, env=environment)
    computed, said = done.stdout.splitlines()
    assert computed == "[0.0, 2.0, 4.0, 6.0]"
    assert said.startswith("machine code for x86-64 is made with the package iced-x86, which is")


def test_one_module_imports_the_encoder_of_x86() -> None:
    named = {path.stem for path in Path(smalti.__file__).parent.rglob("*.py")
             if re.search(r"^ *(from|import) iced_x86", path.read_text(encoding="utf-8"), re.M)}
    assert named == {"encoder"}


def test_readme_counts_what_there_is() -> None:
    from smalti import machine
    from smalti.diffusion.noise import NOISES
    from smalti.diffusion.samplers import SAMPLERS

    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"{len(SAMPLERS)} samplers and {len(NOISES)} noise schedules" in text
    assert f"a library of {len(machine.devices())} GPUs and CPUs" in text
