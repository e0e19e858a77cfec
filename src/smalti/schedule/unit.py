"""What one compute unit of a GPU does in a clock, for the choice of schedules."""

from __future__ import annotations

from smalti.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class UnitRates:
    """Rates and memories of a compute unit (streaming multiprocessor, Xe core).

    The defaults are those of no device, but near those of many: for one that nobody knows.
    `machine/unit_rates.py` has those of the devices of the library.
    """

    factors: float = 128.0
    """Multiply-adds of f32 in a clock: as many instructions of one invocation."""
    dots: float = 64.0
    """Dot products of four bytes each, where an instruction does them."""
    matrix: float = 512.0
    """Multiply-adds of the matrix unit, of halves into sums of f32."""
    matrix_bytes: float = 1024.0
    """Multiply-adds of the matrix unit, of bytes into sums of i32."""
    shared: float = 128.0
    """Bytes of shared memory in a clock."""
    cache: float = 32.0
    """Bytes from the nearest cache that all units share, in a clock."""
    cache_bytes: int = 4 << 20
    """What that cache holds."""
    last: float = 32.0
    """This unit's part of the bytes from the last cache, in a clock; `cache` where there is one
    cache."""
    last_bytes: int = 4 << 20
    """What the last cache holds."""
    memory: float = 8.0
    """This unit's part of the bytes from memory."""
    registers: int = 1 << 16
    """Registers of 32 bits."""
    shared_bytes: int = 64 << 10
    """Bytes of shared memory."""
    units: int = 32
    """How many units there are, where the driver does not tell."""
    exclusive: bool = False
    """True if products in the matrix unit and other instructions take turns."""
    copies: int = 1
    """How often a factor of matrices is held in the registers of a subgroup."""
    made: float = 1.0
    """Instructions that compilers make of one beside the products: scalar ones count where these
    have no unit of their own."""
    read: float = 0.0
    """Instructions for a matrix that is read from shared memory, beside the loads."""
