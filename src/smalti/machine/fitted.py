"""The result of calibrating one family of kernels: constants and a residual."""

from __future__ import annotations

from collections.abc import Mapping

from smalti.dataclass import dataclass
from smalti.machine.residual import Residual


@dataclass(frozen=True)
class Fitted:
    """The fitted constants by name, and the residual if it was found to help."""

    constants: Mapping[str, float]
    residual: Residual | None = None
