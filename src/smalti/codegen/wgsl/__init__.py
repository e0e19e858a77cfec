"""WGSL, for what Vulkan does not reach: Metal, and whatever else the package `wgpu` serves."""

from smalti.codegen.wgsl.emit import emit

__all__ = ["emit"]
