"""x86-64: AVX2 with FMA, AVX-512, AVX-512 BF16; System V and Win64 calling conventions."""

NAMES = ("avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16")
"""Of the targets in `target.py`."""
