"""SPIR-V, the binary language of Vulkan's drivers: group programs as modules of it."""

from smalti.codegen.spirv.emit import emit
from smalti.codegen.spirv.text import listing

__all__ = ["emit", "listing"]
