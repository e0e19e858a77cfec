"""The double-stream block of Flux: its parameters, its text, and what native code computes."""

from __future__ import annotations

import pytest
from native_pieces import LEVELS, check_graph
from peers_models import TINY_FLUX

from smalti.errors import InputError
from smalti.fuse import cut
from smalti.graph import parse, show, verify
from smalti.models import FLUX1, FluxConfig, flux_double_block_graph


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    graph = flux_double_block_graph(FLUX1, image_tokens=1024, text_tokens=256)
    verify(graph)
    assert show(parse(show(graph))) == show(graph)
    shapes = {name: value.shape for name, value in graph.parameters.items()}
    expected = {}
    for stream in ("img", "txt"):
        for name, out, width in (("mod.lin", 18432, 3072), ("attn.qkv", 9216, 3072),
                                 ("attn.proj", 3072, 3072), ("mlp.0", 12288, 3072),
                                 ("mlp.2", 3072, 12288)):
            expected[f"double_blocks.0.{stream}_{name}.weight"] = (out, width)
            expected[f"double_blocks.0.{stream}_{name}.bias"] = (out,)
        for name in ("query_norm", "key_norm"):
            expected[f"double_blocks.0.{stream}_attn.norm.{name}.scale"] = (128,)
    assert shapes == expected


@pytest.mark.parametrize("name, precision", [
    *((name, "f32") for name in LEVELS),
    *((name, "bf16") for name in LEVELS if name == "avx512_bf16")])
def test_native_code_computes_it(name: str, precision: str) -> None:
    check_graph(flux_double_block_graph(TINY_FLUX, 12, 5, batch=2), name, precision)


def test_nothing_is_copied() -> None:
    """Maps only turn queries and keys, into the place where attention reads them."""
    pieces = cut(flux_double_block_graph(TINY_FLUX, 12, 5)).pieces
    maps = [piece for piece in pieces if piece.kernel.form == "map"]
    assert len(maps) == 4 and all("concat reads it" in piece.reason for piece in maps)


def test_odd_heads_are_refused() -> None:
    with pytest.raises(InputError, match="an even d"):
        flux_double_block_graph(FluxConfig(hidden_size=9, heads=3, mlp_size=12), 4, 2)
