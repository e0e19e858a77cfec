"""Which of the files of a repository are fetched: one precision, one framework, what memory holds.

A repository has the same model several times: for diffusers and as one file, in f32, f16 and
bfloat16, for PyTorch, Flax, ONNX and OpenVINO, as GGUF in ten grades. One of them is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from smalti.checkpoint.folder import DENOISERS, INDEX, PICKLED, STEMS
from smalti.checkpoint.shards import NUMBERED
from smalti.dataclass import dataclass
from smalti.errors import FetchError, first_of
from smalti.fetch.digest import Digest
from smalti.fetch.sizes import shown_bytes

SAFE = (".safetensors", ".sft")
GGUF = ".gguf"
PICKLES = (".ckpt", ".pt", ".pth", ".bin")
WEIGHTS = (*SAFE, GGUF, *PICKLES)
VARIANTS = (".fp16", "")
"""Of a component of diffusers, in order: halves are enough, and half of what is fetched."""
_CONFIGS = re.compile(r"(?:[^/]+/)?config\.json|scheduler/scheduler_config\.json|"
                      r"tokenizer[^/]*/tokenizer_config\.json")
_HALF = re.compile(r"(?:bf16|fp16|f16|half)")
_WHOLE = re.compile(r"(?:fp32|f32|full)")
_EIGHT = re.compile(r"(?:q8_0|fp8|f8|float8|e4m3|e5m2|scaled|int8)")
_GRADE = r"i?q\d_(?:k(?:_[sml])?|nl|xs|xxs|[01ms])|mxfp4|nf4"
_GRADED = re.compile(_GRADE)
_WORDS = re.compile(
    rf"[-_. ](?:{_GRADE}|(?:bf|fp|f)(?:8|16|32)|float8|e4m3(?:fn)?|e5m2|scaled|half|full|int8|"
    r"pruned|emaonly|ema|nonema|no-ema)(?=[-_. ]|$)")
_UNREAD = re.compile(
    r"[-_. ](?:svdq|nvfp4|mxfp8|int4|iq[123]_\w+|tq\d_\d|onnx|openvino|coreml|mlx)")
"""Words in the names of files that Smalti does not read."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository: its name with folders, its size in bytes, its hash.

    The size of one that is not `sized` is about that.
    """

    name: str
    bytes: int
    digest: Digest
    sized: bool = True

    @property
    def ending(self) -> str:
        """What its name ends in, in small letters."""
        return PurePosixPath(self.name).suffix.lower()


@dataclass(frozen=True)
class Choice:
    """The files that are fetched, and what is opened of them: "" for the folder that they make.

    `why` says in words why it is these, where there were others.
    """

    files: tuple[RemoteFile, ...]
    opened: str
    why: str = ""

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(each.bytes for each in self.files)

    @property
    def weights(self) -> tuple[RemoteFile, ...]:
        """Those that hold weights."""
        return tuple(each for each in self.files if each.ending in WEIGHTS)

    @property
    def weight_bytes(self) -> int:
        """Of the weights."""
        return sum(each.bytes for each in self.weights)


def chosen(title: str, files: Sequence[RemoteFile], file: str | None, memory: int | None) -> Choice:
    """What is fetched of a repository: `file`, or what makes pictures in `memory` bytes.

    Raises FetchError where that is not clear, with what there is.
    """
    if file is not None:
        return _named(title, files, file)
    names = {each.name for each in files}
    if INDEX in names and any(name.startswith(f"{part}/") for part in DENOISERS for name in names):
        return _folder(title, files)
    return _single(title, files, memory)


def _named(title: str, files: Sequence[RemoteFile], file: str) -> Choice:
    """One file by its name, with or without folders; all shards where it is one of several."""
    found = [each for each in files if each.name == file] or [
        each for each in files if PurePosixPath(each.name).name == file]
    if len(found) != 1:
        near = [each.name for each in files if each.ending in WEIGHTS]
        raise FetchError(f"{title} has {len(found) or 'no'} file{'s' * bool(found)} {file!r:.200}; "
                         f"it has {first_of(near) if near else 'no weights'}")
    shards = _shards(files, found[0])
    return Choice(tuple(shards), shards[0].name)


def _shards(files: Iterable[RemoteFile], one: RemoteFile) -> list[RemoteFile]:
    """All files of a model that is in several, by the name of one."""
    numbered = NUMBERED.fullmatch(one.name)
    if numbered is None:
        return [one]
    return sorted((each for each in files if (other := NUMBERED.fullmatch(each.name))
                   and (other[1], other[3], other[4]) == (numbered[1], numbered[3], numbered[4])),
                  key=lambda each: each.name)


def _folder(title: str, files: Sequence[RemoteFile]) -> Choice:
    """A folder of diffusers: its descriptions, and each component once."""
    found = [each for each in files if each.name == INDEX or _CONFIGS.fullmatch(each.name)]
    passed, lacking = 0, []
    for component, stem in STEMS.items():
        inside = [each for each in files if PurePosixPath(each.name).parent.as_posix() == component]
        weights = [each for each in inside if each.ending in WEIGHTS]
        taken = _component(inside, component, stem)
        if weights and not taken:
            lacking.append(component)
        found += taken
        passed += len(weights) - sum(each.ending in WEIGHTS for each in taken)
    if lacking:
        raise FetchError(f"{title} has no weights of {', '.join(lacking)} that are read; give a "
                         f"file of it with :FILE, or another repository")
    passed += sum(each.ending in WEIGHTS for each in files if "/" not in each.name)
    why = f"{passed} files of the same in other forms are left out" if passed else ""
    return Choice(tuple(found), "", why)


def _component(inside: Sequence[RemoteFile], component: str, stem: str) -> list[RemoteFile]:
    """The weights of a component in one form, with the index of their shards."""
    for form, ending in ((stem, SAFE[0]), (PICKLED.get(stem, stem), ".bin")):
        for variant in VARIANTS:
            start = f"{component}/{form}{variant}"
            one = [each for each in inside if each.name == start + ending]
            if one:
                return one
            index = [each for each in inside if each.name in (
                f"{component}/{form}{ending}.index{variant}.json",
                f"{start}{ending}.index.json")]
            shards = [each for each in inside if (found := NUMBERED.fullmatch(each.name))
                      and found[4] == ending and found[1] in (start, f"{component}/{form}")
                      and (found[1] == start or not variant)]
            if index and shards:
                return [index[0], *shards]
    return []


def _single(title: str, files: Sequence[RemoteFile], memory: int | None) -> Choice:
    """One model that is there in one or several grades."""
    groups: dict[str, list[RemoteFile]] = {}
    for each in files:
        name = PurePosixPath(each.name).name.lower()
        numbered = NUMBERED.fullmatch(each.name)
        if each.ending not in WEIGHTS or _UNREAD.search(name) or (
                numbered and int(numbered[2]) != 1):
            continue
        groups.setdefault(_model(name), []).append(each)
    if not groups:
        raise FetchError(f"{title} has no weights that Smalti reads: it has "
                         f"{first_of([each.name for each in files]) or 'no files'}")
    if len(groups) > 1:
        listed = [f"{each.name} ({shown_bytes(sum(part.bytes for part in _shards(files, each)))})"
                  for group in groups.values() for each in group]
        raise FetchError(f"{title} has several models; say which one, as {title}:FILE. It has "
                         f"{first_of(listed)}")
    [group] = groups.values()
    whole = {each.name: Choice(tuple(_shards(files, each)), each.name) for each in group}
    return _grade([*whole.values()], memory)


def _model(name: str) -> str:
    """What a file is called without what tells grades of one model apart.

    >>> _model("chroma-q4_k_s.gguf"), _model("chroma.bf16.safetensors")
    ('chroma', 'chroma')
    """
    stem = NUMBERED.sub(r"\1", name)
    stem = stem.removesuffix(PurePosixPath(name).suffix)
    while (shorter := _WORDS.sub("", stem)) != stem:
        stem = shorter
    return stem


def _grade(choices: Sequence[Choice], memory: int | None) -> Choice:
    """The grade that is fetched: halves where they fit, else the largest that does."""
    safe = [each for each in choices if not each.opened.lower().endswith(PICKLES)] or [*choices]
    plain = sorted((each for each in safe if not each.opened.lower().endswith(GGUF)), key=_rank)
    packed = sorted((each for each in safe if each.opened.lower().endswith(GGUF)),
                    key=lambda each: -each.bytes)
    halves = [each for each in packed if not _WHOLE.search(each.opened.lower())] or packed
    first = [*plain, *halves][0]
    if memory is None or first.bytes <= memory:
        return _because(choices, first, "halves are enough" if len(choices) > 1 else "")
    others = sorted((each for each in (*plain, *packed) if each.bytes < first.bytes),
                    key=lambda each: -each.bytes)
    fits = next((each for each in others if each.bytes <= memory), None)
    if fits is None:
        smallest = others[-1] if others else first
        return _because(choices, smallest, f"it is the smallest, though larger than "
                                           f"{shown_bytes(memory)} of memory")
    return _because(choices, fits, f"it fits in {shown_bytes(memory)} of memory")


def _because(choices: Sequence[Choice], one: Choice, why: str) -> Choice:
    left = len(choices) - 1
    return Choice(one.files, one.opened, f"{why}; {left} of other grades are left out"
                  if left else why if "smallest" in why else "")


def _rank(choice: Choice) -> tuple[int, int, str]:
    """Halves first, then what says nothing, f32, 8 bits and fewer; of those the smallest file."""
    name = PurePosixPath(choice.opened).name.lower()
    ranks = ((_EIGHT, 3), (_GRADED, 4), (_HALF, 0), (_WHOLE, 2))
    rank = next((rank for words, rank in ranks if words.search(name)), 1)
    return rank, choice.bytes, choice.opened
