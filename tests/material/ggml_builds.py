"""A real ggml for tests: fetched and built once, outside of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs
import pytest

from smalti.export.ggml import export
from smalti.graph import Graph

PACKAGE = "stable-diffusion-cpp-python==0.4.7"
"""Its source distribution on PyPI holds ggml 0.9.8."""
PLACE = "source/*/vendor/stable-diffusion.cpp/ggml"
CACHE = platformdirs.user_cache_path("smalti-tests", appauthor=False) / PACKAGE
OPTIONS = ["-DGGML_OPENMP=OFF", "-DGGML_CCACHE=OFF", "-DGGML_CPU_REPACK=OFF",
           "-DCMAKE_C_FLAGS_RELEASE=-O1", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"]
"""What is built soonest; nothing here is there for speed."""


def ran(*command: object, timeout: float = 900, **options: object) -> str:
    """What a command printed. Fails the test with its last lines when it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          errors="replace", timeout=timeout, check=False, **options)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        pytest.fail(f"{' '.join(map(str, command[:6]))} … failed:\n{last}", pytrace=False)
    return done.stdout


def tools() -> None:
    """Fails the test with one line when what builds projects is not there."""
    absent = [name for name in ("cmake", "make", "c++") if shutil.which(name) is None]
    if absent:
        pytest.fail(f"projects cannot be built: install {', '.join(absent)}", pytrace=False)


def source() -> Path:
    """The folder of ggml's source. Fails the test with one line when it cannot be fetched."""
    found = list(CACHE.glob(PLACE))
    if found:
        return found[0]
    writing = CACHE / f"source.{os.getpid()}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary",
               ":all:", "--dest", str(writing), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    archives = list(writing.glob("*.tar.gz"))
    if done.returncode or not archives:
        why = (done.stderr.strip() or "no archive").splitlines()[-1]
        shutil.rmtree(writing, ignore_errors=True)
        pytest.fail(f"ggml cannot be fetched: pip download {PACKAGE}: {why}", pytrace=False)
    with tarfile.open(archives[0]) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 on
        archive.extractall(writing, members=[
            member for member in archive if "/stable-diffusion.cpp/ggml/" in member.name])
    archives[0].unlink()
    writing.rename(CACHE / "source")
    return next(CACHE.glob(PLACE))


@dataclass(frozen=True)
class Project:
    """A project that is built."""

    program: Path
    folder: Path

    def run(self, inputs: Mapping[str, np.ndarray], *options: str) -> dict[str, np.ndarray]:
        """Outputs by the names of their files."""
        given, results = self.folder / "given", self.folder / "results"
        for folder in (given, results):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        arguments = []
        for number, (name, array) in enumerate(inputs.items()):
            np.save(given / f"{number}.npy", array)
            arguments.append(f"{name}={given / f'{number}.npy'}")
        ran(self.program, *arguments, "-o", results, "--threads", 1, *options)
        return {path.stem: np.load(path) for path in sorted(results.glob("*.npy"))}


def build(folder: Path, *options: str, target: Path | None = None) -> Project:
    """Build the project in `folder`, with all warnings being errors; by default within it."""
    target = target or folder / "build"
    ran("cmake", "-S", folder, "-B", target, "-DCMAKE_BUILD_TYPE=Release", *options)
    ran("cmake", "--build", target, "-j", os.cpu_count() or 1)
    (program,) = (path for path in target.iterdir() if path.is_file() and os.access(path, os.X_OK))
    return Project(program, folder)


def built_ggml() -> Path:
    """Where ggml is installed. It is built as a part of a project, as users do it, and kept."""
    from filelock import FileLock  # of [peers]: torch needs it

    tools()
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / "lock"):
        where = source()
        folder, target, prefix = (CACHE / name for name in ("project", "build", "prefix"))
        shutil.rmtree(folder, ignore_errors=True)
        graph = Graph("double")
        x = graph.input("x", (2, 3))
        graph.output("y", x + x)
        export(graph, {}, folder)
        project = build(folder, f"-DGGML_DIR={where}", *OPTIONS, target=target)
        found = project.run({"x": np.ones((2, 3), np.float32)})
        assert (found["y"] == 2).all()
        ran("cmake", "--install", target, "--prefix", prefix)
    return prefix
