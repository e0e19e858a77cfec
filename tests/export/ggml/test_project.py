"""The folder that is written: C++ text, weights, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from ggml_graphs import HOSTILE, hostile_graph, weights_of
from gguf_reader import read_gguf
from peers_models import TINY_TEXT, TINY_UNET, TINY_VAE

from smalti.benchmark.tiny_cnn import tiny_cnn_graph
from smalti.errors import InputError, OutputError, UnsupportedError
from smalti.export.ggml import export
from smalti.graph import Graph
from smalti.models import clip_text_graph, unet_graph, vae_encoder_graph

TINY_CNN = '''\
std::vector<ggml_tensor *> build(const Graph & g, const std::vector<ggml_tensor *> & inputs) {
    ggml_tensor * image = inputs[0];  // [1, 3, 8, 8]
    ggml_context * ctx = g.ctx;
    const Weights w = g.weights();
    ggml_tensor * conv = ops::conv_2d(g, w("conv.weight"), image, {{1, 1, 1, 1}});  // [1, 8, 8, 8]
    conv = ggml_add(ctx, conv, ggml_reshape_3d(ctx, w("conv.bias"), 1, 1, 8));  // [1, 8, 8, 8]
    ggml_tensor * relu = ggml_relu(ctx, conv);  // [1, 8, 8, 8]
    ggml_tensor * reduce_mean = ggml_mean(ctx, ggml_reshape_2d(ctx, relu, 64, 8));  // [1, 8]
    ggml_tensor * linear = ops::mul_mat(ctx, w("linear.weight"),
        ggml_reshape_1d(ctx, reduce_mean, 8));  // [1, 4]
    linear = ggml_add(ctx, linear, w("linear.bias"));  // [1, 4]
    return {linear};
}
'''


def exported(graph: Graph, folder: Path, **options: str) -> str:
    """The model's own source, of a project in `folder`."""
    export(graph, weights_of(graph), folder, **options)
    return (folder / "model.cpp").read_text()


def stored(folder: Path) -> dict[str, np.ndarray]:
    """The tensors of the weights file under the model's names."""
    entries, tensors = read_gguf((folder / "weights.gguf").read_bytes())
    return dict(zip(entries["smalti.names"], tensors.values(), strict=True))


# ---------------------------------------------------------------------- C++


def test_tiny_cnn_reads_like_the_model(tmp_path: Path) -> None:
    text = exported(tiny_cnn_graph(8), tmp_path / "a")
    assert text.endswith(TINY_CNN)
    assert '{"image", "", GGML_TYPE_F32, {1, 3, 8, 8}},' in text
    assert '{"scores", "scores.npy", GGML_TYPE_F32, {1, 4}},' in text


def test_parts_of_the_unet_are_functions(tmp_path: Path) -> None:
    text = exported(unet_graph(TINY_UNET, 1, 8, 8, 7), tmp_path / "a")
    parts = re.findall(r"^static ggml_tensor \* (\w+)\(const Graph & g, (.*?)\) \{$", text,
                       re.MULTILINE | re.DOTALL)
    taken = {name: " ".join(arguments.split()) for name, arguments in parts}
    assert taken["middle_block_0"].startswith("ggml_tensor * input_blocks_5_0, ggml_tensor * ")
    assert {"input_blocks_1", "input_blocks_1_1", "output_blocks_5"} <= set(taken)
    assert 'g.weights("model.diffusion_model.output_blocks.0.0");' in text
    assert 'w("in_layers.0.weight")' in text and "blocks::middle_block_0(g, " in text
    assert max(function.count("  // [") for function in text.split("\n}\n")) <= 50


NAMED_NODES = """\
    const Weights all = g.weights();
    const Weights w = g.weights("layer.fc");
    ggml_tensor * layer_fc = ops::mul_mat(ctx, all("val_2"), x);  // [2, 3]
    layer_fc = ggml_add(ctx, layer_fc, w("bias"));  // [2, 3]
    ggml_tensor * layer = ggml_add(ctx, layer_fc, x);  // [2, 3]
    layer = ops::clamp(ctx, layer, 0.0f, 6.0f);  // [2, 3]
    ggml_tensor * Tanh = ggml_tanh(ctx, layer);  // [2, 3]
"""


def test_variables_are_named_by_modules_and_at_the_top_by_nodes(tmp_path: Path) -> None:
    g = Graph()
    x = y = g.input("x", (2, 3))
    weight, bias = g.parameter("val_2", (3, 3)), g.parameter("layer.fc.bias", (3,))
    with g.scope("layer.fc/node_MatMul_2"):
        y = g.apply("mat_mul", y, weight)
    with g.scope("layer.fc/node_linear"):
        y = y + bias
    with g.scope("layer/node_add"):
        y = y + x
    with g.scope("layer/node_clip"):
        y = g.apply("min", g.apply("max", y, g.constant(0.0)), g.constant(6.0))
    with g.scope("/Tanh"):
        g.output("y", g.apply("tanh", y))
    assert NAMED_NODES in exported(g, tmp_path / "a")


def test_lines_are_short(tmp_path: Path) -> None:
    text = exported(clip_text_graph(TINY_TEXT, 1, 77), tmp_path / "a")
    assert max(map(len, text.splitlines())) <= 100


def test_equal_graphs_give_equal_files(tmp_path: Path) -> None:
    for name in "ab":
        exported(clip_text_graph(TINY_TEXT, 1, 5), tmp_path / name)
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
                     for name in "ab")
    assert first == second and len(first) == 8


def test_hostile_names_are_quoted_and_spelled_as_identifiers(tmp_path: Path) -> None:
    graph = hostile_graph()
    text = exported(graph, tmp_path / "a")
    assert '{"a\\"b", "", GGML_TYPE_F32, {3}},' in text
    assert '{"../../etc/passwd", "etc_passwd.npy", GGML_TYPE_F32, {3}},' in text
    assert '"new\\012line"' in text and "ggml_tensor * class_ = inputs[3];" in text
    assert set(stored(tmp_path / "a")) == {p.replace("\0", "") for p in graph.parameters}
    files = re.findall(r'"([^"]*\.npy)"', text)
    assert len(set(files)) == len(HOSTILE) + 1
    assert all(re.fullmatch(r"\w+\.npy", file) for file in files)
    readme = (tmp_path / "a" / "README.md").read_text()
    assert readme.startswith('# evil"; } //\\n\n')


# ---------------------------------------------------------------------- weights


def test_weights_are_the_parameters_with_matrices_as_ggml_multiplies(tmp_path: Path) -> None:
    g = Graph()
    x = g.input("x", (2, 3))
    x = g.apply("mat_mul", x, g.parameter("columns", (3, 4)))
    x = g.apply("mat_mul", x, g.parameter("rows", (5, 4)).transpose(1, 0))
    g.parameter("unread", (7,))
    g.output("y", x + g.parameter("bias", (5,)))
    given = weights_of(g)
    del given["unread"]
    export(g, given, tmp_path / "a")
    found = stored(tmp_path / "a")
    assert list(found) == ["columns", "rows", "bias"]
    assert (found["columns"] == given["columns"].T).all()
    assert (found["rows"] == given["rows"]).all() and (found["bias"] == given["bias"]).all()
    entries, _ = read_gguf((tmp_path / "a" / "weights.gguf").read_bytes())
    assert entries["smalti.swapped"] == ["columns"] and entries["general.file_type"] == 0


def test_f16_is_for_matrices_windows_and_tables(tmp_path: Path) -> None:
    exported(clip_text_graph(TINY_TEXT, 1, 77), tmp_path / "text", precision="f16")
    exported(vae_encoder_graph(TINY_VAE, 1, 16, 16), tmp_path / "image", precision="f16")
    for folder in ("text", "image"):
        for name, array in stored(tmp_path / folder).items():
            half = name.endswith(".weight") and array.ndim > 1 and "position" not in name
            assert array.dtype == (np.float16 if half else np.float32), name


def test_a_table_that_is_also_a_matrix_is_stored_once(tmp_path: Path) -> None:
    g = Graph()
    table = g.parameter("table", (6, 4))
    x = g.apply("gather", table, g.input("ids", (3,), "i32"))
    g.output("y", g.apply("mat_mul", x, table.transpose(1, 0)))
    text = exported(g, tmp_path / "a", precision="f16")
    assert stored(tmp_path / "a")["table"].dtype == np.float16
    assert text.count('w("table")') == 2 and "permute" not in text


@pytest.mark.parametrize("uniform", [True, False])
def test_group_normalisation_as_exporters_spell_it_has_its_weights(tmp_path: Path,
                                                                   uniform: bool) -> None:
    """An instance normalisation by ones and zeros, one a group, then by weights."""
    g = Graph()
    x = g.input("x", (1, 8, 4, 4))
    weights = [g.parameter(name, (8, 1, 1)) for name in ("scale", "shift")]
    fillers = [g.parameter(name, (2,)) for name in ("ones", "zeros")]
    y = g.apply("group_normalization", x.reshape(1, 2, 64), *fillers, num_groups=2)
    y = y.reshape(1, 8, 4, 4) * weights[0] + weights[1]
    g.output("y", y)
    ones = np.ones(2, np.float32) if uniform else np.array([1, 2], np.float32)
    export(g, {**weights_of(g), "ones": ones, "zeros": np.zeros(2, np.float32)}, tmp_path / "a")
    text = (tmp_path / "a" / "model.cpp").read_text()
    by_weights = 'ops::group_norm(ctx, x, w("scale"), w("shift"), 2,'
    assert (by_weights in text) == uniform
    assert ("ones" in stored(tmp_path / "a")) != uniform


def test_long_names_are_listed_beside_short_ones(tmp_path: Path) -> None:
    exported(unet_graph(TINY_UNET, 1, 8, 8, 7), tmp_path / "a")
    entries, tensors = read_gguf((tmp_path / "a" / "weights.gguf").read_bytes())
    long = [(name, short) for name, short in zip(entries["smalti.names"], tensors, strict=True)
            if name != short]
    assert long and all(len(name) > 63 and len(short) <= 63 and name.endswith(short[10:])
                        for name, short in long)


def test_whole_numbers_have_to_fit(tmp_path: Path) -> None:
    g = Graph()
    table, rows = g.parameter("table", (6, 4)), g.parameter("rows", (2,), "i64")
    g.output("y", g.apply("gather", table, rows))
    given = {"table": np.ones((6, 4), np.float32), "rows": np.array([1, 2**40])}
    with pytest.raises(InputError, match="rows has numbers from 1 to 1099511627776"):
        export(g, given, tmp_path / "a")
    export(g, {**given, "rows": np.array([1, 5])}, tmp_path / "a")
    assert stored(tmp_path / "a")["rows"].tolist() == [1, 5]


# ---------------------------------------------------------------------- refused


def test_all_nodes_without_an_equal_are_listed(tmp_path: Path) -> None:
    g = Graph("odd")
    x = g.input("x", (4, 4))
    with g.scope("first"):
        y = g.apply("asin", x)
    y = g.apply("relu", y)
    with g.scope("second"):
        y = g.apply("reduce_prod", y, axes=(0,))
    with g.scope("third"):
        n = g.input("n", (2,), "i32")
        m = g.apply("add", n, n)
    with g.scope("fourth"):
        kernel = g.parameter("w", (1, 1, 1, 1, 1, 1))
        g.output("z", g.apply("conv", g.input("z", (1, 1, 2, 2, 2, 2)), kernel, pads=(0,) * 8,
                              strides=(1,) * 4, dilations=(1,) * 4))
    g.input("d", (1,), "f64")
    g.output("y", y)
    g.output("m", m)
    with pytest.raises(UnsupportedError) as caught:
        export(g, {}, tmp_path / "a")
    assert [(node.name, node.operator) for node in caught.value.nodes] == [
        ("d", "input"), ("first", "asin"), ("second", "reduce_prod"), ("third", "add"),
        ("fourth", "conv")]
    assert "4 spatial axes; 1 to 3 are expected" in str(caught.value)
    assert "graph odd has 5 nodes that ggml cannot express" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_missing_weights_are_named(tmp_path: Path) -> None:
    graph = tiny_cnn_graph(8)
    given = weights_of(graph)
    del given["conv.bias"], given["linear.weight"]
    with pytest.raises(InputError, match="2 of 4 parameters are missing: conv.bias, linear.weight"):
        export(graph, given, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_weights_of_another_shape_are_named_and_nothing_is_left(tmp_path: Path) -> None:
    graph = tiny_cnn_graph(8)
    given = {**weights_of(graph), "linear.weight": np.zeros((8, 4), np.float32)}
    with pytest.raises(InputError, match=r"linear.weight is \(8, 4\), expected \(4, 8\)"):
        export(graph, given, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'q4_0'; known: f32, f16"):
        exported(tiny_cnn_graph(8), tmp_path / "a", precision="q4_0")


def test_an_empty_folder_is_filled_and_a_full_one_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    exported(tiny_cnn_graph(8), tmp_path / "a")
    before = {path.name for path in (tmp_path / "a").iterdir()}
    with pytest.raises(OutputError, match="it is there already"):
        exported(tiny_cnn_graph(16), tmp_path / "a")
    assert {path.name for path in (tmp_path / "a").iterdir()} == before
    assert "{1, 3, 8, 8}" in (tmp_path / "a" / "model.cpp").read_text()


@pytest.mark.parametrize("place", ["file", "no-such-folder/a", "link"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(OutputError, match="cannot write"):
        exported(tiny_cnn_graph(8), tmp_path / place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
