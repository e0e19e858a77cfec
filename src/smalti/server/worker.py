"""What makes the pictures: one thread a device, which takes one job after the other.

Whatever goes wrong with a job is its error, in the words of Smalti, and the next one runs. A defect
of Smalti ends the thread, which is seen in the log; its job has failed, and a new thread goes on.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.errors import SmaltiError
from smalti.server import late
from smalti.server.archive import JobRecord
from smalti.server.gallery import Gallery
from smalti.server.previews import JobPreviews, Previews, TinyDecoder, TinyDecoders
from smalti.server.queue import JobQueue
from smalti.server.times import JobTimes

if TYPE_CHECKING:
    from smalti.diffusion.pipeline import Pipeline
    from smalti.diffusion.residents import Residents
    from smalti.diffusion.result import Result, Step
    from smalti.models.config import VaeConfig
    from smalti.server.asked import Asked
    from smalti.server.models import ModelFolders
    from smalti.server.upscaling import AskedUpscaling

PIPELINES_KEPT = 8
"""Models that stay open: their weights share the memory of the device, what is kept of the others
is a map of their files."""
TOLD_SECONDS = 0.02
"""Between two steps that are told of, at least: nobody sees more, and where a step takes 8 ms, to
tell of each takes half a percent of it."""
RETRY_SECONDS = 1.0
"""Between two attempts to note in the archive how a job ended, on a disk that is full."""


class DeviceWorker:
    """The thread that makes pictures on one device, given by its id or as "auto", or on several,
    given for parts as `diffusion.placement` reads them."""

    def __init__(self, queue: JobQueue, gallery: Gallery, previews: Previews, times: JobTimes,
                 folders: Callable[[], ModelFolders], device: str = "auto",
                 **loading: Any) -> None:
        self.device, self._previews, self._times = device, previews, times
        self._queue, self._gallery, self._folders_of = queue, gallery, folders
        self._loading = loading
        self._pipelines: OrderedDict[Hashable, Pipeline] = OrderedDict()
        self._residents: Residents | None = None
        self._decoders: TinyDecoders | None = None
        self._keeper = threading.Thread(
            target=lambda: keep(queue, self._work, f"work on {self.device}"),
            name=f"keeper of {device}", daemon=True)
        self._job = ""

    @property
    def _folders(self) -> ModelFolders:
        return self._folders_of()

    @property
    def place(self) -> str:
        """Its device, or devices of parts, by their ids."""
        from smalti.diffusion.placement import placed

        return str(placed(self.device))

    def start(self) -> None:
        """Begin to take jobs."""
        self._keeper.start()

    def join(self, seconds: float) -> bool:
        """Wait until it has stopped, after `JobQueue.stop`; whether it has."""
        if self._keeper.ident is not None:
            self._keeper.join(seconds)
        return not self._keeper.is_alive()

    def _work(self) -> None:
        late.load()
        with suppress(SmaltiError):  # each job then fails with what it says
            self.device = self.place
        with suppress(OSError):  # the same; a thread that ends here would begin for ever
            self._folders.all()  # loads what the first request needs, while nobody waits for it
        while (job := self._queue.take(self.device)) is not None:
            self.make(job)

    def make(self, job: JobRecord) -> None:
        """Run a job to its end, whichever that is."""
        try:
            self._make(job)
        except (SmaltiError, OSError) as error:
            self._fail(job, type(error).__name__, str(error))
        except MemoryError as error:
            self._pipelines.clear()
            self._residents = None
            self._fail(job, "DeviceMemoryError", (
                f"there is not enough memory ({error}); choose a smaller size or batch, or close "
                f"other programs"))
        except BaseException as error:
            self._fail(job, *defect(error))
            raise

    def _make(self, job: JobRecord) -> None:
        from smalti.server.upscaling import AskedUpscaling, opened_any

        self._job = job.id
        asked = opened_any(job.request, self._folders)
        if isinstance(asked, AskedUpscaling):
            self._enlarge(job, asked)
            return
        pipe = self._pipeline(asked)
        pipe.loras = [(file.path, weight, text_weight) if text_weight is not None else
                      (file.path, weight) for file, weight, text_weight in asked.loras]
        result = self._result(job, asked, pipe)
        if result is None:
            self._queue.drop(job)
            return
        pictures = self._gallery.write(job, result)
        settle(self._queue,
               lambda: self._queue.finish(job, pictures, result.warnings, result.timings))

    def _result(self, job: JobRecord, asked: Asked, pipe: Pipeline) -> Result | None:
        """What the last step gives; None where the job is not wanted any more."""
        seconds, told = 0.0, float("-inf")
        vae, path = pipe.config.vae, (asked.vae or asked.model).path
        shown = self._previews.of(vae, path, self._decoder(vae))
        picture = pipe.job(asked.options)
        steps = picture.steps()
        try:
            while not self._queue.unwanted(job.id):
                step = next(steps)
                seconds += step.seconds
                now = time.monotonic()
                if now - told >= TOLD_SECONDS or step.result is not None:
                    told = now
                    self._tell(job, shown, step, seconds)
                if step.result is not None:
                    self._previews.learn(path, shown, step, vae.downscale)
                    self._times.keep(job.id, picture.models.runs)
                    return step.result
            return None
        finally:
            steps.close()
            self._previews.end(job.id)

    def _tell(self, job: JobRecord, shown: JobPreviews, step: Step, seconds: float) -> None:
        """Tell how far a job has come after a step, and `seconds` of all steps until then."""
        done = step.index + 1
        preview = self._previews.keep(job.id, shown, step)
        self._queue.advance(job.id, step=done, steps=step.total, doing="denoising",
                            seconds_left=seconds / done * (step.total - done),
                            **({} if preview is None else {"preview": preview}))

    def _decoder(self, vae: VaeConfig) -> TinyDecoder | None:
        """A tiny autoencoder for previews, where somebody looks and there is one."""
        if not self._previews.wanted:
            return None
        if self._decoders is None:
            self._decoders = TinyDecoders(self._device_of("decoder"),
                                          self._loading.get("threads"))
        return self._decoders.of(vae, self._folders.of_kind("taesd"))

    def _enlarge(self, job: JobRecord, asked: AskedUpscaling) -> None:
        """Run a job that enlarges a picture, to its end."""
        from smalti.diffusion.upscale import Upscaler
        from smalti.server.upscaling import enlarged

        started = time.perf_counter()

        def tell(tile: int, tiles: int) -> None:
            if self._queue.unwanted(job.id):
                raise _UnwantedError
            self._queue.advance(job.id, step=tile - 1, steps=tiles, doing="enlarging")

        device = self._device_of("upscaler")
        upscaler = Upscaler.load(asked.upscaler.path, self._loading.get("precision", "auto"),
                                 self._loading.get("threads"), device=device)
        if self._residents is not None:
            upscaler.residents = self._residents.on(device)
        try:
            result = enlarged(asked, upscaler, tell)
        except _UnwantedError:
            self._queue.drop(job)
            return
        finally:
            upscaler.end()
        pictures = self._gallery.write(job, result)
        seconds = time.perf_counter() - started
        settle(self._queue, lambda: self._queue.finish(job, pictures, [], {"upscaler": seconds}))

    def _device_of(self, place: str) -> str:
        """The device of one of `diffusion.placement.PLACES`."""
        from smalti.diffusion.placement import placed

        return placed(self.device).of(place)

    def _pipeline(self, asked: Asked) -> Pipeline:
        """The model of a job, which stays open for others; memory is shared by all of them."""
        from smalti.diffusion.pipeline import Pipeline

        embeddings = [each.path for each in self._folders.of_kind("embedding")]
        folders = sorted({each.path.parent for each in self._folders.of_kind("lora")})
        key = tuple((path, _changed(path)) for path in asked.loading)
        pipe = self._pipelines.pop(key, None)
        if pipe is None:
            pipe = Pipeline.load(
                asked.model.path, device=self.device, progress=self._progress,
                vae=None if asked.vae is None else asked.vae.path,
                text_encoders=[each.path for each in asked.text_encoders],
                refiner=None if asked.refiner is None else asked.refiner.path,
                residents=self._residents, **self._loading)
            self._residents = self._residents or pipe.residents
        pipe.offer(embeddings, folders)  # files of them that come and go are no other model
        self._pipelines[key] = pipe
        while len(self._pipelines) > PIPELINES_KEPT:
            self._pipelines.popitem(last=False)
        return pipe

    def _progress(self, text: str) -> None:
        self._queue.advance(self._job, doing=text.strip())

    def unload(self) -> None:
        """Forget all models, so that their memory is free when the job that runs has ended."""
        self._pipelines.clear()
        self._residents = None

    def _fail(self, job: JobRecord, error: str, message: str) -> None:
        settle(self._queue, lambda: self._queue.fail(job, error, message))


def keep(queue: JobQueue, work: Callable[[], None], name: str) -> None:
    """Keep a thread of this name that does `work`, until the queue stops; a defect ends one, and
    the next goes on."""
    while not queue.stopping:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        thread.join()


def defect(error: BaseException) -> tuple[str, str]:
    """The name and the text of what a job failed with that nobody foresaw."""
    return "Defect", (f"a defect in Smalti: {type(error).__name__}: {error}; the log of the server "
                      f"has the place")


def settle(queue: JobQueue, note: Callable[[], None]) -> None:
    """Note in a queue how a job ended; while the disk is full, again and again until it stops."""
    while True:
        try:
            note()
        except sqlite3.OperationalError as error:
            print(f"the queue cannot be written: {error}; trying again", file=sys.stderr)
            time.sleep(RETRY_SECONDS)
            if not queue.stopping:
                continue
        return


class _UnwantedError(Exception):
    """A picture that is being enlarged is not wanted any more."""


def _changed(path: Path | None) -> float:
    """When a file was changed last."""
    return 0.0 if path is None else path.stat().st_mtime
