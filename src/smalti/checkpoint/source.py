"""What is found at a path: parameters of the parts of a model, and what is stated about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from smalti.checkpoint import folder as diffusers
from smalti.checkpoint.container import open_tensors
from smalti.checkpoint.file_kind import detect, listed, require_supported
from smalti.checkpoint.hints import PIPELINE, first, folder_hints, metadata_hints, named_hints
from smalti.checkpoint.layout import (
    DENOISER,
    TEXT,
    VAE,
    Contents,
    contents,
    inside,
    renamed,
    titles,
    which_text_encoder,
)
from smalti.checkpoint.tensors import Shape, StoredTensor
from smalti.dataclass import dataclass
from smalti.errors import CheckpointError
from smalti.families import ModelFamily, autoencoders, by_name, families, text_encoders
from smalti.families.distilled import Distilled, distilled, with_guidance
from smalti.families.hints import Hints
from smalti.families.keys import StoredRows
from smalti.families.keys.language import VISION
from smalti.families.names import FileKind
from smalti.families.prefixes import UNET
from smalti.families.prefixes import VAE as AUTOENCODER_PREFIX
from smalti.families.unet import GUIDANCE_LAYER
from smalti.runtime.tensor_file import Tensors

ALONE = {"vae": VAE, "text-encoder": TEXT}
"""Kind of a file that holds one part alone, without a prefix or with it -> the part."""
LATENT_TENSOR = f"{AUTOENCODER_PREFIX}decoder.conv_in.weight"
"""Shows how many channels the latents of an autoencoder have."""
ARCHITECTURE = "general.architecture"
"""What a GGUF file states about what is in it."""
FAMILY = "smalti.family"
"""The metadata of a converted file that tell its family, where only the name of the first did."""
ENDINGS = (".safetensors", ".bin")


@dataclass(frozen=True)
class FoundModel:
    """What was found at a path, before any judgement: tensors by internal name, and hints.

    `metadata` is that of a single file, `tables` are the parsed config.json files of a folder;
    `places` tell which of the sections about text encoders in them each text encoder has. `known`
    is what the caller knows better than the file.
    """

    path: Path
    format: str
    tensors: Mapping[str, StoredTensor]
    kind: FileKind | None
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tables: Mapping[str, object] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)
    known: Hints = field(default_factory=Hints)

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shape of each tensor by internal name."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    @property
    def parts(self) -> list[str]:
        """The parts that are there, wholly or not: of `layout.titles()`."""
        return [part for part in titles() if any(map(_within(part), self.tensors))]

    @property
    def family(self) -> ModelFamily | None:
        """That of the model which the denoiser makes, None where there is none that is read."""
        return families()[self.kind.family] if self.kind and self.kind.supported else None

    def hints(self) -> Hints:
        """What is known of it, what the file states about itself, and what its name says."""
        stated = (folder_hints(self.path, self.tables) if self.path.is_dir()
                  else metadata_hints(self.path, self.metadata))
        recommended: Mapping[str, Any] = {} if self.distilled is None else self.distilled.values
        return first(self.known, stated, self.named, Hints(**recommended))

    @property
    def named(self) -> Hints:
        """What its name says of its prediction and its noise, where its family has any choice."""
        if self.family is None or self.family.prediction != "epsilon":
            return Hints()
        return named_hints(*self._names)

    @property
    def distilled(self) -> Distilled | None:
        """How the model was distilled to few steps, by its name, or by a layer that others have
        not; None where nothing tells it."""
        if self.family is None:
            return None
        if f"{UNET}{GUIDANCE_LAYER}.weight" in self.tensors:
            return with_guidance(*self._names)
        return distilled(self.family.recommended, *self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        """What the model is called, and of a folder the pipeline that it is for."""
        return (diffusers.model_name(self.path), *(
            self.metadata.get(key, "") for key in ("modelspec.title", diffusers.CLASS)))

    @property
    def called(self) -> tuple[str, ...]:
        """The same, and what it was converted from."""
        return *self._names, self.metadata.get(FAMILY, "")

    def place(self, text_encoder: str) -> int:
        """Which section about text encoders is that of `text_encoder`, which its family reads."""
        if text_encoder in self.places:
            return self.places[text_encoder]
        texts = families()[require_supported(self.path, self.kind, self.shapes).family].texts
        return [text.encoder.name for text in texts].index(text_encoder)


def open_source(path: Path) -> FoundModel:
    """What lies at `path`: a file, or a diffusers folder. Raises CheckpointError."""
    try:
        return _named(_open_folder(path) if path.is_dir() else _open_file(path))
    except OSError as error:  # such as a folder on the way that may not be entered
        raise CheckpointError(
            f"{error.filename or path} cannot be read: {error.strerror or error}"
        ) from error


def _named(source: FoundModel) -> FoundModel:
    """The same, of the family that its name tells."""
    kind = named_kind(source.kind, *source.called)
    if kind == source.kind or kind is None:
        return source
    note = f"that it is {kind.words}, is what its name says; its tensors do not tell"
    return replace(source, kind=kind, notes=(*source.notes, note))


def named_kind(kind: FileKind | None, *called: str) -> FileKind | None:
    """The kind of a model, of the family that its names tell among those with the same tensors."""
    if kind is None or not kind.supported:
        return kind
    name = families()[kind.family].told_by(*called)
    return kind if name is None else replace(families()[name].files[0], family=name)


def with_parts(source: FoundModel, text_encoders: Sequence[Path], vae: Path | None) -> FoundModel:
    """`source` with text encoders and an autoencoder from other files instead of its own, or
    besides. Raises CheckpointError for a file that holds none, and UnknownFamilyError for text
    encoders beside a model that is not read."""
    for path in (each for given in text_encoders for each in diffusers.several_parts(given)):
        source = _with_part(source, path, _text_encoders(source, path), "a text encoder",
                            "text_encoders= (--text-encoder)")
    if vae is not None:
        opened = _open_part(vae, VAE)
        _check_kind(source, vae, opened)
        source = _with_part(source, vae, {VAE: _parameters(opened.tensors, VAE)},
                            "an autoencoder", "vae= (--vae)")
    return source


def _check_kind(source: FoundModel, path: Path, opened: FoundModel) -> None:
    """Raise CheckpointError for an autoencoder of another kind than the model was trained with."""
    family = source.family
    stored = [name for tensor in opened.tensors.values() for name in tensor.stored_names]
    other = next((kind for kind in autoencoders() if kind.shows(stored)), None)
    if family is not None and other is not None and other != family.autoencoder:
        raise CheckpointError(
            f"{path} holds {other.title}, which models of {family.title} do not read; give "
            f"{family.autoencoder.title}, such as {family.vae_file}")


def _with_part(source: FoundModel, path: Path, found: Mapping[str, Mapping[str, StoredTensor]],
               what: str, option: str) -> FoundModel:
    found = {part: tensors for part, tensors in found.items() if tensors}
    if not found:
        raise CheckpointError(f"{path} holds no {what.split(' ', 1)[1]}; {option} needs a file with"
                              f" {what} in it")
    kept = {name: tensor for name, tensor in source.tensors.items()
            if not any(_replaced(part, tensors, name) for part, tensors in found.items())}
    added = {name: tensor for tensors in found.values() for name, tensor in tensors.items()}
    notes = [f"{titles()[part]} is that of {path}" for part in found]
    return replace(source, tensors={**kept, **added}, notes=(*source.notes, *notes))


def _replaced(part: str, tensors: Iterable[str], name: str) -> bool:
    """Whether tensors of a part stand for the one called `name`: what reads texts and what reads
    pictures in a language model may lie in two files."""
    seeing = inside(part) + VISION
    return _within(part)(name) and name.startswith(seeing) in {
        each.startswith(seeing) for each in tensors}


def _text_encoders(source: FoundModel, path: Path) -> dict[str, dict[str, StoredTensor]]:
    """The text encoders in a file that the model reads. A CLIP of a width that none has is the
    first one missing. Raises CheckpointError where there are none but others, UnknownFamilyError
    for a model that is not read."""
    kind = require_supported(source.path, source.kind, source.shapes)
    opened = _open_part(path, TEXT)
    known = {each.encoder.name: each.encoder for each in families()[kind.family].texts}
    found = {part: _parameters(opened.tensors, part) for part in known}
    others = [part for part in opened.parts if part not in (*known, DENOISER, VAE)]
    if others and not any(found.values()):
        raise CheckpointError(
            f"{path} holds {' and '.join(titles()[part] for part in others)}, which "
            f"{kind.words} does not read; it reads "
            f"{' and '.join(encoder.title for encoder in known.values())}")
    unknown = {name: tensor for name, tensor in opened.tensors.items()
               if name.startswith(f"{TEXT}.")}
    if unknown:
        clips = [name for name, encoder in known.items() if encoder.chunked]
        part = next((name for name in clips if name not in source.parts), (*clips, *known)[0])
        found[part] = {inside(part) + name.removeprefix(f"{TEXT}."): tensor
                       for name, tensor in unknown.items()}
    return found


def _open_part(path: Path, part: str) -> FoundModel:
    """A file of one part alone, or one that holds it among others; a folder of a component.

    Where neither its kind nor prefixes tell what it is, its tensors are those of `part`.
    """
    try:
        if path.is_dir():
            named = [*path.glob("*.index.json"), *(file for ending in ENDINGS
                                                   for file in sorted(path.glob(f"*{ending}")))]
            if not named:
                raise CheckpointError(f"{path} is a folder without weights; give a file, or a "
                                      f"folder with {' or '.join(ENDINGS)} in it")
            path = named[0]
        file = open_tensors(path)
    except OSError as error:
        raise CheckpointError(f"{error.filename or path} cannot be read: "
                              f"{error.strerror or error}") from error
    kind = detect({name: file.shape(name) for name in file})
    if kind is not None and not kind.supported and kind.id not in ALONE:
        wanted = "autoencoder" if part == VAE else "text encoder"
        raise CheckpointError(f"{path} holds no {wanted}: it is {kind.words}; give a file with "
                              f"{'an' if part == VAE else 'a'} {wanted} in it")
    bare = part if kind is None else ALONE.get(kind.id)
    return FoundModel(path, file.format, _as_stated(_entered(file, bare, None), file.metadata),
                      kind, file.metadata)


def _as_stated(tensors: dict[str, StoredTensor],
               metadata: Mapping[str, str]) -> dict[str, StoredTensor]:
    """The tensors as those of the text encoder that a GGUF file states, where their names are as
    well those of another one."""
    encoders, stated = text_encoders(), metadata.get(ARCHITECTURE, "")
    ours = next((each for each in encoders.values() if each.architecture == stated), None)
    if ours is None or not ours.architecture:
        return tensors
    starts = tuple(each.inside for each in encoders.values())
    return {next((ours.inside + name.removeprefix(start) for start in starts
                  if name.startswith(start)), name): tensor for name, tensor in tensors.items()}


def _parameters(tensors: Mapping[str, StoredTensor], part: str) -> dict[str, StoredTensor]:
    return {name: tensor for name, tensor in tensors.items() if _within(part)(name)}


def _within(part: str) -> Callable[[str], bool]:
    """Whether a name is that of a parameter of a part."""
    start = inside(part)
    return lambda name: name.startswith(start)


def _open_file(path: Path) -> FoundModel:
    file = open_tensors(path)
    kind = detect({name: file.shape(name) for name in file})
    whole = any(name.startswith(inside(DENOISER)) for name in file)
    bare = ALONE.get(kind.id) if kind else None
    if kind is not None and kind.supported and not whole:
        bare = DENOISER
    tensors = _as_stated(_entered(file, bare, kind.family if kind else None), file.metadata)
    source = FoundModel(path, file.format, tensors, kind, file.metadata, file.notes)
    known = [f"it is {titles()[part]}" for part in source.parts if bare == TEXT]
    latent = source.shapes.get(LATENT_TENSOR, ())
    if bare == VAE and len(latent) > 1:
        models = [each.title for each in by_name() if each.vae.inner_channels == latent[1]
                  and each.autoencoder.shows(file)]
        whose = listed(models) if models else "no family that is read"
        known.append(f"its latents have {latent[1]} channels, as those of {whose}")
    return replace(source, notes=(*source.notes, *known))


def _open_folder(path: Path) -> FoundModel:
    networks = diffusers.several_parts(path)
    if len(networks) > 1:
        opened = [_open_part(each, TEXT) for each in networks]
        return replace(opened[0], path=path, format="diffusers folder", tensors={
            name: tensor for each in opened for name, tensor in each.tensors.items()})
    index = diffusers.read_index(path)
    kind, tables = diffusers.other_kind(index), {
        **diffusers.read_configs(path), PIPELINE: index}
    if kind is not None:
        return FoundModel(path, "diffusers folder", {}, kind, tables=tables)
    tensors: dict[str, StoredTensor] = {}
    places: dict[str, int] = {}
    notes: list[str] = []
    names = diffusers.components(path, index)
    for component in names:
        for file in diffusers.component_files(path, component):
            if component in (*diffusers.DENOISERS, diffusers.CONDITIONER):
                if component in diffusers.DENOISERS:
                    kind = detect({name: file.shape(name) for name in file}, names)
                found = _entered(file, DENOISER, kind.family if kind else None)
            elif component == "vae":
                found = _entered(file, VAE, kind.family if kind else None)
            else:
                part = _text_part(file, kind, places)
                places[part] = diffusers.TEXT_ENCODERS.index(component)
                found = _entered(file, part, None)
            tensors.update(found)
            notes += file.notes
    if not (path / "tokenizer").is_dir():
        notes.append("no tokenizer/; the published one is used anyway")
    whole = detect({name: tensor.shape for name, tensor in tensors.items()}, names)
    if whole is not None and kind is not None:
        whole = replace(whole, family=kind.family)  # as its denoiser alone shows
    return FoundModel(path, "diffusers folder", tensors, whole,
                      {diffusers.CLASS: diffusers.pipeline_name(index)}, tuple(notes), tables,
                      places)


def _text_part(file: Tensors, kind: FileKind | None, taken: Iterable[str]) -> str:
    """Which text encoder a component of a folder is: they come in the order of the family."""
    model = families().get(kind.family) if kind else None
    encoders = [text.encoder for text in model.texts] if model else [*text_encoders().values()]
    shapes = {name: file.shape(name) for name in file}
    plain = [each for each in encoders if not each.chunked]
    shown = next((each.name for each in plain if each.shows(file, shapes)), None)
    free = [each.name for each in encoders if each.chunked and each.name not in taken]
    return shown or (*free, *(each.name for each in encoders))[0]


def _entered(file: Tensors, bare: str | None, family: str | None) -> dict[str, StoredTensor]:
    """The tensors of a file by internal name; those of no part keep the names that they have.

    Raises CheckpointError when two tensors that differ stand for one.
    """
    sorted_out: Contents = contents(file, bare, family)
    found: dict[str, StoredTensor] = {}
    which = None
    for part, parameters in sorted_out.parts.items():
        if part == TEXT:
            shapes = {name: file.shape(parts[0].name) for name, parts in parameters.items()}
            which = which_text_encoder(parameters, shapes)
            parameters = renamed(which, parameters) if which else parameters
        found.update((name, StoredTensor.of(file, name, parts))
                     for name, parts in parameters.items())
    for name, expression in sorted_out.doubles:
        if which and name.startswith(f"{TEXT}."):
            (name,) = renamed(which, {name: expression})
        second = StoredTensor.of(file, name, expression)
        if not found[name].same_as(second):
            raise CheckpointError(
                f"{file.path} holds two different tensors for one weight: "
                f"{found[name].stored_names[0]!r} and {second.stored_names[0]!r}; remove the one "
                f"that is not meant")
    found.update((name, StoredTensor.of(file, name, (StoredRows(name),)))
                 for name in sorted_out.others)
    return found
