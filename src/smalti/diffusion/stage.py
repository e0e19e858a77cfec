"""A model that denoises some of the steps of a picture, and is told at each what it is to show."""

from __future__ import annotations

from collections.abc import Sequence

from smalti.dataclass import dataclass
from smalti.diffusion.conditioning import Prompts, conditioned
from smalti.diffusion.control import Controls
from smalti.diffusion.denoiser import Denoiser
from smalti.diffusion.guidance import Guidance
from smalti.diffusion.inpainting import FROM_NOISE, Start
from smalti.diffusion.levels import noise_levels
from smalti.diffusion.network import MODULATION, PictureNetwork
from smalti.diffusion.request import Request
from smalti.diffusion.result import Stopwatch
from smalti.diffusion.submodels import Submodels


@dataclass(frozen=True)
class DenoiserStage:
    """What a model takes part in a picture with: `denoiser` is its function, `prompts` steer it."""

    submodels: Submodels
    prompts: Prompts
    network: PictureNetwork
    denoiser: Denoiser

    @classmethod
    def of(cls, submodels: Submodels, asked: Request, steps: int, timings: Stopwatch,
           controls: Controls | None = None, begun: Start = FROM_NOISE) -> DenoiserStage:
        """The model with the prompts of a picture of so many steps, which its text encoders read
        now, and what it reads besides of an initial picture."""
        config = submodels.checkpoint.config
        prompts = begun.steered(conditioned(submodels, asked, steps, timings, begun.pictures))
        network = PictureNetwork(submodels, asked.batch_size, controls, asked.tiling,
                                 asked.token_downsampling)
        levels = noise_levels(config, asked.width, asked.height, asked.steps)
        denoiser = Denoiser(network, levels, config.prediction, flow_map=config.denoiser.flow_map)
        return cls(submodels, prompts, network, denoiser)

    def begin(self, guidance: Guidance, index: int, latent: tuple[int, int],
              sigmas: Sequence[float], timings: Stopwatch) -> None:
        """Take over the walk from step `index` on: `guidance` asks this model from now on.

        `latent` are height and width, `sigmas` the noise levels of all steps and the last 0.
        """
        guidance.denoiser = self.denoiser
        self.denoiser.walk = sigmas
        guidance.condition(*self.prompts.at(index))
        with timings.of("prepare"):
            times = [self.denoiser.time(sigma) for sigma in sigmas[index:-1]]
            most = max((guidance.rows(sigma) for sigma in sigmas[index:-1]), key=len)
            self.network.prepare(*latent, most, times)

    def end(self) -> None:
        """The denoiser and what is beside it are done with."""
        for part in (MODULATION, self.submodels.denoiser):
            self.submodels.done(part)
        if self.network.controls is not None:
            self.network.controls.end()
