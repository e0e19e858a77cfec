"""Chips that the drivers compile for, and the environment of a process that has one of them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = "GPU_LAB"
"""The variable that names the folder of `setup`, where no option does."""


@dataclass(frozen=True)
class Chip:
    """A chip, the driver that compiles for it, the variables that choose it there, and its
    architecture by the name that `smalti.schedule.compute_units` has."""

    name: str
    driver: str
    variables: dict[str, str]
    architecture: str


def _amd(architecture: str, *names: str) -> list[Chip]:
    return [Chip(name, "radeon", {"AMDGPU_GPU_ID": name}, architecture) for name in names]


def _intel(architecture: str, *names: str) -> list[Chip]:
    return [Chip(name, "intel", {"INTEL_STUB_GPU_PLATFORM": name, "INTEL_FORCE_PROBE": "*"},
                 architecture) for name in names]


def _nvidia(architecture: str, **numbers: str) -> list[Chip]:
    return [Chip(name, "nouveau", {"NOUVEAU_CHIPSET": number}, architecture)
            for name, number in numbers.items()]


CHIPS = {chip.name: chip for chip in (
    *_amd("rdna2", "vangogh", "navi21", "navi22", "navi23"),
    *_amd("rdna3_big", "navi31", "navi32", "gfx1151"),
    *_amd("rdna3_small", "navi33", "gfx1150"),
    *_amd("rdna4", "gfx1200", "gfx1201"),
    *_intel("xe_hpg", "dg2"), *_intel("xe2_hpg", "lnl", "bmg"),
    *_nvidia("turing_rtx", tu102="162", tu104="164", tu106="166"),
    *_nvidia("ampere_ga100", ga100="170"),
    *_nvidia("ampere_ga10x", ga102="172", ga104="174", ga106="176"),
    *_nvidia("ada", ad102="192", ad103="193", ad104="194", ad106="196", ad107="197"),
    *_nvidia("blackwell_gb20x", gb202="1b2", gb203="1b3", gb205="1b5"),
)}
"""All chips that were tried: their devices are listed, and tell what they have. The drivers also
know navi10, tgl, mtl and ptl, of whose units the library has no facts."""
TABLE = ("navi21", "navi31", "gfx1201", "dg2", "bmg", "ga102", "ad104")
"""Chips of the table: RDNA 2 (no matrix unit), 3, 4; Xe-HPG, Xe2; Ampere, Ada."""


def python(folder: Path, chip: Chip, arguments: Sequence[str],
           environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """This Python, run with a chip that is not there.

    It starts under the C library that the drivers were built with, and with the shim that answers
    for the kernel's driver. What it and the driver write on stderr is kept, as both complain of
    what the shims do not know, which is harmless.
    """
    libraries = folder / "drivers/usr/lib/x86_64-linux-gnu"
    loader = folder / "drivers/usr/lib64/ld-linux-x86-64.so.2"
    own = sysconfig.get_config_var("LIBDIR")
    command = [str(loader), "--preload", str(folder / "shims" / f"{chip.driver}.so"),
               "--library-path", f"{libraries}:{own}:/usr/lib/x86_64-linux-gnu",
               "--argv0", sys.executable, str(Path(sys.executable).resolve()), *arguments]
    paths = [path for path in sys.path if path]
    return subprocess.run(command, text=True, stderr=subprocess.PIPE, check=False, env={
        **os.environ, **environment, **chip.variables,
        "VK_DRIVER_FILES": str(folder / "icd" / f"{chip.driver}.json"),
        "MESA_SHADER_CACHE_DISABLE": "true", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": ":".join(paths)})


def ready(folder: Path) -> str:
    """What a folder lacks to be one that `setup` has filled; empty when nothing."""
    drivers = {CHIPS[name].driver for name in TABLE}
    for path in (Path(kind, f"{driver}.{end}") for kind, end in (("shims", "so"), ("icd", "json"))
                 for driver in sorted(drivers)):
        if not (folder / path).exists():
            return (f"{folder / path} is not there; fill the folder: "
                    f"python bench/gpu_compilers.py setup {shlex.quote(str(folder))}")
    return ""
