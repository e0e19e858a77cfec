"""Engine files, and programs for a second shape: seconds until they are ready, in new processes."""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from smalti.benchmark.table import Row
from smalti.benchmark.turns import in_fresh_process
from smalti.checkpoint import Checkpoint, load
from smalti.diffusion.submodels import Submodels
from smalti.runtime.cpu.memory import anonymous
from smalti.runtime.engine import load as load_engine

BEYOND_SECONDS_MAX = 0.5
SHAPE_SECONDS_MAX = 3.0
PROCESSES = 3
PAGE_BYTES = 4096
DECODER, LATENT = "vae", (64, 64)
UNET, SHAPES = "unet", ((2, 64, 64, 77), (2, 96, 64, 77))
"""A batch of two at 512x512, then at 512x768: rows, and height and width of the latent."""


def read_weights(checkpoint: Checkpoint, names: list[str]) -> float:
    """Seconds to read the bytes of weights as they are in the file, which is in memory already."""
    for name in names:
        checkpoint.raw(name).reshape(-1).view(np.uint8).max()
    started = time.perf_counter()
    for name in names:
        checkpoint.raw(name).reshape(-1).view(np.uint8).copy()
    return time.perf_counter() - started


def save_decoder(path: Path, engine: Path, threads: int) -> None:
    """Write the engine file of the decoder."""
    parts = Submodels(load(path), threads=threads)
    parts.bound(DECODER, LATENT).save(engine)


def first_touch_seconds(size: int, threads: int) -> float:
    """Seconds that the system takes to hand out `size` bytes of new memory to so many threads."""
    memory = anonymous(size)
    parts = np.array_split(memory[::PAGE_BYTES], threads)
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: part.fill(1), parts))
    return time.perf_counter() - started


def decoder_seconds(path: Path, engine: Path, threads: int) -> tuple[float, ...]:
    """Seconds of loading, binding, the first run, later ones, of reading the weights, and of the
    first touch of as much memory as the program has.

    Imports are not counted.
    """
    checkpoint = load(path)
    names = list(load_engine(engine, threads=threads).module.parameters)
    reading = read_weights(checkpoint, names)
    inputs = {"latent": np.random.default_rng(3).standard_normal((1, 4, *LATENT), np.float32)}
    ends = [time.perf_counter()]
    program = load_engine(engine, threads=threads)
    ends.append(time.perf_counter())
    program.bind(checkpoint.floats, checkpoint.drop)
    ends.append(time.perf_counter())
    for _ in range(4):
        program.run(inputs)
        ends.append(time.perf_counter())
    loading, binding, first, *later = np.diff(ends)
    held = program.arena_bytes + sum(slot.bytes for slot in program.module.slots)
    touching = first_touch_seconds(held, threads)
    return loading, binding, first, float(np.median(later)), reading, touching


def engine_row(path: Path, threads: int) -> Row:
    """An engine file of the decoder, without weights: what it takes beside reading and running.

    The median of several processes. Beside it, what the system takes to hand out the memory, which
    is most of it where memory comes from a host that takes its time.
    """
    with tempfile.TemporaryDirectory() as folder:
        engine = Path(folder) / "decoder.smalti"
        in_fresh_process(save_decoder, path, engine, threads)
        runs = [in_fresh_process(decoder_seconds, path, engine, threads)
                for _ in range(PROCESSES)]
    runs.sort(key=lambda run: run[0] + run[1] + run[2] - run[3] - run[4])
    loading, binding, first, run, reading, touching = runs[PROCESSES // 2]
    return Row.at_most(
        "engine file, VAE decoder 512x512: load, bind, first result, beyond a later run and "
        "reading the weights", BEYOND_SECONDS_MAX, loading + binding + first - run - reading, " s",
        f"load {loading:.3f} s, bind {binding:.3f} s, first run {first:.2f} s, later {run:.2f} s, "
        f"reading {reading:.3f} s; first touch of as much memory {touching:.3f} s")


def shape_seconds(path: Path, threads: int, cache: str) -> tuple[float, float, float]:
    """Seconds to compile and to bind a UNet for a second shape, and to bind it on its own."""
    os.environ["SMALTI_CACHE"] = cache
    checkpoint = load(path)
    parts = Submodels(checkpoint, threads=threads)
    first = parts.bound(UNET, SHAPES[0])
    graph = parts.graph(UNET, SHAPES[1])
    read_weights(checkpoint, list(graph.parameters))  # the file into memory
    started = time.perf_counter()
    second = parts.compiled(UNET, graph, first)
    compiled = time.perf_counter()
    second.bind(checkpoint.given, checkpoint.drop, like=first)
    bound = time.perf_counter()
    second.release()
    second.bind(checkpoint.given, checkpoint.drop)
    return compiled - started, bound - compiled, time.perf_counter() - bound


def shape_row(path: Path, threads: int) -> Row:
    """A UNet for another shape, while the first program is bound; nothing of it is in the cache."""
    with tempfile.TemporaryDirectory() as cache:
        compiled, bound, alone = in_fresh_process(shape_seconds, path, threads, cache)
    return Row.at_most("UNet for a second shape, compiled and bound", SHAPE_SECONDS_MAX,
                       compiled + bound, " s", f"compile {compiled:.2f} s, bind {bound:.2f} s; "
                       f"bound without the first {alone:.2f} s")
