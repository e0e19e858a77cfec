"""The worked example of docs/compiler.md: a pointwise operation takes three files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_a_pointwise_operation_takes_three_files() -> None:
    paths = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS / "material")])
    program = TESTS / "material" / "added_operation.py"
    done = subprocess.run([sys.executable, str(program)], text=True,
                          capture_output=True, check=False,
                          env={**os.environ, "PYTHONPATH": paths})
    assert (done.returncode, done.stdout) == (0, "3 files\n"), done.stderr
