"""What a target is: one record, by which the compiler reaches a code generator.

The records lie beside their generators, in `target.py` of each folder; `compiler/targets.py` lists
them. Whatever differs between targets is a field here, so that the compiler asks none for its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from smalti.codegen.shader import Shader
from smalti.dataclass import dataclass
from smalti.kernel.form import Kernel

WORKSPACE = "workspace"
"""What steps of a kernel call memory that they share with each other and with nobody else."""
ARENA, SLOT = "arena", "slot"
Reference = tuple[str, int, int]
"""What a launch reads or writes: (ARENA, 0, byte offset), or (SLOT, number, byte offset) of a
weight."""
Limits = Any
"""What a device means for schedules: a record of `schedule/`, the same for all uses of a target."""


class PackedLayout(Protocol):
    """How the weight of a kernel's buffer is laid out in memory, of `bytes`."""

    @property
    def buffer(self) -> str: ...

    @property
    def bytes(self) -> int: ...


class LoweredStep(Protocol):
    """One function of a kernel, which is called for each of `tiles` tiles."""

    @property
    def tiles(self) -> int: ...


class LoweredKernel(Protocol):
    """What a kernel becomes: steps in order, and the memory that they need besides its buffers.

    `scratch_bytes` are of each thread, `workspace_bytes` are shared by all steps. The weight of the
    buffer that is `packed` is bound in that layout; `winograd` is the F(m) that is computed, and
    whether an enlargement is folded into it.
    """

    @property
    def steps(self) -> Sequence[LoweredStep]: ...

    @property
    def scratch_bytes(self) -> int: ...

    @property
    def workspace_bytes(self) -> int: ...

    @property
    def packed(self) -> PackedLayout | None: ...

    @property
    def winograd(self) -> tuple[int, bool] | None: ...

    def operands(self, step: Any) -> tuple[str, ...]:
        """Names of the buffers that a step is given, `WORKSPACE` among them, in its order."""


@dataclass(frozen=True)
class EncodedFunctions:
    """Functions as bytes: where in `code` the entry of each lies, and of GPUs what a driver is told
    of each besides."""

    code: bytes
    entries: list[int]
    shaders: list[Shader] = field(default_factory=list)


@dataclass(frozen=True)
class Refusal:
    """How a kernel is refused that a target has no room for: the `errors` that lowering raises, and
    what is said, with {error} in the `advice` for the text of the error."""

    errors: tuple[type[Exception], ...]
    title: str
    advice: str


@dataclass(frozen=True)
class Target:
    """A language of instructions, and all that the compiler has to know of it.

    `lower` raises IllegalSchedule for a schedule that cannot be applied.
    """

    name: str
    functions: Collection[str]
    """Pointwise operations, and products of integers, that there are instructions for."""
    precisions: tuple[str, ...]
    """What values between kernels may be stored in."""
    held: Collection[str]
    """Dtypes, beside f32, in which weights may be held; others are held as f16."""
    first: Callable[[Kernel, Limits, str], Any]
    """The first schedule of a kernel, from its shape, limits and precision."""
    space: Callable[[Kernel, Limits, Any], Iterable[Any]]
    """The schedules to try in place of one that is given, which is the first of them."""
    arithmetic: Callable[[Kernel, Any], Hashable]
    """Equal for schedules of a kernel that give the same bytes: the same sums in the same order."""
    lower: Callable[[Kernel, Any, Limits], LoweredKernel]
    encode: Callable[[Sequence[Any], Limits], EncodedFunctions]
    """Functions, as `placed` gives them, as bytes."""
    cost: Callable[[Kernel, Limits, Any], float] | None
    """What a kernel is expected to take under a schedule on any device of these limits, in a unit
    that all kernels have in common; None where only a model of the device tells."""
    listing: Callable[[Any], str]
    """A step as text."""
    refusal: Refusal
    likely: Callable[[Kernel, Limits, str], Any] | None = None
    """What `first` would give if every program had registers enough, for `cost` of kernels that are
    only thought of: nothing is lowered for it. None where there is no `cost`."""
    lowered: type | None = None
    """The record that `lower` gives, where it is plain data: such are kept, so that a program need
    not lower the kernels again that it has in common with an earlier one."""
    automatic: str = "f32"
    """The precision that "auto" means, where 16 bits are stored."""
    halves: Callable[[Limits], bool] = lambda limits: True
    """Whether a device of these limits stores 16 bits."""
    beside_integers: str = ""
    """The precision of all else where layers are computed in integers of 8 bits; "" where there are
    no such kernels."""
    multiplies_bytes: bool = False
    """Whether a product of bytes takes a quarter of the time of f32, so that it beats Winograd's
    algorithm."""
    pairs_of_bytes: bool = False
    """Whether an instruction adds two products of bytes in 16 bits: weights that are rounded then
    have scales by which no such sum is larger."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Precisions that others have and this one does not: what to say, and what to use instead."""
    stored: Mapping[str, str] = field(default_factory=dict)
    """The dtypes in which values between kernels are stored, where these are others."""
    stored_parameters: Mapping[str, str] = field(default_factory=dict)
    """The same for parameters, which are only read."""
    whole_parameters: bool = False
    """Whether parameters that are not packed are bound whole, and launches say where they begin;
    else there is memory for what a launch reads of one."""
    placed: Callable[[Any, Mapping[str, Reference]], Hashable] = lambda step, references: step
    """A step as it has to be where its operands lie; equal ones are one function."""
    pack: Callable[[Any, tuple[int, ...], str], LoweredStep] | None = None
    """A function that packs a weight, from strides and a dtype; None where numpy packs it."""
    winograd: bool = False
    """Whether there is Winograd's algorithm, whose transformed weights take memory that all kernels
    of a program share, so that their algorithms are chosen together."""
    strips: bool = False
    """Whether a launch may be of some tiles, so that results can be written over an operand strip
    by strip."""
    interpret: Callable[[Any, Kernel, dict[str, np.ndarray]], Mapping[str, np.ndarray]] \
        | None = None
    """Runs what `lower` gives for a kernel in numpy, on what its buffers hold, flat; None where
    only a device can."""
    usual: Limits = None
    """Limits that devices have which are neither the least nor the best."""
    least: Limits = None
    """Limits that every device has, for code that is made for none in particular; None where they
    are those of this computer, as of CPUs."""
    needs: frozenset[str] = frozenset()
    """Features that a CPU must have."""
    driver: str = "cpu"
    """What devices of this target are reached through, as their ids begin: "cpu", "vulkan", "wgpu".
    """
    alias: str = ""
    """What users may call it besides: of the targets with an alias, the first one is meant."""

    def __repr__(self) -> str:
        return f"<Target {self.name}>"
