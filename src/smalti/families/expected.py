"""Names and shapes of all tensors that a configuration needs, as the graphs of its parts ask."""

from __future__ import annotations

from smalti.families.parts import parts
from smalti.models.config import ModelConfig

Shape = tuple[int, ...]


def expected_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor of a model, by the names that are used inside.

    Convolution weights are (out, in, kh, kw), linear weights (out, in).

    >>> from smalti.models.config import SD15
    >>> table = expected_tensors(SD15)
    >>> len(table), table["model.diffusion_model.input_blocks.0.0.weight"]
    (1130, (320, 4, 3, 3))
    """
    return {name: value.shape
            for part in parts(config).values()
            for name, value in part.graph(*part.smallest).parameters.items()}
