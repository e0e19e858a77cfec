"""Self-attention that looks at some of the tokens: large pictures take less time."""

from __future__ import annotations

import math

from smalti.errors import InputError
from smalti.graph import Graph, Node, Value
from smalti.graph.graph import rebuilt
from smalti.models.config import UNetConfig
from smalti.rewrite.rebuilding import Images, copied


def downsampled(graph: Graph, step: int) -> Graph:
    """`graph` of a UNet with self-attention that reads keys and values of every `step`th token down
    and across, where there are most tokens; queries are all there, and so are results.

    Attention among n tokens, and the two products in front of it, then take 1 / step² of the time.
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


def tokens_aside(config: UNetConfig, side: int) -> int:
    """Of a latent of this `side`, how many tokens lie side by side where attention has most.

    >>> from smalti.models import SD1_UNET, SDXL_UNET
    >>> tokens_aside(SD1_UNET, 64), tokens_aside(SDXL_UNET, 128)
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
    down, across = height // step, width // step
    x = tokens.reshape(n, height, width * channels)
    if height % step:
        x = g.apply("slice", x, axis=1, start=0, end=down * step)
    x = x.reshape(n, down, step, width, channels)
    x = g.apply("slice", x, axis=2, start=0, end=1).reshape(n, down, width, channels)
    if width % step:
        x = g.apply("slice", x, axis=2, start=0, end=across * step)
    x = x.reshape(n, down * across, step, channels)
    return g.apply("slice", x, axis=2, start=0, end=1).reshape(n, down * across, channels)
