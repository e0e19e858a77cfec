"""The folder of a batch: what is done, what is noted, and the table and sheets at the end."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from PIL import Image

from smalti.batch.folder import BatchFolder, BatchOutcome
from smalti.batch.records import BatchRecord, records
from smalti.batch.sheet import sheets
from smalti.batch.table import BatchRow
from smalti.errors import InputError, OutputError


@pytest.fixture
def found() -> list[BatchRecord]:
    row = BatchRow("a.csv:2", {"prompt": "a, b\nc", "seed*": [1, 2, 3]})
    return records([row], Path(), "m", {}, {})


def picture(folder: Path, record: BatchRecord) -> None:
    Image.new("RGB", (20, 10), "red").save(folder / record.file)


def test_a_picture_that_is_there_is_done(tmp_path: Path, found: list[BatchRecord]) -> None:
    folder = BatchFolder(tmp_path / "new" / "folder")
    picture(folder.path, found[0])
    begun = folder.path / f"{found[1].file}.123.part"
    begun.write_bytes(b"half")
    assert [folder.done(record) for record in found] == [True, False, False]
    folder.clean()
    assert not begun.exists() and folder.done(found[0])


def test_the_table_says_what_became_of_each(tmp_path: Path, found: list[BatchRecord]) -> None:
    folder = BatchFolder(tmp_path)
    picture(tmp_path, found[0])
    picture(tmp_path, found[1])
    folder.note(BatchOutcome(found[0].digest, 1.5, 20, 10, ("too large",)))
    folder.note(BatchOutcome(found[2].digest, error="no memory"))
    with open(folder.journal, "a") as stream:
        stream.write('{"digest": "cut o')
    table = folder.write_table(found, folder.noted())
    with open(table, encoding="utf-8", newline="") as stream:
        rows = [*csv.DictReader(stream)]
    assert [row["file"] for row in rows] == [found[0].file, found[1].file, ""]
    assert [row["pixels"] for row in rows] == ["20x10", "20x10", ""]
    assert [row["seconds"] for row in rows] == ["1.50", "", ""]
    assert [row["error"] for row in rows] == ["", "", "no memory"]
    assert rows[0]["warnings"] == "too large" and rows[0]["prompt"] == "a, b\nc"
    assert [row["seed"] for row in rows] == ["1", "2", "3"]


def test_a_file_that_is_no_picture_is_named(tmp_path: Path, found: list[BatchRecord]) -> None:
    (tmp_path / found[0].file).write_bytes(b"none")
    with pytest.raises(InputError, match="cannot be read as a picture .*; delete it"):
        BatchFolder(tmp_path).write_table(found, {})


def test_one_batch_works_in_a_folder(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    with folder.alone(), pytest.raises(OutputError, match="another batch works in"):
        with folder.alone():
            pass
    with folder.alone():
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot write .*file"):
        BatchFolder(tmp_path / "file")


def test_sheets_show_all_pictures(tmp_path: Path, found: list[BatchRecord],
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    assert sheets(tmp_path, found) == []
    for record in found:
        picture(tmp_path, record)
    [sheet] = sheets(tmp_path, found)
    shown = Image.open(sheet)
    assert shown.size == (3 * 166 + 6, 186) and shown.getpixel((6 + 80, 6 + 80)) == (255, 0, 0)
    Image.new("RGBA", (16, 16), (0, 0, 0, 0)).save(tmp_path / found[0].file)
    [sheet] = sheets(tmp_path, found)
    with Image.open(sheet) as shown:
        assert shown.getpixel((6 + 80, 6 + 80)) == (255, 255, 255), "what is transparent is white"
    monkeypatch.setattr("smalti.batch.sheet.SHEET_PICTURES", 2)
    assert [path.name for path in sheets(tmp_path, found)] == [
        "contact-sheet.png", "contact-sheet-2.png"]
