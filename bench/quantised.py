"""MobileNetV2 with weights and activations of 8 bits, beside ONNX Runtime and OpenVINO.

    python bench/quantised.py                 # all engines on one thread
    python bench/quantised.py --images 1000   # and how often the first class is the standard's

ONNX Runtime's quantiser makes the model (QDQ, a scale for each output channel, activations with a
sign and without) from that of `smalti bench`, with seeded weights. The least processor time of runs
in turns counts, so that other work on the machine matters little.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np

import smalti
from smalti.benchmark.suite import CASES
from smalti.benchmark.table import Row, show

CALIBRATION_IMAGES = 8
BOUNDS = {"ONNX Runtime": 0.8, "OpenVINO": 0.9}
"""Our time over that of each engine, at most."""
INPUT = "image"
Run = Callable[[np.ndarray], np.ndarray]


def images(count: int) -> Iterator[np.ndarray]:
    """Seeded noise, shaped as the model wants it."""
    (shape,) = (array.shape for array in CASES["mobilenet_v2"].inputs().values())
    for seed in range(count):
        yield np.random.default_rng(seed).standard_normal(shape, np.float32)


def quantised(folder: Path, signed: bool) -> Path:
    """The model as ONNX Runtime's quantiser makes it; `signed` says of which kind activations
    are."""
    import torch
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quant_pre_process,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        """What activations are measured on."""

        def __init__(self) -> None:
            self.left = images(CALIBRATION_IMAGES)

        def get_next(self) -> dict[str, np.ndarray] | None:
            image = next(self.left, None)
            return None if image is None else {INPUT: image}

    plain, folded, target = (folder / f"{name}.onnx" for name in (
        "plain", "folded", "signed" if signed else "unsigned"))
    module = CASES["mobilenet_v2"].module()
    torch.onnx.export(module.eval(), (torch.from_numpy(next(images(1))),), str(plain),
                      input_names=[INPUT], dynamo=False)
    quant_pre_process(str(plain), str(folded))
    quantize_static(str(folded), str(target), Reader(), quant_format=QuantFormat.QDQ,
                    activation_type=QuantType.QInt8 if signed else QuantType.QUInt8,
                    weight_type=QuantType.QInt8, per_channel=True)
    return target


def engines(path: Path) -> dict[str, Run]:
    """What runs the model on one thread, by engine."""
    import onnxruntime
    import openvino

    program = smalti.compile(path, threads=1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    compiled = openvino.Core().compile_model(path, "CPU", {
        "INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    return {"Smalti": lambda x: next(iter(program.run({INPUT: x}).values())),
            "ONNX Runtime": lambda x: session.run(None, {INPUT: x})[0],
            "OpenVINO": lambda x: next(iter(request.infer({INPUT: x}).values()))}


def timed(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """The least seconds of a processor that each takes, in turns."""
    (image,), least = images(1), dict.fromkeys(runs, np.inf)
    for _ in range(rounds):
        for name, run in runs.items():
            started = time.process_time()
            run(image)
            least[name] = min(least[name], time.process_time() - started)
    return least


def same_classes(path: Path, run: Run, count: int) -> int:
    """How often the first class is that of ONNX Runtime without its rewriting: it then takes each
    operator as the standard has it, products of real numbers."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options)
    return sum(int(run(x).argmax()) == int(session.run(None, {INPUT: x})[0].argmax())
               for x in images(count))


@click.command()
@click.option("--rounds", default=100, show_default=True, help="Runs of each engine.")
@click.option("--images", "count", default=0, show_default=True,
              help="Images whose first class is compared.")
def main(rounds: int, count: int) -> None:
    """MobileNetV2 in 8 bits, beside ONNX Runtime and OpenVINO."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for signed in (False, True):
            what = f"MobileNetV2, {'i8' if signed else 'u8'}"
            path = quantised(Path(folder), signed)
            runs = engines(path)
            took = timed(runs, rounds)
            ours = took.pop("Smalti")
            for name, seconds in took.items():
                rows.append(Row.at_most(f"{what}: our time over that of {name}", BOUNDS[name],
                                        ours / seconds, "",
                                        f"{1e3 * ours:.2f} and {1e3 * seconds:.2f} ms"))
            if count:
                same = same_classes(path, runs["Smalti"], count)
                rows.append(Row(f"{what}: first classes that are the standard's", f"{count}",
                                f"{same}", same == count))
    print(show(rows))


if __name__ == "__main__":
    main()
