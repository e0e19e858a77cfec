"""The timing model against published measurements: errors by device, before and after calibration.

    python bench/machine.py --timings FOLDER

FOLDER has the tables of kernel timings that `tests/machine` describes. Devices are held out: the
first error of a device is with constants fitted to the others. Calibrated means 200 timings of the
device, chosen at random; errors are of the rest. `--kinds cpu` compares whole programs on this CPU,
`--kinds cpu-choice` the schedules that are chosen at first with tuned ones, `--kinds plan` ways to
choose the algorithms of a whole program.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from smalti import machine, settings
from smalti.benchmark.chart import svg
from smalti.benchmark.plot import Series, plot
from smalti.benchmark.suite import CASES
from smalti.codegen.cpu.lower import limits
from smalti.codegen.levels import level
from smalti.compiler import prediction
from smalti.fuse import HostRegion
from smalti.machine import attention, convolution, product, rows, simt
from smalti.machine.calibration import fit, fitted
from smalti.machine.device import DeviceModel
from smalti.machine.estimate import places, timed_all
from smalti.machine.family import KernelFamily, Sizes
from smalti.machine.fitted import Fitted
from smalti.machine.residual import learned
from smalti.runtime.compilation import compile_graph
from smalti.runtime.cpu.adapter import best_level, cpu
from smalti.runtime.cpu.alternative import Alternative
from smalti.runtime.cpu.model import calibration, modelled
from smalti.runtime.cpu.recipe import recipe_of
from smalti.runtime.cpu.trials import CpuTrials
from smalti.runtime.sources import Read
from smalti.runtime.tuner import Tuner
from smalti.schedule.choose import WINOGRAD_MAX
from smalti.tune.algorithms import planned
from smalti.tune.assignment import assigned, exact, greedy
from smalti.tune.objective import Objective
from smalti.tune.search import search

TIMINGS = Path(os.environ.get("SMALTI_TIMINGS", "../shared/data/timings"))
SAMPLES = 200
ROWS_MAX = 4000
"""Of one kind; more are thinned at random."""


def table(folder: Path, name: str) -> list[dict[str, str]]:
    """The lines of a table."""
    with open(folder / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def columns(lines: list[dict[str, str]], **names: str) -> dict[str, np.ndarray]:
    """Columns of numbers by the names that they get; 1 where the name is empty."""
    return {key: np.array([float(line[name]) if name else 1.0 for line in lines])
            for key, name in names.items()}


class Case:
    """Measured kernels of one family on one device."""

    def __init__(self, device: DeviceModel, family: KernelFamily, dtype: str, sizes: Sizes,
                 microseconds: np.ndarray) -> None:
        order = np.random.default_rng(0).permutation(len(microseconds))[:ROWS_MAX]
        self.device, self.family, self.dtype = device, family, dtype
        self.sizes = {name: sizes[name][order] for name in family.fields}
        self.seconds = 1e-6 * microseconds[order]

    def part(self, chosen: slice) -> tuple[DeviceModel, str, Sizes, np.ndarray]:
        """Some of the rows, as `fit` takes them."""
        return (self.device, self.dtype, {k: v[chosen] for k, v in self.sizes.items()},
                self.seconds[chosen])

    def error(self, device: DeviceModel, first: int = 0) -> float:
        """Mean absolute error in percent, of the rows from `first` on."""
        sizes = {k: v[first:] for k, v in self.sizes.items()}
        found = timed_all(device, self.family, self.dtype, sizes).seconds
        return 100 * float(np.abs(found / self.seconds[first:] - 1).mean())

    def calibrated(self) -> DeviceModel:
        """The device, fitted to the first rows."""
        _, dtype, sizes, seconds = self.part(slice(SAMPLES))
        found = fitted(self.device, self.family, dtype, sizes, seconds)
        return self.device.with_fitted({self.family.key(dtype): found})


def products(folder: Path) -> Iterator[Case]:
    """bf16 products."""
    lines = table(folder, "gemm_bf16_small.csv")
    for name in list(lines[0])[3:]:
        timed = [line for line in lines if line[name]]
        yield Case(machine.device(name), product.FAMILY, "bf16",
                   columns(timed, batch="", m="m", n="n", k="k"), columns(timed, us=name)["us"])


def attentions(folder: Path) -> Iterator[Case]:
    """bf16 attention without a mask."""
    lines = table(folder, "attn_bidir_bf16_aiconfigurator.csv")
    for name in list(lines[0])[4:]:
        timed = [line for line in lines if line[name]]
        yield Case(machine.device(name), attention.FAMILY, "bf16",
                   columns(timed, batch="batch", sequence="seq", heads="heads",
                           head_dim="head_dim"), columns(timed, us=name)["us"])


def memory_bound(folder: Path) -> Iterator[Case]:
    """f32 element-wise operations, softmax and layer normalisation."""
    names = {"ln": "layer_normalization"}
    lines = table(folder, "vec_fp32_neusight.csv")
    for name in list(lines[0])[3:]:
        timed = [line for line in lines if line[name]]
        sizes = columns(timed, rows="rows", columns="cols")
        ops = [names.get(line["op"], line["op"]) for line in timed]
        sizes["passes"] = np.array([float(rows.PASSES[op]) for op in ops])
        sizes["reduces"] = np.array([float(op in rows.REDUCING) for op in ops])
        sizes["flops"] = np.array([float(rows.FLOPS.get(op, 1)) for op in ops])
        yield Case(machine.device(name), rows.FAMILY, "f32", sizes, columns(timed, us=name)["us"])


def convolutions(folder: Path) -> Iterator[Case]:
    """f32 convolutions, given the algorithm."""
    lines = table(folder, "conv2d_fp32_neusight.csv")
    for name in ("p100_pcie", "t4", "v100_pcie"):
        for algorithm in ("implicit_gemm", "winograd", "winograd_nonfused"):
            timed = [line for line in lines if line[name] and line[f"algo_{name}"] == algorithm]
            sizes = columns(timed, n="n", channels="cin", height="hw", width="hw", filters="cout",
                            kernel_height="ksize", kernel_width="ksize", groups="")
            stride, pad = columns(timed, s="stride", p="pad").values()
            sizes["out_height"] = sizes["out_width"] = np.floor(
                (sizes["height"] + 2 * pad - sizes["kernel_height"]) / stride) + 1
            yield Case(machine.device(name), convolution.family(algorithm), "f32", sizes,
                       columns(timed, us=name)["us"])


CHOICE_FIELDS = {"n": "n", "channels": "cin", "height": "h", "width": "w", "filters": "cout",
                 "kernel_height": "kh", "kernel_width": "kw", "out_height": "ho",
                 "out_width": "wo", "groups": ""}
TRAINING_MAX = 300
NEAR_BEST = 1.1
DTYPES = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}


def choices(folder: Path) -> None:
    """How often the solver that the model finds fastest is within 10 % of the best one.

    Times of a random half of the shapes are known; asked are the others that have several solvers.
    """
    lines = table(folder, "conv2d_fwd_amd_miopen.csv")
    print("| solver choice | dtype | shapes | within 10 % of the best | geometric mean regret |")
    print("| --- | --- | --- | --- | --- |")
    for name, dtype in sorted({(line["device"], line["dtype"]) for line in lines}):
        mine = [line for line in lines if (line["device"], line["dtype"]) == (name, dtype)]
        times = [{solver: 1e-6 * float(us) for solver, us in
                  (entry.split(":") for entry in line["solvers_us"].split("|"))} for line in mine]
        known = np.random.default_rng(0).random(len(mine)) < 0.5
        expected = predicted(machine.device(name), DTYPES[dtype], columns(mine, **CHOICE_FIELDS),
                             times, known)
        regrets = np.array([times[i][min(found, key=found.__getitem__)] / min(times[i].values())
                            for i, found in expected.items() if len(times[i]) > 1])
        print(f"| {name} | {dtype} | {len(regrets)} | {100 * np.mean(regrets <= NEAR_BEST):.1f} % "
              f"| {np.exp(np.log(regrets).mean()):.3f} |", flush=True)


def predicted(device: DeviceModel, dtype: str, sizes: Sizes, times: list[dict[str, float]],
              known: np.ndarray) -> dict[int, dict[str, float]]:
    """For each shape that is not known, the expected time of each solver that it has."""
    found: dict[int, dict[str, float]] = {}
    for solver in sorted({solver for entry in times for solver in entry}):
        has = np.array([solver in entry for entry in times])
        train, asked = np.nonzero(has & known)[0], np.nonzero(has & ~known)[0]
        if len(train) < 3 or not len(asked):
            continue
        family = convolution.family(solver)
        few = np.random.default_rng(1).permutation(train)[:TRAINING_MAX]
        seconds = np.array([entry.get(solver, np.nan) for entry in times])

        def at(chosen: np.ndarray) -> Sizes:
            return {name: size[chosen] for name, size in sizes.items()}

        constants = fit([(device, dtype, at(few), seconds[few])], family)
        usual = family.seconds(device, dtype, constants, at(train))
        residual = learned(places(family, at(train), usual),
                           np.log(seconds[train] / usual.seconds))
        calibrated = device.with_fitted({family.key(dtype): Fitted(constants, residual)})
        for i, expected in zip(asked, timed_all(calibrated, family, dtype, at(asked)).seconds):
            found.setdefault(int(i), {})[solver] = float(expected)
    return found


SPACE_EDGE = 4096
BUDGETS = (1, 10, 100)
SPACE_FIELDS = {"tile_m": "MWG", "tile_n": "NWG", "threads_m": "MDIMC", "threads_n": "NDIMC",
                "vector_m": "VWM", "vector_n": "VWN", "staged_a": "SA", "staged_b": "SB"}


def schedules(folder: Path) -> None:
    """Time of the best of the first schedules that a search measures over that of the best of all.

    The space of CLBlast's SGEMM, measured exhaustively; chance is the median of 99 draws.
    """
    lines = table(folder, "gemm_schedule_space_kerneltuner.csv")
    given = simt.Schedules(**columns(lines, **SPACE_FIELDS))
    features = np.column_stack([np.log2(columns(lines, x=name)["x"] + (name in ("SA", "SB")))
                                for name in list(lines[0])[:10]])
    kinds = [(line["SA"], line["SB"]) for line in lines]
    print("| schedules | budget | search with the model | with none | chance |")
    print("| --- | --- | --- | --- | --- |")
    for column in list(lines[0])[10:]:
        device, times = machine.device(column.removeprefix("ms_")), columns(lines, t=column)["t"]
        expected = simt.seconds(device, given, SPACE_EDGE, SPACE_EDGE, SPACE_EDGE)
        for budget in BUDGETS:
            with_model, without = (
                times[search(prior, features, times.__getitem__, budget=budget, kinds=kinds).best]
                for prior in (expected, np.ones(len(times))))
            chance = np.median([np.random.default_rng(draw).choice(times, budget).min()
                                for draw in range(99)])
            print(f"| {device.id} | {budget} | {with_model / times.min():.2f} | "
                  f"{without / times.min():.2f} | {chance / times.min():.2f} |", flush=True)


MODELS = ("mobilenet_v2", "clip_l", "decode", "unet")
RUNS_MIN, RUN_SECONDS = 4, 1.0
WEIGHTS = 1 << 20


def programs() -> list[Series]:
    """Expected and measured times of whole programs on this CPU, calibrated or not; those of their
    kernels, in microseconds.

    Weights are random numbers that repeat. A program's time is the sum of its kernels', each the
    median of some runs.
    """
    found = calibration()
    print(f"\ncalibrated {found.date}" if found else "\nnot calibrated; run `smalti calibrate`")
    points: list[Series] = []
    print("| program | threads | measured, ms | expected, ms | ratio | off by, a kernel |")
    print("| --- | --- | --- | --- | --- | --- |")
    block = np.random.default_rng(0).standard_normal(WEIGHTS, np.float32) * np.float32(0.03)
    for name, precision in itertools.product(MODELS, ("f32", "bf16")):
        case = CASES[name]
        program = compile_graph(case.graph(), precision=precision, held=case.held)
        shapes = program.recipe.graph.parameters
        program.bind(lambda name, shapes=shapes: np.resize(block, shapes[name].shape))
        inputs, runs = case.inputs(), []
        started = time.perf_counter()
        while len(runs) < RUNS_MIN + 1 or time.perf_counter() - started < RUN_SECONDS:
            program.run(inputs)
            runs.append(program.kernel_seconds())
        usual = np.median(runs[1:], axis=0)
        whole = usual.sum()
        module = program.module
        expected = prediction.predicted(module, modelled(module.target), program.crew)
        total = sum(kernel.seconds for kernel in expected.values())
        misses = [abs(np.log(kernel.seconds / usual[n])) * usual[n] for n, kernel in
                  expected.items() if usual[n] > 0]
        print(f"| {name} {precision} | {program.crew} | {1e3 * whole:.2f} | {1e3 * total:.2f} | "
              f"{total / whole:.3f} | {100 * sum(misses) / whole:.1f} % |", flush=True)
        points.append(Series(f"{name} {precision}", tuple(
            (1e6 * usual[n], 1e6 * kernel.seconds) for n, kernel in expected.items()
            if usual[n] > 0), joined=False))
    return points


VERIFY_SHARE, TURNS_MIN = 0.25, 8


def first_choices(models: Sequence[str], seconds: float) -> None:
    """Print the time of programs on this CPU with the schedules that are chosen without measuring
    over that with tuned ones; each is tuned for so many seconds.

    Both run in turns afterwards, on fresh data of the clock: what tuning claims is what won by its
    luck, too. Nothing is known before, and nothing is kept.
    """
    print("| program | threads | kernels | tried | mean, claimed | whole | measured | whole |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SMALTI_CACHE"] = folder
        for name in models:
            case = CASES[name]
            program = compile_graph(case.graph(), held=case.held)
            program.bind(read := case.read())
            tuner, end = Tuner(CpuTrials(program), case.inputs(), read), time.monotonic() + seconds
            while time.monotonic() < end and tuner.turn():
                pass
            rows = [row for row in tuner.rows() if row.tried]
            claimed = np.array([(row.seconds, row.best_seconds) for row in rows]).T
            measured = in_turns(tuner, read, VERIFY_SHARE * seconds)
            ratios = " | ".join(f"{np.exp(np.log(first / best).mean()):.3f} | "
                                f"{first.sum() / best.sum():.3f}"
                                for first, best in (claimed, measured))
            print(f"| {name} | {program.crew} | {len(rows)} | {tuner.tried} | {ratios} |",
                  flush=True)


def in_turns(tuner: Tuner, read: Read, seconds: float) -> np.ndarray:
    """Seconds that the kernels take with first schedules and with tuned ones, [2, kernel]: medians
    of runs of the whole program, one way and the other."""
    program, looked_at = tuner.program, [e for e in tuner.entries if e.looked_at]
    tuned = {region: Alternative(program.module, region, entry.kernel,
                                entry.contest.candidates[entry.contest.best], read)
             for entry in looked_at if entry.contest.best for region in entry.regions}
    ways: tuple[dict[int, Alternative], ...] = ({}, tuned)
    took: list[list[np.ndarray]] = [[], []]
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(took[0]) < TURNS_MIN:
        for way in (0, 1) if len(took[0]) % 2 else (1, 0):
            program.run(tuner.inputs, ways[way])
            took[way].append(program.kernel_seconds())
    usual = [np.median(runs[1:], axis=0) for runs in took]
    return np.array([[each[list(entry.regions)].sum() for entry in looked_at] for each in usual])


def plans(models: Sequence[str], objective: str = "latency") -> None:
    """Print what the model expects of programs under algorithms that rules choose, and under those
    that are chosen by it, greedily and exactly; with the seconds that choosing took."""
    name, device = best_level(), cpu()
    threads = settings.threads()
    bounds = limits(level(name), threads, device.l1_bytes, device.l2_bytes)
    aim = Objective.on(modelled(name, calibrated=False), threads, objective)
    print("| program | bytes to spend, MB | rules, ms | greedy, ms | exact, ms | taking, s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for model, precision in itertools.product(models, ("f32", "bf16")):
        case, totals, took = CASES[model], [], []
        recipe = recipe_of(case.graph(), precision, case.held)
        found, growth = recipe.partition()
        kernels = [None if isinstance(region, HostRegion) else region.kernel
                   for region in found.regions]
        for cost, choice in ((None, assigned), (aim.cost, greedy), (aim.cost, exact)):
            started = time.perf_counter()
            chosen = planned(kernels, bounds, precision, growth, [WINOGRAD_MAX] * len(kernels),
                             cost, choice)
            took.append(time.perf_counter() - started)
            totals.append(1e3 * sum(aim.cost(kernel, schedule) for kernel, schedule
                                    in zip(kernels, chosen, strict=True) if kernel is not None))
        print(f"| {model} {precision} | {growth / 1e6:.0f} | "
              + " | ".join(f"{total:.2f}" for total in totals)
              + f" | {' / '.join(f'{one:.2f}' for one in took)} |", flush=True)


KINDS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "products": products, "attention": attentions, "memory-bound": memory_bound,
    "convolutions": convolutions}
TABLES = {"choices": choices, "schedules": schedules}
CPU, CHOICE, PLAN = "cpu", "cpu-choice", "plan"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--timings", type=Path, default=TIMINGS)
    parser.add_argument("--kinds", default=",".join([*KINDS, *TABLES, CPU]))
    parser.add_argument("--models", default=",".join(MODELS), help="of cpu-choice, plan")
    parser.add_argument("--seconds", type=float, default=60, help="for each model of cpu-choice")
    parser.add_argument("--chart", type=Path, help="an .svg of kernels on this CPU")
    given = parser.parse_args()
    kinds = given.kinds.split(",")
    if others := [kind for kind in kinds if kind not in (*TABLES, CPU, CHOICE, PLAN)]:
        errors(given.timings, others)
    if CPU in kinds:
        points = programs()
        if given.chart:
            drawing = plot(points, "Kernels on a CPU", "measured, us", "expected, us",
                           diagonal=True)
            given.chart.write_text(svg(drawing), encoding="utf-8")
    if CHOICE in kinds:
        first_choices(given.models.split(","), given.seconds)
    if PLAN in kinds:
        plans(given.models.split(","))
    for kind in kinds:
        if kind in TABLES:
            print()
            TABLES[kind](given.timings)


def errors(folder: Path, kinds: list[str]) -> None:
    """Print the errors of each kind on each device."""
    print("| kernels | device | rows | usual constants | held out | calibrated | residual | fit |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind in kinds:
        cases = list(KINDS[kind](folder))
        for case in cases:
            others = [other.part(slice(400)) for other in cases
                      if other is not case and other.family.name == case.family.name]
            constants = fit(others, case.family)
            held_out = case.device.with_fitted(
                {case.family.key(case.dtype): Fitted(constants)})
            started = time.perf_counter()
            calibrated = case.calibrated()
            elapsed = time.perf_counter() - started
            found = calibrated.fitted[case.family.key(case.dtype)]
            print(f"| {case.family.name} {case.dtype} | {case.device.id} | {len(case.seconds)} | "
                  f"{case.error(case.device):.1f} % | {case.error(held_out):.1f} % | "
                  f"{case.error(calibrated, SAMPLES):.1f} % | "
                  f"{'kept' if found.residual else 'none'} | {elapsed:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
