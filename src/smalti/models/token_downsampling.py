"""Token downsampling: self-attention that reads keys and values of some of the tokens only."""

from __future__ import annotations

import math

from smalti.errors import InputError
from smalti.graph import Graph, Node, Value
from smalti.graph.graph import rebuilt
from smalti.models.config import UNetConfig
from smalti.rewrite.rebuilding import Images, copied


def downsampled(graph: Graph, step: int) -> Graph:
    """The `graph` of a UNet, in which self-attention of the level with the most tokens reads keys
    and values of every `step`th token down and across only. Queries, and so results, are of all.

    Scores and the two products that make keys and values then take 1 / step² of the time.
    Smith et al. 2024, "ToDo: Token Downsampling for Efficient Generation of High-Resolution
    Images", arXiv:2402.13573. Raises InputError where fewer than `step` tokens lie side by side.

    >>> from smalti.models import SD15, unet_graph
    >>> g = downsampled(unet_graph(SD15.denoiser, 1, 64, 32), 2)
    >>> sizes = {node.inputs[1].shape[1] for node in g.nodes if node.operation.name == "attention"}
    >>> sorted(sizes)  # of 2048 tokens, 512 are looked at; 77 are of the prompt
    [32, 77, 128, 512]
    """
    alike = [(node, found) for node in graph.nodes if (found := _attended(node)) is not None]
    if not alike or step == 1:
        return graph
    most = max(tokens.shape[1] for _, tokens in alike)
    reading = {value.node: tokens for node, tokens in alike if tokens.shape[1] == most
               for value in node.inputs[1:3]}
    _, _, height, width = graph.inputs["latent"].shape
    halved = math.isqrt(height * width // most)
    height, width = height // halved, width // halved
    check_step(step, min(height, width))
    some: dict[Value, Value] = {}

    def made(images: Images, node: Node, target: Graph) -> Value:
        tokens = reading.get(node)
        if tokens is None:
            return rebuilt(images, node, target)
        if tokens not in some:
            with target.scope(node.scope):
                some[tokens] = _every(images[tokens], height, width, step)
        return rebuilt({**images, tokens: some[tokens]}, node, target)

    return copied(graph, made)


def check_step(step: int, side: int) -> None:
    """Raise InputError where the tokens on the shorter `side` are fewer than a `step`."""
    if step > side:
        raise InputError(f"token_downsampling is {step}, and {side} tokens lie side by side where "
                         f"there are most in a picture of this size; choose less, or a larger "
                         f"size")


def tokens_along(config: UNetConfig, side: int) -> int:
    """How many tokens lie along a side of a latent, of `side` pixels, on the first level of the
    UNet that has attention, which is the one with the most tokens.

    >>> from smalti.models import SD1_UNET, SDXL_UNET
    >>> tokens_along(SD1_UNET, 64), tokens_along(SDXL_UNET, 128)
    (64, 64)
    """
    depths, last = config.transformer_depth, len(config.transformer_depth) - 1
    return side >> next((level for level, depth in enumerate(depths) if depth), last)


def _attended(node: Node) -> Value | None:
    """The tokens that a node of attention reads as queries, keys and values alike; None for any
    other node."""
    if node.operation.name != "attention":
        return None
    products = [value.node for value in node.inputs[:3]]
    read = {None if each is None else each.inputs[0] for each in products}
    return read.pop() if len(read) == 1 else None


def _every(tokens: Value, height: int, width: int, step: int) -> Value:
    """Every `step`th of height x width tokens [n, t, c] down and across, the first ones of blocks;
    what fills no whole block at the end is left out."""
    g, (n, _, channels) = tokens.graph, tokens.shape
    shape = [n, height, width, channels]
    x = tokens.reshape(*shape)
    for axis in (1, 2):
        blocks, rest = divmod(shape[axis], step)
        if rest:
            x = g.apply("slice", x, axis=axis, start=0, end=blocks * step)
        shape[axis] = blocks
        x = x.reshape(*shape[:axis], blocks, step, *shape[axis + 1:])
        x = g.apply("slice", x, axis=axis + 1, start=0, end=1).reshape(*shape)
    return x.reshape(n, shape[1] * shape[2], channels)
