"""What tests of several layers share: a tiny model on disk, a cache folder and an environment."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import emulated
import numpy as np
import pytest
from examples import ALL, PART
from gpu_devices import adapter, staged, vulkan
from hypothesis import is_hypothesis_test, settings
from left_out import leave_out, reasons, systems
from tiny_model import tiny_weights, write_model

__all__ = ["adapter", "staged", "vulkan"]  # fixtures
collect_ignore = ["material/plain_shapes.py"]
"""What cannot be imported without torch and the files of `training`, which tests of these have."""
SOURCE = Path(__file__).resolve().parents[1] / "src"
THREADS = ("SMALTI_THREADS", "LP_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What says how many threads Smalti, Mesa's driver that computes on the CPU, and libraries of
linear algebra keep busy."""

settings.register_profile("same", deadline=None, derandomize=True, max_examples=PART)
settings.register_profile("sweep", deadline=None, derandomize=True, max_examples=ALL)
settings.register_profile("search", deadline=None, max_examples=ALL)
settings.load_profile("same")
"""Generated examples are the same in every run, so that what fails is what was changed; with
`--hypothesis-profile search` they differ in each. No deadline: a machine may be busy."""


def sweeps(config: pytest.Config) -> bool:
    """Whether all is tried of what other runs try a part of."""
    return config.option.markexpr == "sweep"


@pytest.hookimpl(tryfirst=True)  # before Hypothesis takes the profile that the command line names
def pytest_configure(config: pytest.Config) -> None:
    """The sweep draws all examples; modules of tests read the levels that are emulated."""
    if sweeps(config):
        settings.load_profile("sweep")
    emulated.asked[:] = filter(None, config.option.emulated.split(","))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """No process but this one where single files or tests are named, so that one waits for none."""
    named = [Path(argument.partition("::")[0]) for argument in config.args]
    return 0 if all(path.is_file() for path in named) else None


def pytest_xdist_setupnodes(specs: list[object]) -> None:
    """Each of several processes keeps busy its share of the cores; they inherit what is said."""
    share = max(1, len(os.sched_getaffinity(0)) // len(specs)) if hasattr(
        os, "sched_getaffinity") else 1
    for name in THREADS:
        os.environ.setdefault(name, str(share))


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is written or run in another way than usual."""
    parser.addoption("--update-programs", action="store_true",
                     help="write the expected texts of tests/programs as they are now")
    parser.addoption("--emulated", default="", metavar="LEVEL,...",
                     help="levels that kernels are tried on by qemu: tests/material/emulated.py")


def pytest_report_header() -> list[str]:
    """What is left out on this system, and why."""
    return [f"left out: {name}: {why}" for name, why in reasons(systems()).items()]


def rows(case: pytest.Function) -> set[tuple]:
    """Of each `parametrize` of a test, and of each fixture with parameters, what a case takes."""
    given, found = dict(case.callspec.params), set()
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        found.add(tuple((name.strip(), id(given.pop(name.strip()))) for name in names))
    return found | {((name, id(value)),) for name, value in given.items()}


def covering(cases: Sequence[pytest.Function]) -> list[pytest.Function]:
    """Few cases in which every row of each `parametrize` occurs, all of them about as often."""
    left = {case: rows(case) for case in cases}
    missing, times, chosen = set().union(*left.values()), Counter(), []
    while missing:
        best = max(left, key=lambda case: (
            len(left[case] & missing), -sum(times[row] for row in left[case])))
        missing -= left[best]
        times.update(left.pop(best))
        chosen.append(best)
    return chosen


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Cases of a test that is `sampled` are of the sweep, but for a few that cover all values, and
    tests of generated examples are of both; what Windows does not have is not tested there."""
    leave_out(config, items)
    for item in items:
        if sweeps(config) and is_hypothesis_test(getattr(item, "obj", None)) and not any(
                item.get_closest_marker(name) for name in ("peers", "browser")):
            item.add_marker(pytest.mark.sweep)
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            tests[item.parent, item.originalname].append(item)
    for cases in tests.values():
        for case in set(cases).difference(covering(cases)):
            case.add_marker(pytest.mark.sweep)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What modules and tests are made of stays to the end: it is never searched for garbage, which
    would take a tenth of the time of all tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A compile cache of the tests' own, so that a first run is one; and no models that were
    fetched by others. What one of several processes compiles, the others need not."""
    folder = tmp_path_factory.mktemp("cache")
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = tmp_path_factory.getbasetemp().parent / "programs"
        common.mkdir(exist_ok=True)
        with suppress(OSError):  # on Windows, where links need a privilege
            (folder / "programs").symlink_to(common, target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMALTI_CACHE", str(folder))
        patch.setenv("SMALTI_MODELS", str(folder / "models"))
        patch.setenv("SMALTI_HELPERS", "0")  # several processes run tests already
        yield folder


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt here and in new processes.

    Jobs that a shell starts in the background ignore it, and so do processes that they start; of
    what a parent handles, a new process has the system's default, as from a terminal.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def environment(cache_folder: Path) -> dict[str, str]:
    """The environment of a process of its own that runs this checkout."""
    return {**os.environ, "PYTHONPATH": str(SOURCE)}


@pytest.fixture(scope="session")
def weights() -> dict[str, np.ndarray]:
    """The weights of the tiny model; copy before changing."""
    return tiny_weights()


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, np.ndarray]) -> Path:
    """The tiny model as a file."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny.safetensors", weights)
