"""A complete checkpoint: a configuration, and the weights that it needs by name."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smalti.checkpoint.report import Report
from smalti.checkpoint.tensors import Shape, StoredTensor
from smalti.errors import CheckpointError
from smalti.families.expected import expected_tensors
from smalti.graph.quantised import Quantised
from smalti.models.config import ModelConfig
from smalti.runtime.tensor_file import Tensors

ENDS = 32
"""Numbers at the beginning and at the end of a tensor that tell it from another one."""

AHEAD_SHARE = 0.5
"""Of free memory, that files may take which are read ahead: the programs that their weights are
bound to take as much again."""


class Checkpoint:
    """A complete checkpoint. Weights stay in the memory-mapped files until they are read.

    Names are those of `expected_tensors`, whatever the files call them.
    """

    def __init__(self, config: ModelConfig, report: Report,
                 tensors: Mapping[str, StoredTensor]) -> None:
        self.config = config
        self.report = report
        self._tensors = tensors
        self._asked_ahead = False

    def __repr__(self) -> str:
        return f"Checkpoint({self.report.path!r}, {len(self._tensors)} tensors)"

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def names(self) -> tuple[str, ...]:
        """Names of all tensors of the model, in the order of the architecture."""
        return tuple(self._tensors)

    def expected(self) -> dict[str, Shape]:
        """Name -> shape of every tensor that the configuration needs."""
        return expected_tensors(self.config)

    def shape(self, name: str) -> Shape:
        """Shape of a tensor."""
        return self._tensor(name).shape

    def dtype(self, name: str) -> str:
        """Dtype tag of a tensor as stored: "F32", "F16", "BF16", ..."""
        return self._tensor(name).dtype

    def raw(self, name: str) -> np.ndarray:
        """What is stored, where possible as a read-only view; BF16 as uint16, float8 as uint8."""
        return self._tensor(name).raw()

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """Float32 copy of a tensor, of shape `shape(name)`."""
        return self._tensor(name).read()

    def floats(self, name: str) -> np.ndarray:
        """The tensor called `name`: a float32, float16 or bfloat16 view of the file, else a float32
        copy.

        Raises CheckpointError for a name that the model does not have.
        """
        return self._tensor(name).floats()

    def given(self, name: str) -> np.ndarray | Quantised:
        """The tensor called `name` as programs take it: `Quantised` where the file has it in a
        block format, else as `floats` gives it. Raises CheckpointError as that does."""
        return self._tensor(name).given()

    def ahead(self, free_bytes: int) -> None:
        """Have the system read the files from now on, while text encoders run and programs are
        compiled; a second call does nothing.

        Weights come in the order in which a picture wants them. Nothing is read where they would
        take more than `AHEAD_SHARE` of `free_bytes` of memory, since what is read too early would
        have to go again.
        """
        if self._asked_ahead:
            return
        self._asked_ahead = True
        stored: dict[Tensors, dict[str, int]] = {}
        for tensor in self._tensors.values():
            for name in tensor.stored_names:
                entry = tensor.file.entry(name)
                stored.setdefault(tensor.file, {})[name] = entry.end - entry.start
        size = sum(sum(sizes.values()) for sizes in stored.values())
        if size <= AHEAD_SHARE * free_bytes:
            # the calls take 0.3 s for 2 GB that are not there
            with suppress(RuntimeError):  # the system gives no thread: a hint is lost
                threading.Thread(target=_read_ahead, args=(stored,), daemon=True).start()

    def drop(self, name: str) -> None:
        """Let the system take back the pages of the file that hold `name`, until it is read again.

        Raises CheckpointError for a name that the model does not have.
        """
        self._tensor(name).drop()

    def files(self, start: str) -> list[Path]:
        """The files that hold weights whose names start so."""
        return sorted({Path(tensor.file.path) for name, tensor in self._tensors.items()
                       if name.startswith(start)})

    def digest(self, start: str) -> str:
        """What tells the weights whose names start so from others: of each its name, place, dtype,
        shape and the numbers at its ends; size and time of the files, wherever these lie."""
        found = hashlib.sha256()
        tensors = {name: tensor for name, tensor in self._tensors.items() if name.startswith(start)}
        for name, tensor in tensors.items():
            found.update(f"{name} {tensor.expression} {tensor.dtype} {tensor.shape}\n".encode())
            for stored in tensor.stored_names:
                numbers = tensor.file.raw(stored).reshape(-1)
                found.update(numbers[:ENDS].tobytes() + numbers[-ENDS:].tobytes())
        for path in self.files(start):
            with suppress(FileNotFoundError):  # removed since; it is read all the same
                status = path.stat()
                found.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
        return found.hexdigest()

    def _tensor(self, name: str) -> StoredTensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.report.path} holds no tensor {name!r}") from None


def _read_ahead(stored: Mapping[Tensors, Iterable[str]]) -> None:
    """Have the system read tensors of files."""
    for file, names in stored.items():
        file.ahead(names)
