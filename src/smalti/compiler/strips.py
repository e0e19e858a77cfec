"""Results that are written over an operand, strip by strip, where that is what a program's memory
hangs on.

A convolution needs a row of its operand no more once the rows around it are done. In strips of
rows, with a barrier behind each, its result may therefore begin a little in front of the operand
(`Strips.distance`) and be written over what has been read:

                     │◄─►│ distance
    before           .   ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓     the operand
    after 2 of 4     ████████░░░▓▓▓▓▓▓▓▓▓     the result so far, and rows still to be read
    behind           ████████████████

Where several kernels are the last to read an operand, they run in turns, and their results lie
side by side (`fuse/siblings.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from smalti.compiler.lives import Lives
from smalti.dataclass import dataclass
from smalti.fuse import HostRegion, Partition, Storage
from smalti.fuse.siblings import siblings, side_by_side
from smalti.fuse.support import When
from smalti.schedule import AnySchedule
from smalti.schedule.walk import TileWalk, walk

STRIPS_MAX = 16
STRIP_TILES_PER_THREAD = 12
"""At the end of a strip, threads wait half a tile's time for the last one, on average."""
SAVED_BYTES_MIN, SAVED_SHARE_MIN = 64 << 20, 1 / 8
"""What strips have to save of all that lives between kernels."""

Pick = Callable[[Partition], list[AnySchedule | None]]


@dataclass(frozen=True)
class Strips:
    """That `result` is written over `operand`, which begins `distance` bytes behind it, in `count`
    strips; `walks` are those of the kernels that take turns."""

    count: int
    walks: tuple[TileWalk, ...]
    result: Storage
    operand: Storage
    distance: int

    @property
    def saved_bytes(self) -> int:
        """Bytes by which both are less than one behind the other."""
        return min(self.operand.bytes, self.result.bytes - self.distance)

    def rows(self, number: int, strip: int) -> tuple[int, int]:
        """From which to which row of tiles of its kernel number `number` a strip goes."""
        return _rows(self.walks[number], strip, self.count)


def _rows(each: TileWalk, strip: int, count: int) -> tuple[int, int]:
    return each.rows * strip // count, each.rows * (strip + 1) // count


@dataclass(frozen=True)
class RegionGroup:
    """Regions that run at the same time: one, or several strip by strip in turns."""

    regions: tuple[int, ...]
    strips: Strips | None = None


@dataclass(frozen=True)
class LaunchOrder:
    """The regions of a partition with their schedules, which calls of the host do not have, and the
    turns in which they run, in order."""

    partition: Partition
    schedules: list[AnySchedule | None]
    groups: list[RegionGroup]

    @cached_property
    def lives(self) -> Lives:
        """When each storage is needed, in numbers of turns."""
        return Lives(self.partition, [time for time, group in enumerate(self.groups)
                                      for _ in group.regions])

    @cached_property
    def bytes(self) -> list[int]:
        """Bytes that live while each group runs."""
        found = [0] * (self.lives.end + 1)
        for storage in self.lives.roots:
            first, last = self.lives[storage]
            for time in range(first, last + 1):
                found[time] += storage.bytes
        return [size - (group.strips.saved_bytes if group.strips else 0)
                for size, group in zip(found, self.groups, strict=False)]

    @property
    def peak(self) -> int:
        """The most that lives at one time."""
        return max(self.bytes, default=0)


def launch_orders(found: Partition, pick: Pick, threads: int) -> list[LaunchOrder]:
    """The plain order of a partition, and one in strips if that promises to save much.

    `pick` gives the schedules of a partition's regions; programs run on `threads` threads.
    """
    plain = LaunchOrder(found, pick(found),
                        [RegionGroup((n,)) for n in range(len(found.regions))])
    if not saves_much(plain.peak, 0):
        return [plain]
    best = _in_strips(plain, threads)
    while others := [_in_strips(_in_turns(best, numbers, pick), threads)
                     for numbers in _at_the_peak(best)]:
        other = min(others, key=lambda one: one.peak)
        if other.peak >= best.peak:
            break
        best = other
    if not saves_much(plain.peak, best.peak):
        return [plain]
    whole = _without_strips(best)
    return [plain, LaunchOrder(best.partition, best.schedules, [
        group if size > best.peak else plain_group for group, plain_group, size in zip(
            best.groups, whole.groups, whole.bytes, strict=True)])]


def saves_much(before: int, after: int) -> bool:
    """Whether `after` bytes instead of `before` are worth strips."""
    return before - after >= max(SAVED_BYTES_MIN, SAVED_SHARE_MIN * before)


def _without_strips(one: LaunchOrder) -> LaunchOrder:
    return LaunchOrder(one.partition, one.schedules,
                       [RegionGroup(group.regions) for group in one.groups])


def _in_strips(one: LaunchOrder, threads: int) -> LaunchOrder:
    """The order with strips wherever they are possible."""
    one = _without_strips(one)
    return LaunchOrder(one.partition, one.schedules, [
        RegionGroup(group.regions, _strips(one, time, threads))
        for time, group in enumerate(one.groups)])


def _at_the_peak(one: LaunchOrder) -> list[tuple[int, ...]]:
    """Siblings that run around the time at which the most lives."""
    regions = one.groups[one.bytes.index(one.peak)].regions
    return [numbers for numbers in siblings(one.partition)
            if numbers[0] <= regions[-1] and regions[0] <= numbers[-1]]


def _in_turns(one: LaunchOrder, numbers: Sequence[int], pick: Pick) -> LaunchOrder:
    """The order in which the siblings `numbers` take turns."""
    found, order = side_by_side(one.partition, numbers)
    now = {old: new for new, old in enumerate(order)}
    groups = [group.regions for group in one.groups if not set(group.regions) & set(numbers)]
    groups = sorted(tuple(now[n] for n in regions) for regions in (*groups, tuple(numbers)))
    return LaunchOrder(found, pick(found), [RegionGroup(regions) for regions in groups])


def _strips(one: LaunchOrder, time: int, threads: int) -> Strips | None:
    """The strips that save the most of a group, or None where there are none."""
    numbers = one.groups[time].regions
    regions = [one.partition.regions[n] for n in numbers]
    walks: list[TileWalk] = []
    for n, region in zip(numbers, regions, strict=True):
        schedule = one.schedules[n]
        if schedule is None or isinstance(region, HostRegion) or region.when != When.RUN:
            return None
        tiled = walk(region.kernel, schedule)
        if tiled is None:
            return None
        walks.append(tiled)
    results = {one.lives.root(region.views["out"].storage) for region in regions}
    result = results.pop()
    if results or one.lives[result][0] != time:
        return None
    tiles = max(w.rows * w.tiles for w in walks)
    count = min(STRIPS_MAX, tiles // (STRIP_TILES_PER_THREAD * threads), *(w.rows for w in walks))
    if count < 2:
        return None
    found = [Strips(count, tuple(walks), result, operand, _distance(one, numbers, walks, operand,
                                                                    count))
             for operand in _dying(one, time, walks) if operand is not result]
    return max((strips for strips in found if strips.saved_bytes > 0),
               key=lambda strips: strips.saved_bytes, default=None)


def _dying(one: LaunchOrder, time: int, walks: Sequence[TileWalk]) -> list[Storage]:
    """Storages that are read for the last time by a group, in order only."""
    found: dict[Storage, bool] = {}
    for number, each in zip(one.groups[time].regions, walks, strict=True):
        for name, view in one.partition.regions[number].views.items():
            if name != "out" and view.storage.kind in ("arena", "input"):
                root = one.lives.root(view.storage)
                found[root] = found.get(root, True) and name in each.read
    return [storage for storage, in_order in found.items()
            if in_order and one.lives[storage][1] == time]


def _distance(one: LaunchOrder, numbers: Sequence[int], walks: Sequence[TileWalk], operand: Storage,
              count: int) -> int:
    """How far behind its result an operand has to begin, in bytes, so that no strip writes over
    what it or one behind it reads."""
    most = 0
    for strip in range(count):
        written, read = 0, operand.bytes
        for number, each in zip(numbers, walks, strict=True):
            views, (first, end) = one.partition.regions[number].views, _rows(each, strip, count)
            out = views["out"]
            written = max(written, out.storage.element_bytes * (
                out.offset + int(each.written[end - 1])))
            for name, elements in each.read.items():
                view = views[name]
                if view.storage.kind in ("arena", "input") \
                        and one.lives.root(view.storage) is operand:
                    read = min(read, view.storage.element_bytes * (
                        view.offset + int(elements[first])))
        most = max(most, written - read)
    return most
