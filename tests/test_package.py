"""The public names, and compiling a graph of one's own."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

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
