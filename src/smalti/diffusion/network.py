"""The denoiser of a model as samplers call it: rows of all pictures, computed picture by picture.

So a picture does not depend on the others of its batch, and neither does memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from smalti.diffusion.denoiser import Conditioning
from smalti.diffusion.submodels import Submodels

Floats = np.ndarray


@dataclass
class PictureNetwork:
    """A `smalti.diffusion.denoiser.Network` for a number of `pictures`.

    Where the modulations of a model depend on time alone (Chroma), they are a part of their own and
    computed once for each time.
    """

    submodels: Submodels
    pictures: int
    _modulations: dict[float, Floats] = field(default_factory=dict)

    def prepare(self, rows: int, height: int, width: int, conditioning: Conditioning) -> None:
        """Compile and bind all for `rows` a picture and a latent of this size."""
        if "modulation" in self.submodels.parts:
            self.submodels.bound("modulation", (1,))
        shape = (rows, height, width, conditioning["context"].shape[1])
        self.submodels.bound(self.submodels.denoiser, shape)

    def __call__(self, latents: Floats, timesteps: Floats, conditioning: Conditioning) -> Floats:
        """Outputs for rows [n, channels, h, w], of which there are as many for each picture."""
        count, _, height, width = latents.shape
        rows, result = count // self.pictures, np.empty_like(latents)
        shape = (rows, height, width, conditioning["context"].shape[1])
        for picture in range(self.pictures):
            own = slice(picture, None, self.pictures)
            inputs = {name: part[own] for name, part in conditioning.items()}
            (result[own],) = self.submodels.run(
                self.submodels.denoiser, shape, latent=latents[own],
                **self._time(timesteps[own]), **inputs).values()
        return result

    def _time(self, timesteps: Floats) -> dict[str, Floats]:
        if "modulation" not in self.submodels.parts:
            return {"timesteps": timesteps}
        time = float(timesteps[0])
        if time not in self._modulations:
            (self._modulations[time],) = self.submodels.run(
                "modulation", (1,), timesteps=timesteps[:1]).values()
        found = self._modulations[time]
        return {"modulation": np.broadcast_to(found, (len(timesteps), *found.shape[1:]))}
