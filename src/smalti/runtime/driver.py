"""What the rest of the package asks of a driver: one record for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from smalti.codegen.target import Limits, Target
from smalti.compiler.check import Execute
from smalti.dataclass import dataclass
from smalti.machine import DeviceModel
from smalti.runtime.device import Device
from smalti.runtime.gpu.interface import Gpu
from smalti.runtime.interface import Program
from smalti.runtime.recipe import Recipe


@dataclass(frozen=True)
class Runnable:
    """A target on a device: what the device means for schedules, and a way to run one kernel."""

    target: Target
    limits: Limits
    execute: Execute


@dataclass(frozen=True)
class Driver:
    """A way to run programs.

    `found()` gives its devices, and texts that say why others cannot be used. `rate(device)` is how
    many multiplications and additions of a product it makes a second, by the model.
    `compiled(id, graph, ...)` makes a program, with the keywords of `compile_graph`, of which
    `recipe(id, graph, ...)` has those that matter to its module, and gives what it is made by and
    its target: None where there is no module.
    `precisions` are those that its programs may have, `wide_range(id, precision)` the one for what
    overflows in f16, or in few bits. `runs(id)` lists the targets that a device runs.
    `computes_in_main_memory` says whether programs take memory of this process. `opened(id)` is the
    GPU itself, which drivers of GPUs have; `bare(id, names)` is the GPU opened anew for a check,
    whatever was found of it before, and without what has these names among removals; `gone(id)`
    says whether it was lost and does not come back.
    `usual(id)` is the target that programs of a device are compiled for where none is asked for, as
    far as the driver can tell, else None.
    `model(device)` is what the timing model knows of a device, None where that is nothing;
    `about(device)` is what else a user is told of one: titles and texts. Neither opens it.
    """

    found: Callable[[], tuple[Device | str, ...]]
    rate: Callable[[Device], float]
    compiled: Callable[..., Program]
    precisions: tuple[str, ...]
    wide_range: Callable[[str, str], str]
    runs: Callable[[str], list[Runnable]]
    computes_in_main_memory: bool = False
    opened: Callable[[str], Gpu] | None = None
    bare: Callable[[str, Collection[str]], Gpu] | None = None
    gone: Callable[[str], bool] = lambda device: False
    recipe: Callable[..., tuple[Recipe, Target | None]] | None = None
    usual: Callable[[str], Target | None] = lambda device: None
    model: Callable[[Device], DeviceModel | None] = lambda device: None
    about: Callable[[Device], Sequence[tuple[str, str]]] = lambda device: ()

    @property
    def of_gpus(self) -> bool:
        """Whether its devices are GPUs, or are reached as if they were."""
        return self.opened is not None
