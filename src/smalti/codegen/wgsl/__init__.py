"""WGSL, for what Vulkan does not reach: Metal, and whatever else the package `wgpu` serves."""

NAMES = ("wgsl", "wgsl without immediates")
"""Of the targets in `target.py`."""
