"""Kernels: how one region is computed, as loops over scalar expressions. With their text, a
verifier and an interpreter in numpy."""

from smalti.kernel.form import Buffer, Call, Const, Expr, Index, Kernel, Load, Stage
from smalti.kernel.interpreter import run
from smalti.kernel.text import parse, show
from smalti.kernel.verifier import verify

__all__ = [
    "Buffer", "Call", "Const", "Expr", "Index", "Kernel", "Load", "Stage",
    "parse", "run", "show", "verify",
]
