"""Binding: parameters read from wherever they are, checked, and packed as the schedules want."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from smalti.errors import InputError, NumericsError
from smalti.runtime.image import Image, Slot

Read = Callable[[str], np.ndarray]


def bind(image: Image, memory: np.ndarray, read: Read, threads: int) -> None:
    """Fill `memory` (uint8, `image.weights_bytes`) with the parameters that `read(name)` gives.

    Raises InputError for a parameter of another shape, NumericsError for NaN or Inf in one.
    """
    by_name: dict[str, list[Slot]] = {}
    for slot in image.slots:
        if slot.name:
            by_name.setdefault(slot.name, []).append(slot)
        else:
            constants = np.frombuffer(image.constants, np.float32)
            _fill(slot, memory, constants)

    def load(item: tuple[str, list[Slot]]) -> None:
        name, slots = item
        values = checked(name, read(name), image.parameters[name]).reshape(-1)
        for slot in slots:
            _fill(slot, memory, values)

    with ThreadPoolExecutor(max(1, threads)) as pool:
        _drain(pool.map(load, by_name.items()))


def _drain(results: Iterable[None]) -> None:
    for _ in results:
        pass


def checked(name: str, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`values` as dense float32 of `shape`, finite."""
    array = np.ascontiguousarray(values, np.float32)
    if array.shape != shape:
        raise InputError(f"weight {name!r} has shape {list(array.shape)}, the program expects "
                         f"{list(shape)}")
    flat = array.reshape(-1)
    if not np.isfinite(np.dot(flat, flat)) and not np.isfinite(flat).all():
        bad = np.flatnonzero(~np.isfinite(flat))
        where = [int(i) for i in np.unravel_index(bad[0], shape)]
        raise NumericsError(f"weight {name!r} holds {len(bad)} values that are NaN or infinite, "
                            f"the first at {where}; the model file is damaged or its training "
                            f"diverged, use another copy")
    return array


def _fill(slot: Slot, memory: np.ndarray, values: np.ndarray) -> None:
    """Write one slot from the elements of its parameter."""
    if slot.kind != "packed":
        count = slot.bytes // 4
        target = memory[slot.offset:slot.offset + slot.bytes].view(np.float32)
        target[:] = values[slot.start:slot.start + count].view(np.float32)
        return
    strides = tuple(4 * s for s in slot.strides)
    view = np.ndarray(slot.shape, np.float32, values.data, 4 * slot.start, strides)
    pack(view, slot.packing, memory[slot.offset:slot.offset + slot.bytes])


def pack(weight: np.ndarray, packing: dict, out: np.ndarray) -> None:
    """`weight` [o, c, r, s] into `out` (uint8) as `PackedWeight` describes, a panel at a time."""
    width, chunk = packing["width"], packing["chunk"]
    channels, rows, columns = packing["channels"], packing["rows"], packing["columns"]
    chunks = -(-channels // chunk)
    pairs = packing["dtype"] == "bf16"
    panels = -(-packing["out_channels"] // width)
    target = out.view(np.uint16 if pairs else np.float32).reshape(panels, -1)
    for number in range(panels):
        part = weight[number * width:(number + 1) * width]
        dense = np.zeros((chunks * chunk, rows * columns, width), np.float32)
        dense[:channels, :, :len(part)] = part.reshape(len(part), channels, -1).transpose(1, 2, 0)
        turned = dense.reshape(chunks, chunk, rows * columns, width).transpose(0, 2, 1, 3)
        if not pairs:
            target[number].reshape(turned.shape)[...] = turned
            continue
        halves = to_bf16(np.ascontiguousarray(turned)).reshape(
            chunks, rows * columns, chunk // 2, 2, width).transpose(0, 1, 2, 4, 3)
        target[number].reshape(halves.shape)[...] = halves


def to_bf16(values: np.ndarray) -> np.ndarray:
    """f32 rounded to the nearest bf16 (ties to even), as uint16."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
