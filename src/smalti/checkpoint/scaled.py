"""Weights that need numbers beside them: scaled 8-bit floats and integers as ComfyUI stores them.

`<module>.weight` is multiplied with `<module>.scale_weight` (the file then holds a tensor
`scaled_fp8`), or with `<module>.weight_scale` (then `<module>.comfy_quant` holds JSON that names
the format). Scales of the inputs are for machines that multiply 8-bit floats, and left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from smalti.dataclass import dataclass
from smalti.errors import CheckpointError
from smalti.runtime.tensor_file import TensorEntry, Tensors

SCALES = (".scale_weight", ".weight_scale")
INPUT_SCALES = (".scale_input", ".input_scale")
MARKER, DESCRIPTION = "scaled_fp8", ".comfy_quant"
DESCRIPTION_BYTES_MAX = 10_000
SCALED_TYPES = {tag: f"{tag}_SCALED" for tag in ("F8_E4M3", "F8_E5M2", "I8", "F16", "BF16", "F32")}
"""Dtype tag of the numbers -> that of the weight which they are with their scale."""
DESCRIBED = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "int8_tensorwise": "I8"}

OTHERS = (
    (".absmax", "quantised by bitsandbytes, without what describes it"),
    (".wscales", "quantised by Nunchaku (SVDQuant)"),
    (".qzeros", "quantised by GPTQ or AWQ"),
    (".qweight", "quantised by GPTQ, AWQ or Nunchaku"),
    (".weight_scale_2", "quantised to NVFP4"),
    (".weight_scale_inv", "8-bit floats with a scale for each square of 128"),
    (".SCB", "quantised by bitsandbytes (8 bits)"),
)
"""End or part of a name -> what such a file is."""


@dataclass(frozen=True)
class ScaledEntry(TensorEntry):
    """A weight, and the name of the tensor that it is to be multiplied with."""

    scale: str


def unscaled(file: Tensors) -> Tensors:
    """`file` itself, or its tensors with their scales applied when they are read.

    Raises CheckpointError for weights in a format that is not read, and for scales that fit none.
    """
    for part, what in OTHERS:
        found = next((name for name in file if part in name), None)
        if found is not None:
            raise CheckpointError(f"{file.path} is {what} (it holds {found!r:.120}), which Smalti"
                                  " does not read; take a GGUF, fp8, f16 or bf16 file of the same"
                                  " model")
    marked = any(name.rpartition(".")[2] == MARKER or name.endswith((*SCALES, DESCRIPTION))
                 for name in file)
    return ScaledTensors(file) if marked else file


class ScaledTensors(Tensors):
    """The weights of a file that holds scales, which are no tensors of their own here.

    `raw` and `array` give what is stored, `scale` what it is multiplied with, `read` the product.
    """

    entries: dict[str, TensorEntry]

    def __init__(self, file: Tensors) -> None:
        self.path, self.format, self.size_bytes = file.path, file.format, file.size_bytes
        self.metadata, self.notes = file.metadata, file.notes
        self._file = file
        aside = {name for name in file if name.rpartition(".")[2] == MARKER
                 or name.endswith((*SCALES, *INPUT_SCALES, DESCRIPTION))}
        self.entries = {name: file.entry(name) for name in file if name not in aside}
        for name in sorted(aside):
            module, _, end = name.rpartition(".")
            if name.endswith(DESCRIPTION):
                self._check_described(module, name)
            elif name.endswith(SCALES):
                self._enter(f"{module}.weight", name)

    def raw(self, name: str) -> np.ndarray:
        """Read-only view on the numbers that are stored, without their scale."""
        self.entry(name)
        return self._file.raw(name)

    def scale(self, name: str) -> npt.NDArray[np.float32] | None:
        """What the stored numbers of a weight are multiplied with: [1] or [rows]; None for 1."""
        entry = self.entry(name)
        return self._file.read(entry.scale).reshape(-1) if isinstance(entry, ScaledEntry) else None

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A dense float32 copy of a tensor, with its scale applied."""
        self.entry(name)
        values, scale = self._file.read(name), self.scale(name)
        if scale is not None:
            values *= scale.reshape(-1, *[1] * (values.ndim - 1)) if values.ndim else scale[0]
        return values

    def ahead(self, names: Iterable[str]) -> None:
        """Have the system begin to read what holds `names`, and their scales."""
        self._file.ahead(each for name in names for entry in [self.entry(name)]
                         for each in (name, *(
                             [entry.scale] if isinstance(entry, ScaledEntry) else [])))

    def drop(self, name: str) -> None:
        """Let the system take back the memory that holds `name`."""
        self.entry(name)
        self._file.drop(name)

    def _enter(self, weight: str, scale: str) -> None:
        """Note that `weight` is to be multiplied with the tensor `scale`."""
        if weight not in self.entries:
            raise self._fault(scale, "is the scale of a weight that is not there")
        entry = self.entries[weight]
        if isinstance(entry, ScaledEntry):
            raise self._fault(scale, "is a second scale of one weight")
        shape = self._file.shape(scale)
        count = math.prod(shape)
        rows = entry.shape[0] if entry.shape else 1
        if count not in (1, rows) or any(n not in (1, count) for n in shape):
            raise self._fault(scale, f"has shape {list(shape)} beside a weight of"
                                     f" {list(entry.shape)}; expected one number, or one a row")
        if entry.dtype not in SCALED_TYPES:
            raise self._fault(scale, f"is the scale of a weight that is {entry.dtype}; expected one"
                                     f" of {', '.join(SCALED_TYPES)}")
        if (self._file.read(scale) != 1).any():  # layers that are left f16 often have a scale of 1
            tag = SCALED_TYPES[entry.dtype]
            self.entries[weight] = ScaledEntry(tag, entry.shape, entry.start, entry.end, scale)

    def _check_described(self, module: str, name: str) -> None:
        """Raise CheckpointError where a weight is in another format than those that are read."""
        entry = self._file.entry(name)
        if entry.dtype != "U8" or entry.end - entry.start > DESCRIPTION_BYTES_MAX:
            raise self._fault(name, "is no short JSON")
        try:
            stated = json.loads(self._file.raw(name).tobytes())
        except (ValueError, RecursionError):
            raise self._fault(name, "is no JSON") from None
        format = stated.get("format") if isinstance(stated, dict) else None
        weight = self.entries.get(f"{module}.weight")
        wanted = DESCRIBED.get(format) if isinstance(format, str) else None
        if wanted is None or any("rot" in key and value for key, value in stated.items()):
            raise CheckpointError(f"{self.path}: {module}.weight is quantised as"
                                  f" {str(stated)[:120]}, which Smalti does not read; it reads"
                                  f" {', '.join(DESCRIBED)}; take a GGUF, fp8, f16 or bf16 file of"
                                  " the same model")
        if weight is None or weight.dtype not in (wanted, SCALED_TYPES[wanted]):
            raise self._fault(name, f"describes a weight as {format}, which it is not")

    def _fault(self, name: str, said: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {name!r} {said}; the file is damaged; download or"
                               " copy it again")
