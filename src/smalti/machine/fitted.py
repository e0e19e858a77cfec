"""What calibration finds for one family of kernels: constants of the model, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smalti.machine.residual import Residual


@dataclass(frozen=True)
class Fitted:
    """Constants by name, as fitted, and the residual where it was found to help."""

    constants: Mapping[str, float]
    residual: Residual | None = None
