"""Engines that compute one part of a model, each in a process of its own, taking turns.

A process holds one engine with one part, so that thread pools, allocators and environment of one
do not disturb the other, and only one computes at a time. Messages: "run" -> `Turn`, "output" ->
array, "note" -> text; None ends it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from parts import PARTS, peer_module

from smalti.checkpoint import load
from smalti.runtime.compiler import compile_graph

PAUSE_SECONDS = 0.3
"""Before each run: the other engine's threads have gone to sleep by then."""


STATISTICS = Path("/proc/stat")


@dataclass(frozen=True)
class Job:
    """What to compute: part `part` of the checkpoint at `path`, on `threads` threads.

    `exported` is the folder of ONNX files; only ONNX Runtime and OpenVINO read it.
    """

    path: Path
    part: str
    threads: int
    exported: Path


@dataclass(frozen=True)
class Runner:
    """An engine that is ready: `run` computes once, `note` says how it does it."""

    run: Callable[[], np.ndarray]
    note: Callable[[], str]


def inputs_of(job: Job) -> dict[str, np.ndarray]:
    """The inputs of a job: the same for every engine."""
    return PARTS[job.part].inputs(load(job.path).config)


def smalti(job: Job) -> Runner:
    """Our own program."""
    checkpoint, given = load(job.path), inputs_of(job)
    program = compile_graph(PARTS[job.part].graph(checkpoint.config), threads=job.threads)
    program.bind(checkpoint.read)

    def run() -> np.ndarray:
        (result,) = program.run(given).values()
        return result

    return Runner(run, program.explain)


def torch(job: Job) -> Runner:
    """diffusers and transformers on PyTorch, in the memory layout that is faster."""
    import torch

    torch.set_num_threads(job.threads)
    module = peer_module(job.part, load(job.path))
    given = [torch.tensor(array) for array in inputs_of(job).values()]

    def run() -> np.ndarray:
        with torch.inference_mode():
            return module(*given).numpy()

    took = {}
    layouts = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
    for name, layout in layouts.items():
        module.to(memory_format=layout)
        run()
        took[name] = timed(run)[0]
    best = min(took, key=took.__getitem__)
    module.to(memory_format=layouts[best])
    said = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in took.items())
    return Runner(run, lambda: f"PyTorch {torch.__version__}, {best} ({said})")


def exported(job: Job) -> Path:
    """The ONNX file of a job, with its weights beside it."""
    return job.exported / job.part / "model.onnx"


def export(job: Job) -> None:
    """Write the ONNX file of a job from the PyTorch module, at fixed shapes."""
    import torch

    folder = exported(job).parent
    writing = folder.with_name(f"{folder.name}.writing")
    writing.mkdir(parents=True, exist_ok=True)
    given = inputs_of(job)
    module = peer_module(job.part, load(job.path))
    program = torch.onnx.export(
        module, tuple(map(torch.tensor, given.values())), input_names=list(given),
        output_names=["output"], dynamo=True, verbose=False)
    program.save(writing / exported(job).name, external_data=True)
    writing.rename(folder)


def onnxruntime(job: Job) -> Runner:
    """ONNX Runtime with its own defaults, apart from the number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
    session = onnxruntime.InferenceSession(str(exported(job)), options,
                                           providers=["CPUExecutionProvider"])
    given = inputs_of(job)
    return Runner(lambda: session.run(None, given)[0],
                  lambda: f"ONNX Runtime {onnxruntime.__version__}")


def openvino(job: Job) -> Runner:
    """OpenVINO, told to compute in f32: by default it takes bf16 where the CPU has it."""
    import openvino

    core = openvino.Core()
    model = core.compile_model(core.read_model(exported(job)), "CPU", {
        "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": job.threads,
        "PERFORMANCE_HINT": "LATENCY"})
    given = inputs_of(job)
    return Runner(lambda: model(given)[0], lambda: f"OpenVINO {openvino.__version__}")


ENGINES = {"smalti": smalti, "onnxruntime": onnxruntime, "torch": torch, "openvino": openvino}
NEEDS_EXPORT = ("onnxruntime", "openvino")


@dataclass(frozen=True)
class Turn:
    """One timed run: its seconds, and how many cores other processes kept busy meanwhile."""

    seconds: float
    cores_of_others: float


def take_turn(run: Callable[[], np.ndarray]) -> Turn:
    """Time one run, with the machine watched."""
    busy, own = _busy_seconds(), time.process_time()
    seconds, _ = timed(run)
    others = _busy_seconds() - busy - (time.process_time() - own)
    return Turn(seconds, max(0.0, others) / seconds)


def _busy_seconds() -> float:
    """Seconds that all cores have worked since the start of the machine; 0 where none tells."""
    if not STATISTICS.exists():
        return 0.0
    user, nice, system, _, _, interrupts, soft, stolen = map(
        int, STATISTICS.read_text().split("\n", 1)[0].split()[1:9])
    ticks = user + nice + system + interrupts + soft + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def timed(run: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    """Seconds and result of one run."""
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def serve(engine: str, job: Job, pipe: Connection) -> None:
    """The life of an engine's process."""
    runner = ENGINES[engine](job)
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        if message == "run":
            time.sleep(PAUSE_SECONDS)
            pipe.send(take_turn(runner.run))
        elif message == "output":
            pipe.send(np.array(runner.run()))
        else:
            pipe.send(runner.note())


class Worker:
    """An engine in a process of its own; use it in a `with` statement."""

    def __init__(self, engine: str, job: Job) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(engine, job, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.is_alive():
            self._pipe.send(None)
        self._process.join()

    def ask(self, message: str) -> object:
        """The answer to one message. Raises EOFError when the process has died."""
        self._pipe.send(message)
        return self._pipe.recv()


def in_fresh_process(function: Callable, *arguments: object) -> object:
    """What `function` returns, computed in a new process that ends with it."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(function, *arguments).result()
