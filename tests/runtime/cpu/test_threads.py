"""The driver and the workers: every tile once, barriers that hold, cancelling, no hang."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from driver_runs import add_at_once, rest
from slow_threads import LAUNCHES, SPEEDS, left_by_rule

from smalti.codegen.cpu.assembler import Code
from smalti.codegen.cpu.block import joined
from smalti.codegen.cpu.layout import LAUNCH, LEFT_BITS, NO_BARRIER, aligned
from smalti.codegen.cpu.operands import Address
from smalti.codegen.levels import level
from smalti.runtime.cpu.adapter import available_levels
from smalti.runtime.cpu.executable import Executable
from smalti.runtime.cpu.threads import Workers, context, driver_entry, workers

LEVEL = level(available_levels()[0])


def count_calls() -> Code:
    """f(pointers, tile): *pointers[0] += 1; pointers[1][tile] += 1."""
    asm = LEVEL.assembler("count_calls")
    pointers, tile = asm.argument(), asm.argument()
    total, each, one = asm.general(), asm.general(), asm.immediate(1)
    asm.op("mov", total, Address(pointers))
    asm.op("mov", each, Address(pointers, 8))
    add_at_once(asm, total, one)
    asm.set(one, 1)
    add_at_once(asm, asm.offset(each, tile, 8), one)
    return asm.finish()


def check_order() -> Code:
    """f(pointers, tile): pointers[1][tile] += *pointers[0], without a lock."""
    asm = LEVEL.assembler("check_order")
    pointers, tile = asm.argument(), asm.argument()
    source, target, value = asm.general(), asm.general(), asm.general()
    asm.op("mov", source, Address(pointers))
    asm.op("mov", target, Address(pointers, 8))
    asm.op("mov", value, Address(source))
    asm.op("iadd", value, Address(target, 0, tile, 8))
    asm.op("mov_store", Address(target, 0, tile, 8), value)
    return asm.finish()


def clobber() -> Code:
    """f(pointers, tile, scratch, thread): notes its arguments, then overwrites every register."""
    asm = LEVEL.assembler("clobber")
    pointers, tile, scratch, thread = (asm.argument() for _ in range(4))
    place, waste = asm.general(), asm.general()
    asm.op("mov", place, Address(pointers))
    asm.op("mov_store", Address(place, 0, tile, 8), scratch)
    asm.op("mov_store", Address(scratch), thread)
    filled = [asm.general() for _ in range(14)]
    for register in filled:
        asm.set(register, -1)
    for register in filled:
        asm.op("iadd", waste if register is not filled[0] else register, register)
    return asm.finish()


def spin_for(rounds: int) -> Code:
    """f(pointers, tile): *pointers[0] += 1, after some time."""
    asm = LEVEL.assembler("spin_for")
    pointers = asm.argument()
    with asm.loop(rounds):
        rest(asm)
    total, one = asm.general(), asm.immediate(1)
    asm.op("mov", total, Address(pointers))
    add_at_once(asm, total, one)
    return asm.finish()


def beside_others(taken: int) -> Code:
    """f(pointers, tile): pointers[1][tile] += 1, and other threads take so many tiles meanwhile."""
    asm = LEVEL.assembler("beside_others")
    pointers, tile = asm.argument(), asm.argument()
    counter, each, count = asm.general(), asm.general(), asm.immediate(taken)
    asm.op("mov", counter, Address(pointers))
    asm.op("mov", each, Address(pointers, 8))
    add_at_once(asm, counter, count)
    asm.set(count, 1)
    add_at_once(asm, asm.offset(each, tile, 8), count)
    return asm.finish()


def slow_first() -> Code:
    """f(pointers, tile, scratch, thread): pointers[1][tile] += 1; *pointers[0] += 1 for thread 0,
    after much more time than other threads take."""
    asm = LEVEL.assembler("slow_first")
    pointers, tile, _, thread = (asm.argument() for _ in range(4))
    total, each, one, fast = asm.general(), asm.general(), asm.immediate(1), asm.label()
    asm.op("mov", each, Address(pointers, 8))
    add_at_once(asm, asm.offset(each, tile, 8), one)
    asm.op("compare_immediate", thread, 0)
    asm.jump("not_equal", fast)
    with asm.loop(20_000):
        rest(asm)
    asm.op("mov", total, Address(pointers))
    asm.set(one, 1)
    add_at_once(asm, total, one)
    asm.place(fast)
    with asm.loop(100):
        rest(asm)
    return asm.finish()


class Bench:
    """A launch table over the functions above, and the memory that it points to."""

    def __init__(self, function: Code, launches: int, tiles: int, threads: int) -> None:
        block, (place,) = joined([function])
        self.executable = Executable(block)
        self.total = np.zeros(1, np.uint64)
        self.each = np.zeros(tiles, np.uint64)
        self.pointers = np.array([self.total.ctypes.data, self.each.ctypes.data], np.uint64)
        self.counters = np.zeros(launches, np.uint64)
        self.scratch = np.zeros((threads, 8), np.uint64)
        self.table = aligned(launches, LAUNCH)
        self.table["function"] = self.executable.address + place
        self.table["pointers"] = self.pointers.ctypes.data
        self.table["tiles"] = tiles
        self.table["counter"] = self.counters.ctypes.data + 8 * np.arange(launches)
        self.stamps = np.zeros(launches + 1, np.uint64)
        self.state = context(self.table, threads, self.scratch.ctypes.data, 64, self.stamps)

    def run(self, pool: Workers, brief: bool = False) -> None:
        """One run from fresh counters."""
        self.counters[:] = 0
        pool.run(driver_entry(), self.state.ctypes.data, self, brief)


@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("spins", [0, 2000])
def test_every_tile_of_every_launch_runs_once(threads: int, spins: int, brief: bool) -> None:
    launches, tiles = 10_000, 3
    bench = Bench(count_calls(), launches, tiles, threads)
    bench.state["spins"] = spins if threads < 4 else spins // 100
    bench.run(workers(threads), brief)
    assert bench.each.tolist() == [launches] * tiles
    assert bench.total[0] == launches * tiles
    assert bench.state["generation"][0] == (launches if threads > 1 else 0)
    end = time.perf_counter() + 5
    while brief and bench.state["sleepers"][0] and time.perf_counter() < end:
        time.sleep(0.001)  # they leave behind the caller's back
    assert bench.state["sleepers"][0] == bench.state["arrivals"][0] == 0
    assert (np.diff(bench.stamps.astype(np.int64)) > 0).all()


def test_a_launch_sees_what_the_one_before_wrote() -> None:
    # total is one launch's result; the next adds it to every element without a lock
    launches = 2000
    bench = Bench(check_order(), launches, 5, 2)
    bench.total[0] = 1
    chain = np.array([[bench.each.ctypes.data, bench.each.ctypes.data + 8]], np.uint64)
    bench.table["pointers"][1::2] = chain.ctypes.data
    bench.table["tiles"][1::2] = 1
    bench.run(workers(2))
    expected = [0] * 5
    for launch in range(launches):
        if launch % 2:
            expected[1] += expected[0]
        else:
            expected = [(value + 1) for value in expected]
        expected = [value % 2**64 for value in expected]
    assert bench.each.tolist() == expected


def test_arguments_and_clobbered_registers() -> None:
    threads, tiles = 2, 64
    bench = Bench(clobber(), 50, tiles, threads)
    bench.pointers[0] = bench.each.ctypes.data
    bench.run(workers(threads))
    starts = [bench.scratch.ctypes.data + 64 * thread for thread in range(threads)]
    assert set(bench.each.tolist()) <= set(starts)
    for thread in range(threads):
        assert bench.scratch[thread, 0] in (0, thread)


def test_without_barriers_all_tiles_still_run() -> None:
    bench = Bench(count_calls(), 500, 4, 2)
    bench.table["flags"] = NO_BARRIER
    bench.run(workers(2))
    assert bench.total[0] == 2000
    assert bench.state["generation"][0] == 0


def test_a_part_of_the_table_runs_alone() -> None:
    bench = Bench(count_calls(), 10, 1, 2)
    bench.state["first"], bench.state["last"] = 3, 7
    bench.run(workers(2))
    assert bench.counters.nonzero()[0].tolist() == [3, 4, 5, 6]
    bench.state["first"] = 7
    bench.run(workers(2))
    assert bench.total[0] == 4


@pytest.mark.parametrize("threads", [1, 2])
def test_cancelling_ends_within_a_kernel(threads: int) -> None:
    bench = Bench(spin_for(20_000), 100_000, 2, threads)
    timer = threading.Timer(0.2, bench.state["cancel"].fill, (1,))
    timer.start()
    start = time.perf_counter()
    bench.run(workers(threads))
    timer.join()
    assert time.perf_counter() - start < 5
    assert bench.state["stopped"][0] == 1
    assert 0 < bench.total[0] < 200_000
    bench.state["last"] = 20
    before = int(bench.total[0])
    bench.run(workers(threads))  # the next run starts afresh
    assert bench.total[0] - before == 40


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_the_run_and_leaves_the_pool_usable() -> None:
    bench = Bench(spin_for(20_000), 100_000, 2, 2)
    timer = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        bench.run(workers(2))
    timer.join()
    assert bench.state["stopped"][0] == 1
    stopped_at = int(bench.total[0])
    time.sleep(0.05)
    assert bench.total[0] == stopped_at  # nobody works on behind the caller's back
    again = Bench(count_calls(), 10, 2, 2)
    again.run(workers(2))
    assert again.total[0] == 20


def test_many_brief_runs_follow_one_another_and_others() -> None:
    bench = Bench(count_calls(), 3, 4, 2)
    for number in range(300):
        bench.run(workers(2), brief=number % 3 > 0)
        assert bench.total[0] == 12 * (number + 1)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_a_brief_run_is_raised_at_its_end() -> None:
    bench = Bench(spin_for(20_000), 200, 2, 2)
    timer = threading.Timer(0.01, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        bench.run(workers(2), brief=True)
        time.sleep(1)
    timer.join()
    bench.run(workers(2), brief=True)
    assert bench.total[0] == 800


def test_ctrl_c_before_the_caller_takes_part_frees_the_others(
        monkeypatch: pytest.MonkeyPatch) -> None:
    from smalti.runtime.cpu import threads

    bench, interrupts, entered = Bench(count_calls(), 10, 2, 2), [1, 1], threads.call

    def interrupted(*addresses: int) -> None:
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        entered(*addresses)

    monkeypatch.setattr(threads, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.run(workers(2), brief=True)
    assert bench.state["stopped"][0] == 1 and bench.total[0] == 2
    bench.run(workers(2))
    assert bench.total[0] == 22


def test_more_threads_than_cores() -> None:
    bench = Bench(count_calls(), 300, 16, 8)
    start = time.perf_counter()
    bench.run(workers(8))
    assert bench.total[0] == 300 * 16
    assert time.perf_counter() - start < 5


def test_two_callers_take_turns() -> None:
    benches = [Bench(count_calls(), 50, 4, 2) for _ in range(2)]

    def many(bench: Bench) -> None:
        for _ in range(50):
            bench.run(workers(2))

    callers = [threading.Thread(target=many, args=(bench,)) for bench in benches]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [int(bench.total[0]) for bench in benches] == [50 * 50 * 4] * 2


EXIT_WHILE_RUNNING = """
import sys, threading, time
sys.path[:0] = {paths!r}
from test_threads import Bench, spin_for
from smalti.runtime.cpu.threads import workers

bench = Bench(spin_for(20_000), 1_000_000, 2, 2)
threading.Thread(target=bench.run, args=(workers(2),), daemon=True).start()
while not bench.total[0]:
    time.sleep(0.01)
print("running", flush=True)
"""


def test_the_process_can_end_while_workers_run() -> None:
    code = EXIT_WHILE_RUNNING.format(paths=[os.path.dirname(__file__), *sys.path])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                           timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "running\n", "")


def test_pools_are_shared_by_count() -> None:
    assert workers(2) is workers(2)
    assert workers(2).count == 2
    with pytest.raises(ValueError):
        Workers(0)


def test_a_forked_child_gets_threads_of_its_own() -> None:
    bench = Bench(count_calls(), 5, 2, 2)
    bench.run(workers(2))
    child = os.fork()
    if child == 0:
        bench.run(workers(2))
        os._exit(0 if bench.total[0] == 20 else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


def test_a_context_checks_its_arrays() -> None:
    with pytest.raises(ValueError, match="LAUNCH"):
        context(np.zeros(3), 1)
    with pytest.raises(ValueError, match="uint64"):
        context(aligned(3, LAUNCH), 1, stamps=np.zeros(3))


def left_at(threads: int, taken: int, tiles: int, before: int = 0) -> list[int]:
    """For each of some launches how far they are when thread 1 of `threads` leaves it, while the
    others take `taken` tiles in the time of one of its own; `before` of them left already."""
    launches = LAUNCHES
    bench = Bench(beside_others(taken), launches, tiles, threads)
    pointers = np.stack([bench.counters.ctypes.data + 8 * np.arange(launches),
                         np.full(launches, bench.each.ctypes.data)], 1).astype(np.uint64)
    bench.table["pointers"] = pointers.ctypes.data + 16 * np.arange(launches)
    bench.table["flags"] = NO_BARRIER
    bench.counters[:] = before << LEFT_BITS
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)(driver_entry())(
        bench.state.ctypes.data, 1)
    return [int(counter) % 2**LEFT_BITS for counter in bench.counters]


@pytest.mark.parametrize("threads, taken, tiles", SPEEDS)
def test_a_slow_thread_leaves_the_last_tiles_to_the_others(
        threads: int, taken: int, tiles: int) -> None:
    found = left_at(threads, taken, tiles)
    assert found == left_by_rule(threads, taken, tiles)
    slow = taken >= threads  # else it is as fast as the others
    assert (found[-1] < tiles) == slow
    if slow:  # it takes no tile for which the others would wait more than for one of theirs
        assert tiles - found[-1] <= taken
    assert min(left_at(threads, taken, tiles, before=threads - 1)) >= tiles  # nobody is left


def test_every_tile_is_computed_whoever_is_slow() -> None:
    launches, tiles, taken = 300, 24, []
    while len(taken) < 5 and (not taken or taken[-1] >= launches):
        bench = Bench(slow_first(), launches, tiles, 3)
        bench.run(workers(3))
        assert bench.each.tolist() == [launches] * tiles
        taken.append(int(bench.total[0]))
    # it learns that a tile takes it as long as others all, and leaves some launches to them; on a
    # busy computer, where those have to wait, not in each of five runs
    assert taken[-1] < launches
