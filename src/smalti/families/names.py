"""The names and shapes of a file's tensors, as the rules ask about them that recognise its kind."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from dataclasses import field

from smalti.dataclass import dataclass

Shapes = Mapping[str, tuple[int, ...]]

PREFIXES = ("model.diffusion_model.", "diffusion_model.", "model.", "net.")
"""What the names of a denoiser may start with; the rules ask for names without it."""


class Names:
    """The names and shapes of a file, or of a component of a folder that has other `components`.

    >>> names = Names({"model.diffusion_model.input_blocks.0.0.weight": (320, 9, 3, 3)})
    >>> names.has("input_blocks."), names.input_channels
    (True, 9)
    """

    def __init__(self, shapes: Shapes, components: Collection[str] = ()) -> None:
        self.all = shapes
        self.bare = {_strip(name): shape for name, shape in shapes.items()}
        self.components = components
        self._ordered = sorted({*self.all, *self.bare})

    def has(self, *starts: str) -> bool:
        """Whether a name (with or without the prefix of a denoiser) starts with one of `starts`."""
        return any(at < len(self._ordered) and self._ordered[at].startswith(start)
                   for start in starts for at in [bisect_left(self._ordered, start)])

    def contains(self, *parts: str) -> bool:
        """Whether any name contains one of `parts`."""
        return any(part in name for name in self.all for part in parts)

    def size(self, name: str, axis: int) -> int:
        """Length of an axis of a tensor, or 0 where there is no such tensor or axis."""
        shape = self.bare.get(name, self.all.get(name, ()))
        return shape[axis] if len(shape) > axis else 0

    @property
    def unet(self) -> bool:
        """Whether it holds a UNet, in latent-diffusion or diffusers naming."""
        return "input_blocks.0.0.weight" in self.bare or self.has("input_blocks.", "down_blocks.0.")

    @property
    def transformer(self) -> bool:
        """Whether it holds a diffusion transformer of any family."""
        return self.has("double_blocks.", "joint_blocks.", "transformer_blocks.")

    @property
    def denoiser(self) -> bool:
        """Whether it holds a denoiser of any kind, known or not."""
        return self.unet or self.transformer or any(
            name.startswith(PREFIXES[:2]) for name in self.all)

    @property
    def autoencoder(self) -> bool:
        """Whether it holds an autoencoder, with whatever prefix."""
        return self.contains("decoder.conv_in.weight", "decoder.mid")

    @property
    def text(self) -> bool:
        """Whether it holds a text encoder, with the prefix that those have in whole models."""
        return self.has("cond_stage_model.", "conditioner.", "text_model.", "text_encoders.")

    @property
    def context(self) -> int:
        """Width of the prompt embedding that the UNet attends to, or 0."""
        widths = [shape[1] for name, shape in self.all.items()
                  if name.endswith("attn2.to_k.weight") and len(shape) == 2]
        return max(widths, default=0)

    @property
    def linear(self) -> bool:
        """Whether pixels enter the transformers of a UNet through a linear layer."""
        return any(name.endswith(".proj_in.weight") and len(shape) == 2
                   for name, shape in self.all.items())

    @property
    def input_channels(self) -> int:
        """Input channels of the UNet's first convolution, or 0."""
        return self.size("input_blocks.0.0.weight", 1) or self.size("conv_in.weight", 1)


def _strip(name: str) -> str:
    return name.removeprefix(next((each for each in PREFIXES if name.startswith(each)), ""))


@dataclass(frozen=True)
class FileKind:
    """A kind of file: a short name, the words to use in a sentence, and how it is recognised.

    `family` is that of the model that its denoiser makes, "" for a file without one that is read.
    `advice` says how a file that is no model of its own is used.
    """

    id: str
    words: str
    shows: Callable[[Names], bool] = field(compare=False, repr=False)
    family: str = ""
    advice: str = ""

    @property
    def supported(self) -> bool:
        """Whether `load` takes such a file."""
        return bool(self.family)
