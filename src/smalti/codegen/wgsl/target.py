"""WGSL as the compiler sees it: for devices that have immediates, and for those that have none."""

from __future__ import annotations

from smalti.codegen.gpu.form import GroupProgram
from smalti.codegen.gpu.target import group_target
from smalti.codegen.target import Target
from smalti.codegen.wgsl.emit import emit
from smalti.schedule.group import GroupLimits

NO_BF16 = {"bf16": "speaks WGSL, which has no bf16; use f16 or f32"}


def _text(code: bytes) -> str:
    """The lines of a module, behind its name."""
    return "\n" + code.decode()


def _target(name: str, immediates: bool) -> Target:
    def written(program: GroupProgram, limits: GroupLimits) -> bytes:
        return emit(program, limits, immediates=immediates).encode()

    return group_target(name, "wgpu", written, _text, ("f32", "f16"), NO_BF16)


TARGETS = (_target("wgsl", immediates=True), _target("wgsl without immediates", immediates=False))
