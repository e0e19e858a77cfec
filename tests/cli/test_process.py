"""What only a process of its own can show: start-up, Ctrl-C, exit codes."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from smalti.cli.output import write_png
from smalti.cli.streams import PIPE_CLOSED

START_SECONDS_MAX = 0.3
SMALTI = [sys.executable, "-m", "smalti"]


def test_start_up_is_quick(environment: dict[str, str]) -> None:
    """In the processor's time, as a machine may be busy, and the best of three; numpy alone would
    take half of the limit."""

    def used() -> float:
        times = os.times()
        return times.children_user + times.children_system

    seconds = []
    for _ in range(3):
        before = used()
        subprocess.run([*SMALTI, "--help"], env=environment, check=True, capture_output=True)
        seconds.append(used() - before)
    assert min(seconds) < START_SECONDS_MAX


def test_help_loads_no_numpy(environment: dict[str, str]) -> None:
    code = ("import sys, smalti.cli.main; "
            "print([m for m in ('numpy', 'PIL', 'onnx', 'safetensors') if m in sys.modules])")
    found = subprocess.run([sys.executable, "-c", code], env=environment, check=True,
                           capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [["--version"], ["generate", "--no-such-option"]])
def test_the_interpreter_looks_at_nothing_again_at_the_end(environment: dict[str, str],
                                                           arguments: list[str]) -> None:
    code = ("import atexit, gc, sys; sys.argv[0] = 'smalti'; from smalti.__main__ import main; "
            "atexit.register(lambda: print('frozen', gc.get_freeze_count())); main()")
    found = subprocess.run([sys.executable, "-c", code, *arguments], env=environment,
                           capture_output=True, text=True)
    assert found.returncode == (0 if arguments == ["--version"] else 2)
    assert int(found.stdout.split("frozen ")[1]) > 1000


def test_bad_input_is_exit_code_2_without_traceback(environment: dict[str, str]) -> None:
    found = subprocess.run([*SMALTI, "generate", "x", "--model", "no-such-file.safetensors"],
                           env=environment, capture_output=True, text=True)
    assert found.returncode == 2 and not found.stdout
    assert "no-such-file.safetensors" in found.stderr and "Traceback" not in found.stderr


@pytest.mark.usefixtures("interruptible")
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


@pytest.mark.parametrize("exception", ["KeyboardInterrupt", "ImportError"])
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_modules_load_is_not_lost(
        environment: dict[str, str], tmp_path: Path, exception: str) -> None:
    """As foreign code does: what the signal raises is dropped, or becomes another exception."""
    code = ("import builtins, signal\n"
            "load = builtins.__import__\n"
            "def interrupted(name, *a):\n"
            "    if name == 'numpy':\n"
            "        builtins.__import__ = load\n"
            "        try:\n"
            "            signal.raise_signal(signal.SIGINT)\n"
            "        except KeyboardInterrupt:\n"
            f"            if {exception!r} == 'ImportError': raise ImportError\n"
            "    return load(name, *a)\n"
            "builtins.__import__ = interrupted\n"
            "from smalti.__main__ import main\n"
            "main()")
    found = subprocess.run(
        [sys.executable, "-c", code, "generate", "x", "-o", str(tmp_path / "a.png")],
        env=environment, capture_output=True, text=True)
    assert found.returncode == 130, found.stderr
    assert "Traceback" not in found.stderr and not list(tmp_path.iterdir())


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("command", [("--help",), ("inspect", "model")])
@pytest.mark.parametrize("number", [3, 8, 40, 160, *(
    pytest.param(number, marks=pytest.mark.sweep) for number in (4, 5, 6, 12, 20, 80, 320))])
def test_ctrl_c_at_any_import_ends_the_process(
        environment: dict[str, str], model_path: Path, command: tuple[str, ...],
        number: int) -> None:
    """From the third on: the package and its first module are looked for by Python alone."""
    code = ("import signal, sys\n"
            f"left = {number}\n"
            "def hook(event, arguments):\n"
            "    global left\n"
            "    left -= event == 'import'\n"
            "    if event == 'import' and not left: signal.raise_signal(signal.SIGINT)\n"
            "sys.addaudithook(hook)\n"
            "from smalti.__main__ import main\n"
            "main()")
    arguments = [str(model_path) if part == "model" else part for part in command]
    found = subprocess.run([sys.executable, "-c", code, *arguments], env=environment,
                           capture_output=True, text=True)
    assert found.returncode == 130 or number > 12 and found.returncode == 0, found.stderr
    assert found.stderr in ("", "\nstopped\n")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("milliseconds", [0, 40, 100, *(
    pytest.param(wait, marks=pytest.mark.sweep) for wait in (20, 60, 80, 150, 200, 300))])
def test_ctrl_c_soon_after_the_start_is_one_line_or_none(environment: dict[str, str],
                                                         milliseconds: int) -> None:
    """A traceback may come from Python's own start alone, which no program can change."""
    process = subprocess.Popen([*SMALTI, "devices"], env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    time.sleep(milliseconds / 1000)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    if "Traceback" in errors:
        assert f"{os.sep}smalti{os.sep}" not in errors
    else:
        assert process.returncode in (130, -signal.SIGINT, 0)
        assert errors in ("", "\nstopped\n")


def test_ctrl_c_stays_ignored_where_it_was(environment: dict[str, str]) -> None:
    code = ("import signal\n"
            "from smalti.cli.interrupt import end_at_once, loading_modules, raising\n"
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "end_at_once()\n"
            "with loading_modules(), raising(): signal.raise_signal(signal.SIGINT)\n")
    assert not subprocess.run([sys.executable, "-c", code], env=environment).returncode


def test_a_full_disk_behind_standard_output_is_one_message(environment: dict[str, str]) -> None:
    for arguments in (["--help"], ["devices", "rtx_4060"]):
        with open("/dev/full", "w") as full:
            found = subprocess.run([*SMALTI, *arguments], env=environment, stdout=full,
                                   stderr=subprocess.PIPE, text=True)
        assert found.returncode == 2
        assert found.stderr.strip() == ("Error: cannot write to standard output: No space left on "
                                        "device; send it elsewhere, or make room")
        with open("/dev/full", "w") as full:  # nobody can be told, and what was asked for is done
            found = subprocess.run([*SMALTI, *arguments], env=environment, stderr=full,
                                   stdout=subprocess.PIPE, text=True)
        assert found.returncode == 0 and found.stdout


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(
        environment: dict[str, str]) -> None:
    process = subprocess.Popen([*SMALTI, "devices", "rtx_4060"], env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == PIPE_CLOSED


@pytest.mark.parametrize("encoding", ["cp437", "cp1252"])
def test_a_console_shows_letters_that_it_lacks_as_escapes(
        environment: dict[str, str], tmp_path: Path, encoding: str) -> None:
    """As those of Windows, whose code pages have 256 letters; names and prompts may hold any."""
    path = tmp_path / "Äpfel und りんご.png"
    write_png(Image.new("RGB", (4, 4)), path, "りんご\nSteps: 1")
    found = subprocess.run([*SMALTI, "inspect", path], capture_output=True, env={
        **environment, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
    assert found.returncode == 0, found.stderr
    assert rb"\u308a\u3093\u3054" in found.stdout and not found.stderr


def test_closed_streams_and_names_that_are_no_text(
        environment: dict[str, str], model_path: Path, tmp_path: Path) -> None:
    model = os.fsencode(tmp_path) + b"/\xff.safetensors"
    shutil.copy(model_path, model)
    strict = {**environment, "PYTHONIOENCODING": "utf-8:strict"}
    found = subprocess.run(
        [*SMALTI, "generate", "x", "-m", model, "-o", tmp_path / "a.png", "--threads", "1"],
        env=strict, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    command = shlex.join([*SMALTI, "generate", "x", "--threads", "1", "-m", str(model_path),
                          "-o", str(tmp_path / "b.png")])
    found = subprocess.run(["sh", "-c", f"{command} >&- 2>&-"], env=environment)
    assert found.returncode == 0 and (tmp_path / "b.png").exists()
