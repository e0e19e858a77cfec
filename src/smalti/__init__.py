"""Smalti: a prompt becomes a picture, and a graph a native program, through our own compiler.

    pipe = smalti.Pipeline.load()                     # the model that ships with Smalti
    result = pipe("a red apple")
    result.save("apple.png")                          # with its settings

    program = smalti.compile("model.onnx")            # a file, an onnx.ModelProto or a smalti.Graph
    outputs = program.run({"x": array})
    program.bind("weights.safetensors")               # other weights, the same program
    program.save("model.smalti")                      # an engine file: no weights, no compiling
    program = smalti.load("model.smalti")

    smalti.devices()                                  # what programs can run on
    smalti.check_device("vulkan:0")                   # every form of kernel, against numpy

Names are loaded when they are first used, so that `import smalti` costs next to nothing; it loads
no other module, not even `__future__`, so that Ctrl-C right after the start of a command finds no
import to interrupt.
"""

TYPE_CHECKING = False  # as `typing` has it, for which type checkers take any name like this

__version__ = "0.1.0"

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike
    from typing import Any, Literal

    import onnx

    from smalti.diffusion.control import Control
    from smalti.diffusion.guidance import Guide, Projected, SkipLayers
    from smalti.diffusion.options import PictureOptions
    from smalti.diffusion.pipeline import Pipeline
    from smalti.diffusion.preview import Preview
    from smalti.diffusion.result import Result, Step
    from smalti.diffusion.upscale import Upscaler
    from smalti.errors import (
        CheckpointError,
        DeviceError,
        EngineError,
        IllegalSchedule,
        InputError,
        NumericsError,
        OutputError,
        SmaltiError,
        UnknownDeviceError,
        UnknownFamilyError,
        UnknownOptionError,
        UnsupportedError,
        VerificationError,
    )
    from smalti.graph import Graph
    from smalti.runtime import Device, Program, load
    from smalti.runtime.check import CheckReport, check_device, check_target
    from smalti.runtime.devices import devices

_HOMES = {
    "smalti.diffusion.control": ("Control",),
    "smalti.diffusion.guidance": ("Guide", "Projected", "SkipLayers"),
    "smalti.diffusion.options": ("PictureOptions",),
    "smalti.diffusion.pipeline": ("Pipeline",),
    "smalti.diffusion.preview": ("Preview",),
    "smalti.diffusion.result": ("Result", "Step"),
    "smalti.diffusion.upscale": ("Upscaler",),
    "smalti.errors": (
        "CheckpointError", "DeviceError", "EngineError", "IllegalSchedule", "InputError",
        "NumericsError", "OutputError", "SmaltiError", "UnknownDeviceError",
        "UnknownFamilyError", "UnknownOptionError", "UnsupportedError", "VerificationError",
    ),
    "smalti.graph": ("Graph",),
    "smalti.runtime": ("Device", "Program", "devices", "load"),
    "smalti.runtime.check": ("CheckReport", "check_device", "check_target"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CheckReport", "CheckpointError", "Control", "Device", "DeviceError", "EngineError", "Graph",
    "Guide", "IllegalSchedule", "InputError", "NumericsError", "OutputError",
    "PictureOptions", "Pipeline", "Preview", "Program", "Projected", "Result", "SkipLayers",
    "SmaltiError", "Step", "UnknownDeviceError", "UnknownFamilyError", "UnknownOptionError",
    "UnsupportedError", "Upscaler", "VerificationError", "__version__", "check_device",
    "check_target", "compile", "devices", "load",
]


def __getattr__(name: str) -> "Any":
    """A public name, from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module 'smalti' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def compile(model: "Graph | onnx.ModelProto | str | PathLike[str]", *, device: str = "auto",
            precision: "Literal['auto', 'f32', 'f16', 'bf16', 'int8']" = "f32",
            shapes: "Mapping[str, Sequence[int] | int] | None" = None,
            threads: int | None = None, like: "Program | None" = None,
            objective: "Literal['latency', 'throughput', 'energy']" = "latency") -> "Program":
    """A native program for `model`: the path of an ONNX file, an onnx.ModelProto or a graph.

    Of an ONNX model the weights are bound already, and `bind` may swap them; a graph comes without.
    `shapes` fixes what a model leaves open, by input ({"x": (1, 3, 512, 512)}) or by dimension
    ({"batch": 1}). `precision` "bf16", or "f16" of GPUs, halves the bytes of weights and values.
    With "int8", on a CPU, large layers multiply integers of 8 bits (docs/compiler.md).
    `device` is one of `smalti.devices()`, "auto" the fastest of them. `threads` are the
    worker threads, default `SMALTI_THREADS`, else the cores that this process may use. `like` is a
    program of the same model for other shapes, with the same weights bound: what both pack the same
    way is shared. `objective` is what a CPU's schedules are chosen for (docs/machine.md): a run
    that is done soon, one of as many runs at once as there are cores, with one thread by default,
    or one that takes little energy. Raises InputError for another kind of model, a damaged one, an
    unknown device, precision or objective, or shapes that stay open, and UnsupportedError naming
    every node that cannot be compiled.

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
    from smalti.runtime import Program, compile_graph
    from smalti.runtime.choice import chosen

    device = chosen(device)
    if like is not None and not isinstance(like, Program):
        raise InputError(f"like is a {type(like).__name__}; expected a program, as compile makes "
                         f"it, or None")
    if isinstance(model, Graph):
        if not model.outputs:
            raise InputError(f"the graph {model.name!r} has no outputs; name what is to be "
                             f"computed with graph.output(name, value)")
        if shapes:
            raise InputError("the shapes of a smalti.Graph are fixed; give none")
        return compile_graph(model, precision=precision, threads=threads, like=like,
                             device=device, objective=objective)
    from os import PathLike

    from smalti.frontend.onnx.messages import is_model
    from smalti.runtime.models import compile_model

    if not (isinstance(model, str | PathLike) or is_model(model)):
        raise InputError(f"compile takes the path of an ONNX file, an onnx.ModelProto or a "
                         f"smalti.Graph, got {type(model).__name__}")
    return compile_model(model, shapes=shapes, precision=precision, threads=threads, like=like,
                         device=device, objective=objective)
