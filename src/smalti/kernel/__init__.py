"""How one region is computed: loop-level form, text, verifier, numpy reference."""

from smalti.kernel.form import Buffer, Call, Const, Expr, Index, Kernel, Load, Stage
from smalti.kernel.interpreter import run
from smalti.kernel.text import parse, show
from smalti.kernel.verifier import verify

__all__ = [
    "Buffer", "Call", "Const", "Expr", "Index", "Kernel", "Load", "Stage",
    "parse", "run", "show", "verify",
]
