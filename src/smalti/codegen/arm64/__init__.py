"""AArch64: machine code with the vectors of NEON (128 bits)."""

NAMES = ("neon", "neon_dot", "neon_bf16")
"""Of the targets in `target.py`."""
