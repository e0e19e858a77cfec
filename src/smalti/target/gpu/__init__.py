"""What all GPU targets share: programs of work-groups, and kernels lowered to them."""

from smalti.target.gpu.form import GroupProgram
from smalti.target.gpu.interpreter import run
from smalti.target.gpu.lower import lower
from smalti.target.gpu.lowered import Lowered, Packed
from smalti.target.gpu.text import parse
from smalti.target.gpu.verifier import verify

__all__ = ["GroupProgram", "Lowered", "Packed", "lower", "parse", "run", "verify"]
