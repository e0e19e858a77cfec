"""Schedules: how a kernel is computed, as frozen data, and what makes one illegal."""

from smalti.schedule.arithmetic import arithmetic
from smalti.schedule.choose import choose
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupLimits, GroupSchedule
from smalti.schedule.schedule import (
    Algorithm,
    AttentionSchedule,
    ContractionSchedule,
    DepthwiseSchedule,
    Direct,
    InPlace,
    Limits,
    MapSchedule,
    MomentsSchedule,
    Planar,
    ReductionSchedule,
    Schedule,
    Winograd,
)
from smalti.schedule.text import AnySchedule, parse

__all__ = ["Algorithm", "AnySchedule", "AttentionSchedule", "ContractionSchedule",
           "DepthwiseSchedule", "Direct", "GroupLimits", "GroupSchedule", "InPlace", "Limits",
           "MapSchedule", "MomentsSchedule", "Planar", "ReductionSchedule", "Schedule", "Winograd",
           "arithmetic", "choose", "choose_group", "parse"]
