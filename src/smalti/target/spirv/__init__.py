"""SPIR-V, the binary language of Vulkan's drivers: group programs as modules of it."""

from smalti.target.spirv.emit import emit
from smalti.target.spirv.text import listing

__all__ = ["emit", "listing"]
