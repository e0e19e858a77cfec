"""bench/gpu.py runs, on whatever GPU is here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from smalti.runtime.vulkan import VulkanAdapter

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "gpu.py"


@pytest.mark.sweep
def test_a_product_is_measured(adapter: VulkanAdapter, tmp_path: Path,
                               environment: dict[str, str]) -> None:
    assert adapter.limits.storage16
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--works", "matmul", "--size", "48", "--runs", "1",
         "--json", str(tmp_path / "rows.json")],
        capture_output=True, text=True, env=environment, timeout=120)
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["what"] == "matmul 48, f16" and "TFLOP/s" in row["measured"], done.stderr
    assert done.returncode == int(row["ok"] is False) and row["what"] in done.stdout
