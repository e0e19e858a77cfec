"""The folder of a batch: its pictures, what is known of how they were made, and who works there.

A picture that is there is whole, since it takes its place in one step; so the pictures are what
says what is done. What is known besides, such as seconds, stands in a journal.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from PIL import Image

from smalti.batch.records import DIGITS, BatchRecord
from smalti.claim import claimed
from smalti.dataclass import dataclass
from smalti.diffusion.options import OPTIONS
from smalti.errors import InputError, OutputError
from smalti.runtime.container import replaced

OWN = ".smalti-batch"
"""The folder in it that is not for people: a journal and claims."""
TABLE = "results.csv"
PART = re.compile(rf"[0-9a-f]{{{DIGITS}}}\.png\.\d+\.part")
"""What a worker that was killed leaves."""


@dataclass(frozen=True)
class BatchOutcome:
    """What is known of a record: seconds that its picture took, its size, what was warned of, or
    the error that it ended in."""

    digest: str
    seconds: float = 0.0
    width: int = 0
    height: int = 0
    warnings: Sequence[str] = ()
    error: str = ""


class BatchFolder:
    """A folder that pictures of a batch are in. Raises OutputError where there can be none."""

    def __init__(self, path: Path) -> None:
        self.path, self.own = path, path / OWN
        try:
            self.own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}; choose another "
                              f"folder") from None
        self.journal = self.own / "journal.jsonl"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, no other batch works in this folder. Raises OutputError where one does."""
        def taken() -> None:
            raise OutputError(f"another batch works in {self.path}; wait for it, or choose another "
                              f"folder")

        with claimed(self.own / "batch.lock", taken):
            yield

    def worker_claim(self, number: int) -> Path:
        """What a worker claims for as long as it works; one of a batch that was killed ends with
        the step that it makes."""
        return self.own / f"worker-{number}.lock"

    def clean(self) -> None:
        """Delete what workers that were killed have begun."""
        for path in self.path.iterdir():
            if PART.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def done(self, record: BatchRecord) -> bool:
        """Whether the picture of a record is there."""
        return (self.path / record.file).is_file()

    def note(self, made: BatchOutcome) -> None:
        """Add to the journal. Raises OutputError."""
        try:
            with open(self.journal, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(made)) + "\n")
        except OSError as error:
            raise OutputError(f"cannot write {self.journal}: {error.strerror or error}") from None

    def noted(self) -> dict[str, BatchOutcome]:
        """What the journal says, the last of each record; a line that was cut off says nothing."""
        found: dict[str, BatchOutcome] = {}
        if not self.journal.exists():
            return found
        with open(self.journal, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                try:
                    made = BatchOutcome(**json.loads(line))
                except (ValueError, TypeError):
                    continue
                found[made.digest] = made
        return found

    def write_table(self, records: Sequence[BatchRecord], made: Mapping[str, BatchOutcome]) -> Path:
        """A row for each record, in their order: what was asked for, as it is where nothing else is
        said in columns that others fill, and what became of it."""
        names = list(dict.fromkeys(name for record in records for name in record.texts))
        usual = {name: OPTIONS[name].kind.written(OPTIONS[name].default) for name in names
                 if name in OPTIONS and OPTIONS[name].default}
        path = self.path / TABLE
        text = io.StringIO(newline="")
        table = csv.writer(text)
        table.writerow(["number", "row", "file", "pixels", "seconds", "error", "warnings", *names])
        for record in records:
            about = made.get(record.digest, BatchOutcome(record.digest))
            there = self.done(record)
            table.writerow([
                record.number, record.place, record.file if there else "",
                _pixels(self.path / record.file, about) if there else "",
                f"{about.seconds:.2f}" if about.seconds else "",
                "" if there else about.error, "; ".join(about.warnings),
                *(record.texts.get(name, usual.get(name, "")) for name in names)])
        with replaced(path) as stream:
            stream.write(text.getvalue().encode())
        return path


def _pixels(path: Path, about: BatchOutcome) -> str:
    """Width and height of a picture; where the journal does not tell, the picture does."""
    if about.width:
        return f"{about.width}x{about.height}"
    try:
        with Image.open(path) as picture:
            return f"{picture.width}x{picture.height}"
    except OSError as error:
        raise InputError(f"{path} cannot be read as a picture ({error}); delete it, and the next "
                         f"run makes it again") from None
