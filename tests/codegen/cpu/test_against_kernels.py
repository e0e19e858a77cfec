"""Every region of random graphs and models, against the interpreter of kernels.

Where a whole graph is off, this says which of the two sides of the kernel form is wrong: the
partition made another kernel than the graph means (`tests/fuse`), or lowering made other code than
the kernel means (here).
"""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given, note
from hypothesis import strategies as st
from mixed_graphs import mixed_graphs
from native_regions import LEVELS, PieceRunner, arrays_for, relative_error, run_regions
from peers_models import TINY_TEXT, TINY_UNET, TINY_VAE

from smalti.fuse import Region, partition
from smalti.graph import Graph
from smalti.kernel.interpreter import run
from smalti.models import clip_text_graph, unet_graph, vae_decoder_graph

EXAMPLES = 30


class CheckedRunner(PieceRunner):
    """Asserts after each region that its results are those of its kernel."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.checked: dict[str, int] = {}

    def run(self, region: Region) -> None:
        """Run the region natively and by the interpreter, on the same operands."""
        roles = {buffer.name: buffer.role for buffer in region.kernel.buffers}
        given = {name: np.array(self.array(view)) for name, view in region.views.items()
                 if roles[name] != "output"}
        expected = run(region.kernel, given)
        super().run(region)
        allowed = 1e-5 if self.precision == "f32" else 1e-2  # weights are rounded, too
        for name, array in expected.items():
            error = relative_error(self.array(region.views[name]), array)
            assert error < allowed, f"{name} is off by {error:.3g}: {region.scope}\n{region.kernel}"
        form = region.kernel.form
        self.checked[form] = self.checked.get(form, 0) + 1


def check(graph: Graph, name: str, precision: str, weights: str = "f32") -> dict[str, int]:
    """How many regions of each form agreed."""
    inputs, parameters = arrays_for(graph)
    runner = CheckedRunner(parameters, name, precision)
    run_regions(graph, inputs, runner, weights)
    return runner.checked


@examples(EXAMPLES)
@given(mixed_graphs(), st.sampled_from(LEVELS), st.sampled_from(["f32", "bf16"]),
       st.sampled_from(["f32", "f16", "bf16"]))
def test_regions_of_random_graphs(graph: Graph, name: str, precision: str, weights: str) -> None:
    note(f"{name} {precision} {weights}\n{graph}")
    assert sum(check(graph, name, precision, weights).values()) == len(partition(graph).regions)


@pytest.mark.sampled
@pytest.mark.parametrize("precision, weights", [
    ("f32", "f32"), ("bf16", "f32"), ("f32", "f16"), ("f32", "bf16"), ("bf16", "f16"),
])
@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("graph, expected", [
    (lambda: clip_text_graph(TINY_TEXT, 1), {"map", "contraction", "attention",
                                             "layer_scale_shift"}),
    (lambda: unet_graph(TINY_UNET, 1, 4, 6, tokens=3), {"map", "contraction", "attention",
                                                        "layer_scale_shift", "group_scale_shift"}),
    (lambda: vae_decoder_graph(TINY_VAE, 1, 2, 2), {"contraction", "attention",
                                                    "group_scale_shift"}),
], ids=["text", "unet", "decoder"])
def test_regions_of_models(graph, expected: set[str], name: str, precision: str,
                          weights: str) -> None:
    assert set(check(graph(), name, precision, weights)) == expected
