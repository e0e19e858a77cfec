"""Adds the target of docs/compiler.md, as it is told there, and asks it for what every target does.

    python tests/material/added_target.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from worked_example import added, pieces

from smalti.graph import Graph, evaluate

WHERE = "compiler.md", "### A target, step by step"


def image_graph() -> Graph:
    """A convolution, a norm and an activation."""
    graph = Graph("image")
    x = graph.input("x", (1, 8, 6, 6))
    y = graph.apply("conv", x, graph.parameter("w", (8, 8, 3, 3)), pads=(1, 1, 1, 1))
    parameters = graph.parameter("g", (8,)), graph.parameter("b", (8,))
    y = graph.apply("group_normalization", y, *parameters, num_groups=2)
    graph.output("y", graph.apply("silu", y))
    return graph


def main() -> None:
    """Add the target, compare a graph with the reference, and check every form of kernel."""
    with tempfile.TemporaryDirectory() as folder:
        added(*WHERE, folder=Path(folder))
        import smalti

        graph, random = image_graph(), np.random.default_rng(0)
        arrays = {name: random.standard_normal(value.shape, np.float32)
                  for name, value in (*graph.inputs.items(), *graph.parameters.items())}
        program = smalti.compile(graph, device="numpy:0", precision="f32")
        weights = {name: arrays[name] for name in graph.parameters}
        program.bind(weights)
        found = program.run({"x": arrays["x"]})["y"]
        expected = evaluate(graph, {"x": arrays["x"]}, weights)["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        assert "numpy:0" in [device.id for device in smalti.devices()]
        (report,) = smalti.check_device("numpy:0")
        assert report.ok, report
    print(f"{len(pieces(*WHERE))} files, {len({each.form for each in report.checks})} forms")


if __name__ == "__main__":
    main()
