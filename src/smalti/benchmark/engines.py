"""Engines that compute a case of the suite: our own programs, and those that are installed.

Each is prepared with its own defaults apart from the number of threads and the precision. PyTorch
gets the memory layout and the way to bf16 that is faster for it, found first; ONNX Runtime and
OpenVINO read the ONNX file that PyTorch exports at fixed shapes; so do we as "smalti_onnx", which
shows what a model costs that comes as a file.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from smalti import settings
from smalti.benchmark import cuda
from smalti.benchmark.suite import Case
from smalti.dataclass import dataclass
from smalti.frontend.onnx import load
from smalti.runtime import compile_graph
from smalti.runtime.drivers import driver_of

TRIALS, TRIALS_SECONDS_MAX = 4, 1.0
"""Runs, and seconds at most, by which the faster of two ways to run PyTorch is found."""
ON_GPU = ("f32", "f16", "bf16")
HELD_BY = {
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
             "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx2_vnni": {"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI", "ATEN_CPU_CAPABILITY": "avx2",
                  "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512",
               "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "avx512_vnni": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI", "ATEN_CPU_CAPABILITY": "avx512",
                    "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "avx512_bf16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "ATEN_CPU_CAPABILITY": "avx512",
                    "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
}
"""By feature level, the variables that keep other engines from using more: of oneDNN (PyTorch's and
OpenVINO's), of PyTorch's own kernels, and of MKL. Each library reads them when it is loaded."""


@dataclass(frozen=True)
class Job:
    """What to compute: a case in a precision ("f32" or "bf16") on `threads` threads, or on a GPU
    (then "f16", too); schedules of our own program are chosen for `objective`. With a `target`, a
    feature level of x86, nobody uses instructions beyond it.

    Below `exports` lie the ONNX file and the outputs of PyTorch in f32, once `export` was called.
    """

    case: Case
    precision: str
    threads: int
    exports: Path
    objective: str = "latency"
    device: str = "cpu"
    target: str | None = None

    @property
    def folder(self) -> Path:
        """Where the case's files are."""
        return self.exports / f"{self.case.name}-{self.case.digest()}"

    @property
    def onnx(self) -> Path:
        """The ONNX file, with its weights beside it."""
        return self.folder / "model.onnx"

    @property
    def expected(self) -> Path:
        """The outputs of PyTorch in f32."""
        return self.folder / "outputs.npz"


@dataclass(frozen=True)
class Runner:
    """An engine that is ready: `run` computes once, `outputs` are f32 in the graph's order."""

    run: Callable[[], Any]
    outputs: Callable[[], list[np.ndarray]]
    note: Callable[[], str]


@dataclass(frozen=True)
class Engine:
    """How an engine is prepared, the modules that it needs, the precisions that it has on the CPU,
    and on a GPU, and whether it can be held to a feature level."""

    title: str
    prepare: Callable[[Job], Runner]
    modules: tuple[str, ...] = ()
    on_cpu: tuple[str, ...] = ("f32", "bf16")
    on_gpu: tuple[str, ...] = ()
    holdable: bool = True

    def missing(self) -> list[str]:
        """Modules that are not installed."""
        return [name for name in self.modules if importlib.util.find_spec(name) is None]

    def precisions(self, device: str) -> tuple[str, ...]:
        """Those that it has on a device."""
        return self.on_gpu if driver_of(device).of_gpus else self.on_cpu


def prepared(name: str, job: Job) -> Runner:
    """The engine of this name, ready for a job; a process that calls it with a target must not have
    loaded other engines before."""
    if job.target is not None:
        settings.give(HELD_BY[job.target])
    return ENGINES[name].prepare(job)


def smalti(job: Job) -> Runner:
    """Our own program."""
    program = compile_graph(job.case.graph(), precision=job.precision, threads=job.threads,
                            target=job.target, held=job.case.held, objective=job.objective,
                            device=job.device)
    program.bind(job.case.read())
    given = job.case.inputs()
    return Runner(lambda: program.run(given), lambda: list(program.run(given).values()),
                  program.explain)


def smalti_onnx(job: Job) -> Runner:
    """Our own program, made of the exported file."""
    model = load(job.onnx)
    program = compile_graph(model.graph, precision=job.precision, threads=job.threads,
                            target=job.target, held=job.case.held, objective=job.objective,
                            device=job.device)
    program.bind(model.parameters)
    given = job.case.inputs()
    return Runner(lambda: program.run(given), lambda: list(program.run(given).values()),
                  program.explain)


def torch(job: Job) -> Runner:
    """PyTorch, in the fastest of its ways on the CPU, or on its GPU."""
    import torch

    if driver_of(job.device).of_gpus:
        return _torch_with_cuda(job)
    torch.set_num_threads(job.threads)
    module = job.case.module()
    floats = [torch.tensor(array) for array in job.case.inputs().values()]
    halves = [x.bfloat16() if x.is_floating_point() else x for x in floats]

    def run_in(given: list) -> Callable[[], Any]:
        def run() -> Any:
            with torch.inference_mode():
                return module(*given)
        return run

    def autocast() -> Any:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            return module(*floats)

    runs = {"f32": run_in(floats), "autocast": autocast, "bfloat16": run_in(halves)}
    images = any(tensor.ndim == 4 for tensor in module.parameters())
    layouts = {"contiguous": torch.contiguous_format}
    layouts |= {"channels last": torch.channels_last} if images else {}
    took: dict[tuple[str, str], float] = {}
    ways = {"f32": ("f32",), "bf16": ("autocast", "bfloat16")}[job.precision]

    def take(way: str, layout: str) -> None:
        module.to(torch.bfloat16 if way == "bfloat16" else torch.float32,
                  memory_format=layouts[layout])

    for way in ways:
        for layout in layouts:
            take(way, layout)
            took[way, layout] = _trial(runs[way])
    way, layout = min(took, key=took.__getitem__)
    if way == "autocast":  # rounding weights to bf16 cannot be undone
        module = job.case.module()
    take(way, layout)
    run = runs[way]

    def outputs() -> list[np.ndarray]:
        found = run()
        return [x.float().numpy() for x in (found if isinstance(found, tuple) else (found,))]

    tried = ", ".join(f"{' '.join(key)} {1e3 * seconds:.3g} ms" for key, seconds in took.items())
    return Runner(run, outputs, lambda: f"{way}, {layout} (tried: {tried})")


def _torch_with_cuda(job: Job) -> Runner:
    import torch

    call = torch.inference_mode()(cuda.call(job.case, job.precision))

    def run() -> None:
        call()
        torch.cuda.synchronize()

    def outputs() -> list[np.ndarray]:
        found = call()
        return [x.float().cpu().numpy() for x in (found if isinstance(found, tuple) else (found,))]

    return Runner(run, outputs, lambda: f"CUDA, {torch.cuda.get_device_name()}")


def _trial(run: Callable[[], Any]) -> float:
    """Seconds of one run; a short one is repeated, as first runs take longer."""
    taken: list[float] = []
    while len(taken) < TRIALS and sum(taken) < TRIALS_SECONDS_MAX:
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return min(taken)


def onnxruntime(job: Job) -> Runner:
    """ONNX Runtime on the exported file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job.threads, 1
    session = onnxruntime.InferenceSession(str(job.onnx), options,
                                           providers=["CPUExecutionProvider"])
    given = job.case.inputs()
    return Runner(lambda: session.run(None, given), lambda: session.run(None, given),
                  lambda: "CPUExecutionProvider")


def openvino(job: Job) -> Runner:
    """OpenVINO on the exported file, told the precision: by default it takes what the CPU has.

    Its note names the implementations of its layers: matrix products that are MLAS's, and a few
    small layers, look at the CPU themselves and are held to nothing.
    """
    import openvino

    core = openvino.Core()
    model = core.compile_model(core.read_model(job.onnx), "CPU", {
        "INFERENCE_PRECISION_HINT": job.precision, "INFERENCE_NUM_THREADS": job.threads,
        "PERFORMANCE_HINT": "LATENCY"})
    kinds = sorted({node.get_rt_info()["primitiveType"].value
                    for node in model.get_runtime_model().get_ordered_ops()})
    given = job.case.inputs()
    return Runner(lambda: model(given),
                  lambda: [np.array(array) for array in model(given).values()],
                  lambda: f"performance hint LATENCY; layers: {', '.join(kinds)}")


ENGINES = {
    "smalti": Engine("Smalti", smalti, on_gpu=ON_GPU),
    "smalti_onnx": Engine("Smalti (ONNX)", smalti_onnx, ("onnxscript",), on_gpu=ON_GPU),
    "torch": Engine("PyTorch", torch, ("torch", "diffusers", "transformers", "accelerate"),
                    on_gpu=ON_GPU),
    "onnxruntime": Engine("ONNX Runtime", onnxruntime, ("onnxruntime", "onnxscript"),
                          ("f32",), holdable=False),
    "openvino": Engine("OpenVINO", openvino, ("openvino", "onnxscript")),
}
PEERS = tuple(name for name in ENGINES if name not in ("smalti", "smalti_onnx"))


def export(job: Job) -> None:
    """Write the outputs of PyTorch in f32 and the ONNX file of a job, at fixed shapes."""
    import torch

    torch.set_num_threads(job.threads)
    writing = job.folder.with_name(f"{job.folder.name}.writing")
    writing.mkdir(parents=True, exist_ok=True)
    module, inputs = job.case.module(), job.case.inputs()
    given = tuple(torch.tensor(array) for array in inputs.values())
    with torch.inference_mode():
        found = module(*given)
    found = found if isinstance(found, tuple) else (found,)
    np.savez(writing / job.expected.name, *(x.numpy() for x in found))
    names = [f"output_{i}" for i in range(len(found))]  # ours may be those of inputs
    program = torch.onnx.export(module, given, input_names=list(inputs), output_names=names,
                                dynamo=True, verbose=False)
    program.save(writing / job.onnx.name, external_data=True)
    writing.rename(job.folder)


def outputs_on_cpu(job: Job) -> list[np.ndarray]:
    """What our own program computes on the CPU in f32."""
    return smalti(replace(job, precision="f32", device="cpu")).outputs()


def expected_outputs(job: Job) -> list[np.ndarray]:
    """What PyTorch computes in f32, as `export` wrote it."""
    with np.load(job.expected) as arrays:
        return list(arrays.values())
