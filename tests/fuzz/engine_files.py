"""Damaged and hostile engine files: an error of Smalti's own, or a program that runs; nothing else.

    python tests/fuzz/engine_files.py --minutes 20 [--seed 0]

Every case is a sound file with changes drawn from its seed. `bytes` changes bytes anywhere and
`spliced` takes a section, or machine code, from another file: each of these must be refused.
`module`, `about` and `graph` change a section and make all hashes right again, as an attacker can:
numbers of a module are then checked and nothing of it is run; of the others the file is compiled
from its graph, bound and run. Cases run in a child process that may take little memory and time;
the parent prints the seed of a case that crashes, hangs or raises anything else.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import resource
import select
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

import numpy as np

from smalti.codegen.levels import LEVELS
from smalti.compiler.encode import HEADER, MAGIC
from smalti.errors import IllegalSchedule, SmaltiError, VerificationError
from smalti.graph import Graph
from smalti.graph.quantised import quantised
from smalti.runtime import container, engine, engine_writer
from smalti.runtime.cpu.recipe import recipe_of
from smalti.runtime.engine_file import EngineFile
from smalti.runtime.interface import Program
from smalti.runtime.report import engine_report

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("", "material")]
from fuzz.command_line import report, started  # noqa: E402

CASE_SECONDS_MAX = 30
MEMORY_BYTES = 1 << 30
"""What a child may map beyond what it has when it starts."""
RUN_BYTES_MAX = 1 << 26
"""A changed graph that honestly needs more than this is compiled but not run."""
SLACK_BYTES = 1 << 20
WORKER_CASES = 400
REFUSED = ("bytes", "spliced")
"""Kinds of changes that must all be noticed."""
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 255, 1 << 16, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 63, 10**30,
           -(1 << 40), 0.5, 1e308)
VALUES = (*NUMBERS, None, True, "", "f64", "avx2", [], {}, [1, 2], "x" * 1000)


def graphs() -> list[Graph]:
    """A convolution with its surroundings; integers, tables and operations of the host; a product
    whose weights are quantised."""
    g = Graph("layers")
    x = g.input("x", (1, 8, 6, 6))
    with g.scope("block"):
        h = g.apply("conv", x, g.parameter("w", (8, 8, 3, 3)), pads=(1, 1, 1, 1))
        h = g.apply("group_normalization", h, g.parameter("s", (8,)), g.parameter("b", (8,)),
                    num_groups=2)
    tokens = g.apply("silu", h).reshape(1, 8, 36).transpose(0, 2, 1)
    tokens = g.apply("attention", tokens, tokens, tokens, num_heads=2)
    g.output("y", g.apply("softmax", g.apply("mat_mul", tokens, g.parameter("m", (8, 16)))))
    k = Graph("numbers")
    i = k.input("i", (2, 3), "i32")
    rows = k.apply("gather", k.parameter("table", (5, 8)), i)
    whole = k.apply("cast", k.apply("cast", rows * 3.0, to="i32"), to="f32")
    k.output("z", k.apply("concat", whole, rows * k.constant(np.arange(8, dtype=np.float32)),
                          axis=1))
    q = Graph("blocks")
    q.output("p", q.apply("mat_mul", q.input("x", (2, 128)), q.apply(
        "transpose", q.parameter("blocks", (128, 128)), perm=(1, 0))))
    return [g, k, q]


@lru_cache(maxsize=1)
def samples() -> tuple[bytes, ...]:
    """Sound files: with code for all levels, and with weights."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample.smalti"
        for graph in graphs():
            rng = np.random.default_rng(0)
            weights = {name: rng.standard_normal(value.shape, np.float32)
                       for name, value in graph.parameters.items()}
            held = {name: "q4_min" for name in weights if name == "blocks"}
            weights |= {name: quantised(weights[name], dtype) for name, dtype in held.items()}
            for precision, targets, embedded in (("f32", tuple(LEVELS), False),
                                                 ("bf16", ("avx2",), True)):
                engine_writer.save(recipe_of(graph, precision, (), 1, held), path, targets=targets,
                            weights=weights, with_weights=embedded)
                found.append(path.read_bytes())
    return tuple(found)


# ---------------------------------------------------------------------- changes


def changed(seed: int) -> tuple[str, bytes]:
    """The kind of a case, and its file, which is none of the samples."""
    draw = random.Random(seed)
    data = draw.choice(samples())
    kind = draw.choice(["bytes", "spliced", "module", "about", "graph", "graph"])
    if kind == "bytes":
        while (found := changed_bytes(data, draw)) == data:
            pass
        return kind, found
    sections = sections_of(data)
    if kind == "spliced":
        while (found := written(spliced(sections, draw))) in samples():
            pass
        return kind, found
    name = draw.choice([name for name in sections if name.startswith(kind)])
    change = {"module": changed_module, "about": changed_json, "graph": changed_text}[kind]
    sections[name] = change(sections[name], draw)
    return kind, written(sections)


def spliced(sections: dict[str, bytes], draw: random.Random) -> dict[str, bytes]:
    """A section of another file in the place of one, or other machine code in a module."""
    name = draw.choice([name for name in sections if name != "weights"])
    others = [(section, found[section]) for found in map(sections_of, samples())
              for section in found if section.split()[0] == name.split()[0]]
    taken, other = draw.choice(others)
    if not name.startswith("module") or draw.random() < 0.5:
        return {**sections, name: other}
    parts, given = parts_of(sections[name]), parts_of(other)
    place, source = draw.randrange(len(parts[2])), draw.randrange(len(given[2]))
    length = draw.choice([1, 16, 256, len(given[2])])
    code = parts[2][:place] + given[2][source:source + length]
    parts[2] = (code + parts[2][len(code):])[:len(parts[2])]
    return {**sections, name: b"".join(parts)}


def parts_of(module: bytes) -> list[bytes]:
    """Header, text, code and constants of a module."""
    _, _, text, code, _ = HEADER.unpack_from(module)
    ends = [0, HEADER.size, HEADER.size + text, HEADER.size + text + code, len(module)]
    return [module[start:end] for start, end in zip(ends, ends[1:])]


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    """Flipped, cut, repeated or inserted bytes."""
    found = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8])):
        at = draw.randrange(len(found) + 1)
        action = draw.randrange(5)
        if action == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif action == 1:
            del found[at:]
        elif action == 2:
            found[at:at] = draw.randbytes(draw.choice([1, 8, 4096]))
        elif action == 3:
            del found[at:at + draw.choice([1, 8, 4096])]
        else:
            place = draw.choice([8, 12, 16, 24, 88, 96]) + container.ENTRY.size * draw.randrange(3)
            found[place:place + 8] = struct.pack("<Q", draw.choice((0, 1, -1, 1 << 40)) % 2**64)
        if not found:
            break
    return bytes(found)


def changed_json(data: bytes, draw: random.Random) -> bytes:
    """JSON in which some values, keys or entries are others."""
    document = json.loads(data)
    for _ in range(draw.choice([1, 1, 2, 5])):
        places = []

        def visit(node: object, places: list = places) -> None:
            for key in node if isinstance(node, dict) else range(len(node)):
                places.append((node, key))
                if isinstance(node[key], dict | list):
                    visit(node[key])

        visit(document)
        if not places:
            break
        node, key = draw.choice(places)
        action = draw.randrange(4)
        if action == 0:
            del node[key]
        elif action == 1 and isinstance(node, list):
            node.insert(key, deepcopy(draw.choice([node[key], *VALUES])))
        elif type(node[key]) is int and action == 2:
            node[key] += draw.choice([-1, 1, 64, 1 << 20, 1 << 34])
        else:
            node[key] = deepcopy(draw.choice(VALUES))
    return json.dumps(document).encode()


def changed_module(data: bytes, draw: random.Random) -> bytes:
    """A module with another text, and the hash of that."""
    header, text, code, constants = parts_of(data)
    text = changed_json(text, draw)
    lengths = [len(text), len(code), len(constants)]
    if draw.random() < 0.1:
        lengths[draw.randrange(3)] = draw.choice([0, 1, 1 << 40, 2**64 - 1])
    body = struct.pack("<QQQ", *lengths) + text + code + constants
    return header[:len(MAGIC)] + hashlib.sha256(body).digest() + body


def changed_text(data: bytes, draw: random.Random) -> bytes:
    """The text of a graph with other numbers, words or lines."""
    lines = data.decode().split("\n")
    for _ in range(draw.choice([1, 1, 2, 4])):
        at = draw.randrange(len(lines))
        action = draw.randrange(6)
        words = list(re.finditer(r"-?\d+(?:\.\d+)?|\w+|[^\w\s]", lines[at]))
        if action == 0:
            del lines[at]
        elif action == 1:
            lines.insert(draw.randrange(len(lines)), lines[at])
        elif action == 2:
            other = draw.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif words:
            word = draw.choice(words)
            if word[0].lstrip("-").isdigit():
                text = str(draw.choice([*NUMBERS, int(word[0]) + 1, int(word[0]) * 2]))
                if draw.random() < 0.5:  # wherever it stands, so that shapes go on fitting
                    lines = [re.sub(rf"\b{word[0]}\b", text, line) for line in lines]
                    continue
            else:
                line = draw.choice(lines)
                text = draw.choice(re.findall(r"\w+|[^\w\s]", line) or [""])
            lines[at] = lines[at][:word.start()] + text + lines[at][word.end():]
        if not lines:
            break
    return "\n".join(lines).encode()


def sections_of(data: bytes) -> dict[str, bytes]:
    """The sections of a sound file."""
    with tempfile.NamedTemporaryFile(suffix=".smalti") as file:
        file.write(data)
        file.flush()
        found = container.Container(Path(file.name))
        return {name: bytes(found.section(name)) for name in found.names()}


def written(sections: dict[str, bytes]) -> bytes:
    """A file of sections, with their right hashes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changed.smalti"
        container.write(path, len(sections), ((name, [part], name != "weights")
                                              for name, part in sections.items()))
        return path.read_bytes()


# ---------------------------------------------------------------------- what must hold


def attempt(kind: str, path: Path) -> str:
    """Open the file at `path` in every way that is safe for its kind; what happened.

    Lets anything pass that is no SmaltiError, or says that Smalti has a bug. A file that must be
    refused is not run.
    """
    try:
        engine_report(path)
        file = EngineFile(path)
        for level in file.targets:
            file.module(level)
        if kind == "module":
            return "opened"
        if kind in REFUSED:
            for name in file.parameters if file.has_weights else ():
                file.array(name)
            raise AssertionError(f"a file of kind {kind} is taken for a sound one")
        return run(engine.load(path, threads=1, recompile=True))
    except SmaltiError as error:
        if isinstance(error, VerificationError | IllegalSchedule):
            raise
        assert str(error) and len(str(error)) < 100_000
        return type(error).__name__


def run(program: Program) -> str:
    """Bind what is not bound, and run once, where that needs little."""
    graph = program.recipe.graph
    needed = sum(value.type.bytes for value in (*graph.inputs.values(), *graph.outputs.values(),
                                                *graph.parameters.values(),
                                                *(node.output for node in graph.nodes)))
    if needed > RUN_BYTES_MAX or graph.flops() > RUN_BYTES_MAX * 16:
        return "large"
    program.bind({name: np.ones(value.shape, np.float32)
                  for name, value in graph.parameters.items()})
    program.run({name: np.zeros(value.shape, np.float32) for name, value in graph.inputs.items()})
    return "ran"


@lru_cache(maxsize=1)
def honest_bytes() -> int:
    """The most that Python allocates to open a sound file."""
    most = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "honest.smalti"
        for data in samples():
            path.write_bytes(data)
            attempt("module", path)
            tracemalloc.start()
            attempt("module", path)
            most = max(most, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    return most


def case(seed: int, folder: Path) -> tuple[str, str]:
    """The kind of a case and what happened. Raises AssertionError when it takes too much memory."""
    kind, data = changed(seed)
    path = folder / "case.smalti"
    path.write_bytes(data)
    limited = kind in ("module", *REFUSED)
    limit = 2 * honest_bytes() + SLACK_BYTES
    if limited:
        tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            happened = attempt(kind, path)
        if limited:
            peak = tracemalloc.get_traced_memory()[1]
            assert peak <= limit, f"{peak} bytes, {limit} are expected at most"
    finally:
        tracemalloc.stop()
    return kind, happened


# ---------------------------------------------------------------------- processes


def work(first: int, count: int) -> None:
    """Cases in this process: each prints its seed, then what happened."""
    honest_bytes()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            print(seed, end=" ", flush=True)
            print(*case(seed, Path(folder)), flush=True)


def supervise(minutes: float, seed: int) -> int:
    """Children one after the other until the time is over; the number of bad seeds."""
    until, counts, bad = time.monotonic() + 60 * minutes, {}, []
    while time.monotonic() < until:
        child = subprocess.Popen(
            [sys.executable, __file__, "--worker", str(WORKER_CASES), "--seed", str(seed)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        last, hung = seed, False
        while time.monotonic() < until:
            if not select.select([child.stdout], [], [], CASE_SECONDS_MAX + 60)[0]:
                hung = True
                break
            line = child.stdout.readline()
            if not line:
                break
            words = line.split()
            last = int(words[0]) + 1
            counts[tuple(words[1:])] = counts.get(tuple(words[1:]), 0) + 1
        ended = child.poll() is not None or not hung and time.monotonic() < until
        if hung or not ended:
            child.kill()
        errors = child.communicate()[1]
        if hung or ended and child.returncode:
            bad.append(last)
            print(f"seed {last}: {'hangs' if hung else f'exit {child.returncode}'}\n"
                  f"{errors[-1500:]}", flush=True)
        seed = last + 1 if hung or ended and child.returncode else last
    return report(counts, sum(counts.values()), bad)


if __name__ == "__main__":
    raise SystemExit(started(__doc__, work, supervise))
