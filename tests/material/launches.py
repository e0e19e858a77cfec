"""Group programs on devices: what a launch gives, against the interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from smalti.codegen.gpu.form import GroupProgram
from smalti.codegen.gpu.interpreter import run
from smalti.runtime.gpu.check import launched
from smalti.runtime.gpu.interface import Gpu


def compare(gpu: Gpu, program: GroupProgram, arrays: Mapping[str, np.ndarray], *,
            rtol: float = 0.0, atol: float = 0.0, subgroup: int = 8) -> None:
    """A launch gives what the interpreter gives, in subgroups of a size that the device need not
    have where the program does not show it."""
    expected = run(program, arrays, subgroup=subgroup)
    found = launched(gpu, program, {**expected, **arrays})
    for binding in program.bindings:
        if binding.access != "read":
            wide = [a[binding.name].astype(np.float64 if a[binding.name].dtype.kind in "fV" else
                                           np.int64) for a in (found, expected)]
            np.testing.assert_allclose(*wide, rtol=rtol, atol=atol, err_msg=binding.name)

