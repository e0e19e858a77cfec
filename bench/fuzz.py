"""Damaged ONNX models, one after another: Smalti may refuse them, in its own words, or run them.

    python bench/fuzz.py --minutes 20 --models exports

Models of the node tests of ONNX, and those in the folder of `--models`, are damaged: bytes flipped,
fields swapped, sizes blown up, nodes shuffled, weights moved to other files. A fault is an
exception that is no SmaltiError, a crash, more than `SECONDS_MAX` to load and compile, or more than
`COMPILING_BYTES_MAX` on the way (the largest of the models needs 208 MiB). The model at fault is
kept. Trials are made in a process of their own, which a fault ends.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

from smalti.errors import SmaltiError
from smalti.frontend.onnx import load
from smalti.frontend.onnx.reading import bodies
from smalti.graph.operation import DTYPES
from smalti.runtime.interface import Program
from smalti.runtime.models import compile_model
from smalti.runtime.report import onnx_report

SECONDS_MAX = 20
RUN_SECONDS_MAX = 5
"""A run of a model that asks for more work than this is ended, which is no fault."""
COMPILING_BYTES_MAX = 1 << 29
RUNNING_BYTES_MAX = 2 << 30
FLOPS_MAX, TOO_MUCH = 1e9, "more work than is tried"
MODEL_BYTES_MAX = 1 << 20
"""Larger models in the folder of `--models` are left out: they compile for seconds."""
BATCH = 400
NUMBERS = (0, 1, -1, 2, -2, 3, 7, 255, 1 << 20, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 40,
           1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63))
PLACES = ("", ".", "..", "../current.onnx", "current.onnx", "absent", "a/../b", "C:\\x", "\\\\x\\y",
          "/dev/zero", "/etc/passwd", "\0", "x" * 5000)


Limits = Callable[[int, int], AbstractContextManager[None]]


class TooSlow(SmaltiError):
    """A model takes its time, and can be interrupted."""


def seeds(folder: Path | None = None) -> list[list[onnx.ModelProto]]:
    """Models to damage: those of the node tests, the standard domain, and those in a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes = [case.model for case in collect_testcases(None)
                 if {entry.domain for entry in case.model.opset_import} == {""}]
    paths = sorted(folder.glob("*.onnx")) if folder else []
    larger = [onnx.load(path, load_external_data=False) for path in paths
              if path.stat().st_size <= MODEL_BYTES_MAX]
    return [nodes] * 7 + [larger] if larger else [nodes]


# ---------------------------------------------------------------------- damage


def flipped(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """Some bytes of the file are others. Raises DecodeError where that leaves no model."""
    data = bytearray(model.SerializeToString())
    for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
        data[rng.randrange(len(data))] = rng.randrange(256)
    if data and rng.random() < 0.1:
        del data[rng.randrange(len(data)):]
    return onnx.ModelProto.FromString(bytes(data))


def resized(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """Dimensions of inputs and tensors, and integers of attributes, are others."""
    places: list[Callable[[int], None]] = []
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            places.append(lambda n, dim=dim: setattr(dim, "dim_value", n))
    for tensor in tensors_of(model):
        for i in range(len(tensor.dims)):
            places.append(lambda n, tensor=tensor, i=i: tensor.dims.__setitem__(i, n))
        places.append(lambda n, tensor=tensor: setattr(tensor, "data_type", n % 30))
    for attribute in attributes_of(model):
        if attribute.type == onnx.AttributeProto.INT:
            places.append(lambda n, a=attribute: setattr(a, "i", n))
        for i in range(len(attribute.ints)):
            places.append(lambda n, a=attribute, i=i: a.ints.__setitem__(i, n))
    for entry in (*model.opset_import, *(e for f in model.functions for e in f.opset_import)):
        places.append(lambda n, entry=entry: setattr(entry, "version", n % 40))
    for place in rng.sample(places, min(len(places), rng.choice((1, 1, 2)))):
        place(rng.choice(NUMBERS))
    return model


def attributes_of(model: onnx.ModelProto) -> list[onnx.AttributeProto]:
    """The attributes of all nodes, those in bodies and functions, too."""
    return [a for body in bodies(model) for node in body.node for a in node.attribute]


def tensors_of(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """All tensors: initializers, and those of attributes."""
    stated = [tensor for body in bodies(model) if isinstance(body, onnx.GraphProto)
              for tensor in body.initializer]
    return stated + [a.t for a in attributes_of(model) if a.type == onnx.AttributeProto.TENSOR]


def rewired(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """Names, operators and the order of nodes are others."""
    graph = model.graph
    names = [n for node in graph.node for n in (*node.input, *node.output)] + ["", "nothing"]
    node = rng.choice(graph.node) if graph.node else None
    kind = rng.randrange(8)
    if node is None or kind == 0:
        nodes = list(graph.node)
        rng.shuffle(nodes)
        del graph.node[:]
        graph.node.extend(nodes)
    elif kind == 1 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)
    elif kind == 2 and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice(names)
    elif kind == 3:
        node.op_type = rng.choice(sorted({s.name for s in onnx.defs.get_all_schemas()}))
    elif kind == 4 and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]
    elif kind == 5 and node.input:
        del node.input[-1]
    elif kind == 6:
        graph.node.append(node)
    elif graph.input:
        rng.choice(graph.input).type.tensor_type.elem_type = rng.randrange(30)
    return model


def fixed(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """An input that has become a constant, of odd numbers at times."""
    inputs = [v for v in model.graph.input if v.type.HasField("tensor_type")]
    if not inputs:
        return model
    value = rng.choice(inputs)
    shape = [min(max(d.dim_value, 0), 16) for d in value.type.tensor_type.shape.dim]
    if rng.random() < 0.5 or np.prod(shape) > 4096:
        shape = [rng.randrange(5)]
    element = value.type.tensor_type.elem_type
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(element)
        numbers = rng.choices(NUMBERS, k=int(np.prod(shape, dtype=int)))
        with np.errstate(all="ignore"):
            array = np.array(numbers, np.int64).astype(dtype).reshape(shape)
        tensor = numpy_helper.from_array(array, value.name)
    except (KeyError, TypeError, ValueError, NotImplementedError):
        return model
    if rng.random() < 0.5:
        model.graph.initializer.append(tensor)
    else:
        model.graph.node.insert(0, onnx.helper.make_node(
            "Constant", [], [value.name], value=tensor))
    model.graph.input.remove(value)
    return model


def wrapped(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """The nodes are a function, which is called several times; its tensors stand in nodes."""
    graph = model.graph
    calls = rng.choice((1, 1, 2, 30))
    nodes = [onnx.helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer]
    inputs = [v.name for v in graph.input]
    function = onnx.helper.make_function(
        "fuzz", "wrapped", inputs, [v.name for v in graph.output], [*nodes, *graph.node],
        list(model.opset_import))
    if rng.random() < 0.2:
        del function.opset_import[:]
    model.functions.append(function)
    model.opset_import.add(domain="fuzz", version=1)
    del graph.node[:], graph.initializer[:]
    results = [v.name for v in graph.output]
    for i in range(calls):
        outputs = results if i == calls - 1 else [f"{name}#{i}" for name in results]
        given = inputs[:-1] if inputs and rng.random() < 0.1 else inputs
        graph.node.append(onnx.helper.make_node("wrapped", given, outputs, domain="fuzz"))
    return model


def moved(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """A tensor that lies somewhere else."""
    tensors = tensors_of(model)
    if not tensors:
        return model
    tensor = rng.choice(tensors)
    if tensor.data_location != tensor.EXTERNAL:
        tensor.data_location = tensor.EXTERNAL
        tensor.external_data.add(key="location", value=rng.choice(PLACES))
    entry = rng.choice(tensor.external_data)
    entry.value = rng.choice(PLACES) if entry.key == "location" else str(rng.choice(NUMBERS))
    tensor.external_data.add(key=rng.choice(("offset", "length", "checksum")),
                             value=rng.choice((str(rng.choice(NUMBERS)), "x", "1e9", "0x10")))
    return model


def damaged(model: onnx.ModelProto, rng: random.Random) -> bytes | None:
    """The file of a copy with one to three kinds of damage; None where nothing can be written."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    try:
        for _ in range(rng.choice((1, 1, 2, 3))):
            copy = rng.choice((flipped, resized, resized, rewired, fixed, moved, wrapped))(
                copy, rng)
        data = bytearray(copy.SerializeToString())
    except (DecodeError, UnicodeDecodeError):
        return None
    if data and rng.random() < 0.05:
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


# ---------------------------------------------------------------------- the trial


def inputs_of(program: Program, rng: random.Random) -> dict[str, np.ndarray]:
    """Random inputs that fit a program."""
    found = {}
    model = getattr(program, "model", None)
    for name, shape in program.inputs.items():
        if model is not None and model.inputs[name] is None:
            found[name] = rng.choice(([], None, [np.ones(2, np.float32)], np.zeros((2, 3)), "x"))
            continue
        dtype = program.module.inputs[name].known_as if hasattr(program, "module") else (
            "f32" if model is None else model.inputs[name].dtype)
        if np.prod(shape, dtype=float) > 1 << 24:
            raise SmaltiError("the input is too large to be made here")
        numbers = np.random.default_rng(rng.randrange(1 << 30)).integers(-3, 9, shape)
        found[name] = numbers.astype(DTYPES[dtype])
    return found


@contextmanager
def limits(bytes_max: int, seconds_max: int) -> Iterator[None]:
    """Memory of this process beyond what it has, and seconds; what hears no alarm is ended."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes() + bytes_max, hard))
    faulthandler.dump_traceback_later(3 * seconds_max, exit=True)
    signal.alarm(seconds_max)
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


@contextmanager
def no_limits(bytes_max: int, seconds_max: int) -> Iterator[None]:
    """For a few models that are known to be harmless."""
    yield


def trial(path: Path, rng: random.Random, limits: Limits) -> str:
    """Compile and run a model: "runs", or the name of the SmaltiError. Other errors come out.

    `limits` gives what encloses either, from bytes and seconds.
    """
    try:
        with limits(COMPILING_BYTES_MAX, SECONDS_MAX):
            model = load(path)
            if model.static and model.graph.flops() > FLOPS_MAX:
                return TOO_MUCH
            program = compile_model(model, threads=1)
            if rng.random() < 0.2:
                onnx_report(path, {})
                program.bind(path)
    except TooSlow as error:
        raise RuntimeError("compiling takes too long") from error
    except SmaltiError as error:
        if "allocate" in str(error):
            raise RuntimeError("compiling takes more memory than it may") from error
        return type(error).__name__
    try:
        with limits(RUNNING_BYTES_MAX, RUN_SECONDS_MAX):
            program.run(inputs_of(program, rng))
    except SmaltiError as error:
        return type(error).__name__
    return "runs"


def limited(signum: int, frame: object) -> None:
    """The alarm."""
    raise TooSlow("too long")


def batch(models: Path | None, first: int, count: int, folder: Path) -> None:
    """Try the models of the random numbers `first` on; the one in work is `current.onnx`."""
    warnings.simplefilter("ignore")
    kinds = seeds(models)
    signal.signal(signal.SIGALRM, limited)
    for path in models.glob("*.data") if models else ():
        shutil.copy(path, folder)
    current, outcomes = folder / "current.onnx", Counter()
    for number in range(first, first + count):
        rng = random.Random(number)
        data = damaged(rng.choice(rng.choice(kinds)), rng)
        if data is None:
            continue
        current.write_bytes(data)
        (folder / "current").write_text(str(number))
        outcomes[trial(current, rng, limits)] += 1
    print(", ".join(f"{count} {name}" for name, count in outcomes.most_common()), flush=True)


def used_bytes() -> int:
    """The address space of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def main() -> int:
    """Try models for a time; 1 when there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--models", type=Path, default=None, help="folder of more models")
    parser.add_argument("--first", type=int, default=0, help="random number to start with")
    parser.add_argument("--count", type=int, default=0, help="try so many models, in this process")
    parser.add_argument("--folder", type=Path, default=None, help="where models at fault are kept")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    if asked.count:
        batch(asked.models, asked.first, asked.count, folder)
        return 0
    more = ["--models", str(asked.models)] if asked.models else []
    end, number, faults = time.monotonic() + 60 * asked.minutes, asked.first, 0
    while time.monotonic() < end:
        command = [sys.executable, __file__, "--first", str(number), "--count", str(BATCH),
                   "--folder", str(folder), *more]
        done = subprocess.run(command, capture_output=True, text=True,
                              env={**os.environ, "SMALTI_CACHE": str(folder / "cache")})
        print(f"{number}: {done.stdout.strip()}", flush=True)
        number += BATCH
        if done.returncode:
            faults, at = faults + 1, int((folder / "current").read_text())
            (folder / "current.onnx").rename(folder / f"fault-{at}.onnx")
            last = "\n    ".join(done.stderr.strip().splitlines()[-7:])
            print(f"FAULT at {at}, exit code {done.returncode}:\n    {last}", flush=True)
            number = at + 1
    print(f"{number - asked.first} models, {faults} faults; kept in {folder}")
    return bool(faults)


if __name__ == "__main__":
    raise SystemExit(main())
