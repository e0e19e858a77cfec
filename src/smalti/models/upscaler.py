"""Networks that enlarge pictures, by their configurations."""

from __future__ import annotations

from smalti.graph import Graph
from smalti.models.config import RrdbConfig, SrvggConfig
from smalti.models.rrdb import rrdb_graph
from smalti.models.srvgg import srvgg_graph


def upscaler_graph(config: RrdbConfig | SrvggConfig, batch: int, height: int, width: int) -> Graph:
    """image f32[batch, 3, height, width] in [0, 1] -> image of `config.scale` times the size.

    See `rrdb_graph` and `srvgg_graph`.

    >>> upscaler_graph(SrvggConfig(scale=2), 1, 8, 6).outputs["image"].shape
    (1, 3, 16, 12)
    """
    if isinstance(config, RrdbConfig):
        return rrdb_graph(config, batch, height, width)
    return srvgg_graph(config, batch, height, width)
