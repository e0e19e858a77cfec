"""Two Python threads may run one program: they take turns in its memory."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from smalti.graph import Graph, evaluate
from smalti.runtime import compile_graph


def test_two_threads_share_a_program():
    graph = Graph("square")
    x = graph.input("x", (64, 1000))
    graph.output("y", graph.apply("exp", graph.apply("sin", x * x)) + 1.0)
    program = compile_graph(graph, threads=2)
    arrays = [np.full((64, 1000), k / 7, np.float32) for k in range(24)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda a: program.run({"x": a})["y"], arrays))
    for array, result in zip(arrays, results, strict=True):
        np.testing.assert_allclose(result, evaluate(graph, {"x": array}, {})["y"], rtol=1e-5)
