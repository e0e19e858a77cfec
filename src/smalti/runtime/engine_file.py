"""What an engine file holds, read region by region.

| section       | what                                                                            |
| ------------- | ------------------------------------------------------------------------------- |
| `graph`       | the graph as text: what is computed, and what compiling again starts from       |
| `module NAME` | code, schedules, launches and memory plan for a target (`compiler/module.py`)    |
| `weights`     | only when asked for: the parameters as they were given, each at a multiple of 64 |
| `about`       | JSON: version, name, precision; of each parameter name, shape, dtype and hash   |
"""

from __future__ import annotations

import hashlib
import json
import math
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np

from smalti.compiler.decoding import decoded
from smalti.compiler.encode import from_bytes
from smalti.compiler.module import Module
from smalti.compiler.verify import verify
from smalti.dataclass import dataclass
from smalti.errors import EngineError, InputError, VerificationError
from smalti.graph import Graph
from smalti.graph.operation import DTYPES, Type
from smalti.graph.quantised import FORMATS, Quantised
from smalti.graph.text import parse
from smalti.runtime.container import Container

GRAPH, MODULE, WEIGHTS, ABOUT = "graph", "module ", "weights", "about"
SUFFIX = ".smalti"
WEIGHT_ALIGNMENT = 64  # of weights in their section: cache lines, vectors of 512 bits
ELEMENTS_MAX = 2**60  # so that bytes of any dtype are counted in 64 bits
ANEW = ("compile what is in the file here: `smalti run --recompile`, or smalti.load(path, "
        "recompile=True)")


@dataclass(frozen=True)
class Parameter:
    """A parameter of the program. `sha256` is that of the array that was bound when the file was
    made, of `dtype`, or of the words of one that was quantised so; empty when none was. `offset` is
    its place in the weights, -1 without them.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str = ""
    offset: int = -1

    @property
    def bytes(self) -> int:
        """Bytes of the array."""
        count = math.prod(self.shape)
        if self.dtype in FORMATS:
            return 4 * FORMATS[self.dtype].words_of(count)
        return np.dtype(DTYPES[self.dtype]).itemsize * count


@dataclass(frozen=True)
class About:
    """What a file says of itself. `threads` are those that schedules were chosen for; any number
    of them runs a program and gives the same bytes. `weights` are names and dtypes of parameters
    that are held as halves or quantised; `objective` is what schedules were chosen for."""

    smalti: str
    name: str
    precision: str
    threads: int
    held: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    weights: tuple[tuple[str, str], ...] = ()
    objective: str = "latency"


class EngineFile:
    """An engine file. Raises EngineError for anything that `engine.save` did not make."""

    def __init__(self, path: str | PathLike) -> None:
        self.path = Path(path)
        self._container = Container(self.path)
        try:
            about = decoded(About, json.loads(bytes(self._container.section(ABOUT))))
        except (ValueError, RecursionError) as error:
            raise self.refusal(f"what it says of itself is no record ({error})") from None
        self.about: About = about
        self.parameters = {entry.name: entry for entry in about.parameters}
        self._check_parameters()

    def refusal(self, why: str) -> EngineError:
        """An error that says what is wrong with this file, and what to do."""
        return self._container.refusal(why)

    def _check_parameters(self) -> None:
        room = self._container.size_bytes(WEIGHTS) if self.has_weights else 0
        for entry in self.parameters.values():
            form = FORMATS.get(entry.dtype)
            if form is None and entry.dtype not in DTYPES:
                raise self.refusal(f"the parameter {entry.name!r:.80} is of {entry.dtype!r:.40}")
            if not all(0 <= extent <= ELEMENTS_MAX for extent in entry.shape):
                raise self.refusal(f"the parameter {entry.name!r:.80} has an impossible shape")
            if form is not None and math.prod(entry.shape) % form.group:
                raise self.refusal(f"the parameter {entry.name!r:.80} is no whole groups of "
                                   f"{form.group} weights")
            end = entry.offset + entry.bytes
            if self.has_weights and not (0 <= entry.offset and end <= room):
                raise self.refusal(f"the weight {entry.name!r:.80} lies outside of the file")

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the targets that it holds code for, in the order of the file."""
        return tuple(name.removeprefix(MODULE) for name in self._container.names()
                     if name.startswith(MODULE))

    @property
    def has_weights(self) -> bool:
        """Whether weights are embedded."""
        return WEIGHTS in self._container.names()

    def sizes(self) -> dict[str, int]:
        """Bytes of each section."""
        return {name: self._container.size_bytes(name) for name in self._container.names()}

    @cached_property
    def graph(self) -> Graph:
        """What the program computes. Raises EngineError when the text does not parse."""
        text = self._container.section(GRAPH)
        try:
            return parse(bytes(text).decode())
        except (UnicodeDecodeError, RecursionError, InputError) as error:
            raise self.refusal(f"its graph cannot be read ({error})") from None

    def module(self, target: str) -> Module:
        """The module for a target, its numbers checked against one another."""
        data = bytes(self._container.section(MODULE + target))
        try:
            module = from_bytes(data)
            verify(module)
        except (InputError, VerificationError) as error:
            raise EngineError(f"{self.path}: its code for {target} cannot be used: {error}; {ANEW}"
                              ) from None
        if (module.target, module.precision) != (target, self.about.precision):
            raise self.refusal(f"its code for {target} says that it is for {module.target:.40} in "
                               f"{module.precision:.40}")
        wanted = {name: entry.shape for name, entry in self.parameters.items()}
        if not module.parameters.items() <= wanted.items():
            raise self.refusal(f"its code for {target} is of other parameters")
        for places, values in ((module.inputs, self.graph.inputs),
                               (module.outputs, self.graph.outputs)):
            if {name: Type(place.shape, place.known_as) for name, place in places.items()} \
                    != {name: value.type for name, value in values.items()}:
                raise self.refusal(f"its code for {target} has other inputs or outputs than its "
                                   f"graph")
        return module

    # ------------------------------------------------------------------ weights

    def array(self, name: str) -> np.ndarray | Quantised:
        """An embedded weight: a read-only view on the mapped file.

        Raises EngineError when it is missing or damaged.
        """
        entry = self.parameters.get(name)
        if entry is None or not self.has_weights:
            raise self.refusal(f"it holds no weight {name!r:.80}")
        section, end = self._container.section(WEIGHTS), entry.offset + entry.bytes
        view, behind = section[entry.offset:end], section[end:end + -end % WEIGHT_ALIGNMENT]
        if hashlib.sha256(view).hexdigest() != entry.sha256 or any(behind):
            raise self.refusal(f"its weight {name!r:.80} is damaged")
        if entry.dtype in FORMATS:
            words = np.frombuffer(view, np.uint32).reshape(-1, FORMATS[entry.dtype].words)
            return Quantised(entry.dtype, words, entry.shape)
        return np.frombuffer(view, DTYPES[entry.dtype]).reshape(entry.shape)

    def drop(self, name: str) -> None:
        """Let the system take back the memory of an embedded weight, until it is read again."""
        entry = self.parameters[name]
        self._container.drop(WEIGHTS, entry.offset, entry.bytes)
