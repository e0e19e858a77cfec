"""The cut: which operations share a kernel, and where values are stored between kernels."""

from smalti.fuse.cut import cut
from smalti.fuse.piece import Cut, HostPiece, Piece
from smalti.fuse.precision import held, narrowed
from smalti.fuse.view import Storage, View

__all__ = ["Cut", "HostPiece", "Piece", "Storage", "View", "cut", "held", "narrowed"]
