"""What another compiler makes of the MLIR text computes what the graph means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mlir_graphs import OPERATIONS_ALONE, arrays, tiny_models

from smalti.benchmark.agreement import relative_error
from smalti.export.mlir import export
from smalti.graph import Graph, evaluate

pytestmark = pytest.mark.peers

ERROR_MAX = 1e-5
HALVES_ERROR_MAX = 1e-2


def compiled(graph: Graph) -> Callable[..., list[np.ndarray]]:
    """The function of `graph`, compiled by IREE for this CPU."""
    import iree.compiler
    import iree.runtime

    binary = iree.compiler.compile_str(
        export(graph), target_backends=["llvm-cpu"],
        extra_args=["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O0"])
    module = iree.runtime.load_vm_flatbuffer(binary, driver="local-sync")
    (name,) = module.vm_module.function_names[:1]

    def run(*given: np.ndarray) -> list[np.ndarray]:
        results = module[name](*given)
        return [np.asarray(r) for r in (results if isinstance(results, tuple) else (results,))]

    return run


def compare(graph: Graph, error_max: float = ERROR_MAX) -> None:
    given = arrays(graph)
    names = [*graph.inputs, *graph.parameters]
    expected = evaluate(graph, {n: given[n] for n in graph.inputs},
                        {n: given[n] for n in graph.parameters})
    found = compiled(graph)(*(given[name] for name in names))
    for array, (name, value) in zip(found, expected.items(), strict=True):
        assert array.shape == value.shape and array.dtype == value.dtype, name
        if value.dtype.kind == "f":
            assert relative_error(array, value) <= error_max, name
        else:
            np.testing.assert_array_equal(array, value)


@pytest.mark.parametrize("name", [n for n in OPERATIONS_ALONE if "bf16" not in n])
def test_every_operation(name: str) -> None:
    """But casts to bf16, which numpy arrays of IREE's run time do not have."""
    compare(OPERATIONS_ALONE[name](), HALVES_ERROR_MAX if "f16" in name else ERROR_MAX)


@pytest.mark.parametrize("build", tiny_models(), ids=lambda build: build.__name__)
def test_models(build: Callable[[], Graph]) -> None:
    compare(build())
