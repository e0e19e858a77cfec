"""The compact upscaler of Real-ESRGAN (xinntao/Real-ESRGAN `srvgg_arch.py`), a plain VGG.

All layers stand in one list, `body`, in which activations count too.
"""

from __future__ import annotations

from smalti.graph import Graph
from smalti.models.config import SrvggConfig
from smalti.nn import conv2d, pixel_shuffle, prelu, upsample_nearest


def srvgg_graph(config: SrvggConfig, batch: int, height: int, width: int) -> Graph:
    """image f32[batch, 3, height, width] in [0, 1] -> image f32[batch, 3, s height, s width].

    s is `config.scale`; the network makes what is added to the image with its pixels repeated.

    >>> from smalti.models.config import SrvggConfig
    >>> g = srvgg_graph(SrvggConfig(), batch=1, height=64, width=48)
    >>> g.outputs["image"].shape, g.parameters["body.34.weight"].shape
    ((1, 3, 256, 192), (48, 64, 3, 3))
    """
    g = Graph("srvgg")
    image = x = g.input("image", (batch, config.image_channels, height, width))
    with g.scope("body"):
        for i in range(config.convolutions + 1):
            x = prelu(conv2d(x, f"{2 * i}", config.channels, 3), f"{2 * i + 1}")
        last = 2 * config.convolutions + 2
        x = conv2d(x, f"{last}", config.image_channels * config.scale**2, 3)
    g.output("image", pixel_shuffle(x, config.scale) + upsample_nearest(image, config.scale))
    return g
