"""The partition: which kernels a graph becomes, why, and that nothing is forgotten."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from mixed_graphs import mixed_graphs
from native_regions import LEVELS, check_graph
from peers_models import TINY_TEXT, TINY_UNET, TINY_VAE

from smalti import nn
from smalti.fuse import HostRegion, Partition, Region, partition
from smalti.fuse.support import When, lacking
from smalti.graph import Graph, Value
from smalti.models import clip_text_graph, unet_graph, vae_decoder_graph, vae_encoder_graph
from smalti.rewrite import rewrite

EXAMPLES = 40

MODELS = {
    "text": lambda: clip_text_graph(TINY_TEXT, 1),
    "unet": lambda: unet_graph(TINY_UNET, 1, 8, 8, tokens=5),
    "decoder": lambda: vae_decoder_graph(TINY_VAE, 1, 4, 4),
    "encoder": lambda: vae_encoder_graph(TINY_VAE, 1, 16, 16),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[Graph, Partition]:
    graph = rewrite(MODELS[request.param]())
    return graph, partition(graph)


def forms(found: Partition) -> dict[str, int]:
    return dict(Counter(region.kernel.form for region in found.regions))


def test_everything_that_is_read_has_been_written(model: tuple[Graph, Partition]) -> None:
    graph, found = model
    written = {view.storage for view in found.inputs.values()}
    for region in found.regions:
        roles = {buffer.name: buffer.role for buffer in region.kernel.buffers}
        for name, view in region.views.items():
            if view.storage.kind == "arena" and roles[name] != "output":
                assert view.storage in written, f"{region.scope} reads {name} too early"
        written |= {view.storage for name, view in region.views.items() if roles[name] == "output"}
    assert set(found.outputs) == set(graph.outputs)
    assert all(view.storage in written for view in found.outputs.values())


def test_every_product_of_the_graph_is_in_one_kernel(model: tuple[Graph, Partition]) -> None:
    graph, found = model
    counts = Counter(node.operation.name for node in graph.nodes)
    made = forms(found)
    assert made["contraction"] == counts["conv"] + counts["mat_mul"]
    assert made.get("attention", 0) == counts["attention"]
    assert made.get("group_scale_shift", 0) == counts["group_normalization"]
    assert made.get("layer_scale_shift", 0) == counts["layer_normalization"]


def test_products_of_the_kernels_are_those_of_the_graph(model: tuple[Graph, Partition]) -> None:
    graph, found = model
    expected = sum(n.operation.flops([v.type for v in n.inputs], n.output.type, n.attributes)
                   for n in graph.nodes if n.operation.name in ("conv", "mat_mul", "attention"))
    assert expected == sum(region.flops for region in found.regions
                           if region.kernel.form in ("contraction", "attention"))


def test_every_cut_has_a_reason_and_every_kernel_a_place(model: tuple[Graph, Partition]) -> None:
    graph, found = model
    scopes = {node.scope for node in graph.nodes}
    for region in found.regions:
        assert region.scope in scopes
        assert re.search(r"output of the program|operations read it|reads it in an order|on chip|"
                         r"before any is normalised|part of a concat|strides cannot express",
                         region.reason), region.reason


def test_views_fit_into_their_storages(model: tuple[Graph, Partition]) -> None:
    for region in model[1].regions:
        for view in region.views.values():
            reach = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True))
            assert 0 <= view.offset and view.offset + reach < view.storage.size


def test_activations_and_residuals_of_the_models_cost_no_kernel() -> None:
    """Maps remain for the embeddings, and where an output is normalised: kept as a budget."""
    found = {name: forms(partition(rewrite(make()))).get("map", 0) for name, make in MODELS.items()}
    assert found == {"text": 2, "unet": 3, "decoder": 0, "encoder": 0}


# ---------------------------------------------------------------------- what is fused


def kernels(build) -> list[str]:
    g = Graph("small")
    g.output("y", build(g))
    return [region.kernel.form for region in partition(g).regions]


def conv(g: Graph, x: Value, out: int, name: str = "w") -> Value:
    return g.apply("conv", x, g.parameter(name, (out, x.shape[1], 3, 3)), pads=(1, 1, 1, 1))


def image(g: Graph, name: str = "x") -> Value:
    return g.input(name, (1, 8, 4, 4))


def turned_heads(g: Graph, heads: int) -> Value:
    """Normalised in heads of 4 channels, then turned in `heads` heads."""
    tables = (g.input(name, (1, 5, 6 // heads)) for name in ("cos", "sin"))
    x = g.input("x", (2, 5, 12)).reshape(2, 5, 3, 4)
    x = g.apply("rms_normalization", x, g.parameter("s", (4,)))
    return g.apply("rotary_embedding", x.reshape(2, 5, 12), *tables, num_heads=heads)


def test_a_resnet_block_is_two_statistics_and_two_convolutions() -> None:
    def block(g: Graph) -> Value:
        h = x = image(g)
        for name in "ab":
            scale, bias = g.parameter(f"s{name}", (8,)), g.parameter(f"b{name}", (8,))
            h = g.apply("silu", g.apply("group_normalization", h, scale, bias, num_groups=2))
            h = conv(g, h, 8, name)
        return x + h

    assert kernels(block) == ["group_scale_shift", "contraction"] * 2


@pytest.mark.parametrize("build, expected", [
    (lambda g: conv(g, g.apply("resize", g.apply("silu", image(g)), scales=(1, 1, 2, 2)), 8),
     ["contraction"]),
    (lambda g: conv(g, image(g), 8) + conv(g, image(g, "z"), 8, "v"), ["contraction"] * 2),
    (lambda g: g.apply("concat", conv(g, image(g), 8), conv(g, image(g, "z"), 8, "v"), axis=1),
     ["contraction"] * 2),
    (lambda g: g.apply("concat", image(g), conv(g, image(g, "z"), 8), axis=1),
     ["contraction", "map"]),
    (lambda g: conv(g, image(g), 8) + g.apply("resize", g.input("r", (1, 8, 2, 2)),
                                              scales=(1, 1, 2, 2)), ["map", "contraction"]),
    (lambda g: g.apply("silu", g.apply("tanh", image(g)) + 1.0), ["map"]),
    (lambda g: image(g).transpose(0, 2, 3, 1).reshape(16, 8), []),
    (lambda g: g.input("x", (4, 6)).transpose(1, 0).reshape(24), ["map"]),
    (lambda g: turned_heads(g, 3), ["rms_scale", "map"]),
    (lambda g: turned_heads(g, 1), ["rms_scale", "map", "map"]),
], ids=["resize before", "sum of two", "concat in place", "concat with an input", "resize behind",
        "pointwise", "views only", "a copy",
        "turned heads", "heads of another size turned"])
def test_kernels_of_small_graphs(build, expected: list[str]) -> None:
    assert kernels(build) == expected


def test_operands_of_a_concat_are_computed_in_their_place() -> None:
    g = Graph("concat")
    a, b = conv(g, image(g), 5), g.apply("silu", image(g, "z"))
    both = g.apply("concat", a, conv(g, b, 7, "v"), axis=1)
    g.output("y", both)
    found = partition(g)
    outs = [region.views["out"] for region in found.regions]
    assert {view.storage for view in outs} == {found.outputs["y"].storage}
    assert [view.offset for view in outs] == [0, 5]
    assert found.outputs["y"].shape == (1, 12, 4, 4)


def test_a_dense_block_copies_nothing() -> None:
    """Each convolution reads all before it where they lie, and puts its result behind them."""
    g = Graph("dense")
    known = g.apply("silu", image(g))
    for name in "abc":
        made = conv(g, known, 4, name)
        known = g.apply("concat", known, g.apply("max", made, made * 0.2), axis=1)
    g.output("y", known)
    found = partition(g)
    assert forms(found) == {"map": 1, "contraction": 3}
    outs = [region.views["out"] for region in found.regions]
    assert {view.storage for view in outs} == {found.outputs["y"].storage}
    assert [view.offset for view in outs] == [0, 8, 12, 16]
    for name in LEVELS:
        check_graph(g, name, "f32")


@pytest.mark.parametrize("behind, count", [
    (lambda x: x.graph.apply("max", x, x * 0.2), 1),
    (lambda x: x * x, 1),
    (lambda x: x * x.graph.apply("sigmoid", x + 1.0) - x, 1),
    (lambda x: x.graph.apply("relu", x) + x * x.graph.input("s", (8, 1, 1)), 1),
    (lambda x: x + x.graph.apply("reduce_mean", x, axes=(2, 3), keepdims=1), 3),
    (lambda x: x * x.graph.apply("reshape", x, shape=(1, 8, 4, 4)), 2),
    (lambda x: x * x.graph.apply("sigmoid", x).transpose(0, 1, 3, 2), 2),
], ids=["leaky relu", "square", "three readers", "other values", "a mean between",
        "a view between", "a transpose between"])
def test_readers_that_meet_again_cost_no_kernel(behind, count: int) -> None:
    g = Graph("meeting")
    g.output("y", behind(conv(g, image(g), 8)))
    assert len(partition(g).regions) == count
    check_graph(g, LEVELS[-1], "f32")


def test_readers_that_something_else_reads_are_stored() -> None:
    g = Graph("meeting")
    x = conv(g, image(g), 8)
    scaled = x * 0.2
    g.output("y", g.apply("max", x, scaled))
    g.output("scaled", scaled)
    assert forms(partition(g)) == {"contraction": 1, "map": 2}


@pytest.mark.parametrize("parts, gate, products", [
    (2, lambda a, b: a * b.graph.apply("gelu", b), 1),
    (3, lambda a, b, c: (a + b.graph.apply("silu", b)) * c, 1),
    (2, lambda a, b: a.graph.apply("concat", a, b, axis=-1), 2),  # they do not meet pointwise
    (2, lambda a, b: a + b * a, 2),                                # a is read twice
])
def test_slices_of_a_product_that_meet_again_cost_no_kernel(parts: int, gate, products) -> None:
    """One kernel for the product and its gate; another where the slices must be stored."""
    g = Graph("gated")
    both = g.apply("mat_mul", g.input("x", (6, 8)), g.parameter("w", (8, 12)))
    width = 12 // parts
    slices = [g.apply("slice", both, axis=1, start=k * width, end=(k + 1) * width)
              for k in range(parts)]
    g.output("y", gate(*slices))
    regions = partition(g).regions
    assert (regions[0].kernel.stages[-1].axes[-1][1] == width) == (products == 1)
    assert (len(regions) == 1) == (products == 1)


def test_a_slice_that_something_else_reads_is_stored() -> None:
    g = Graph("gated")
    both = g.apply("mat_mul", g.input("x", (6, 8)), g.parameter("w", (8, 12)))
    a, b = (g.apply("slice", both, axis=1, start=k, end=k + 6) for k in (0, 6))
    g.output("y", a * b)
    g.output("a", g.apply("neg", a))
    assert len(partition(g).regions) == 3


def test_a_value_that_many_read_is_computed_once() -> None:
    g = Graph("many")
    shared = g.apply("silu", image(g))
    for number in range(6):
        g.output(f"y{number}", conv(g, shared, 4, f"w{number}"))
    assert forms(partition(g)) == {"map": 1, "contraction": 6}
    g = Graph("few")
    shared = g.apply("silu", image(g))
    for number in range(3):
        g.output(f"y{number}", conv(g, shared, 4, f"w{number}"))
    assert forms(partition(g)) == {"contraction": 3}


def test_layers_share_the_copy_of_their_mask() -> None:
    """Attention reads queries side by side; what turns a mask so is made once for all layers."""
    g = Graph()
    x, mask = g.input("x", (1, 6, 8)), g.input("mask", (1, 2, 6, 6))
    for _ in range(3):
        x = g.apply("attention", x, x, x, mask, num_heads=2)
    g.output("y", x)
    assert [region.kernel.form for region in partition(g).regions] == ["map", *["attention"] * 3]
    for name in LEVELS:
        check_graph(g, name)


def test_reasons_name_the_reader() -> None:
    g = Graph("reasons")
    x = conv(g, image(g), 8)
    tokens = x.reshape(1, 8, 16).transpose(0, 2, 1)
    g.output("y", g.apply("attention", tokens, tokens, tokens, num_heads=2))
    g.output("z", g.apply("silu", conv(g, image(g, "z"), 8, "v")))
    assert [region.reason for region in partition(g).regions] == [
        "transpose (through a reshape) reads it in an order of its own",
        "attention keeps its scores on chip", "an output of the program"]


def depthwise(g: Graph, x: Value, name: str) -> Value:
    return g.apply("conv", x, g.parameter(name, (x.shape[1], 1, 3, 3)), pads=(1, 1, 1, 1),
                   group=x.shape[1])


def test_an_inverted_residual_is_three_kernels() -> None:
    def block(g: Graph) -> Value:
        x = image(g)
        y = nn.relu6(nn.batch_norm(conv(g, x, 48, "expand"), "a"))
        y = nn.relu6(nn.batch_norm(depthwise(g, y, "filter"), "b"))
        return x + nn.batch_norm(conv(g, y, 8, "project"), "c")

    assert kernels(block) == ["map"] * 6 + ["contraction", "depthwise", "contraction"]


def test_what_depends_on_parameters_only_comes_first() -> None:
    g = Graph("steady")
    x = conv(g, image(g), 8)
    squared = g.parameter("p", (8, 1, 1)) * g.parameter("q", (8, 1, 1))
    g.output("y", x * g.apply("exp", squared + 1.0) + squared)
    g.output("table", g.apply("tanh", g.parameter("t", (3,))))
    found = partition(g)
    assert [(region.kernel.form, region.when) for region in found.regions] == [
        ("map", When.BINDING)] * 3 + [("contraction", When.RUN)]
    written = {region.views["out"].storage for region in found.regions[:3]}
    assert written >= {view.storage for name, view in found.regions[3].views.items()
                       if name.startswith("x") and view.storage.kind == "arena"}


def test_what_depends_on_held_inputs_only_comes_before_the_rest() -> None:
    g = Graph("held")
    x, context = g.input("x", (4, 8)), g.input("context", (4, 8))
    weights = [g.parameter(name, (8, 8)) for name in "abc"]
    y = g.apply("mat_mul", x, weights[0])
    key = g.apply("mat_mul", context, weights[1])
    g.output("y", y + g.apply("mat_mul", g.apply("silu", key), weights[2]))
    assert [region.when for region in partition(g).regions] == [When.RUN] * 3
    assert [region.when for region in partition(g, ["context"]).regions] == [
        When.CHANGE, When.CHANGE, When.RUN]
    assert {region.when for region in partition(g, ["context", "x"]).regions} == {When.CHANGE}


def test_a_depthwise_convolution_reads_what_is_stored() -> None:
    """Nine pixels read each value: it is not computed nine times."""
    assert kernels(lambda g: depthwise(g, g.apply("silu", image(g)), "w")) == ["map", "depthwise"]


def test_a_mean_takes_in_what_stands_around_it() -> None:
    def mean(g: Graph) -> Value:
        x = g.apply("silu", image(g))
        return g.apply("tanh", g.apply("reduce_mean", x, axes=(2, 3)) * 2.0)

    assert kernels(mean) == ["reduction"]


# ---------------------------------------------------------------------- what has no kernel


def test_what_no_kernel_computes_is_left_to_the_host_and_says_why() -> None:
    g = Graph("host")
    x, z = g.input("x", (1, 8, 4, 4)), g.input("z", (8, 8))
    with g.scope("first"), g.scope("inner"):
        a = g.apply("softmax", g.input("s", (3, 4)))
    b = g.apply("conv", g.input("line", (1, 8, 4)), g.apply("tanh", g.input("w", (8, 1, 3))),
                strides=(1,), dilations=(1,), pads=(0, 0), group=8)
    c = g.apply("mat_mul", z, g.apply("silu", z))
    d = g.apply("mat_mul", g.input("q", (1, 2, 3, 4, 8)), g.parameter("p", (8, 8)))
    e = g.apply("cast", g.input("i", (3,), "i64"), to="f32")
    f = g.input("j", (3,), "i64") + g.input("k", (3,), "i64")
    for name, value in zip("abcdef", (a, b, c, d, e, f), strict=True):
        g.output(name, value)
    g.output("fine", x + 1.0)
    found = partition(g, functions={"add", "silu"})
    hosted = {p.operation: (p.scope, p.reason) for p in found.regions if isinstance(p, HostRegion)}
    assert hosted == {
        "softmax": ("first.inner", "host: no kernel computes softmax on f32"),
        "tanh": ("", "host: no kernel computes tanh on f32"),
        "conv": ("", "host: no kernel computes conv on f32"),
        "mat_mul": ("", "host: mat_mul over more than two batch axes"),
        "cast": ("", "host: no kernel computes cast on i64"),
        "add": ("", "host: no kernel computes add on i64"),
    }
    assert [p.kernel.form for p in found.regions if isinstance(p, Region)] == [
        "map", "contraction", "map"]


def test_attributes_that_no_form_knows_are_left_to_the_host(
        monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph("odd")
    x = g.input("x", (2, 3))
    g.output("y", g.apply("slice", x, axis=1, start=0, end=2))
    node = g.nodes[0]
    assert lacking(node, ()) == ""
    operation = replace(node.operation, attributes={**node.operation.attributes, "step": 1})
    monkeypatch.setattr(node, "operation", operation)
    node.attributes["step"] = 1
    assert lacking(node, ()) == ""
    node.attributes["step"] = 2
    assert lacking(node, ()) == "no kernel computes slice on f32"


# ---------------------------------------------------------------------- random graphs


@examples(EXAMPLES)
@given(mixed_graphs(), st.sampled_from(LEVELS), st.booleans())
def test_random_graphs_compute_what_they_mean(graph: Graph, name: str, rewritten: bool) -> None:
    check_graph(rewrite(graph) if rewritten else graph, name)
