"""A worker: a process of its own that loads the model once, and makes one picture after the other.

It is told a record, and answers with what became of it. It ends when the process that started it
does, however that ends, within the step that it makes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from PIL import Image

from smalti.batch.folder import BatchFolder, BatchOutcome
from smalti.batch.records import BatchRecord
from smalti.claim import claimed
from smalti.dataclass import dataclass
from smalti.diffusion.control import Control
from smalti.diffusion.edges import HIGH, LOW
from smalti.diffusion.images import opened
from smalti.diffusion.made_picture import save_whole
from smalti.diffusion.options import PictureOptions
from smalti.diffusion.pipeline import Pipeline
from smalti.errors import OutputError, SmaltiError


@dataclass(frozen=True)
class BatchWork:
    """Where pictures go, and what the model is loaded with, by the names of `Pipeline.load`."""

    folder: Path
    loading: Mapping[str, Any] = field(default_factory=dict)


class Maker:
    """A model that is loaded for the first record; `keep` puts pictures where they belong."""

    def __init__(self, loading: Mapping[str, Any],
                 keep: Callable[[BatchRecord, Image.Image], None]) -> None:
        self._loading, self._keep = loading, keep
        self._pipe: Pipeline | None = None

    @classmethod
    def into(cls, work: BatchWork) -> Maker:
        """One whose pictures are files in the folder."""
        return cls(work.loading,
                   lambda record, image: save_whole(image, work.folder / record.file))

    def make(self, record: BatchRecord, unwanted: Callable[[], bool] = lambda: False
             ) -> BatchOutcome | None:
        """Make the picture of a record and keep it; None where it became unwanted
        between two steps.

        What is wrong with a record is told, not raised; a model that cannot be loaded is an error.
        """
        if self._pipe is None:
            self._pipe = Pipeline.load(**self._loading)
        started = time.perf_counter()
        try:
            for step in self._pipe.job(_options(record)).steps():
                if step.result is not None:
                    [image] = step.result.images
                    self._keep(record, image)
                    return BatchOutcome(record.digest, round(time.perf_counter() - started, 3),
                                image.width, image.height, tuple(step.result.warnings))
                if unwanted():
                    return None
        except OutputError:
            raise
        except SmaltiError as error:
            return BatchOutcome(record.digest, error=str(error))
        raise RuntimeError("the last step of a picture has no result")


def _options(record: BatchRecord) -> PictureOptions:
    """The options of a record, with its ControlNets open."""
    controls = [Control.load(each["model"], opened(each["image"]),
                             edges=(LOW, HIGH) if each.get("edges") else None,
                             **{name: float(each[name]) for name in ("strength", "start", "end")
                                if name in each})
                for each in record.options.get("controls", ())]
    return PictureOptions.of(**{**record.options, "controls": controls})


def serve(work: BatchWork, number: int, pipe: Connection) -> None:
    """Make what is asked for through `pipe`, until its other end is closed.

    Answers `BatchOutcome`, or the text of an error that ends the batch.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    maker = Maker.into(work)
    with claimed(BatchFolder(work.folder).worker_claim(number), lambda: None), \
            suppress(EOFError, ConnectionError):
        while True:
            record = pipe.recv()
            try:
                made = maker.make(record, pipe.poll)  # nothing comes meanwhile but the end
            except SmaltiError as error:
                pipe.send(str(error))
                continue
            if made is None:
                return
            pipe.send(made)
