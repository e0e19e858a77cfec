"""`smalti convert`: what is written and said, and that nothing is left half-written."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from smalti.checkpoint.container import open_tensors
from smalti.cli.main import root

WEIGHT = np.ones((8, 256), np.float32)


def ran(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(root, ["convert", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_a_file_in_another_format_and_precision(tmp_path: Path) -> None:
    source, output = tmp_path / "a.safetensors", tmp_path / "b.gguf"
    save_file({"a.weight": WEIGHT, "a.bias": WEIGHT[0]}, source)
    code, said = ran(source, "-o", output, "--precision", "q8_0")
    assert code == 0 and said.startswith(f"{output}: 0.0 MB, F32 (1 tensors), Q8_0 (1 tensors)")
    assert open_tensors(output).dtype("a.weight") == "Q8_0"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "b.gguf"]


def test_what_cannot_be_done_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    save_file({"a.weight": WEIGHT * np.nan}, source)
    (tmp_path / "old.gguf").write_bytes(b"old")
    for words, expected in (
            ((source, "-o", source), "would replace"),
            ((source, "-o", tmp_path / "x.ckpt"), "expected .safetensors or .gguf"),
            ((source, "-o", tmp_path / "x" / "b.gguf"), "no folder"),
            ((source, "-o", tmp_path / "b.gguf", "--precision", "q9"), "known: f32"),
            ((tmp_path / "none", "-o", tmp_path / "b.gguf"), "cannot be read"),
            ((source, "-o", tmp_path / "b.gguf", "--vae", tmp_path / "v"), "cannot be read"),
            ((source, "-o", tmp_path / "old.gguf", "--precision", "q4_k"), "holds NaN")):
        code, said = ran(*words)
        assert code == 2 and expected in said, said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "old.gguf"]
    assert (tmp_path / "old.gguf").read_bytes() == b"old"


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_leaves_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "a.safetensors"
    save_file({f"{i}.weight": WEIGHT for i in range(9)}, source)
    code = ("import sys, smalti.checkpoint.convert as c, time\n"
            "write = c.Conversion.write\n"
            "def told(*a):\n"
            "    for done in write(*a):\n"
            "        print('wrote', file=sys.stderr, flush=True)\n"
            "        time.sleep(10)\n"
            "        yield done\n"
            "c.Conversion.write = told\n"
            "from smalti.cli.main import main\n"
            "main()")
    process = subprocess.Popen(
        [sys.executable, "-c", code, "convert", str(source), "-o", str(tmp_path / "b.gguf")],
        env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline() == "wrote\n"
    assert len(list(tmp_path.iterdir())) == 2
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130 and "stopped" in said
    assert list(tmp_path.iterdir()) == [source]
