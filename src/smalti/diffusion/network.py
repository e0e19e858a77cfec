"""The denoiser of a model as samplers call it: rows of all pictures, computed picture by picture.

So a picture does not depend on the others of its batch, and neither does memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field

import numpy as np

from smalti.dataclass import dataclass
from smalti.diffusion.control import Controls
from smalti.diffusion.denoiser import BESIDE, Conditioning
from smalti.diffusion.guidance import KEEP
from smalti.diffusion.redux import BIAS
from smalti.diffusion.submodels import MODULATION, Shape, Submodels
from smalti.models.flux import REFERENCE

Floats = np.ndarray
CLEAN = "clean"
"""The input of a denoiser that modulates tokens of pictures that are read."""
MODULATING = ("timesteps", "pooled", "guidance")
"""What the modulations of a denoiser are made of, where they are a part of their own."""


@dataclass
class PictureNetwork:
    """A `smalti.diffusion.denoiser.Network` for a number of `pictures`.

    Where the modulations of a model are a part of their own (FLUX.1, Chroma), they are computed
    once for each time and prompt. Where there are `controls`, what they give is read besides; with
    `tiling` a picture can be repeated in these directions; `token_downsampling` is the step of
    `models.token_downsampling`.
    """

    submodels: Submodels
    pictures: int
    controls: Controls | None = None
    tiling: str = ""
    token_downsampling: int = 1
    _left_out: frozenset[int] = frozenset()
    _modulations: dict[bytes, Floats] = field(default_factory=dict)

    def prepare(self, height: int, width: int, conditionings: Sequence[Conditioning],
                times: Sequence[float]) -> None:
        """Compile and bind all for a latent of this size and these conditionings in one batch.

        Modulations for all `times` are computed at once, which reads their weights, a quarter of
        those of FLUX.1, but once, and they may go then.
        """
        rows = len(conditionings)
        if self.controls is not None:
            self.controls.read(height, width)
        if self._clean(conditionings[0]):
            times = [*times, 0.0]
        if MODULATION in self.submodels.parts:
            self._modulated({
                "timesteps": np.repeat(np.array(times, np.float32), rows),
                **{name: np.concatenate([each[name] for each in conditionings] * len(times))
                   for name in MODULATING if name in conditionings[0]}})
            self.submodels.done(MODULATION)
        self.submodels.bound(self.submodels.denoiser,
                             self._shape(rows, height, width, conditionings[0]))

    def _shape(self, rows: int, height: int, width: int,
               conditioning: Conditioning) -> Shape:
        """What the denoiser is compiled for."""
        plain = (rows, height, width, conditioning["context"].shape[1])
        control = False if self.controls is None else self.controls.joined.control
        sizes = tuple(part.shape[2:] for name, part in conditioning.items()
                      if name.startswith(REFERENCE))
        if BIAS in conditioning:
            biased = conditioning[BIAS].shape[1:]
            return (*plain, control, self.tiling, KEEP in conditioning, sizes, biased)
        if sizes:
            return (*plain, control, self.tiling, KEEP in conditioning, sizes)
        if KEEP in conditioning:
            return (*plain, control, self.tiling, True)
        if self.token_downsampling > 1:
            return (*plain, control, self.tiling, self.token_downsampling)
        return (*plain, control, self.tiling) if control or self.tiling else plain

    def __call__(self, latents: Floats, timesteps: Floats, conditioning: Conditioning) -> Floats:
        """Outputs for rows [n, channels, h, w], of which there are as many for each picture."""
        count, _, height, width = latents.shape
        rows, result = count // self.pictures, np.empty_like(latents)
        shape = self._shape(rows, height, width, conditioning)
        for picture in range(self.pictures):
            own = slice(picture, None, self.pictures)
            if picture in self._left_out:
                result[own] = 0
                continue
            inputs = {name: part[own] for name, part in conditioning.items()}
            if self.controls is not None:
                inputs |= self.controls(latents[own], timesteps[own], inputs)
            inputs["timesteps"] = timesteps[own]
            read = latents[own]
            if BESIDE in inputs:
                read = np.concatenate([read, inputs.pop(BESIDE)], axis=1)
            if MODULATION in self.submodels.parts:
                making = {name: inputs.pop(name) for name in MODULATING if name in inputs}
                inputs[MODULATION] = self._modulated(making)
                if self._clean(conditioning):
                    inputs[CLEAN] = self._modulated(
                        {**making, "timesteps": np.zeros_like(making["timesteps"])})
            (result[own],) = self.submodels.run(self.submodels.denoiser, shape,
                                                latent=read, **inputs).values()
        return result

    def _clean(self, conditioning: Conditioning) -> bool:
        """Whether pictures are read whose tokens are modulated as at time 0."""
        return self.submodels.checkpoint.config.denoiser.clean and f"{REFERENCE}0" in conditioning

    @contextmanager
    def only(self, needed: Sequence[bool]) -> Iterator[None]:
        """Compute inside only the pictures that are `needed`; of the others zeros are given."""
        self._left_out = frozenset(
            picture for picture, each in enumerate(needed) if not each)
        try:
            yield
        finally:
            self._left_out = frozenset()

    def _modulated(self, making: dict[str, Floats]) -> Floats:
        """Modulations f32[rows, vectors, width] of rows, of which only those not known yet are
        computed. Chroma makes them of time alone."""
        if "pooled" not in making:
            making = {"timesteps": making["timesteps"]}
        keys = [b"".join(array[row].tobytes() for array in making.values())
                for row in range(len(making["timesteps"]))]
        new = {key: row for row, key in enumerate(keys) if key not in self._modulations}
        if new:
            rows = list(new.values())
            (found,) = self.submodels.run(MODULATION, (len(rows),), **{
                name: array[rows] for name, array in making.items()}).values()
            self._modulations.update(zip(new, found))
        return np.stack([self._modulations[key] for key in keys])
