"""Which architecture a GPU is of, from what its driver tells: by its name where the library of
devices has it, else by what its vendor's architectures differ in."""

from __future__ import annotations

import re
from dataclasses import replace

from smalti import machine
from smalti.machine.unit_rates import rates_for
from smalti.runtime.gpu import quirks
from smalti.schedule.compute_units import LIKE, UNITS
from smalti.schedule.group import GroupLimits

BRAND = re.compile(r"\((?:R|TM)\)|\(.*|Graphics$|/.*", re.I)
"""What drivers say besides the name of a GPU."""
BY_KIND = {quirks.BEFORE_RDNA3: "rdna2", quirks.RDNA3: "rdna3_big", quirks.BEFORE_XE2: "xe_hpg",
           quirks.XE2: "xe2_hpg"}
"""The architecture whose units are taken for those of a GPU of AMD or Intel that is not known."""
BY_WARPS = {32: "turing_rtx", 48: "ampere_ga10x", 64: "ampere_ga100"}
"""The same for NVIDIA's, by the warps that a multiprocessor runs at a time."""


def library_name(name: str) -> str:
    """The name that the library of devices may have for what a driver calls a GPU.

    >>> library_name("AMD Radeon RX 7900 XTX (RADV NAVI31)")
    'AMD Radeon RX 7900 XTX'
    """
    return BRAND.sub("", name).strip()


def architecture_of(name: str, kind: str, vendor: str, *, bf16: bool, warps: int) -> str:
    """A name of `schedule/compute_units.py`, or "" where nothing is known.

    `kind` is what `quirks.architecture` says, `warps` what a multiprocessor of NVIDIA's runs at a
    time. GPUs of AMD compute with bf16 from RDNA 4 on.

    >>> architecture_of("NVIDIA GeForce RTX 4060", "", "NVIDIA", bf16=False, warps=48)
    'ada'
    >>> architecture_of("AMD Radeon Graphics (RADV NAVI31)", quirks.RDNA3, "AMD", bf16=False,
    ...                 warps=0)
    'rdna3_big'
    """
    known = machine.known_device(library_name(name))
    if known is not None and (known.architecture in UNITS or known.architecture in LIKE):
        return known.architecture
    if vendor == "NVIDIA":
        return BY_WARPS.get(warps, "")
    if kind == quirks.RDNA3 and bf16:
        return "rdna4"
    return BY_KIND.get(kind, "")


def with_rates(limits: GroupLimits, name: str) -> GroupLimits:
    """The limits of a GPU that its driver calls so with the rates of its units, as the library of
    devices has them for it or for others of its architecture."""
    return replace(limits, rates=rates_for(library_name(name), limits.architecture))
