"""What the pictures of jobs will be, while they are made, for those who look.

A worker keeps the latents of a step, which takes it microseconds; who asks for the picture makes
it of them. Where a tiny autoencoder (TAESD) for the model lies in the folders, the worker decodes
with that instead, as long as it takes a hundredth of the time of the steps. When nobody looks,
nothing is kept.
"""

from __future__ import annotations

import base64
import io
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from smalti.dataclass import dataclass
from smalti.errors import SmaltiError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from smalti.diffusion.preview import Preview
    from smalti.diffusion.projection import Projection
    from smalti.diffusion.result import Step
    from smalti.models.config import VaeConfig
    from smalti.server.models import ModelFile

LOOKED_SECONDS = 10.0
"""For which a client that asked how a job goes on is taken to look; they ask every second or so."""
APART_SECONDS = 0.3
"""Between two previews of a job, at least: each page that fetches one takes a core for 3 ms."""
ENDED_KEPT = 8
"""Previews of jobs that have ended: each is some hundred kB, and asked for within a second."""
DECODING_SHARE = 0.01
"""Of the time of the steps, for a tiny autoencoder."""
FIRST_SECONDS = 1.0
"""That the first use of a tiny autoencoder is taken to need, most of it for compiling."""
QUALITY = 75
"""Of JPEG, as its encoders have it by default."""


@dataclass(frozen=True)
class LatestPreview:
    """The last preview of a job: `number` grows, `paint` makes it."""

    number: int
    paint: Callable[[], Image.Image]

    @cached_property
    def jpeg(self) -> bytes:
        """The preview as a file; two who ask at once make the same."""
        stream = io.BytesIO()
        self.paint().save(stream, "JPEG", quality=QUALITY)
        return stream.getvalue()

    @classmethod
    def made(cls, number: int, jpeg: bytes) -> LatestPreview:
        """One whose file is there already."""
        def paint() -> Image.Image:
            from PIL import Image

            return Image.open(io.BytesIO(jpeg))

        found = cls(number, paint)
        found.__dict__["jpeg"] = jpeg
        return found

    @property
    def painted(self) -> bool:
        """Whether somebody has asked for the file already."""
        return "jpeg" in self.__dict__

    @property
    def text(self) -> str:
        """The file in base64."""
        return base64.b64encode(self.jpeg).decode()


@dataclass
class TinyDecoder:
    """A tiny autoencoder, and how much time it may take now, `credit`."""

    preview: Preview
    credit: float = 0.0
    expected: float = FIRST_SECONDS
    usable: bool = True

    def decoded(self, latent: np.ndarray, step_seconds: float) -> Image.Image | None:
        """The picture of a latent [channels, h, w]; None where that would take too long now."""
        self.credit = min(self.credit + DECODING_SHARE * step_seconds, 2 * self.expected)
        if not self.usable or self.credit < self.expected:
            return None
        started = time.perf_counter()
        try:
            (picture,) = self.preview(latent[None])
        except SmaltiError as error:
            self.usable = False
            print(f"{self.preview.net.path} is not used for previews: {error}", file=sys.stderr)
            return None
        self.expected = time.perf_counter() - started
        self.credit -= self.expected
        return picture


class TinyDecoders:
    """The tiny autoencoders that one worker uses, opened when they are first needed."""

    def __init__(self, device: str, threads: int | None) -> None:
        self._device, self._threads = device, threads
        self._opened: dict[Path, TinyDecoder | None] = {}

    def of(self, vae: VaeConfig, files: Sequence[ModelFile]) -> TinyDecoder | None:
        """The one among `files` for the latents of an autoencoder."""
        path = tiny_file(vae, files)
        if path is not None and path not in self._opened:
            self._opened[path] = self._open(path)
        return None if path is None else self._opened[path]

    def _open(self, path: Path) -> TinyDecoder | None:
        from smalti.diffusion.preview import Preview

        try:
            return TinyDecoder(Preview.load(path, self._threads, self._device))
        except SmaltiError as error:
            print(f"{path} is not used for previews: {error}", file=sys.stderr)
            return None


@dataclass
class JobPreviews:
    """What the worker of one job knows of its previews."""

    projection: Projection | None
    decoder: TinyDecoder | None
    decoded: bool = False
    at: float = field(default_factory=lambda: time.monotonic() - APART_SECONDS)


class Previews:
    """The previews of all jobs that run. `watched` tells whether pages are connected."""

    def __init__(self, watched: Callable[[], bool]) -> None:
        self._watched = watched
        self._looked = float("-inf")
        self._shown: dict[str, LatestPreview] = {}
        self._ended: dict[str, LatestPreview] = {}
        self._fitted: dict[Path, Projection] = {}

    # for those who look

    def look(self) -> None:
        """Somebody asked how a job goes on, and will again."""
        self._looked = time.monotonic()

    @property
    def wanted(self) -> bool:
        """Whether anybody looks."""
        return self._watched() or time.monotonic() - self._looked < LOOKED_SECONDS

    def shown(self, id: str) -> LatestPreview | None:
        """The last preview of a job that runs, or did so a moment ago."""
        return self._shown.get(id) or self._ended.get(id)

    # for those who make pictures; each job is known to one thread

    def of(self, vae: VaeConfig, path: Path, decoder: TinyDecoder | None) -> JobPreviews:
        """How the pictures of a job are shown, whose autoencoder is in the file `path`."""
        from smalti.diffusion.projection import published

        return JobPreviews(published(vae) or self._fitted.get(path), decoder)

    def keep(self, id: str, how: JobPreviews, step: Step) -> int | None:
        """Show a job after a step, where it is time to; the number of the preview, if there is a
        new one."""
        now = time.monotonic()
        if now - how.at < APART_SECONDS or not self.wanted:
            return None
        latent, seconds = step.denoised[0], now - how.at
        paint: Callable[[], Image.Image] | None = None
        if how.decoder is not None and (
                picture := how.decoder.decoded(latent, seconds)) is not None:
            how.decoded, paint = True, lambda: picture
        elif how.projection is not None and not how.decoded:
            kept, projection = latent.copy(), how.projection
            paint = lambda: projection(kept)  # noqa: E731
        how.at = time.monotonic()
        if paint is None:
            return None
        self._shown[id] = LatestPreview(step.index + 1, paint)
        return step.index + 1

    def receive(self, id: str, number: int, jpeg: bytes) -> None:
        """Show a job by a preview that was made elsewhere."""
        self._shown[id] = LatestPreview.made(number, jpeg)

    def learn(self, path: Path, how: JobPreviews, step: Step, downscale: int) -> None:
        """See in a picture that was made, the result of its last step, what the latents of an
        unknown autoencoder mean."""
        from smalti.diffusion.projection import Projection

        height, width = step.latents.shape[2:]
        if how.projection is None and step.result is not None:
            picture = step.result.images[0]
            if picture.size == (width * downscale, height * downscale):
                self._fitted[path] = Projection.fitted(step.latents[0], picture)

    def end(self, id: str) -> None:
        """A job has ended; who was told of its last preview before may still come for it."""
        if (last := self._shown.get(id)) is not None:
            self._ended[id] = last
            for old in list(self._ended)[:-ENDED_KEPT]:
                self._ended.pop(old, None)
            self._shown.pop(id, None)


def tiny_file(vae: VaeConfig, files: Sequence[ModelFile]) -> Path | None:
    """The tiny autoencoder for the latents of another one, by the names that its authors gave
    (madebyollin/taesd, ComfyUI's `vae_approx`), since weights do not tell whose latents they read.
    """
    from smalti.diffusion.projection import kind_of
    from smalti.models.config import FLUX_VAE, SD3_VAE, SD_VAE, SDXL_VAE

    decoded = {"taesd": SD_VAE, "taesdxl": SDXL_VAE, "taesd3": SD3_VAE, "taef1": FLUX_VAE}
    for each in files:
        stem = each.path.stem.lower().replace("-", "_").partition("_")[0]
        if stem in decoded and kind_of(decoded[stem]) == kind_of(vae):
            return each.path
    return None
