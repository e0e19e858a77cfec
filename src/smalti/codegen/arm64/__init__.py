"""AArch64: machine code with the vectors of NEON (128 bits)."""
