"""x86-64: AVX2 with FMA, AVX-512, AVX-512 BF16; System V and Win64 calling conventions."""
