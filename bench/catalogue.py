#!/usr/bin/env python3
"""Whether the catalogue of models says what their sources say; needs a network and `smalti[hub]`.

Each entry of `src/smalti/fetch/catalogue.json` is asked for at its source: that the file is there,
its size, its SHA-256, the licence, whether that has to be accepted, and, by the header of the file,
the family. Nothing else is fetched. Exits with 1 where something differs.

    PYTHONPATH=src python bench/catalogue.py            # says what differs
    PYTHONPATH=src python bench/catalogue.py --write    # fills sizes and hashes in

`HF_TOKEN` is needed for headers of models whose licence has to be accepted.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from smalti.errors import FetchError
from smalti.fetch import FetchPlan, ModelStore, plan
from smalti.fetch.catalogue import KINDS, TABLE, CatalogueEntry, entries

FILLED = ("bytes", "sha256")


def told(entry: CatalogueEntry, planned: FetchPlan) -> dict[str, Any]:
    """What the source says, by the fields of an entry."""
    kind, files = planned.kind, planned.choice.weights
    found: dict[str, Any] = {"licence": planned.listing.licence,
                             "accept": bool(planned.listing.accept)}
    if kind is not None and entry.kind == KINDS[0]:
        found["family"] = kind.family
    if len(files) == 1 and files[0].digest.kind == "sha256":
        found |= {"bytes": files[0].bytes, "sha256": files[0].digest.digits}
    return found


def compared(entry: CatalogueEntry) -> tuple[dict[str, Any], list[str]]:
    """What is to be filled in, and lines of what differs."""
    try:
        found = told(entry, plan(entry.source, None, ModelStore()))
    except FetchError as error:
        return {}, [f"{entry.name}: {error}"]
    fill = {name: found[name] for name in FILLED if found.get(name) and not getattr(entry, name)}
    return fill, [f"{entry.name}: {name} is {getattr(entry, name)!r}, its source says {value!r}"
                  for name, value in found.items()
                  if name not in fill and getattr(entry, name) != value]


def written(filled: dict[str, dict[str, Any]]) -> str:
    """The table with what was filled in, an entry a paragraph."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    rows = [json.dumps({**row, **filled.get(row["name"], {})}, ensure_ascii=False)
            for row in table]
    return "[\n" + ",\n".join(rows) + "\n]\n"


def main() -> int:
    """A line for each difference; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="fill sizes and hashes in")
    asked = parser.parse_args()
    filled, wrong = {}, []
    for entry in entries().values():
        filled[entry.name], lines = compared(entry)
        wrong += lines
        for line in lines or [f"{entry.name}: as its source says"]:
            print(line, flush=True)
    if asked.write:
        TABLE.write_text(written(filled), encoding="utf-8")
    print(f"{len(entries())} entries, {len(wrong)} differences")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
