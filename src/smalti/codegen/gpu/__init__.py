"""What all GPU targets share: programs of work-groups, and kernels lowered to them."""

from smalti.codegen.gpu.form import GroupProgram
from smalti.codegen.gpu.interpreter import run
from smalti.codegen.gpu.lower import lower
from smalti.codegen.gpu.lowered import GroupSteps, Packed
from smalti.codegen.gpu.text import parse
from smalti.codegen.gpu.verifier import verify

__all__ = ["GroupProgram", "GroupSteps", "Packed", "lower", "parse", "run", "verify"]
