"""What judges modules of SPIR-V."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from smalti.target.spirv import listing

Validate = Callable[[bytes, str], None]


@pytest.fixture(scope="session")
def validate(tmp_path_factory: pytest.TempPathFactory) -> Validate:
    """Fails where the validator of the Khronos group refuses a module for an environment; without
    that program (Debian's spirv-tools), where our own listing cannot read it."""
    found = shutil.which("spirv-val")
    if found is None:
        warnings.warn("no spirv-val here: modules are read, but not validated", stacklevel=1)
    path: Path = tmp_path_factory.mktemp("spirv") / "module.spv"

    def validate(module: bytes, environment: str) -> None:
        text = listing(module)
        if found is None:
            assert "FunctionEnd" in text
            return
        path.write_bytes(module)
        said = subprocess.run([found, "--target-env", environment, path], capture_output=True,
                              text=True)
        assert said.returncode == 0, f"{said.stderr}\n{text}"

    return validate
