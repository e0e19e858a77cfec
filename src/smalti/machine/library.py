"""The library of devices: a table of published and measured figures, a line for each device.

In `devices.csv` the letter after a number says where it comes from: no letter, from the vendor; m,
measured (bandwidths of caches and launches by RRZE's gpu-benches, AMD's Origami and pipeweave); g,
a guess. Numbers that a line leaves empty, and the model needs, are guessed here.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib import resources

from smalti.errors import UnknownDeviceError
from smalti.machine.cores import LANES as NEON_LANES
from smalti.machine.cores import CoreFacts, all_cores
from smalti.machine.device import GUESSED, MEASURED, SPECIFIED, CacheLevel, DeviceModel

ORIGINS = {"": SPECIFIED, "m": MEASURED, "g": GUESSED}

# Guesses, where a device has no figure of its own.
CACHE_BYTES_PER_CLOCK = {"nvidia": 45.0, "amd": 64.0, "intel": 64.0, "apple": 32.0}
"""Bytes that a unit reads from the nearest shared cache in a clock; measured: A100 35, L40 21, H200
36, MI100 15, RX 6900 XT 25, RX 7900 XTX 30."""
MALL_BANDWIDTHS = 3.5
"""Bandwidth of a memory-side cache as a multiple of the memory's; measured: RDNA2 4, RDNA3 3.6,
RDNA4 3.7, MI300X 1.1."""
LAUNCH_SECONDS = {"nvidia": 1.2e-6, "amd": 2.5e-6, "intel": 25e-6, "apple": 5e-6}
"""Seconds between kernels in the vendor's own runtime; Intel's submits each kernel separately."""
CORE_CACHE_BYTES_PER_CLOCK = 64.0
"""Bytes that a core of a CPU reads from its second-level cache in a clock."""
LAST_CACHE_BYTES_PER_CLOCK = 25.0
"""Bytes that a core of a CPU reads from the last-level cache in a clock."""
BARRIER_SECONDS = 2e-6
"""Seconds between kernels on a CPU: a barrier of all threads."""
NEON = "neon"
"""What architectures of CPUs of AArch64 begin with; the name of the core is the end."""
PAIRS = ("zen4", "zen5", "sapphirerapids", f"{NEON}_bf16")
"""Architectures of CPUs with vector instructions for products of pairs of bf16."""
CORES, CORES_MEMORY_GB, CORES_MEMORY_GBPS, CORES_WATTS = 4, 8, 17, 10
"""Of a CPU of which the core is known alone: what the small computers have that such are in."""
REGISTERS_KIB, SHARED_KIB, L1_KIB, THREADS, BLOCKS, WAVE = 256, 64, 32, 1536, 16, 32
"""Of a unit of a GPU: KiB of registers, shared memory and first-level cache, the most invocations
and work-groups that it holds, and invocations of a subgroup."""


class LibraryLine:
    """A line of the table, which remembers where each figure that was asked for comes from."""

    def __init__(self, cells: dict[str, str]) -> None:
        self.cells = cells
        self.origin: dict[str, str] = {}

    def number(self, field: str, column: str, scale: float = 1.0, guess: float = 0.0) -> float:
        """The figure of `column` in SI units; `guess`, marked as one, if the line has none."""
        text = self.cells[column]
        self.origin[field] = ORIGINS[text[-1:] if text[-1:] in ORIGINS else ""] if text else GUESSED
        return float(text.rstrip("mg")) * scale if text else guess


def _caches(line: LibraryLine, vendor: str, units: int, clock: float,
            bandwidth: float) -> tuple[CacheLevel, ...]:
    """The caches that all units share."""
    l2_bytes = line.number("l2_bytes", "l2_mib", 2**20)
    per_clock = (CORE_CACHE_BYTES_PER_CLOCK if line.cells["kind"] == "cpu" else
                 CACHE_BYTES_PER_CLOCK[vendor])
    l2 = line.number("l2_bandwidth", "l2_tbps", 1e12, guess=per_clock * units * clock)
    mall_bytes = line.number("mall_bytes", "mall_mib", 2**20)
    mall = line.number("mall_bandwidth", "mall_tbps", 1e12,
                       guess=LAST_CACHE_BYTES_PER_CLOCK * units * clock
                       if line.cells["kind"] == "cpu" else MALL_BANDWIDTHS * bandwidth)
    found = (CacheLevel("l2", l2_bytes, l2), CacheLevel("mall", mall_bytes, min(mall, l2)))
    return tuple(cache for cache in found if cache.bytes)


def _device(cells: dict[str, str]) -> DeviceModel:
    """The device model of a line of the table."""
    line, vendor = LibraryLine(cells), cells["vendor"]
    number = line.number
    units, clock = int(number("units", "units")), number("clock", "clock_mhz", 1e6, guess=1e9)
    bandwidth = number("bandwidth", "memory_gbps", 1e9)
    f32 = number("vector", "f32_tflops", 1e12, guess=256.0 * units * clock)
    matrix = number("matrix", "f16_matrix_tflops", 1e12)
    dtypes = ("f16", "bf16") if cells["bf16"] else ("f16",)
    cpu = cells["kind"] == "cpu"
    architecture = cells["architecture"]
    lanes = NEON_LANES if architecture.startswith(NEON) else 16 if "avx512" in architecture else 8
    vector = {"f32": f32, "f16": number("vector_f16", "f16_tflops", 1e12, guess=f32)}
    if architecture.startswith(PAIRS):
        vector["bf16"] = 2 * f32
    caches = _caches(line, vendor, units, clock, bandwidth)
    return DeviceModel(
        id=cells["id"], name=cells["name"], vendor=vendor, architecture=architecture,
        kind=cells["kind"], units=units, clock=clock,
        vector=vector,
        matrix={dtype: matrix for dtype in dtypes if matrix and not (cpu and dtype == "f16")},
        registers=number("registers", "registers_kib", 2**10, guess=REGISTERS_KIB * 2**10),
        shared=number("shared", "shared_kib", 2**10, guess=SHARED_KIB * 2**10),
        shared_block=number("shared_block", "shared_block_kib", 2**10, guess=SHARED_KIB * 2**10),
        l1=number("l1", "l1_kib", 2**10, guess=L1_KIB * 2**10), caches=caches,
        memory=number("memory", "memory_gb", 1e9), bandwidth=bandwidth,
        launch=number("launch", "launch_us", 1e-6,
                      guess=BARRIER_SECONDS if cpu else LAUNCH_SECONDS[vendor]),
        link=number("link", "link_gbps", 1e9, guess=bandwidth if cells["integrated"] else 0.0),
        watts=number("watts", "watts"),
        threads=int(number("threads", "threads", guess=THREADS)),
        blocks=int(number("blocks", "blocks", guess=BLOCKS)),
        wave=int(number("wave", "wave", guess=lanes if cpu else WAVE)),
        integrated=bool(cells["integrated"]),
        origin=line.origin)


def _of_cores(core: CoreFacts, columns: Iterable[str]) -> DeviceModel:
    """A CPU of some cores that are known, and of which nothing else is."""
    rate = 2 * CORES * core.clock * core.multiply_adds * NEON_LANES
    figures = {"units": CORES, "clock_mhz": core.clock / 1e6, "f32_tflops": rate / 1e12,
               "l1_kib": core.l1_bytes / 2**10, "l2_mib": CORES * core.l2_bytes / 2**20,
               "memory_gb": CORES_MEMORY_GB, "memory_gbps": CORES_MEMORY_GBPS,
               "watts": CORES_WATTS}
    id = core.name.lower().replace("-", "_").replace(" ", "_")
    return _device({**dict.fromkeys(columns, ""), "id": id, "name": f"{CORES} cores {core.name}",
                    "vendor": "arm", "architecture": f"{NEON}_{id}", "kind": "cpu",
                    **{column: f"{figure:g}g" for column, figure in figures.items()}})


@lru_cache(maxsize=1)
def _cores() -> dict[str, DeviceModel]:
    """CPUs that are asked for by their core, by the plain names of these; Apple names its GPUs as
    its CPUs, which the table has by names of their own."""
    columns = next(_lines()).keys()
    found = {_plain(core.name): _of_cores(core, columns) for core in all_cores()}
    return {name: model for name, model in found.items() if name not in _table()[1]}


def _lines() -> Iterator[dict[str, str]]:
    """The lines of the table."""
    text = resources.files(__package__).joinpath("devices.csv").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


@lru_cache(maxsize=1)
def _table() -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The lines of all devices by id; and ids by every name of a device, without separators."""
    lines: dict[str, dict[str, str]] = {}
    names: dict[str, str] = {}
    for cells in _lines():
        lines[cells["id"]] = cells
        for name in (cells["id"], *cells["aliases"].split(), cells["name"]):
            names.setdefault(_plain(name), cells["id"])
    return lines, names


@cache
def _of_table(id: str) -> DeviceModel:
    """The device of this id."""
    return _device(_table()[0][id])


def _plain(name: str) -> str:
    """A name in the form in which names are compared: lower-case letters and digits only."""
    plain = "".join(c for c in name.lower().replace("(r)", "").replace("(tm)", "") if c.isalnum())
    plain = plain.replace("laptopgpu", "mobile")
    for brand in ("nvidia", "geforce", "amd", "radeon", "instinct", "intel", "apple"):
        plain = plain.removeprefix(brand)
    return plain.removesuffix("graphics")


def devices() -> list[DeviceModel]:
    """Every device of the library.

    >>> len(devices()) > 100
    True
    """
    return [_of_table(id) for id in _table()[0]]


def known_device(name: str) -> DeviceModel | None:
    """The device of a name, as `device` takes it, or None where none has it. Raises
    UnknownDeviceError for what is no text.

    >>> known_device("NVIDIA GeForce RTX 4060").id, known_device("an abacus")
    ('rtx_4060', None)
    """
    if not isinstance(name, str):
        raise UnknownDeviceError(f"a device is named {name!r}; expected a text, such as rtx_4060")
    plain, (_, names) = _plain(name), _table()
    return _of_table(names[plain]) if plain in names else _cores().get(plain)


def device(name: str) -> DeviceModel:
    """The device of a name: its id, such as rtx_4060, or the name that the vendor or a driver gives
    it. The name of a core of Arm's, such as cortex_a76, is that of a small computer with four.

    Raises UnknownDeviceError, which is an InputError and a KeyError and lists similar names.

    >>> device("rtx_4060").units, device("NVIDIA GeForce RTX 4060").id
    (24, 'rtx_4060')
    """
    found = known_device(name)
    if found is None:
        known = {**{plain: model.id for plain, model in _cores().items()}, **_table()[1]}
        near = difflib.get_close_matches(_plain(name), known, n=6, cutoff=0.5)
        listed = ", ".join(dict.fromkeys(known[match] for match in near))
        raise UnknownDeviceError(f"no device {name!r} in the library"
                                 + (f"; near names: {listed}" if listed else
                                    "; it has GPUs and CPUs by the names of their makers, such as "
                                    "rtx_4060, rx_7600, m1, core_i5_12400 or raspberry_pi_5"))
    return found
