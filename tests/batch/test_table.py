"""Tables of pictures: what is read, and what is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smalti.batch.table import BatchRow, rows
from smalti.errors import InputError


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_json_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl",
                   '\ufeff{"prompt": "ä", "seed": 3, "steps": null}\n\n"cat"\n')
    assert rows(path) == [BatchRow("a.jsonl:1", {"prompt": "ä", "seed": 3}),
                          BatchRow("a.jsonl:3", {"prompt": "cat"})]


def test_csv_with_quotes_and_empty_cells(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", '\ufeffprompt, seed,steps\r\n"a, ""b""\nc",3,\r\n,,\r\nd\r\n')
    assert rows(path) == [BatchRow("a.csv:3", {"prompt": 'a, "b"\nc', "seed": "3"}, texts=True),
                          BatchRow("a.csv:5", {"prompt": "d"}, texts=True)]


@pytest.mark.parametrize(("name", "text", "said"), [
    ("a.txt", "x", "no table by its name; expected one that ends in .jsonl, .csv, .parquet"),
    ("a.jsonl", "", "has no rows"), ("a.jsonl", "{", "a.jsonl:1 is no JSON"),
    ("a.jsonl", '{"prompt": "a"}\n[1]', "a.jsonl:2 is a list"),
    ("a.jsonl", b"\xff\xfe", "is no UTF-8 text"), ("a.jsonl", "[" * 100_000, "is no JSON"),
    ("a.csv", "", "a column without a name|no columns"), ("a.csv", "prompt\n", "has no rows"),
    ("a.csv", "prompt,,seed\na,1,2", "a column without a name"),
    ("a.csv", "seed,seed\n1,2", r"names \['seed'\] twice"),
    ("a.csv", "prompt\na,b", "a.csv:2 has 2 cells"), ("a.csv", 'prompt\n"a', "is no CSV")])
def test_what_is_no_table(tmp_path: Path, name: str, text: str | bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        rows(written(tmp_path, name, text))


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a.csv cannot be read: No such file"):
        rows(tmp_path / "a.csv")


@pytest.mark.peers
def test_parquet_is_read_as_json_is(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    told = [{"prompt": "a", "seed": 3, "guidance_time": [0.0, 0.5]}, {"prompt": "b", "seed": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(told), tmp_path / "a.parquet")
    path = written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, told)))
    found = rows(tmp_path / "a.parquet")
    assert [row.values for row in found] == [row.values for row in rows(path)]
    with pytest.raises(InputError, match="is no Parquet file"):
        rows(written(tmp_path, "b.parquet", "x"))
