"""What the code generators of CPUs have in common: all forms of kernels, lowered
onto virtual registers.

An architecture gives its feature levels (`level.py`), an assembler over the base class here, a
table of instructions and an encoder; nothing in this folder knows which one it works for.
"""
