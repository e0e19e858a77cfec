"""The decisions for a kernel, as frozen data, and what makes them illegal."""

from smalti.schedule.arithmetic import arithmetic
from smalti.schedule.choose import choose
from smalti.schedule.choose_group import choose_group
from smalti.schedule.group import GroupLimits, GroupSchedule
from smalti.schedule.schedule import (
    AttentionSchedule,
    ContractionSchedule,
    DepthwiseSchedule,
    Limits,
    MapSchedule,
    MomentsSchedule,
    ReductionSchedule,
    Schedule,
)
from smalti.schedule.text import parse

__all__ = ["AttentionSchedule", "ContractionSchedule", "DepthwiseSchedule", "GroupLimits",
           "GroupSchedule", "Limits", "MapSchedule", "MomentsSchedule", "ReductionSchedule",
           "Schedule", "arithmetic", "choose", "choose_group", "parse"]
