"""Self-attention that looks at some of the tokens, against what it would give and diffusers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tiny_programs import TINY_UNET

from smalti.benchmark.agreement import relative_error
from smalti.errors import InputError
from smalti.graph import Graph, evaluate
from smalti.models import SD1_UNET, SDXL_UNET, SSD1B_UNET, unet_graph
from smalti.models.config import UNetConfig
from smalti.models.token_downsampling import downsampled, tokens_along
from smalti.nn import cross_attention, to_tokens


def looking(height: int, width: int) -> Graph:
    """Self-attention of a picture of 8 channels."""
    g = Graph()
    tokens = to_tokens(g.input("latent", (1, 8, height, width)))
    g.output("y", cross_attention(tokens, tokens, heads=2))
    return g


def weights(graph: Graph) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(value.shape, np.float32)
            for name, value in graph.parameters.items()}


def keys(graph: Graph) -> Counter[tuple[int, int]]:
    """Queries and keys of each attention."""
    return Counter((node.inputs[0].shape[1], node.inputs[1].shape[1]) for node in graph.nodes
                   if node.operation.name == "attention")


@pytest.mark.parametrize(("height", "width", "step"), [(8, 8, 2), (4, 12, 4), (9, 6, 3)])
def test_what_is_alike_in_blocks_is_attended_to_as_before(height: int, width: int, step: int
                                                          ) -> None:
    """Each key that is left out equals one that is not, and all count as often."""
    graph = looking(height, width)
    few = np.random.default_rng(1).standard_normal(
        (1, 8, height // step, width // step)).astype(np.float32)
    latent = few.repeat(step, 2).repeat(step, 3)
    given = weights(graph)
    expected = evaluate(graph, {"latent": latent}, given)["y"]
    found = evaluate(downsampled(graph, step), {"latent": latent}, given)["y"]
    assert relative_error(found, expected) < 1e-5
    other = np.random.default_rng(2).standard_normal(latent.shape).astype(np.float32)
    assert relative_error(evaluate(downsampled(graph, step), {"latent": other}, given)["y"],
                          evaluate(graph, {"latent": other}, given)["y"]) > 0.05


def test_what_fills_no_whole_block_is_left_out() -> None:
    assert keys(downsampled(looking(9, 7), 2)) == {(63, 12): 1}
    assert keys(downsampled(looking(5, 5), 5)) == {(25, 1): 1}


def test_only_where_there_are_most_tokens_and_never_those_of_the_prompt() -> None:
    plain = unet_graph(SDXL_UNET, 1, 64, 96)
    before, after = keys(plain), keys(downsampled(plain, 2))
    assert before[1536, 1536] == after[1536, 384] > 0  # the first level has no attention
    assert before[384, 384] == after[384, 384] > 0
    assert sum(before.values()) == sum(after.values())
    assert {each for each in before if each[1] == 77} == {each for each in after if each[1] == 77}
    assert downsampled(plain, 1) is plain


@pytest.mark.parametrize("config", [SD1_UNET, SDXL_UNET, SSD1B_UNET, TINY_UNET])
def test_how_many_lie_side_by_side_is_known_of_the_configuration(config: UNetConfig) -> None:
    most = max(each[0] for each in keys(unet_graph(config, 1, 32, 64)))
    assert tokens_along(config, 32) ** 2 * 2 == most


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(InputError, match="token_downsampling is 5, and 4 tokens lie side by side"):
        downsampled(looking(4, 8), 5)


@pytest.mark.peers
@pytest.mark.parametrize("step", [2, 4])
@pytest.mark.parametrize("attention", [(True, True), (False, True)])
def test_a_unet_with_keys_and_values_from_neighbours_as_torch_takes_them(
        step: int, attention: tuple[bool, ...]) -> None:
    """diffusers' UNet, whose self-attention is given what `interpolate` makes of its tokens."""
    import torch

    from smalti.benchmark import peers

    config = replace(TINY_UNET, attention=attention, transformer_depth=tuple(map(int, attention)))
    peer, random = peers.peer_unet(config), np.random.default_rng(3)
    latent, context = (random.standard_normal(shape, np.float32)
                       for shape in ((2, config.in_channels, 16, 8), (2, 7, 48)))
    halved = 1 if attention[0] else 2
    height, width = 16 // halved, 8 // halved

    def sampled(module: torch.nn.Module) -> None:
        usual = module.forward

        def forward(tokens: torch.Tensor, encoder_hidden_states: None = None, **more: object
                    ) -> torch.Tensor:
            if tokens.shape[1] != height * width:
                return usual(tokens, encoder_hidden_states, **more)
            picture = tokens.transpose(1, 2).reshape(len(tokens), -1, height, width)
            some = torch.nn.functional.interpolate(
                picture, size=(height // step, width // step), mode="nearest")
            return usual(tokens, some.flatten(2).transpose(1, 2), **more)

        module.forward = forward

    changed = [module for name, module in peer.module.named_modules() if name.endswith("attn1")]
    for module in changed:
        sampled(module)
    with torch.no_grad():
        expected = peer.module(torch.tensor(latent), torch.tensor([500.0, 20.0]),
                               torch.tensor(context)).sample.numpy()
    graph = downsampled(unet_graph(config, 2, 16, 8, tokens=7), step)
    (found,) = evaluate(graph, {"latent": latent, "context": context,
                                "timesteps": np.array([500, 20], np.float32)},
                        peer.weights).values()
    assert changed and relative_error(found, expected) <= 1e-5
