"""SPIR-V, the binary language of Vulkan's drivers: group programs as modules of it."""

NAMES = ("spirv",)
"""Of the targets in `target.py`."""
