"""What the check of a device has found, in words for its user, and as a file.

    {"device": …, "driver": …, "findings": […], "rates": {…}, …}      doctor/<digest>.json, cached

A verdict holds for a device and the version of its driver, both by what the driver says of itself,
and for the code that makes programs: where one of them changes, the device is checked again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from smalti import settings
from smalti.dataclass import dataclass
from smalti.runtime.cache import code_digest, write_whole
from smalti.runtime.doctor.found import Finding, GpuRates, kind_of
from smalti.runtime.gpu import removals as names
from smalti.runtime.gpu.removals import Removal

FOLDER = "doctor"
CODE = ("codegen/gpu", "codegen/spirv", "codegen/wgsl", "schedule", "runtime/doctor",
        "runtime/vulkan", "runtime/webgpu")
"""Folders of the code that a verdict depends on."""
SOURCE = "the check of this machine"
NEWER = "A newer driver may help; `smalti doctor --again` checks it."

_listeners: list[Callable[[], object]] = []
_log = logging.getLogger(__name__)

INSTEAD = {
    "matrices": "Products are computed with other instructions of the device.",
    names.MATRIX_LINES: "Its driver loads them, word by word; scores go through shared memory.",
    "subgroup": "Sums of a work-group go through its shared memory.",
    names.F16: "Numbers of 16 bits are widened to 32 before they are computed with.",
    names.BF16: "Numbers of bf16 are converted by shifting their bits.",
    names.STORAGE8: "Bytes are read four at a time, as words.",
    names.STORAGE16: "Models run in f32 on it, which takes twice the memory.",
    names.DOT_PRODUCTS: "Bytes are taken out of words and multiplied one by one.",
    names.TRANSFER_QUEUE: "Weights are copied by the queue that computes, in turns with it.",
    names.KEPT_NAN: "Its compiler is not asked for it.",
    names.TIMES: "Nothing is timed on it, so `smalti tune` and `smalti profile` leave it out.",
    names.GROUPS.partition(" ")[0]: "Work-groups are smaller.",
    names.SHARED.partition(" ")[0]: "Work-groups share less memory.",
    "buffers": "Programs use fewer or smaller buffers.",
    names.GRIDS: "Launches have fewer work-groups along an axis.",
    names.DEVICE: "Pictures are made on another device, such as the CPU.",
}
"""What is done without each kind of thing that may be removed."""
THINGS = {
    names.DEVICE: "The device", names.AUTOMATIC: "The device",
    names.MATRICES: "The matrix unit",
    names.MATRIX_LINES: "Which invocation holds which line of a matrix",
    names.SUBGROUP_OPERATIONS: "Exchange between invocations of a subgroup",
    names.SUBGROUP_SIZES: "What the driver says of the size of subgroups",
    names.F16: "Arithmetic in f16", names.BF16: "The driver's own conversion of bf16",
    names.STORAGE8: "Access to single bytes", names.STORAGE16: "Storage of 16-bit numbers",
    names.DOT_PRODUCTS: "The dot product of four bytes in words",
    names.TRANSFER_QUEUE: "The queue that only copies",
    names.KEPT_NAN: "The driver's promise to keep NaN", names.TIMES: "The device's clock",
    names.GROUPS: "Work-groups of more than {} invocations",
    names.SHARED: "More than {} bytes of shared memory",
    names.BINDINGS: "More than {} buffers in one program",
    names.GRIDS: "More than {} work-groups along an axis",
    names.BUFFERS: "What lies behind byte {} of a buffer",
}
"""What each is called in a sentence; {} is the number of those that are sizes."""


@dataclass(frozen=True)
class Verdict:
    """What came of checking a device.

    `identity` is what the driver says of device and driver. `probes` is how many things were tried,
    in `seconds`, on a `date`. `rates` are None where they could not be measured; `unfinished` says
    why the check could not come to an end, if so: such a verdict is not kept. `proven` are things
    that were used, though they are not on every device of the kind: names as removals have them.
    """

    device: str
    driver: str
    identity: str
    code: str
    date: str
    probes: int
    seconds: float
    findings: tuple[Finding, ...] = ()
    rates: GpuRates | None = None
    unfinished: str = ""
    proven: tuple[str, ...] = ()

    @property
    def removals(self) -> tuple[Removal, ...]:
        """What the device is not used for."""
        return tuple(removal_by(name, finding) for finding in self.findings
                     for name in finding.removed)

    @property
    def usable(self) -> bool:
        """Whether programs may run on it."""
        return not any(removal.what == names.DEVICE for removal in self.removals)

    def text(self) -> str:
        """As a file keeps it."""
        return json.dumps({**asdict(self), "rates": self.rates and self.rates.record()}, indent=1)

    @classmethod
    def of(cls, text: str) -> Verdict:
        """The verdict that a file keeps. Raises ValueError, KeyError or TypeError for another text.
        """
        found = json.loads(text)
        found["findings"] = tuple(Finding(each["probe"], each["trouble"], tuple(each["removed"]))
                                  for each in found["findings"])
        found["rates"] = found["rates"] and GpuRates(**found["rates"])
        found["proven"] = tuple(found["proven"])
        verdict = cls(**found)
        if not all(isinstance(removal, Removal) for removal in verdict.removals):
            raise ValueError("a removal has no name")
        return verdict


def removal_by(name: str, finding: Finding) -> Removal:
    """A removal in words."""
    why = f"{thing(name)} cannot be relied on here ({finding.probe}: {finding.trouble})."
    instead = INSTEAD.get(name) or INSTEAD[kind_of(name)]
    return Removal(name, why, f"{instead} {NEWER}" if name == names.DEVICE else instead, SOURCE)


def thing(name: str) -> str:
    """What a removal is about, as a sentence begins.

    >>> thing("work-groups above 256"), thing("matrices 8x8x8 f16 to f32")
    ('Work-groups of more than 256 invocations', 'The matrix unit for 8x8x8 f16 to f32')
    """
    if names.SHAPE.fullmatch(name):
        return f"{THINGS[names.MATRICES]} for {name.removeprefix(names.MATRICES + ' ')}"
    if size := names.SIZE.fullmatch(name):
        return THINGS[size[1]].format(f"{int(size[2]):,}")
    return THINGS[name]


def emitters() -> str:
    """The hash of the code that a verdict depends on."""
    return code_digest(*CODE)


def path_of(identity: str) -> Path:
    """Where the verdict on a device with its driver is kept."""
    digest = hashlib.sha256(f"{identity}\n{emitters()}".encode()).hexdigest()[:32]
    return settings.cache_folder() / FOLDER / f"{digest}.json"


def kept(identity: str) -> Verdict | None:
    """The verdict on a device with its driver, or None where it was not checked."""
    try:
        found = Verdict.of(path_of(identity).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if (found.identity, found.code) == (identity, emitters()) else None


def when_kept(hear: Callable[[], object]) -> None:
    """Call `hear` whenever a verdict is kept: what is known of devices may be another then."""
    _listeners.append(hear)


def keep(verdict: Verdict) -> None:
    """Keep a verdict; one that is unfinished is not. Where nothing can be written, a warning says
    so."""
    if verdict.unfinished:
        return
    path = path_of(verdict.identity)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, verdict.text().encode())
    except OSError as error:
        _log.warning("cannot keep what the check of %s found (%s): it is checked again each time; "
                     "set SMALTI_CACHE to a folder that can be written", verdict.device,
                     error.strerror or error)
    for hear in _listeners:
        hear()


def with_findings(verdict: Verdict, findings: Sequence[Finding]) -> Verdict:
    """A verdict with more that was found."""
    return replace(verdict, findings=(*verdict.findings, *findings))


def without_places(text: str) -> str:
    """A text of a driver without paths of files, which may have the name of a user in them.

    >>> without_places("cannot open /var/cache/driver: no")
    'cannot open …: no'
    """
    return re.sub(r"""(?:[A-Za-z]:)?(?:[\\/][^\s:;,'"()]+)+""", "…", text)
