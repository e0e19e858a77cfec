"""The schedule that the timing model prefers to the first choice, near it.

One decision after another is changed for the best (`schedule.space.around`), so that a choice takes
some tens of estimates. The model has to expect a good deal of it: what it tells apart by less, it
does not know.
"""

from __future__ import annotations

from collections.abc import Callable

from smalti.kernel.form import Kernel
from smalti.schedule import Limits, Schedule
from smalti.schedule.merge import contraction_extents
from smalti.schedule.space import around

GAIN_MIN = 0.1
"""What the model has to expect less time of, as a share, to overrule the first choice. Of what it
expects 3 to 10 % of, as much turns out slower as faster."""
DECISIONS = ("panels", "chunk")
"""Those that the model may make: of its tiles of pixels too many are slower."""
ROUNDS = 2
"""How often each decision is made anew, with the others as they are by then."""
WINDOW_DECISIONS = ("panels",)
"""The decisions that it may make for windows: the layout of packed weights of a direct sum goes by
chunks, and a program for another shape is to share them; of Winograd the chunks of the rules were
as good."""


def preferred(kernel: Kernel, limits: Limits, first: Schedule,
              seconds: Callable[[Schedule], float]) -> Schedule:
    """The schedule near `first` for which `seconds` are least, if these are far less.

    It is of the same arithmetic, so no byte of a result depends on it.

    >>> from smalti.kernel.form import Buffer, Load, Stage, axis
    >>> from smalti.schedule import MapSchedule
    >>> x, out = Buffer("x", "input", (8, 8), (16, 1)), Buffer("out", "output", (8, 8), (8, 1))
    >>> copy = Stage("out", (("i", 8), ("j", 8)), Load("x", (axis("i"), axis("j"))))
    >>> kernel, first = Kernel("map", (x, out), (copy,)), MapSchedule(8)
    >>> preferred(kernel, Limits(8, 16), first, lambda s: s.grain).grain
    1
    >>> preferred(kernel, Limits(8, 16), first, lambda s: 100 + s.grain) == first
    True
    """
    decisions = WINDOW_DECISIONS if windowed(kernel) else DECISIONS
    best, least = first, (usual := seconds(first))
    for _ in range(ROUNDS):
        before = best
        for other in around(kernel, limits, best, decisions):
            if getattr(other, "shared", False) > getattr(first, "shared", False):
                continue  # it would keep the result from being written over its operand
            took = seconds(other)
            if took < least:
                best, least = other, took
        if best == before:
            break
    return best if least <= (1 - GAIN_MIN) * usual else first


def windowed(kernel: Kernel) -> bool:
    """True if it is a convolution with more than one tap."""
    if kernel.form != "contraction":
        return False
    e = contraction_extents(kernel)
    return e.r * e.s > 1
