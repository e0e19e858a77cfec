"""Tables of pictures that are asked for: JSON Lines, CSV and Parquet, a row a picture."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from smalti.dataclass import dataclass
from smalti.errors import InputError

ROWS_MAX = 1_000_000
"""More are several tables: what was made of one is looked up at each start."""
CELL_CHARACTERS_MAX = 1 << 20
"""Of a cell of a CSV; prompts have some hundred."""
EXTRA = "pip install smalti[parquet]"


@dataclass(frozen=True)
class BatchRow:
    """What a row asks for: values by the names of columns, as they stand there; empty cells are
    left out. `place` is where it is, for messages; of a CSV all values are `texts`."""

    place: str
    values: Mapping[str, Any]
    texts: bool = False


def rows(path: Path) -> list[BatchRow]:
    """The rows of a table. Raises InputError for what is none."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} is no table by its name; expected one that ends in "
                         f"{', '.join(READERS)}")
    found: list[BatchRow] = []
    try:
        for row in reader(path):
            if len(found) == ROWS_MAX:
                raise InputError(f"{path} has more than {ROWS_MAX} rows; give several tables")
            found.append(row)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text ({error.reason} at byte {error.start}); save it "
                         f"as UTF-8") from None
    if not found:
        raise InputError(f"{path} has no rows; expected one for each picture")
    return found


def _json_lines(path: Path) -> Iterator[BatchRow]:
    """An object a line; a line that is a text alone is a prompt."""
    with open(path, encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, 1):
            place = f"{path.name}:{number}"
            if not line.strip():
                continue
            try:
                told = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{place} is no JSON ({error}); expected an object such as "
                                 f'{{"prompt": "a red apple"}}') from None
            told = {"prompt": told} if isinstance(told, str) else told
            if not isinstance(told, dict):
                raise InputError(f"{place} is a {type(told).__name__}; expected an object such as "
                                 f'{{"prompt": "a red apple"}}')
            yield BatchRow(place, {name: value for name, value in told.items()
                                   if value is not None})


def _csv(path: Path) -> Iterator[BatchRow]:
    """Names in the first row, then a picture a row."""
    csv.field_size_limit(CELL_CHARACTERS_MAX)
    with open(path, encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, strict=True)
        try:
            names = [name.strip() for name in next(reader, [])]
            _check_names(path, names)
            for cells in reader:
                place = f"{path.name}:{reader.line_num}"
                if len(cells) > len(names):
                    raise InputError(f"{place} has {len(cells)} cells, the first row "
                                     f"{len(names)}; put text with commas into quotes")
                values = {name: cell for name, cell in zip(names, cells) if cell.strip()}
                if values:
                    yield BatchRow(place, values, texts=True)
        except csv.Error as error:
            raise InputError(f"{path.name}:{reader.line_num} is no CSV ({error})") from None


def _check_names(path: Path, names: list[str]) -> None:
    """Raise InputError for a first row that names no columns, or one twice."""
    double = {name for name in names if names.count(name) > 1}
    if not names or "" in names or double:
        what = f"names {sorted(double)} twice" if double else "has a column without a name"
        raise InputError(f"{path}: the first row {what}; expected names of options, such as "
                         f"prompt,seed,steps")


def _parquet(path: Path) -> Iterator[BatchRow]:
    """Columns by their names; values as Parquet has them."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"Parquet is read by pyarrow, which is not installed: {EXTRA}; or give "
                         f"the table as .jsonl or .csv") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for values in batch.to_pylist():
                    number += 1
                    yield BatchRow(f"{path.name}:{number}", {
                        name: value for name, value in values.items() if value is not None})
    except pyarrow.ArrowException as error:
        raise InputError(f"{path} is no Parquet file that can be read: {error}") from None


READERS: Mapping[str, Callable[[Path], Iterator[BatchRow]]] = {
    ".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}
"""Endings of tables, and what reads them."""
