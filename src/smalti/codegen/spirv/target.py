"""SPIR-V as the compiler sees it."""

from __future__ import annotations

from smalti.codegen.gpu.target import group_target
from smalti.codegen.spirv.emit import emit
from smalti.codegen.spirv.text import listing

TARGETS = (group_target("spirv", "vulkan", emit, lambda code: f" {listing(code)}"),)
