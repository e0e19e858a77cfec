"""What judges modules of SPIR-V."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_devices import absent

from smalti.codegen.spirv.text import listing

Validate = Callable[[bytes, str], None]


@pytest.fixture(scope="session")
def validate(tmp_path_factory: pytest.TempPathFactory) -> Validate:
    """Fails where the validator of the Khronos group refuses a module for an environment."""
    found = shutil.which("spirv-val") or absent("no spirv-val", "spirv-tools")
    path: Path = tmp_path_factory.mktemp("spirv") / "module.spv"

    def validate(module: bytes, environment: str) -> None:
        path.write_bytes(module)
        said = subprocess.run([found, "--target-env", environment, path], capture_output=True,
                              text=True)
        assert said.returncode == 0, f"{said.stderr}\n{listing(module)}"

    return validate
