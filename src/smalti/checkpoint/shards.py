"""A model in several files: shards that a `.index.json` lists, or that are numbered by their names.

`model.safetensors.index.json` holds `{"weight_map": {tensor name: file name}}`; the files are
called `model-00001-of-00003.safetensors`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from smalti.checkpoint.json_file import read_json
from smalti.errors import CheckpointError, first_of
from smalti.runtime.tensor_file import TensorEntry, Tensors

Open = Callable[[Path], Tensors]

NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")
SHARDS_MAX = 1000
"""Files of one model: a bound on what a damaged index may ask to open."""
ENDINGS = (".safetensors", ".bin")


class Shards(Tensors):
    """The tensors of all `files` together; `path` names them in messages.

    Raises CheckpointError where two of them hold a tensor of one name.
    """

    entries: dict[str, TensorEntry]

    def __init__(self, path: Path, files: list[Tensors]) -> None:
        self.path = path
        self.format = f"{files[0].format} in {len(files)} files"
        self.size_bytes = sum(file.size_bytes for file in files)
        self.metadata = {key: value for file in files[::-1] for key, value in file.metadata.items()}
        self.notes = tuple(f"{file.path.name}: {note}" for file in files for note in file.notes)
        self._home: dict[str, Tensors] = {}
        self.entries = {}
        for file in files:
            for name in file:
                if name in self._home:
                    raise CheckpointError(
                        f"{path}: the tensor {name!r} is in {self._home[name].path.name} and in"
                        f" {file.path.name}; download the files again")
                self._home[name], self.entries[name] = file, file.entry(name)

    def raw(self, name: str) -> np.ndarray:
        """Read-only view on the mapped file that holds the tensor."""
        self.entry(name)
        return self._home[name].raw(name)

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A dense float32 copy of a tensor."""
        self.entry(name)
        return self._home[name].read(name)

    def ahead(self, names: Iterable[str]) -> None:
        """Have the system begin to read what holds `names`."""
        for file, some in groupby(names, self._home.__getitem__):
            file.ahead(some)

    def drop(self, name: str) -> None:
        """Let the system take back the memory that holds `name`."""
        self.entry(name)
        self._home[name].drop(name)


def open_indexed(index: Path, open: Open) -> Shards:
    """The shards that `index` lists, each opened with `open`.

    Raises CheckpointError where the index is damaged, names files that are not beside it, or lists
    tensors that they do not hold.
    """
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
        raise CheckpointError(f"{index} has no `weight_map`; expected tensor name -> file name")
    names = sorted(set(table.values()))
    if not 0 < len(names) <= SHARDS_MAX:
        raise CheckpointError(f"{index} lists {len(names)} files; expected 1 to {SHARDS_MAX}")
    files = {name: open(_beside(index, name)) for name in names}
    lost = [name for name, file in table.items() if name not in files[file]]
    if lost:
        raise CheckpointError(
            f"{index} lists {len(lost)} tensors that its shards do not hold:"
            f" {first_of(f'{name!a:.80}' for name in lost)}; download the folder again"
        )
    return Shards(index, list(files.values()))


def siblings(path: Path) -> list[Path]:
    """All shards that `path` is one of by its name, in order; itself alone where it is none.

    Raises CheckpointError where some are not there.

    >>> siblings(Path("model.safetensors"))
    [PosixPath('model.safetensors')]
    """
    match = NUMBERED.fullmatch(path.name)
    if not match or match[4] not in ENDINGS or not 0 < int(match[2]) <= int(match[3]) <= SHARDS_MAX:
        return [path]
    found = [path.with_name(f"{match[1]}-{number + 1:05}-of-{match[3]}{match[4]}")
             for number in range(int(match[3]))]
    lost = [file.name for file in found if not file.is_file()]
    if lost:
        raise CheckpointError(f"{path} is one of {len(found)} files of a model, of which"
                              f" {len(lost)} are missing: {first_of(lost)}; download them, too")
    return found


def _beside(index: Path, name: str) -> Path:
    """A shard's path. A name that leads out of the folder is refused."""
    plain = name.isprintable() and "\\" not in name and Path(name).name == name
    if not plain or not name.endswith(ENDINGS):
        raise CheckpointError(f"{index} names the shard {name!a:.80}; expected a file beside it")
    return index.parent / name
