"""How one piece is computed: loop-level form, text, verifier, numpy reference."""

from smalti.kernel.form import Buffer, Call, Const, Expr, Index, Kernel, Load, Stage

__all__ = ["Buffer", "Call", "Const", "Expr", "Index", "Kernel", "Load", "Stage"]
