"""What only a process of its own can show: start-up, Ctrl-C, exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

START_SECONDS_MAX = 0.3
SMALTI = [sys.executable, "-m", "smalti"]


def test_start_up_is_quick(environment: dict[str, str]) -> None:
    """The best of five, because a machine may be busy; numpy alone would take half of the limit."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([*SMALTI, "--help"], env=environment, check=True, capture_output=True)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < START_SECONDS_MAX


def test_help_loads_no_numpy(environment: dict[str, str]) -> None:
    code = ("import sys, smalti.cli.main; "
            "print([m for m in ('numpy', 'PIL', 'onnx', 'safetensors') if m in sys.modules])")
    found = subprocess.run([sys.executable, "-c", code], env=environment, check=True,
                           capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_bad_input_is_exit_code_2_without_traceback(environment: dict[str, str]) -> None:
    found = subprocess.run([*SMALTI, "generate", "x", "--model", "no-such-file.safetensors"],
                           env=environment, capture_output=True, text=True)
    assert found.returncode == 2 and not found.stdout
    assert "no-such-file.safetensors" in found.stderr and "Traceback" not in found.stderr


def test_ctrl_c_stops_within_a_step_and_leaves_nothing(
        environment: dict[str, str], model_path: Path, tmp_path: Path) -> None:
    code = ("import smalti.diffusion.pipeline as p, sys\n"
            "steps = p.Pipeline.steps\n"
            "def told(*a, **k):\n"
            "    for step in steps(*a, **k):\n"
            "        print('step', file=sys.stderr, flush=True)\n"
            "        yield step\n"
            "p.Pipeline.steps = told\n"
            "from smalti.cli.main import main\n"
            "main()")
    process = subprocess.Popen(
        [sys.executable, "-c", code, "generate", "x", "--model", str(model_path), "--size", "256",
         "--steps", "1000", "-o", str(tmp_path / "a.png")],
        env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr.readline() == "step\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and "stopped" in errors and not output
    assert not list(tmp_path.iterdir())
