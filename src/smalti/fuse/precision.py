"""Precision: which values between kernels are stored as halves, which parameters so or in blocks.

The one place that decides it. Parameters are held as f16, as bf16 or quantised where they are given
so, which loses nothing. Arithmetic is f32 whatever the storage: a kernel widens what it loads and
rounds what it stores. f32 stay

* what the caller sees: inputs and outputs of the program;
* scale and shift of normalisations, whose error would be that of every pixel, and whatever else
  is computed once from weights only;
* values of fewer than `ELEMENTS_MIN` elements (embeddings of the time step): they are read from
  cache, so that fewer bytes save no time, and they act on everything;
* what numpy reads or writes between kernels.

Halves of the graph itself are f32 by then (`rewrite/halves.py`), but for inputs and outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from smalti.fuse.region import HostRegion, Partition, Region
from smalti.fuse.support import When
from smalti.fuse.view import Storage, View
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import ELEMENT_BYTES

ELEMENTS_MIN = 1 << 14
"""Elements of a value, 64 KiB of f32, from which on fewer bytes save time: smaller ones stay in the
caches anyway."""
WIDENING = ("contraction", "depthwise", "map")
"""Forms of kernels that read f16 wherever they read."""


def narrowed(found: Partition, elements_min: int = ELEMENTS_MIN, dtype: str = "bf16") -> Partition:
    """The partition `found`, storing values between kernels of at least `elements_min` elements as
    `dtype`, "bf16" or "f16"."""
    seen = {view.storage for view in found.outputs.values()}
    seen |= {view.storage for region in found.regions if isinstance(region, HostRegion)
             for view in region.views.values()}
    made = {region.views["out"].storage for region in found.regions
            if "out" in region.views and region.when > When.BINDING} - seen
    narrow = {storage: replace(storage, dtype=dtype) for storage in made
              if storage.kind == "arena" and storage.dtype == "f32"
              and storage.size >= elements_min}
    return stored_in(found, narrow)


def held(found: Partition, dtypes: Mapping[str, str],
         elements_min: int = ELEMENTS_MIN) -> Partition:
    """The partition `found`, with parameters held as `dtypes` says by their names: as halves, or
    quantised.

    Those are parameters of at least `elements_min` elements that only kernels of the forms
    `WIDENING` read: the weights of products, tables of embeddings. Quantised are those that only
    products read, whose channels are whole groups, each with its window as a file has them; others
    that should be are f16. All else stays f32.
    """
    readers: dict[Storage, list[str]] = {}
    for region in found.regions:
        for name, view in region.views.items():
            storage = view.storage
            if storage.kind == "parameter" and storage.name in dtypes:
                readers.setdefault(storage, []).append(
                    _read_as(region, name, view, dtypes[storage.name]))
    stored = {storage: replace(storage, dtype=max(asked, key=lambda dtype: ELEMENT_BYTES[dtype]))
              for storage, asked in readers.items()
              if storage.dtype == "f32" and storage.size >= elements_min}
    return stored_in(found, stored)


def _read_as(region: Region | HostRegion, name: str, view: View, dtype: str) -> str:
    """The dtype in which a region can read `view`, which it calls `name`: `dtype`, as which it is
    given, or a wider one."""
    if isinstance(region, HostRegion) or region.kernel.form not in WIDENING:
        return "f32"
    form = FORMATS.get(dtype)
    if form is None:
        return dtype
    if region.kernel.form != "contraction" or name != "weight" or len(view.shape) != 4:
        return "f16"
    (_, channels, *window), (row, *inner) = view.shape, view.strides
    dense = (math.prod(window), window[1], 1)
    whole = not any(n % form.group for n in (channels, row, view.offset))
    side_by_side = all(n == 1 or step == wanted
                       for n, step, wanted in zip(view.shape[1:], inner, dense))
    return dtype if whole and side_by_side else "f16"


def stored_in(found: Partition, storages: Mapping[Storage, Storage]) -> Partition:
    """The partition `found` with storages replaced: each key of `storages` by its value."""
    def moved(views: Mapping[str, View]) -> dict[str, View]:
        return {name: replace(view, storage=storages.get(view.storage, view.storage))
                for name, view in views.items()}

    regions: list[Region | HostRegion] = []
    for region in found.regions:
        views = moved(region.views)
        if isinstance(region, HostRegion):
            regions.append(replace(region, views=views))
            continue
        buffers = tuple(replace(b, dtype=views[b.name].storage.dtype) if b.name in views else b
                        for b in region.kernel.buffers)
        regions.append(replace(region, views=views, kernel=replace(region.kernel, buffers=buffers)))
    return replace(found, inputs=moved(found.inputs), outputs=moved(found.outputs),
                   regions=regions)
