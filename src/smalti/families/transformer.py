"""What the parts of all transformers that denoise have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smalti.families.record import STEADY, ModelPart
from smalti.graph import Graph
from smalti.models.flux import Sizes


def transformer_part(graph: Callable[..., Graph]) -> ModelPart:
    """The part that `graph` computes: (batch, height, width, tokens), then control and others."""
    def build(batch: int, height: int, width: int, tokens: int, control: Any = False,
              directions: str = "", gated: bool = False,
              referenced: Sizes = (), biased: tuple[int, ...] = ()) -> Graph:
        """There are no `directions`: a token knows where in the picture it stands."""
        options = {"control": control, "gated": gated, "referenced": referenced, "biased": biased}
        return graph(batch, height, width, tokens,
                     **{name: value for name, value in options.items() if value})

    return ModelPart("the transformer", build, (1, 2, 2, 1), STEADY)
