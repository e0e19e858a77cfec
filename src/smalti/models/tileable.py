"""Pictures whose edges fit each other: convolutions that read on at the other side."""

from __future__ import annotations

from smalti.errors import InputError
from smalti.graph import Graph, Node, Value
from smalti.graph.graph import rebuilt
from smalti.rewrite.rebuilding import Images, copied

DIRECTIONS = ("x", "y", "xy")


def tileable(graph: Graph, directions: str = "xy") -> Graph:
    """`graph` with every convolution padded by what lies at the opposite edge instead of zeros.

    `directions` are those in which a picture is to be repeated. Denoiser and decoder both have to
    be made so; what they compute then moves with the latent, around the edges, by every step that
    is a multiple of their downscaling. Raises InputError for other directions.

    >>> from smalti.models import SD_VAE, vae_decoder_graph
    >>> g = tileable(vae_decoder_graph(SD_VAE, 1, 8, 8), "x")
    >>> pads = {node.attributes["pads"] for node in g.nodes if node.operation.name == "conv"}
    >>> sorted(pads)
    [(0, 0, 0, 0), (1, 0, 1, 0)]
    """
    if directions not in DIRECTIONS:
        raise InputError(f"a picture can be repeated in {', '.join(DIRECTIONS)}, not in "
                         f"{directions!r}")

    def step(images: Images, node: Node, target: Graph) -> Value:
        if node.operation.name != "conv" or not any(node.attributes["pads"]):
            return rebuilt(images, node, target)
        top, left, bottom, right = (
            count if direction in directions else 0
            for count, direction in zip(node.attributes["pads"], "yxyx", strict=True))
        with target.scope(node.scope):
            x, *parameters = (images[value] for value in node.inputs)
            x = target.apply("pad", x, pads=(0, 0, top, left, 0, 0, bottom, right), mode="wrap")
            rest = tuple(count - done for count, done in
                         zip(node.attributes["pads"], (top, left, bottom, right), strict=True))
            return target.apply("conv", x, *parameters, **{**node.attributes, "pads": rest})

    return copied(graph, step)
