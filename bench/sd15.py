"""Measure a full-size SD 1.5 checkpoint against diffusers, ONNX Runtime, PyTorch and OpenVINO.

    python bench/make_checkpoint.py sd15.safetensors
    python bench/sd15.py sd15.safetensors [--threads 2] [--rows agreement,speed,compile,memory]
        [--parts clip,unet,unet1,decoder,encoder] [--peers onnxruntime,torch,openvino]
        [--rounds 3] [--exports FOLDER] [--explain] [--json FILE]

The row `picture`, a whole picture of two steps against diffusers, is slow: ask for it by --rows.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from agreement import part_rows, picture_row
from engines import ENGINES
from footprint import compile_rows, memory_row
from parts import PARTS
from speed import duel_rows
from table import Row, finish

ROWS = ("agreement", "speed", "compile", "memory", "picture")
PEERS = tuple(name for name in ENGINES if name != "smalti")
AGREEMENT_PARTS = ("clip", "unet", "decoder", "encoder")
SPEED_PARTS = ("unet", "unet1", "decoder")
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
    parser.add_argument("--parts", type=chosen(tuple(PARTS)))
    parser.add_argument("--peers", type=chosen(PEERS), default=PEERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exports", type=Path, metavar="FOLDER",
                        help="keeps the ONNX files, 4 GB, for the next run")
    parser.add_argument("--explain", action="store_true", help="also print our slowest kernels")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def measure(given: argparse.Namespace, exports: Path) -> list[Row]:
    """All rows that are asked for."""
    path, threads, rows = given.checkpoint, given.threads, []
    if "agreement" in given.rows:
        rows += part_rows(path, given.parts or AGREEMENT_PARTS, threads)
    if "speed" in given.rows:
        for part in given.parts or SPEED_PARTS:
            rows += duel_rows(path, part, given.peers, threads, given.rounds, exports,
                              given.explain)
    if "compile" in given.rows:
        rows += compile_rows(path, threads)
    if "memory" in given.rows:
        rows.append(memory_row(path, threads))
    if "picture" in given.rows:
        rows.append(picture_row(path, "karras", PICTURE_STEPS, threads))
    return rows


def main() -> int:
    """Read the command line, measure, print the table."""
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(given, given.exports or Path(folder))
    return finish(rows, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
