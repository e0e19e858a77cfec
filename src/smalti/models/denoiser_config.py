"""What a pipeline asks of the hyperparameters of any denoiser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

Division = tuple[str, int, str, int]
"""A width that must be divided: (part of the model, its width, what divides it, the number)."""


class DenoiserConfig(ABC):
    """What all denoisers' hyperparameters have in common; the answers given here are those of a
    transformer that makes a token of 2 x 2 pixels of the latent.

    `in_channels` are those of the latent and of what is read behind it, `out_channels` those of the
    latent. `context_dim` is the width of the prompt's tokens. `guidance` is true for a model that
    was distilled from guided predictions, and is told how strong guidance is to be. `reference` is
    true for one that may read the latents of other pictures as tokens behind those of its own.
    """

    in_channels: int
    out_channels: int
    context_dim: int
    hidden_size: int
    heads: int
    guidance: bool = False
    reference: bool = False

    part = "transformer"
    """What the denoiser is called as a part of a model."""

    tileable = False
    """Whether the edges of its pictures can be joined, so that they can be repeated."""

    skippable_blocks = 0
    """Blocks that can be left out to steer away from a worse picture (skip-layer guidance)."""

    normed: tuple[int, ...] = ()
    """Channels, rows and columns of the parts of a latent that have after guidance the norm that
    they have without it, 0 for all of them; empty where no part has."""

    shrunk = False
    """Whether guidance is only taken back so far that they have no more than that norm."""

    apart = False
    """Whether pictures that it reads as tokens have sizes of their own (see `sides`), not that of
    the picture that is made."""

    cropped = False
    """Whether what such a picture has beyond multiples is cut off, the same on both sides; else the
    picture is stretched."""

    clean: bool = False
    """Whether tokens of pictures that it reads are modulated as at time 0."""

    flow_map: bool = False
    """Whether it is told which time a step leads to, besides that of the latent."""

    needs_reference = False
    """Whether it makes no picture of a prompt alone."""

    @property
    def references(self) -> int:
        """Pictures that may be read as tokens."""
        return int(self.reference)

    @property
    def title(self) -> str:
        """What to call it in a sentence."""
        return self.part

    @property
    def multiple(self) -> int:
        """What the sides of a latent must be multiples of."""
        return 2

    @property
    def patch(self) -> int:
        """Pixels of the latent along the side of a token."""
        return self.multiple

    @property
    def side_max(self) -> int | None:
        """The longest side of a latent that there are positions for; None for any."""
        return None

    def widest(self, area: int) -> int:
        """Numbers in its widest activation at full size, for latents of `area` pixels: that of the
        picture, and those of others that are read as tokens."""
        return self.hidden_size * area // self.patch**2

    def purposes(self, latent: int, downscale: int) -> Mapping[int, str]:
        """Channels that are read behind the `latent` ones -> what a model with these is made for.

        The autoencoder makes one pixel of the latent of `downscale` x `downscale` pixels.
        """
        return ({0: "reference"} if self.reference else
                {0: "text", latent: "control", latent + downscale**2: "fill"})

    def sides(self, width: int, height: int) -> tuple[int, int]:
        """The size in pixels in which a picture of this size is changed, before its sides become
        multiples of what they must be multiples of."""
        return width, height

    def divisions(self) -> Iterator[Division]:
        """What must divide what."""
        yield from ()

    def outline(self) -> str:
        """Its size, in one line."""
        return (f"{self.depth}, width {self.hidden_size}, {self.heads} heads,"
                f" {self.in_channels} latent channels, context {self.context_dim}")

    @property
    @abstractmethod
    def depth(self) -> str:
        """How many blocks of which kinds it has, in words."""
