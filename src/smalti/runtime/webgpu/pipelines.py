"""Programs as `wgpu` compiles them."""

from __future__ import annotations

from typing import Any

from smalti.codegen.shader import Shader
from smalti.runtime.gpu.interface import ComputePipeline
from smalti.runtime.gpu.pacing import Pace


class WebPipeline(ComputePipeline):
    """A pipeline of the package, and the layout of its bindings."""

    def __init__(self, shader: Shader, handle: Any, layout: Any) -> None:
        self.name, self.groups, self.bindings = shader.name, shader.groups, shader.bindings
        self.handle, self.layout, self.pace = handle, layout, Pace()
