"""Arrays on the command line: inputs by name from files, results to a folder or one file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING

from smalti.cli.output import check_writable, whole_file
from smalti.errors import InputError, OutputError

if TYPE_CHECKING:
    import numpy as np

SHAPE = re.compile(r"([^=]+)=((?:\d{1,12},)*\d{1,12}|)")
"""NAME=NUMBERS with commas; nothing behind the equals sign is the shape of a scalar. Twelve digits
are more than any memory has elements, and few enough to be read at once."""
NAME_MAX = 100
"""Characters of a result's name that its file keeps; file systems take 255 bytes, endings and
`part_path` included."""


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...] | int]:
    """Shapes of inputs, or extents of named dimensions, from `x=1,3,512,512` and `batch=1`.

    >>> parse_shapes(["x=1,3,512,512", "batch=1"])
    {'x': (1, 3, 512, 512), 'batch': 1}
    """
    found: dict[str, tuple[int, ...] | int] = {}
    for text in texts:
        match = SHAPE.fullmatch(text)
        if not match or match[1] in found:
            raise InputError(f"--shape is {text!r}; expected NAME=NUMBERS with commas, once a "
                             f"name, such as x=1,3,512,512 or batch=1")
        numbers = tuple(int(part) for part in match[2].split(",") if part)
        found[match[1]] = numbers[0] if len(numbers) == 1 else numbers
    return found


def read_inputs(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays from `x=input.npy`, or all of `inputs.npz` by their names in it.

    Raises InputError for a file that cannot be read, or that holds Python objects.
    """
    found: dict[str, np.ndarray] = {}
    for text in texts:
        name, given, path = text.partition("=")
        if not name or (not path if given else not name.endswith(".npz")):
            raise InputError(f"the input is {text!r}; expected NAME=FILE.npy, or FILE.npz")
        arrays = _loaded(path if given else name)
        if not isinstance(arrays, dict):
            arrays = {name: arrays}
        elif given:
            raise InputError(f"{path} holds arrays with names of their own; give it without "
                             f"{name}=")
        if twice := sorted(set(arrays) & set(found)):
            raise InputError(f"the input {twice[0]!r} is given twice")
        found.update(arrays)
    return found


def _loaded(path: str) -> np.ndarray | dict[str, np.ndarray]:
    import zipfile
    import zlib

    import numpy as np

    from smalti.runtime.cpu.memory import check_free

    try:
        if not Path(path).is_file():
            raise InputError(f"{path} is no file; give a .npy or .npz file of numbers")
        if not zipfile.is_zipfile(path):
            with open(path, "rb") as stream:
                empty = not _checked_bytes(stream, Path(path).stat().st_size)
            return np.load(path, mmap_mode=None if empty else "r", allow_pickle=False)
        with zipfile.ZipFile(path) as file:
            for entry in file.infolist():
                with file.open(entry) as stream:
                    size = _checked_bytes(stream, entry.file_size)
                check_free(size, f"{entry.filename} in {path} takes", "give smaller arrays")
        with np.load(path, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path} cannot be read as an array ({why}); give a .npy or .npz file "
                         f"of numbers") from None


def _checked_bytes(stream: IO[bytes], file_bytes: int) -> int:
    """Bytes of the array in a .npy file. Raises ValueError where its header says more or fewer than
    there are in the file: numpy would believe it and ask for the memory."""
    from numpy.lib import format as npy

    headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        version = npy.read_magic(stream)
    except ValueError:
        raise ValueError("it does not begin as .npy files do") from None
    if version not in headers:  # 3.0 is of records with names of any letters
        raise ValueError(f"it is of version {version[0]}.{version[1]} of the format")
    shape, _, dtype = headers[version](stream)
    said, there = prod(shape) * dtype.itemsize, file_bytes - stream.tell()
    if said != there:
        raise ValueError(f"its header says {dtype}{list(shape)}, which is {said:,} bytes; there "
                         f"are {there:,}")
    return said


def random_inputs(types: Mapping[str, tuple[tuple[int, ...], str]],
                  rows: Mapping[str, int], beside_bytes: int = 0) -> dict[str, np.ndarray]:
    """Seeded arrays for inputs of these shapes and dtypes: standard normal, or 0 and 1 where they
    are integers; rows of tables are drawn among the `rows` there are.

    Raises DeviceError where they do not fit into free memory together with `beside_bytes`.
    """
    import numpy as np

    from smalti.graph.operation import DTYPES, FLOATS
    from smalti.runtime.cpu.memory import check_free

    check_free(beside_bytes + sum(prod(shape) * np.dtype(DTYPES[dtype]).itemsize
                                  for shape, dtype in types.values()),
               "the inputs and a run take", "choose smaller shapes with --shape")
    random, found = np.random.default_rng(0), {}
    for name, (shape, dtype) in types.items():
        if name in rows or dtype not in FLOATS:
            found[name] = random.integers(0, rows.get(name, 2), shape).astype(DTYPES[dtype])
        else:
            found[name] = random.standard_normal(shape, np.float32).astype(DTYPES[dtype])
    return found


def check_results(path: Path) -> None:
    """Raise OutputError when `write_outputs` could not write to `path`; leaves no trace."""
    if path.suffix == ".npz" or not path.parent.is_dir():
        check_writable([path])
    elif path.suffix == ".npy" or path.exists() and not path.is_dir():
        raise OutputError(f"cannot write to {path}: give a folder, for a .npy file of each result, "
                          f"or a name that ends in .npz")


def write_outputs(path: Path, outputs: Mapping[str, np.ndarray]) -> list[Path]:
    """Write arrays to `path`: one .npz file, or a folder with a .npy file each; the files written.

    Each file is whole or untouched. Raises OutputError when the operating system refuses.
    """
    if path.suffix == ".npz":
        _save(path, outputs)
        return [path]
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {path}: {error.strerror}; give a folder or a name that "
                          f"ends in .npz") from None
    files = [path / f"{name}.npy" for name in file_names(outputs)]
    for file, array in zip(files, outputs.values()):
        _save(file, array)
    return files


def file_names(names: Iterable[str]) -> list[str]:
    """Names of files for results, whatever their own: letters, digits, `.`, `-` and `_`.

    >>> file_names(["/model/out", "out", "../out"])
    ['_model_out', 'out', '.._out']
    """
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:NAME_MAX]
        unique, number = plain, 1
        while unique.lower() in (other.lower() for other in found) or unique in ("", ".", ".."):
            number += 1
            unique = f"{plain}_{number}"
        found.append(unique)
    return found


def _save(path: Path, value: np.ndarray | Mapping[str, np.ndarray]) -> None:
    import zipfile

    import numpy as np

    with whole_file(path) as stream:
        if not isinstance(value, Mapping):
            np.save(stream, value, allow_pickle=False)
            return
        with zipfile.ZipFile(stream, "w") as archive:  # np.savez takes some names for its own
            for name, array in value.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array))
