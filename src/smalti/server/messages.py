"""What a replica tells of a job that it makes: data that can be sent through a network."""

from __future__ import annotations

from typing import IO, Any

from smalti.dataclass import dataclass


@dataclass(frozen=True)
class Advanced:
    """How far a job has come: fields of `queue.Progress`, and a new preview as JPEG."""

    known: dict[str, Any]
    preview: bytes | None = None


@dataclass(frozen=True)
class FinishedPicture:
    """A picture as the PNG file that it becomes; it is written as one of PIL is."""

    content: bytes
    width: int
    height: int

    def save(self, stream: IO[bytes], kind: str, **packing: Any) -> None:
        """Write the file, which is packed already."""
        stream.write(self.content)


@dataclass(frozen=True)
class MadeWith:
    """What a picture is known by: its model, and its prompt."""

    model: str
    prompt: str


@dataclass(frozen=True)
class Finished:
    """A job is done. Its pictures are told as the gallery takes the result of a pipeline."""

    images: list[Any]
    seeds: list[int]
    texts: list[str]
    parameters: MadeWith
    warnings: list[str]
    timings: dict[str, float]


@dataclass(frozen=True)
class Failed:
    """A job failed with an error of this name and text."""

    error: str
    message: str


@dataclass(frozen=True)
class Dropped:
    """A job that was not wanted any more has stopped."""


Message = Advanced | Finished | Failed | Dropped
