"""Text cases: a graph, and what one or more stages make of it, as expected text beside it.

A case is a file of this folder: a sentence about what it shows, then sections. `== graph` is the
input; each other section is named after a stage of `stages.py` and holds its text.

    pytest tests/programs                     compares
    pytest tests/programs --update-programs   writes what the stages make now; read the difference

Texts alone would let a wrong one stand once it was written, so each graph is also run: on every
feature level of this CPU, and as programs of work-groups in numpy, against its reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from interpreted_gpu import InterpretedGpu
from programs.stages import STAGES

from smalti.graph import Graph, evaluate, parse
from smalti.runtime import compile_graph
from smalti.runtime.cpu.adapter import available_levels
from smalti.runtime.gpu.compilation import compile_for

FOLDER = Path(__file__).parent
MARK = "== "
TOLERANCE = 1e-5  # of the largest magnitude, as everywhere in f32


@dataclass(frozen=True)
class Case:
    """A file: what it shows, its graph as text, and the expected texts of stages."""

    about: str
    graph: str
    expected: dict[str, str]

    @classmethod
    def read(cls, text: str) -> Case:
        """The case that a file holds. Raises ValueError where its sections are not as they are to
        be."""
        about, *sections = text.split(f"\n{MARK}")
        found = {}
        for section in sections:
            name, _, body = section.partition("\n")
            if name in found:
                raise ValueError(f"the section {name!r} stands there twice")
            found[name] = body.strip("\n")
        if "graph" not in found or not about.strip():
            raise ValueError("a case begins with a sentence and has a section `== graph`")
        if unknown := sorted(set(found) - {"graph", *STAGES}):
            raise ValueError(f"there are no stages {unknown}; expected some of {sorted(STAGES)}")
        return cls(about.strip(), found.pop("graph"), found)

    def written(self, made: dict[str, str]) -> str:
        """The file with other texts of its stages."""
        parts = {"graph": self.graph, **made}
        return self.about + "\n" + "".join(f"\n{MARK}{name}\n{body}\n"
                                           for name, body in parts.items())


PATHS = sorted(FOLDER.glob("*.txt"))
by_file = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@by_file
def test_each_stage_makes_the_expected_text(path: Path, request: pytest.FixtureRequest) -> None:
    case = Case.read(path.read_text(encoding="utf-8"))
    made = {name: STAGES[name](parse(case.graph)).strip("\n") for name in case.expected}
    if request.config.getoption("--update-programs"):
        path.write_text(case.written(made), encoding="utf-8")
    else:
        assert made == case.expected, f"{path.name}: read the difference; where it is meant, " \
            f"pytest tests/programs --update-programs"


@by_file
def test_each_graph_means_the_same_on_every_target(path: Path) -> None:
    graph = parse(Case.read(path.read_text(encoding="utf-8")).graph)
    rng = np.random.default_rng(7)
    arrays = {name: rng.standard_normal(value.type.shape).astype(np.float32)
              for name, value in (*graph.inputs.items(), *graph.parameters.items())}
    inputs = {name: arrays[name] for name in graph.inputs}
    parameters = {name: arrays[name] for name in graph.parameters}
    wanted = evaluate(graph, inputs, parameters)
    programs = [compile_graph(graph, target=name, threads=1) for name in available_levels()]
    programs.append(compile_for(InterpretedGpu(), graph, precision="f32"))
    for program in programs:
        program.bind(parameters.__getitem__)
        found = program.run(inputs)
        for name, array in wanted.items():
            scale = max(float(np.abs(array).max()), 1.0)
            np.testing.assert_allclose(found[name], array, rtol=0, atol=TOLERANCE * scale,
                                       err_msg=f"{path.name} on {program.targets}")


def test_a_stage_that_changed_is_written_where_that_is_asked_for() -> None:
    case = Case.read("A case.\n\n== graph\ngraph \"g\" {\n}\n\n== spirv\nold\n")
    text = case.written({"spirv": "new"})
    assert Case.read(text) == Case("A case.", case.graph, {"spirv": "new"})
    assert case.written(case.expected) == "A case.\n\n== graph\ngraph \"g\" {\n}\n\n== spirv\nold\n"


@pytest.mark.parametrize("text, message", [
    ("\n== graph\ng", "begins with a sentence"), ("About.\n\n== spirv\n", "begins with a sentence"),
    ("About.\n\n== graph\ng\n== graph\ng", "'graph' stands there twice"),
    ("About.\n\n== graph\ng\n== x87\nf", "no stages .'x87'.; expected some of .'partition'"),
])
def test_a_file_that_is_no_case_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case.read(text)


def test_every_stage_has_a_case() -> None:
    shown = {name for path in PATHS for name in Case.read(path.read_text("utf-8")).expected}
    assert shown == set(STAGES)


def test_cases_hold_graphs_that_print_as_they_are_written() -> None:
    for path in PATHS:
        text = Case.read(path.read_text(encoding="utf-8")).graph
        graph: Graph = parse(text)
        assert str(graph).strip() == text, path.name
