"""Models of the suite, exported from ONNX to ggml and built, against ONNX Runtime.

    python bench/ggml.py path/to/ggml [--models tiny_cnn,unet] [--precision f32] [--threads 2]
        [--exports FOLDER] [--work FOLDER] [--flags=-DGGML_CUDA=ON] [--json FILE]

ggml's source is built once, with its own defaults and `--flags`, and installed into the folder of
`--work`, which keeps the projects, too.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from report import finish

from smalti.benchmark.agreement import largest_error
from smalti.benchmark.engines import ENGINES, Job
from smalti.benchmark.engines import export as export_onnx
from smalti.benchmark.suite import CASES, chosen
from smalti.benchmark.table import Row, duration
from smalti.benchmark.turns import in_fresh_process
from smalti.export.ggml.names import identifier

ERROR_MAX = {"f32": 1e-3, "f16": 1e-2}


def timed(*command: object) -> tuple[float, str, int]:
    """Seconds of a process, what it printed, and its largest resident memory in bytes."""
    started = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, said)
    return time.perf_counter() - started, said, usage.ru_maxrss * 1024


def build(source: Path, folder: Path, threads: int, *options: str) -> float:
    """Configure and build a CMake project; seconds of it."""
    configured, _, _ = timed("cmake", "-S", source, "-B", folder, "-DCMAKE_BUILD_TYPE=Release",
                             *options)
    built, _, _ = timed("cmake", "--build", folder, "-j", threads)
    return configured + built


def installed(source: Path, work: Path, threads: int, flags: list[str]) -> Path:
    """Where ggml is installed, built with `flags`."""
    prefix = work / "ggml"
    build(source, work / "ggml-build", threads, "-DBUILD_SHARED_LIBS=OFF", "-DGGML_BUILD_TESTS=OFF",
          "-DGGML_BUILD_EXAMPLES=OFF", "-DGGML_LLAMAFILE=ON", *flags)
    timed("cmake", "--install", work / "ggml-build", "--prefix", prefix)
    return prefix


def expected_outputs(job: Job) -> list[np.ndarray]:
    """What ONNX Runtime computes."""
    return ENGINES["onnxruntime"].prepare(job).outputs()


def row(job: Job, prefix: Path, work: Path) -> Row:
    """Export, build and run one model, and compare all its outputs."""
    if not job.onnx.exists():
        in_fresh_process(export_onnx, job)
    folder, given = work / f"{job.case.name}-{job.precision}", work / "given"
    for old in (folder, given):
        shutil.rmtree(old, ignore_errors=True)
    wrote, _, _ = timed(sys.executable, "-m", "smalti", "export", "ggml", job.onnx, "-o", folder,
                        "--precision", job.precision)
    built = build(folder, folder / "build", job.threads, f"-DCMAKE_PREFIX_PATH={prefix}")
    given.mkdir()
    arguments = []
    for name, array in job.case.inputs().items():
        np.save(given / f"{name}.npy", array)
        arguments.append(f"{name}={given / f'{name}.npy'}")
    target = re.search(r"project\((\w+)", (folder / "CMakeLists.txt").read_text())[1]
    _, said, memory = timed(folder / "build" / target, *arguments, "-o", folder, "--threads",
                            job.threads)
    expected = in_fresh_process(expected_outputs, job)
    outputs = onnx.load(job.onnx, load_external_data=False).graph.output
    found = [np.load(folder / f"{identifier(output.name)}.npy") for output in outputs]
    device, seconds = re.search(r"(\S+) ([\d.e-]+) s", said).groups()
    lines = len((folder / "model.cpp").read_text().splitlines())
    return Row.at_most(
        f"{job.case.title}, {job.precision}: L2 to ONNX Runtime", ERROR_MAX[job.precision],
        largest_error(found, expected), "",
        f"{lines} lines, exported in {duration(wrote)}, built in {duration(built)}, run in "
        f"{duration(float(seconds))} on {device}, {memory / 1e9:.2f} GB")


def main() -> int:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ggml", type=Path, help="the source of ggml")
    parser.add_argument("--models", default=",".join(CASES), help="names with commas")
    parser.add_argument("--precision", default="f32", choices=sorted(ERROR_MAX))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--exports", type=Path, help="keeps the ONNX files for the next run")
    parser.add_argument("--work", type=Path, help="keeps ggml and the projects")
    parser.add_argument("--flags", default="", help="more flags of CMake for ggml")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = (given.work or Path(folder)).absolute()
        exports = given.exports or work / "exports"
        work.mkdir(parents=True, exist_ok=True)
        prefix = installed(given.ggml, work, given.threads, shlex.split(given.flags))
        rows = [row(Job(case, given.precision, given.threads, exports), prefix, work)
                for case in chosen(given.models.split(","))]
    return finish(rows, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
