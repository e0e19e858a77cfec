"""Which replica makes a picture, as pure code."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from smalti.server.routing import Routing

MODELS = ("sd15", "sdxl", "flux")


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from(MODELS), st.integers(1, 5)),
                                   max_size=40), st.floats(0, 10))
def test_no_replica_loads_a_model_twice(count: int, jobs: list[tuple[str, int]],
                                        patience: float) -> None:
    """Jobs that come one each second and take some, on replicas that make one at a time."""
    replicas = [f"replica {number}" for number in range(count)]
    routing, free = Routing(len(MODELS), patience), dict.fromkeys(replicas, 0.0)
    loads: Counter[tuple[str, str]] = Counter()
    for came, (model, takes) in enumerate(jobs):
        now = float(came)
        while True:
            groups = routing.order(replicas, model, now - came)
            asked = [each for group in groups for each in group]
            assert asked and len(set(asked)) == len(asked)
            idle = [each for each in asked if free[each] <= now]
            if idle:
                break
            now += 0.5
        having = [each for each in replicas if model in routing.models(each)]
        if having and idle[0] not in having:
            assert now - came >= patience and all(free[each] > now for each in having)
        loads[idle[0], model] += idle[0] not in having
        routing.sent(idle[0], model)
        free[idle[0]] = now + takes
    assert all(number <= 1 for number in loads.values())


def test_what_is_new_goes_where_least_is() -> None:
    routing = Routing(3)
    for replica, model in (("one", "sd15"), ("one", "sdxl"), ("two", "sd15")):
        routing.sent(replica, model)
    assert routing.order(["one", "two", "three"], "flux", 0.0) == [["three"], ["two"], ["one"]]
    assert routing.order(["one", "two", "three"], "sd15", 0.0) == [["one", "two"]]
    assert routing.order([], "sd15", 0.0) == []


def test_replicas_forget_what_they_do_not_keep_and_what_ended_with_them() -> None:
    routing = Routing(2)
    for model in ("sd15", "sdxl", "sd15", "flux"):
        routing.sent("one", model)
    assert list(routing.models("one")) == ["sd15", "flux"]
    routing.alive(["two"])
    assert list(routing.models("one")) == []
