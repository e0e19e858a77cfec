"""Networks that stand beside a model, each in a file of its own: ControlNets, upscalers, TAESD.

ControlNets are those for UNets, for Flux.1, for Stable Diffusion 3, for Qwen-Image and
for Z-Image.

    opened = open_companion("control_v11p_sd15_canny.safetensors")
    graph = controlnet_graph(opened.config, batch=2, height=64, width=64)
    program = compile_graph(graph, weights=opened.held(graph))
    program.bind(opened.given, opened.drop)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from smalti.checkpoint.companion_kind import (
    IDLE,
    TRAINED_ON,
    CompanionConfig,
    StatedKind,
    stored_in,
)
from smalti.checkpoint.container import INTEGERS, open_tensors
from smalti.checkpoint.file_kind import detect
from smalti.checkpoint.json_file import read_json
from smalti.checkpoint.tensors import StoredTensor, held_as
from smalti.errors import CheckpointError, first_of
from smalti.graph import Graph
from smalti.graph.quantised import Quantised
from smalti.runtime.inputs import checked_path
from smalti.runtime.tensor_file import Tensors

DENOISER = "model.diffusion_model."
"""What begins the names of parameters that a network reads from the model beside it."""
WEIGHTS = "diffusion_pytorch_model"
OTHERS = {
    "lora_controlnet": "a Control-LoRA, which needs the weights of the model that it was made for",
    "difference": "a ControlNet stored as the difference to a model",
    "controlnet_blocks.0.y_rms.weight": "a blockwise ControlNet for Qwen-Image, of DiffSynth",
    "adapter.body.0.in_conv.weight": "a T2I-Adapter",
    "body.0.resnets.0.block1.weight": "a T2I-Adapter",
}
"""A tensor that a file holds -> what the file is, which is not read here."""
HERE = ("controlnet", "esrgan", "taesd")
"""Kinds of files that are read here; what is of no known kind is looked at more closely."""
REFINED_BY = "add_control_noise_refiner"
"""What a folder of a ControlNet of Z-Image says of its refiners by."""
CANNY = 1
"""What a ControlNet of 3.5 large for edges says that it was trained on."""


class Companion:
    """A network in a file, by the names of its graph's parameters; weights stay in the file."""

    def __init__(self, path: str, config: CompanionConfig,
                 tensors: Mapping[str, StoredTensor]) -> None:
        self.path = path
        self.config = config
        self._tensors = tensors

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def names(self) -> tuple[str, ...]:
        """Names of all its parameters."""
        return tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a parameter."""
        return self._at(name).shape

    def dtype(self, name: str) -> str:
        """Dtype tag of a parameter as stored: "F32", "F16", "BF16", ..."""
        return self._at(name).dtype

    def floats(self, name: str) -> np.ndarray:
        """A float32, float16 or bfloat16 view of the file, else a float32 copy.

        Raises CheckpointError for a name that the network does not have.
        """
        return self._at(name).floats()

    def given(self, name: str) -> np.ndarray | Quantised:
        """A parameter as programs take it: `Quantised` where the file has it in a block format,
        else as `floats` gives it. Raises CheckpointError as that does."""
        return self._at(name).given()

    def held(self, graph: Graph) -> dict[str, str]:
        """The dtype of each parameter of `graph` that the file has as halves, or smaller."""
        found = {name: held_as(self.dtype(name)) for name in graph.parameters if name in self}
        return {name: dtype for name, dtype in found.items() if dtype is not None}

    def drop(self, name: str) -> None:
        """Let the system take back the memory that holds a parameter, until it is read again."""
        self._at(name).drop()

    def _at(self, name: str) -> StoredTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.path} holds no tensor {name!r}") from None


def open_companion(path: str | Path, pooled: bool | None = None) -> Companion:
    """The network in a file of any format, or in a diffusers folder of one model, which the file of
    its weights may be given for.

    `pooled` says of a ControlNet that only the mean over all pixels is handed on; where it is None,
    the folder says so, or "shuffle" in the name; "inpaint" there tells of one for a UNet that it
    fills parts of pictures. A number in the file, or "canny" in the name,
    tells of one for 3.5 large that it reads edges. Raises CheckpointError for a file that holds no
    such network, or one with tensors that are missing, too many or of other shapes.
    """
    path = Path(checked_path(path, "loading", "the path of a model file, or of a folder"))
    folder = path.parent if path.name.startswith(WEIGHTS) else path
    stated = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    file = open_tensors(_weights(path) if path.is_dir() else path)
    shapes = {name: file.shape(name) for name in file}
    for name, words in OTHERS.items():
        if name in shapes:
            raise CheckpointError(f"{path} is {words}; expected a whole ControlNet, an upscaler of "
                                  f"the ESRGAN family, or TAESD")
    found = detect(shapes)
    if found is not None and found.id not in HERE:
        raise CheckpointError(f"{path} is {found.words}; expected a ControlNet, an upscaler of the "
                              f"ESRGAN family, or TAESD")
    if pooled is None:
        pooled = stated.get("global_pool_conditions", "shuffle" in path.name.lower()) is True
    kind, stored = stored_in(shapes)
    tensors = {name: StoredTensor.of(file, name, expression) for name, expression in stored.items()}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    config = kind.config(path, shapes, StatedKind(stated, pooled, _is_canny(path, file),
                                                  _is_idle(stated, file),
                                                  "inpaint" in f"{folder.name}".lower()))
    idle = kind.idle(config)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(idle)}
    shapes = {name: shapes[name] for name in tensors}
    _check(path, config, kind.graphs(config, shapes), shapes)
    wrong = [name for name, tensor in tensors.items()
             if any(file.dtype(part) in INTEGERS for part in tensor.stored_names)]
    if wrong:
        raise CheckpointError(f"{path} holds integers where weights are expected: "
                              f"{first_of(wrong)}")
    return Companion(str(path), config, tensors)


def _weights(folder: Path) -> Path:
    """The file of weights in a folder; the full precision is preferred."""
    found = sorted(file for ending in (".safetensors", ".bin") for file in folder.glob(
        f"{WEIGHTS}*{ending}"))
    if not found:
        raise CheckpointError(f"{folder} holds no {WEIGHTS}.safetensors; expected the folder of a "
                              f"ControlNet or a tiny autoencoder, or a file")
    return min(found, key=lambda file: (file.suffix != ".safetensors", len(file.name)))


def _is_canny(path: Path, file: Tensors) -> bool:
    """Whether a ControlNet is for edges, as its file or else its name says."""
    if TRAINED_ON in file:
        return file.read(TRAINED_ON).tolist() in (CANNY, [CANNY])
    return "canny" in path.name.lower()


def _is_idle(stated: Mapping[str, object], file: Tensors) -> bool:
    """Whether refiners of a ControlNet of Z-Image were not trained, as its folder or else its
    zeros say."""
    if REFINED_BY in stated:
        return stated[REFINED_BY] == "control_layers"
    return IDLE in file and not file.read(IDLE).any()


def _check(path: Path, config: CompanionConfig, graphs: Sequence[Graph],
           shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointError unless the tensors are just those that the network has."""
    expected = {name: value.shape for graph in graphs
                for name, value in graph.parameters.items() if not name.startswith(DENOISER)}
    wrong = [f"{name} is {shapes.get(name, 'missing')}, expected {expected.get(name, 'no such')}"
             for name in sorted(expected.keys() | shapes.keys())
             if shapes.get(name) != expected.get(name)]
    if wrong:
        words = type(config).__name__.removesuffix("Config")
        raise CheckpointError(f"{path} looks like {words}, but {len(wrong)} of its tensors do not "
                              f"fit:\n  {first_of(wrong, separator=',' + chr(10) + '  ')}")
