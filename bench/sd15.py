"""Measure a full-size SD 1.5 checkpoint: its parts against the peers, compile time, memory.

    python bench/make_checkpoint.py sd15.safetensors
    python bench/sd15.py sd15.safetensors [--threads 2]
        [--rows models,compile,memory,engine,shape,lora,first,int8]
        [--models clip_l,unet,unet_1,decode,encode] [--peers torch,onnxruntime,openvino]
        [--rounds 3] [--exports FOLDER] [--json FILE]

The row `picture`, a whole picture of two steps against diffusers, is slow: ask for it by --rows.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from agreement import picture_row
from engine import engine_row, shape_row
from first_step import first_step_row
from footprint import compile_rows, decode_memory_rows, int8_memory_row, memory_row
from lora import lora_row
from report import finish

from smalti.benchmark.comparison import Plan, installed, measure
from smalti.benchmark.engines import PEERS
from smalti.benchmark.suite import CASES
from smalti.benchmark.table import Row

ROWS = ("models", "compile", "memory", "engine", "shape", "lora", "first", "int8", "picture")
MODELS = ("clip_l", "unet", "unet_1", "decode", "encode")
PICTURE_STEPS = 2


def chosen(known: tuple[str, ...]):
    """A reader of comma-separated names, for argparse."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: "
                                             f"{', '.join(known)}")
        return names

    return read


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=chosen(ROWS), default=ROWS[:-1])
    parser.add_argument("--models", type=chosen(MODELS), default=MODELS)
    parser.add_argument("--peers", type=chosen(PEERS), default=PEERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exports", type=Path, metavar="FOLDER",
                        help="keeps the ONNX files, 4 GB, for the next run")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def measured(given: argparse.Namespace, exports: Path) -> list[Row]:
    """All rows that are asked for."""
    path, threads, rows = given.checkpoint, given.threads, []
    if "models" in given.rows:
        plan = Plan(installed(given.peers, print), threads, given.rounds, exports, print)
        rows += [measure(replace(CASES[name], checkpoint=path), "f32", plan).row()
                 for name in given.models]
    if "compile" in given.rows:
        rows += compile_rows(threads)
    if "memory" in given.rows:
        rows += [memory_row(path, threads), *decode_memory_rows(path, threads)]
    if "engine" in given.rows:
        rows.append(engine_row(path, threads))
    if "shape" in given.rows:
        rows.append(shape_row(path, threads))
    if "lora" in given.rows:
        rows.append(lora_row(path, threads))
    if "first" in given.rows:
        rows.append(first_step_row(path, threads))
    if "int8" in given.rows:
        rows += [int8_memory_row(path, threads), first_step_row(path, threads, "int8")]
    if "picture" in given.rows:
        rows.append(picture_row(path, "karras", PICTURE_STEPS, threads))
    return rows


def main() -> int:
    """Read the command line, measure, print the table."""
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(given, given.exports or Path(folder))
    return finish(rows, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
