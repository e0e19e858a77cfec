"""Releases: the same bytes of the same commit, a version and its section of the changelog."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

import smalti
from smalti.cli.serve import serve

ROOT = Path(__file__).resolve().parent.parent
EPOCH = 1_700_000_000
CHANGES = """# Changes

## Unreleased

* Something new.

## 0.1.0 (2026-01-02)

* The first.
"""


@pytest.fixture(scope="module")
def release() -> ModuleType:
    """The program as a module: its file has no ending."""
    loader = SourceFileLoader("release_program", str(ROOT / ".ci" / "release"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def test_what_is_unreleased_becomes_the_section_of_a_version(release: ModuleType) -> None:
    told = release.released(CHANGES, "0.2.0", "2026-03-04")
    assert release.section_of(told, "0.2.0") == "* Something new."
    assert release.section_of(told, "0.1.0") == "* The first."
    assert "## Unreleased\n\n## 0.2.0 (2026-03-04)\n\n* Something new." in told


@pytest.mark.parametrize(("changes", "version", "why"), [
    (CHANGES, "0.1.0", "has a section of 0.1.0"),
    (CHANGES.replace("* Something new.\n\n", ""), "0.2.0", "nothing under '## Unreleased'"),
    ("# Changes\n", "0.2.0", "nothing under '## Unreleased'")])
def test_a_version_without_news_is_refused(release: ModuleType, changes: str, version: str,
                                           why: str) -> None:
    with pytest.raises(release.Stop, match=why):
        release.released(changes, version, "2026-03-04")


@pytest.mark.parametrize("version", ["0.0.9", "next", "1.0", "v1.0.0", "1.0.0rc1"])
def test_what_is_no_next_version_is_refused(release: ModuleType, version: str) -> None:
    with pytest.raises(release.Stop, match="three numbers from .* on are expected"):
        release.write_version(version)


def test_the_version_is_that_of_the_package(release: ModuleType) -> None:
    text = (ROOT / release.VERSION_FILE).read_text(encoding="utf-8")
    assert release.version_in(text) == smalti.__version__


def test_the_build_system_is_one_version_which_the_tests_use() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted, = project["build-system"]["requires"]
    assert "==" in wanted and "*" not in wanted
    assert wanted in project["project"]["optional-dependencies"]["test"]


def test_the_image_is_given_all_that_a_wheel_is_made_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {"src", "pyproject.toml", project["project"]["readme"],
              *project["project"]["license-files"]}
    told = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line.removeprefix("!") for line in told if line.startswith("!")} == needed


def test_the_image_runs_commands_that_there_are() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (command, *words), = (json.loads(line.removeprefix("CMD ")) for line in text.splitlines()
                          if line.startswith("CMD "))
    known = {name for option in serve.params for name in option.opts}
    assert command == "serve" and {word for word in words if word.startswith("--")} <= known


def copied(target: Path, mode: int, backwards: bool, moment: int) -> Path:
    """The checkout's files in another folder, written in one order or the other."""
    names = [path.relative_to(ROOT) for path in sorted(ROOT.rglob("*"), reverse=backwards)
             if path.is_file() and not {".git", "__pycache__", "dist", "out", "shared"}
             & set(path.parts) and not any(part.endswith("_cache") or part == ".hypothesis"
                                           for part in path.relative_to(ROOT).parts)]
    for name in names:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / name).read_bytes())
        path.chmod(mode)
        os.utime(path, (moment, moment))
    return target


@pytest.mark.sweep
def test_two_builds_are_equal_byte_for_byte(tmp_path: Path) -> None:
    built: list[dict[str, bytes]] = []
    trees = [copied(tmp_path / "a", 0o644, False, 0),
             copied(tmp_path / "another folder" / "b", 0o600, True, 1_500_000_000)]
    for tree, umask, zone in zip(trees, (0o022, 0o077), ("UTC", "Asia/Tokyo")):
        out = tree.with_name(f"{tree.name}-out")
        subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(out)], cwd=tree,
                       check=True, capture_output=True, umask=umask,
                       env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "TZ": zone})
        built.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert built[0] == built[1]
    names = f"smalti-{smalti.__version__}-py3-none-any.whl", f"smalti-{smalti.__version__}.tar.gz"
    assert sorted(built[0]) == sorted(names)
    out = tmp_path / "a-out"
    with zipfile.ZipFile(out / names[0]) as wheel, tarfile.open(out / names[1]) as sdist:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        source = {name.partition("/src/")[2] for name in sdist.getnames() if "/src/" in name}
    assert held == source
    assert held >= {"smalti/__main__.py", "smalti/assets/emoji-256.safetensors",
                    "smalti/frontend/onnx/operators.json"}
