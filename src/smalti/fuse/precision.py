"""Decides in which dtype values between kernels, and parameters, are stored.

This is the one place that decides it. Parameters that are given as f16, bf16 or quantised are kept
so in memory, which loses nothing. Values between kernels may be stored as halves (f16, bf16).
Arithmetic is f32 whatever the storage: a kernel widens what it loads and rounds what it stores.
These stay f32:

* what the caller sees: inputs and outputs of the program;
* scale and shift of normalisations, because their error would be that of every pixel, and all
  else that is computed once from weights only;
* values of fewer than `ELEMENTS_MIN` elements, such as embeddings of the time step: they are read
  from cache, so fewer bytes save no time, while their error would affect everything;
* what numpy reads or writes between kernels.

Where the graph itself asks for halves, `rewrite/halves.py` has made these f32 before, but for
inputs and outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from smalti.fuse.region import HostRegion, Partition, Region
from smalti.fuse.support import When
from smalti.fuse.view import Storage, View
from smalti.graph.quantised import FORMATS
from smalti.kernel.form import ELEMENT_BYTES, rounded_weights

ELEMENTS_MIN = 1 << 14
"""Values of at least so many elements, 64 KiB of f32, are stored as halves: smaller ones stay in
the caches, where fewer bytes save no time."""
WIDENING = ("contraction", "depthwise", "map")
"""Forms of kernels all of whose loads can widen halves."""


def narrowed(found: Partition, elements_min: int = ELEMENTS_MIN, dtype: str = "bf16") -> Partition:
    """The partition `found` with values between kernels stored as `dtype`, "bf16" or "f16".

    Only values of at least `elements_min` elements are; the docstring of this module says which
    stay f32.
    """
    seen = {view.storage for view in found.outputs.values()}
    seen |= {view.storage for region in found.regions if isinstance(region, HostRegion)
             for view in region.views.values()}
    made = {region.views["out"].storage for region in found.regions
            if "out" in region.views and region.when > When.BINDING} - seen
    narrow = {storage: replace(storage, dtype=dtype) for storage in made
              if storage.kind == "arena" and storage.dtype == "f32"
              and storage.size >= elements_min}
    return stored_in(found, narrow)


def held(found: Partition, dtypes: Mapping[str, str], elements_min: int = ELEMENTS_MIN,
         codes: bool = False) -> Partition:
    """The partition `found` with parameters stored in the dtypes that `dtypes` gives by name.

    A parameter stays f32 if it has fewer than `elements_min` elements, or if something else than
    kernels of the forms `WIDENING` reads it; so these are weights of contractions and tables of
    embeddings. A quantised format needs more: only contractions may read the weight, its channels
    have to be a multiple of the format's group, and it has to lie as in the file. Where a product
    of integers reads it, these have to be its codes, as `codes` says that a target has it for
    windows of one pixel. Where that does not hold, the weight is stored as f16. If several kernels
    read a parameter, it gets the widest dtype that one of them needs.
    """
    readers: dict[Storage, list[str]] = {}
    for region in found.regions:
        for name, view in region.views.items():
            storage = view.storage
            if storage.kind == "parameter" and storage.name in dtypes:
                readers.setdefault(storage, []).append(
                    _read_as(region, name, view, dtypes[storage.name], codes))
    stored = {storage: replace(storage, dtype=max(asked, key=lambda dtype: ELEMENT_BYTES[dtype]))
              for storage, asked in readers.items()
              if storage.dtype == "f32" and storage.size >= elements_min}
    return stored_in(found, stored)


def _read_as(region: Region | HostRegion, name: str, view: View, dtype: str, codes: bool) -> str:
    """The dtype in which a region can read the parameter at `view`, its operand `name`: `dtype`, in
    which it is given, if possible, else f16 or f32."""
    if isinstance(region, HostRegion) or region.kernel.form not in WIDENING:
        return "f32"
    form = FORMATS.get(dtype)
    if form is None:
        return dtype
    if region.kernel.form != "contraction" or name != "weight" or len(view.shape) != 4:
        return "f16"
    (_, channels, *window), (row, *inner) = view.shape, view.strides
    if rounded_weights(region.kernel) and not (
            codes and math.prod(window) == 1 and "zero" in dict(region.kernel.options)):
        return "f16"
    dense = (math.prod(window), window[1], 1)
    whole = not any(n % form.group for n in (channels, row, view.offset))
    side_by_side = all(n == 1 or step == wanted
                       for n, step, wanted in zip(view.shape[1:], inner, dense))
    return dtype if whole and side_by_side else "f16"


def stored_in(found: Partition, storages: Mapping[Storage, Storage]) -> Partition:
    """The partition `found` with each storage that is a key of `storages` replaced by its value."""
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
