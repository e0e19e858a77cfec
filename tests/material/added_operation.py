"""Adds the operation of docs/compiler.md, as it is told there, and computes it on every target.

    python tests/material/added_operation.py

It is a program of its own, because targets read the tables of functions once, as they are imported.
"""

from __future__ import annotations

import numpy as np
from worked_example import added, pieces

from smalti.graph import Graph, evaluate

WHERE = "compiler.md", "### A pointwise operation, step by step"


def graphs() -> list[Graph]:
    """The operation in the epilogue of a convolution, and where a map reads a transpose."""
    behind = Graph("epilogue")
    image = behind.input("x", (1, 4, 6, 6))
    y = behind.apply("conv", image, behind.parameter("w", (8, 4, 3, 3)))
    behind.output("y", behind.apply("squared_relu", y))
    alone = Graph("map")
    x = alone.input("x", (5, 7))
    alone.output("y", alone.apply("squared_relu", x + alone.parameter("w", (5, 7))))
    return [behind, alone]


def main() -> None:
    """Add the operation and compare every target with the reference."""
    added(*WHERE)
    from interpreted_gpu import InterpretedGpu
    from native_regions import LEVELS, PieceRunner, run_regions

    from smalti.codegen.spirv.target import TARGETS as SPIRV
    from smalti.codegen.wgsl.target import TARGETS as WGSL
    from smalti.codegen.x86.target import TARGETS as X86
    from smalti.fuse import HostRegion, partition
    from smalti.runtime.gpu.compilation import compile_for

    assert all("squared_relu" in target.functions for target in (*SPIRV, *WGSL, *X86))
    random = np.random.default_rng(0)
    for graph in graphs():
        x, w = (random.standard_normal(value.shape, np.float32)
                for value in (graph.inputs["x"], graph.parameters["w"]))
        expected = evaluate(graph, {"x": x}, {"w": w})["y"]
        regions = partition(graph, functions=X86[0].functions).regions
        assert len(regions) == 1 and not isinstance(regions[0], HostRegion)
        for level in LEVELS:
            found = run_regions(graph, {"x": x}, PieceRunner({"w": w}, level))["y"]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        program = compile_for(InterpretedGpu(), graph, precision="f32")
        program.bind({"w": w})
        np.testing.assert_allclose(program.run({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)
    print(f"{len(pieces(*WHERE))} files")


if __name__ == "__main__":
    main()
