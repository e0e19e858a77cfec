"""The smallest classifier of pictures: what a run costs beside its arithmetic."""

from __future__ import annotations

from typing import Any

from smalti.graph import Graph
from smalti.nn import conv2d, linear


def tiny_cnn_graph(side: int = 32) -> Graph:
    """image [1, 3, side, side] -> conv to 8 channels, ReLU, mean over the pixels, 4 scores [1, 4].

    >>> tiny_cnn_graph().outputs["scores"].type.shape
    (1, 4)
    """
    g = Graph("tiny_cnn")
    x = g.input("image", (1, 3, side, side))
    x = g.apply("relu", conv2d(x, "conv", 8, 3))                       # [1, 8, side, side]
    x = g.apply("reduce_mean", x, axes=(2, 3), keepdims=0)             # [1, 8]
    g.output("scores", linear(x, "linear", 4))
    return g


def tiny_cnn_module() -> Any:
    """The same in PyTorch, with parameters of the same names."""
    import torch

    class TinyCnn(torch.nn.Module):
        """conv, ReLU, mean, linear."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
            self.linear = torch.nn.Linear(8, 4)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.linear(torch.relu(self.conv(image)).mean((2, 3)))

    return TinyCnn()
