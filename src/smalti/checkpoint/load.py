"""Open a checkpoint: a single file of any format or a diffusers folder, of the SD 1.x family."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

from smalti.checkpoint import folder as diffusers
from smalti.checkpoint import names as renaming
from smalti.checkpoint.blocks import FORMATS
from smalti.checkpoint.container import INTEGERS, open_tensors
from smalti.checkpoint.expected import TEXT, UNET, VAE, Shape, expected_tensors
from smalti.checkpoint.family import Family, detect, require_supported
from smalti.checkpoint.hints import Hints, folder_hints, metadata_hints
from smalti.checkpoint.hyperparameters import derive_config
from smalti.checkpoint.report import Report
from smalti.errors import CheckpointError, first_of
from smalti.models.config import ModelConfig
from smalti.runtime.tensor_file import Tensors

_PARTS = ((UNET, "unet"), (VAE, "vae"), (TEXT, "text encoder"))


@dataclass(frozen=True)
class Tensor:
    """One tensor under its internal name: the file it lies in, its name there, its shape here."""

    file: Tensors
    stored_name: str
    shape: Shape

    @property
    def dtype(self) -> str:
        """Dtype tag, such as "F16" or "Q4_K"."""
        return self.file.dtype(self.stored_name)


@dataclass(frozen=True)
class _Source:
    """What was found at a path, before any judgement: tensors by internal name, and hints.

    `tables` are the metadata of a single file, or the parsed config.json files of a folder.
    """

    path: Path
    format: str
    tensors: dict[str, Tensor]
    family: Family | None
    tables: dict[str, object] | dict[str, str]
    notes: tuple[str, ...] = ()

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shape of each tensor by internal name."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def hints(self) -> Hints:
        """What the file states about itself."""
        if self.path.is_dir():
            return folder_hints(self.path, self.tables)
        return metadata_hints(self.path, self.tables)


class Checkpoint:
    """A complete checkpoint. Weights stay in the memory-mapped file until they are read.

    Names are those of `expected_tensors`, whatever the file calls them.
    """

    def __init__(self, config: ModelConfig, report: Report, tensors: dict[str, Tensor]) -> None:
        self.config = config
        self.report = report
        self._tensors = tensors

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
        """Dtype tag of a tensor as stored: "F32", "F16", "BF16", "Q4_K", ..."""
        return self._tensor(name).dtype

    def raw(self, name: str) -> np.ndarray:
        """Read-only view on the mapped file; BF16 as uint16, float8 as uint8.

        Of a block format it is uint8, with the bytes of a row as last axis.
        """
        tensor = self._tensor(name)
        raw = tensor.file.raw(tensor.stored_name)
        return raw if tensor.dtype in FORMATS else raw.reshape(tensor.shape)

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """Float32 copy of a tensor, of shape `shape(name)`."""
        tensor = self._tensor(name)
        return tensor.file.read(tensor.stored_name).reshape(tensor.shape)

    def floats(self, name: str) -> np.ndarray:
        """The tensor called `name`: a float32, float16 or bfloat16 view of the file, else a float32
        copy.

        Raises CheckpointError for a name that the model does not have.
        """
        dtype = self.dtype(name)
        if dtype == "BF16":
            return self.raw(name).view(ml_dtypes.bfloat16)
        return self.raw(name) if dtype in ("F16", "F32") else self.read(name)

    def drop(self, name: str) -> None:
        """Let the system take back the pages of the file that hold `name`, until it is read again.

        Raises CheckpointError for a name that the model does not have.
        """
        tensor = self._tensor(name)
        tensor.file.drop(tensor.stored_name)

    def _tensor(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.report.path} holds no tensor {name!r}") from None


def load(path: str | Path) -> Checkpoint:
    """Open an SD 1.x checkpoint: a file (see `open_tensors`) or a diffusers folder.

    Raises `UnknownFamilyError` for other models, `CheckpointError` for damaged or incomplete files;
    all missing and misshapen tensors are counted, and the first ten are named.
    """
    source = _open(Path(path))
    family = require_supported(path, source.family, source.tensors)
    report = _report(source)
    if report.config is None or not report.loadable:
        problems = [f"missing {name}" for name in report.missing]
        problems += [f"wrong {line}" for line in report.misfits]
        listed = first_of(problems, separator=",\n  ")
        raise CheckpointError(
            f"{path} looks like {family.words}, but tensors are missing ({len(report.missing)}) or"
            f" of another shape or dtype than expected ({len(report.misfits)}); download it again,"
            f" or give a complete checkpoint:\n  {listed}"
        )
    wanted = expected_tensors(report.config)
    return Checkpoint(report.config, report, {name: source.tensors[name] for name in wanted})


def inspect(path: str | Path) -> Report:
    """What the checkpoint at `path` is, whether or not Smalti can load it.

    Raises `CheckpointError` for a file that cannot be understood at all.
    """
    return _report(_open(Path(path)))


def _open(path: Path) -> _Source:
    try:
        return _open_folder(path) if path.is_dir() else _open_file(path)
    except OSError as error:  # such as a folder on the way that may not be entered
        raise CheckpointError(
            f"{error.filename or path} cannot be read: {error.strerror or error}"
        ) from error


def _open_file(path: Path) -> _Source:
    file = open_tensors(path)
    tensors: dict[str, Tensor] = {}
    for stored in file:
        _add(tensors, renaming.single_file_name(stored), file, stored)
    stored_shapes = {name: file.shape(name) for name in file}
    return _Source(path, file.format, tensors, detect(stored_shapes), file.metadata, file.notes)


def _open_folder(path: Path) -> _Source:
    index = diffusers.read_index(path)
    family = diffusers.other_family(index)
    tables = diffusers.read_configs(path)
    if family is not None:
        return _Source(path, "diffusers folder", {}, family, tables)
    tensors: dict[str, Tensor] = {}
    for component in diffusers.COMPONENTS:
        files = diffusers.component_files(path, component)
        rename = _renaming(component, [name for file in files for name in file])
        for file in files:
            for stored in file:
                _add(tensors, rename(stored), file, stored)
    notes = [note for tensor in {id(t.file): t for t in tensors.values()}.values()
             for note in tensor.file.notes]
    if not (path / "tokenizer").is_dir():
        notes.append("no tokenizer/; CLIP's own is used anyway")
    family = detect({name: tensor.shape for name, tensor in tensors.items()})
    return _Source(path, "diffusers folder", tensors, family, tables, tuple(notes))


def _add(tensors: dict[str, Tensor], name: str, file: Tensors, stored: str) -> None:
    """Enter a tensor; merged files may hold one under two names, but it must be the same one.

    Raises CheckpointError when two tensors that differ stand for one.
    """
    tensor = Tensor(file, stored, renaming.internal_shape(name, file.shape(stored)))
    known = tensors.setdefault(name, tensor)
    if known is tensor:
        return
    same = known.dtype == tensor.dtype and np.array_equal(
        known.file.raw(known.stored_name), file.raw(stored))
    if not same:
        raise CheckpointError(f"{file.path} holds two different tensors for one weight: "
                              f"{known.stored_name!r} and {stored!r}; remove the one that is not "
                              f"meant")


def _renaming(component: str, stored: Iterable[str]) -> renaming.Rename:
    if component == "unet":
        return renaming.unet_renaming(stored)
    if component == "vae":
        return renaming.vae_renaming(stored)
    return renaming.text_encoder_name


def _report(source: _Source) -> Report:
    tensors, shapes = source.tensors, source.shapes
    parameters: Counter[str] = Counter()
    for name, shape in shapes.items():
        part = next((part for prefix, part in _PARTS if name.startswith(prefix)), "other")
        parameters[part] += math.prod(shape)
    files = {id(tensor.file): tensor.file for tensor in tensors.values()}.values()
    report = Report(
        path=str(source.path),
        format=source.format,
        size_bytes=sum(file.size_bytes for file in files),
        family=source.family,
        precisions=dict(Counter(tensor.dtype for tensor in tensors.values()).most_common()),
        parameters=dict(parameters),
        config=None,
        notes=source.notes,
    )
    if source.family is None or not source.family.supported:
        return report
    config = derive_config(source.path, shapes, source.hints())
    expected = expected_tensors(config)
    return replace(
        report,
        config=config,
        missing=tuple(name for name in expected if name not in shapes),
        misfits=tuple(_misfits(tensors, expected)),
        ignored=tuple(name for name in shapes if name not in expected),
    )


def _misfits(tensors: dict[str, Tensor], expected: dict[str, Shape]) -> Iterable[str]:
    """Tensors that are there but cannot be the weight that they are named after."""
    for name, shape in expected.items():
        tensor = tensors.get(name)
        if tensor is not None and tensor.shape != shape:
            yield f"{name}: found shape {tensor.shape}, expected {shape}"
        elif tensor is not None and tensor.dtype in INTEGERS:
            yield f"{name}: found dtype {tensor.dtype}, expected a floating-point one"
