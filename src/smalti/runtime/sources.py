"""Where parameters come from: a function, a mapping of arrays, or a file that holds them by name.

    read, done = reading("weights.safetensors", needed={"w": (3, 4)}, known={"w"}, title="unet")
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from os import PathLike
from pathlib import Path

import numpy as np

from smalti.dataclass import dataclass
from smalti.errors import InputError
from smalti.graph.quantised import Quantised
from smalti.runtime.engine_file import SUFFIX, EngineFile
from smalti.runtime.tensor_file import TensorFile

Read = Callable[[str], np.ndarray | Quantised]
Done = Callable[[str], None]
Shape = tuple[int, ...]
Weights = Read | Mapping[str, np.ndarray | Quantised] | str | PathLike


def nothing(name: str) -> None:
    """Done with a parameter that needs no thanks."""


@dataclass(frozen=True)
class WeightSource:
    """Parameters by name: their shapes, and how to read one and let go of it.

    `whole` says that all of them are weights of one model, so that an unknown one is a mistake.
    """

    title: str
    shapes: Mapping[str, Shape]
    read: Read
    done: Done = nothing
    whole: bool = True


def opened(path: str | PathLike) -> WeightSource:
    """The parameters in a safetensors, ONNX or engine file, or in a folder of safetensors files.

    Raises InputError when there is nothing of that kind, CheckpointError or EngineError when a file
    is damaged.
    """
    path = Path(path)
    if path.is_dir():
        found = sorted(path.glob("*.safetensors"))
        if not found:
            raise InputError(f"the folder {path} holds no .safetensors file; give one that does, "
                             f"or a file")
        return _of_tensor_files(str(path), [TensorFile(file) for file in found])
    if path.suffix == SUFFIX:
        return _of_engine_file(EngineFile(path))
    if path.suffix == ".onnx":
        return _of_model(path)
    return _of_tensor_files(str(path), [TensorFile(path)])


def _of_tensor_files(title: str, files: list[TensorFile]) -> WeightSource:
    home: dict[str, TensorFile] = {}
    for file in files:
        for name in file:
            if name in home:
                raise InputError(f"{title}: the weight {name!r} is in {home[name].path.name} and "
                                 f"in {file.path.name}; give the file that is meant")
            home[name] = file
    return WeightSource(title, {name: file.shape(name) for name, file in home.items()},
                  lambda name: home[name].array(name), lambda name: home[name].drop(name))


def _of_engine_file(file: EngineFile) -> WeightSource:
    if not file.has_weights:
        raise InputError(f"{file.path} holds no weights; give a file that does, such as "
                         f".safetensors")
    shapes = {name: entry.shape for name, entry in file.parameters.items()}
    return WeightSource(str(file.path), shapes, file.array, file.drop)


def _of_model(path: Path) -> WeightSource:
    """The tensors of an ONNX file; some are no weights, but shapes and the like."""
    from smalti.frontend.onnx import read_model
    from smalti.frontend.onnx.weights import ModelTensors

    source = read_model(path)
    tensors = ModelTensors(source.proto, source.folder)
    shapes = {name: type.shape for name in tensors if (type := tensors.type(name)) is not None}
    return WeightSource(str(path), shapes, tensors.__getitem__, whole=False)


def reading(weights: Weights, done: Done, needed: Mapping[str, Shape], known: Collection[str],
            title: str, strict: bool) -> tuple[Read, Done]:
    """How to read each parameter that is `needed`, and let go of it, from any kind of `weights`.

    `known` are all that the model may have; others are refused where that is `strict`. Raises
    InputError listing all that are missing, unknown or of another shape. A function gives what it
    is asked for, so it is not asked beforehand.
    """
    if callable(weights):
        return weights, done
    if isinstance(weights, Mapping):
        shapes = {name: array.shape if isinstance(array, Quantised) else np.shape(array)
                  for name, array in weights.items()}
        source = WeightSource("the mapping", shapes, weights.__getitem__, done)
    elif isinstance(weights, str | PathLike):
        source = opened(weights)
    else:
        raise InputError(f"weights are {type(weights).__name__}; expected a path, a mapping of "
                         f"arrays or a function that reads one by its name")
    faults = [f"{name!r} is missing" for name in needed if name not in source.shapes]
    faults += [f"{name!r} has shape {list(source.shapes[name])}, expected {list(shape)}"
               for name, shape in needed.items()
               if name in source.shapes and tuple(source.shapes[name]) != tuple(shape)]
    if strict and source.whole:
        faults += [f"{name!r} is unknown" for name in source.shapes if name not in known]
    if faults:
        raise InputError("\n  ".join([f"{source.title} does not fit {title}, which has "
                                      f"{len(known)} weights:", *faults]))
    return source.read, source.done
