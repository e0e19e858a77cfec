"""Smalti: a prompt becomes a picture, and a graph a native program, through our own compiler.

    pipe = smalti.Pipeline.load()                     # the model that ships with Smalti
    result = pipe("a red apple")
    result.images[0].save("apple.png")

    program = smalti.compile(graph)                   # any smalti.Graph
    program.bind(parameters)
    outputs = program.run({"x": array})
    program.save("model.smalti")                      # an engine file: no weights, no compiling
    program = smalti.load("model.smalti")

    smalti.devices()                                  # what programs can run on

Names are loaded when they are first used, so that `import smalti` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

__version__ = "0.1.0"

if TYPE_CHECKING:
    from smalti.diffusion.pipeline import Pipeline, Result, Step
    from smalti.errors import (
        CheckpointError, DeviceError, EngineError, IllegalSchedule, InputError, NumericsError,
        OutputError, SmaltiError, UnknownFamilyError, UnsupportedError, VerificationError,
    )
    from smalti.graph import Graph
    from smalti.runtime import Device, Program, devices, load

_HOMES = {
    "smalti.diffusion.pipeline": ("Pipeline", "Result", "Step"),
    "smalti.errors": (
        "CheckpointError", "DeviceError", "EngineError", "IllegalSchedule", "InputError",
        "NumericsError", "OutputError", "SmaltiError", "UnknownFamilyError", "UnsupportedError",
        "VerificationError",
    ),
    "smalti.graph": ("Graph",),
    "smalti.runtime": ("Device", "Program", "devices", "load"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CheckpointError", "Device", "DeviceError", "EngineError", "Graph", "IllegalSchedule",
    "InputError", "NumericsError", "OutputError", "Pipeline", "Program", "Result", "SmaltiError",
    "Step", "UnknownFamilyError", "UnsupportedError", "VerificationError", "__version__", "compile",
    "devices", "load",
]


def __getattr__(name: str) -> Any:
    """A public name, from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module 'smalti' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def compile(model: Graph, *, device: str = "auto", precision: Literal["f32"] = "f32",
            threads: int | None = None) -> Program:
    """A native program for `model`, without weights: `bind` gives it those.

    `threads` are the worker threads, default `SMALTI_THREADS`, else the cores that this process may
    use. Operations that no kernel computes run as their numpy meaning; `program.explain()` names
    them. Raises InputError for another kind of model, an unknown device or precision.

    >>> import numpy as np, smalti
    >>> graph = smalti.Graph("twice")
    >>> x = graph.input("x", (2, 16))
    >>> graph.output("y", x + x)
    >>> program = smalti.compile(graph, threads=1)
    >>> float(program.run({"x": np.ones((2, 16), np.float32)})["y"].sum())
    64.0
    """
    from smalti.errors import InputError
    from smalti.graph import Graph
    from smalti.runtime import compile_graph, devices

    if not isinstance(model, Graph):
        raise InputError(f"compile takes a smalti.Graph, got {type(model).__name__}; "
                         f"build one with smalti.Graph()")
    known = [entry.id for entry in devices()]
    if device not in ("auto", *known):
        raise InputError(f"no device is named {device!r}; known: auto, {', '.join(known)}")
    return compile_graph(model, precision=precision, threads=threads)
