"""What all GPU targets share: the form of a work-group's program, and kernels lowered to it."""

from smalti.target.gpu.form import GroupProgram
from smalti.target.gpu.lowered import Lowered, Packed

__all__ = ["GroupProgram", "Lowered", "Packed"]
