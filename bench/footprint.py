"""Seconds to compile, memory of a picture, size of an installation, all from fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from smalti.benchmark.suite import CASES, Case, vae_decode
from smalti.benchmark.table import Row
from smalti.benchmark.turns import in_fresh_process
from smalti.checkpoint import load
from smalti.checkpoint.tensors import held_as
from smalti.models import SD15, unet_graph

ROOT = Path(__file__).resolve().parents[1]
SAMPLE_SECONDS = 0.01
COMPILE_SECONDS_MAX = 10
CACHED_SECONDS_MAX = 0.5
MEMORY_BYTES_MAX = 1.5e9
INSTALL_BYTES_MAX = 200e6
INT8_BYTES_MAX = 1.6e9
"""Of a picture in integers of 8 bits, weights included."""
DECODE_BYTES_MAX = {512: 0.6e9, 1024: 1.6e9}
"""Of a picture of so many pixels a side, above the weights in f32."""


def generate_command(*arguments: str) -> list[str]:
    """`smalti generate ...` of this interpreter."""
    return [sys.executable, "-m", "smalti", "generate", *arguments]


def environment(cache: Path) -> dict[str, str]:
    """The environment of a child process whose compile cache is `cache`."""
    return {**os.environ, "SMALTI_CACHE": str(cache)}


def compile_seconds(threads: int, cache: str) -> float:
    """Seconds from the configuration to a program for the UNet, batch 2, imports not counted."""
    from smalti.runtime.compilation import compile_graph

    os.environ["SMALTI_CACHE"] = cache
    started = time.perf_counter()
    compile_graph(CASES["unet"].graph(), threads=threads)
    return time.perf_counter() - started


def compile_rows(threads: int) -> list[Row]:
    """Compiling the UNet with an empty cache, then once more in a new process."""
    with tempfile.TemporaryDirectory() as cache:
        cold = in_fresh_process(compile_seconds, threads, cache)
        cached = in_fresh_process(compile_seconds, threads, cache)
    return [Row.at_most("compile of the UNet, cold", COMPILE_SECONDS_MAX, cold, " s"),
            Row.at_most("compile of the UNet, from cache", CACHED_SECONDS_MAX, cached, " s")]


@dataclass(frozen=True)
class Peak:
    """Peaks of a process in bytes: what it allocated, and all of it with mapped files."""

    anonymous: int
    resident: int


def peak_of(command: list[str], env: dict[str, str]) -> Peak:
    """Run a command and watch it. Raises CalledProcessError when it fails."""
    process = subprocess.Popen(command, env=env)
    anonymous = 0
    while True:
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
        if done:
            break
        anonymous = max(anonymous, _anonymous_bytes(process.pid))
        time.sleep(SAMPLE_SECONDS)
    code = os.waitstatus_to_exitcode(status)
    process.returncode = code  # reaped above, with its resource usage
    if code:
        raise subprocess.CalledProcessError(code, command)
    return Peak(anonymous, usage.ru_maxrss * 1024)


def _anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0  # the process is ending


def decode_once(path: str, side: int, threads: int) -> None:
    """Compile the decoder for a picture of side x side, bind a checkpoint's weights, run it."""
    from smalti.runtime.compilation import compile_graph

    case = replace(decoder(side), checkpoint=Path(path))
    program = compile_graph(case.graph(), threads=threads)
    program.bind(case.read())
    program.run(case.inputs())


def decoder(side: int) -> Case:
    """The decoder of Stable Diffusion 1.5 for a picture of side x side."""
    latent = side // SD15.vae.downscale
    return vae_decode("decode", f"VAE decode {side}x{side}", SD15.vae, latent, latent)


def decode_memory_rows(path: Path, threads: int) -> list[Row]:
    """Peak of anonymous memory of processes that decode one picture, less the f32 weights."""
    rows = []
    for side, bound in DECODE_BYTES_MAX.items():
        weights = sum(value.type.bytes for value in decoder(side).graph().parameters.values())
        with tempfile.TemporaryDirectory() as folder:
            env = environment(Path(folder))
            env["PYTHONPATH"] = os.pathsep.join((str(ROOT / "bench"), env.get("PYTHONPATH", "")))
            code = f"import footprint; footprint.decode_once({str(path)!r}, {side}, {threads})"
            peak = peak_of([sys.executable, "-c", code], env)
        rows.append(Row.at_most(
            f"memory of {decoder(side).title} above the weights", bound / 1e9,
            (peak.anonymous - weights) / 1e9, " GB",
            f"anonymous {peak.anonymous / 1e9:.2f} GB less {weights / 1e9:.2f} GB"))
    return rows


def memory_row(path: Path, threads: int) -> Row:
    """Memory of one picture above the weights of the UNet, in the dtypes of the checkpoint.

    Those of the text encoder and the decoder, which may stay, are not subtracted. The checkpoint
    itself is a mapped file, whose pages the system takes back when it needs them.
    """
    checkpoint = load(path)
    parameters = unet_graph(checkpoint.config.denoiser, 2, 64, 64).parameters
    weights = sum(v.type.size * (2 if held_as(checkpoint.dtype(name)) else 4)
                  for name, v in parameters.items())
    with tempfile.TemporaryDirectory() as folder:
        peak = peak_of(generate_command("a red apple", "--model", str(path), "--steps", "2",
                                        "--threads", str(threads), "-o", f"{folder}/apple.png"),
                       environment(Path(folder)))
    above = peak.anonymous - weights
    return Row("memory of a picture above the weights", f"<= {MEMORY_BYTES_MAX / 1e9:g} GB",
               f"{above / 1e9:.2f} GB (anonymous {peak.anonymous / 1e9:.2f} GB less the UNet's "
               f"weights {weights / 1e9:.2f} GB; resident with the mapped checkpoint "
               f"{peak.resident / 1e9:.2f} GB)", above <= MEMORY_BYTES_MAX)


def int8_memory_row(path: Path, threads: int) -> Row:
    """All memory of one picture in integers of 8 bits, once it is known which layers stand them."""
    with tempfile.TemporaryDirectory() as folder:
        command = generate_command(
            "a red apple", "--model", str(path), "--precision", "int8", "--device", "cpu",
            "--steps", "1", "--threads", str(threads), "-o", f"{folder}/apple.png")
        first, peak = (peak_of(command, environment(Path(folder))) for _ in range(2))
    return Row.at_most("memory of a picture in int8, weights included", INT8_BYTES_MAX / 1e9,
                       peak.anonymous / 1e9, " GB",
                       f"resident with the mapped checkpoint {peak.resident / 1e9:.2f} GB; at the "
                       f"first use of the checkpoint {first.anonymous / 1e9:.2f} GB")


def install_row() -> Row:
    """`pip install .` into a new virtual environment, without pip and setuptools."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(ROOT)], check=True)
        asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = Path(subprocess.run(asked, check=True, text=True,
                                   capture_output=True).stdout.strip())
        sizes = {entry.name: disk_bytes(entry) for entry in site.iterdir()
                 if not entry.name.startswith(("pip", "setuptools", "_distutils_hack",
                                               "distutils-precedence", "pkg_resources"))}
    whole = sum(sizes.values())
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:5]
    said = ", ".join(f"{name} {sizes[name] / 1e6:.0f}" for name in largest)
    return Row("install, site-packages", f"< {INSTALL_BYTES_MAX / 1e6:g} MB",
               f"{whole / 1e6:.0f} MB ({said})", whole < INSTALL_BYTES_MAX)


def disk_bytes(path: Path) -> int:
    """What a file or folder takes on disk, as `du` counts."""
    whole = path.lstat().st_blocks * 512
    if path.is_dir() and not path.is_symlink():
        whole += sum(disk_bytes(entry) for entry in path.iterdir())
    return whole
