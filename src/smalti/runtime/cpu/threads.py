"""Worker threads: in a run each makes a single native call, while the caller waits and can be
interrupted.

    pool = workers(4)
    state = context(table, threads=4, scratch=address, scratch_bytes=size)
    pool.run(driver_address, state.ctypes.data)
"""

from __future__ import annotations

import ctypes
import os
import queue
import sys
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from smalti import cores
from smalti.codegen.arm64.driver import driver as arm64_driver
from smalti.codegen.cpu.layout import CONTEXT, LAUNCH, aligned, offset
from smalti.codegen.x86.driver import driver as x86_driver
from smalti.errors import DeviceError
from smalti.runtime.cpu.adapter import cpu
from smalti.runtime.cpu.architecture import architecture
from smalti.runtime.cpu.executable import Executable

SPINS = 2000
"""How often a thread polls a barrier before it sleeps: some 50 us, about what waking it costs."""
SPINS_CROWDED = 20
"""The same if there are more threads than cores: polling takes time from the others."""
LOOK_SECONDS = 0.1
"""Seconds between checks for Ctrl-C where the system does not wake a waiting caller."""

Job = tuple[int, int, int, object]
"""(number, address of the driver, address of the context, object to keep alive meanwhile)."""

_making = threading.Lock()
_DRIVER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)


def context(table: np.ndarray, threads: int, scratch: int = 0, scratch_bytes: int = 0,
            stamps: np.ndarray | None = None) -> np.ndarray:
    """The context of runs of a launch table, as an array of one `CONTEXT` record.

    `table` is an array of `LAUNCH` records. Thread i works in the `scratch_bytes` at address
    `scratch + i * scratch_bytes`. `stamps`, uint64[len(table) + 1], receives the time stamp counter
    (on AArch64 the system counter) before the first launch and after each. All of these must
    outlive the context. Raises ValueError when the arrays are not of these types.
    """
    if table.dtype != LAUNCH or not table.flags.c_contiguous:
        raise ValueError(f"a launch table is a contiguous array of LAUNCH, not {table.dtype}")
    if stamps is not None and (stamps.dtype != np.uint64 or stamps.shape != (len(table) + 1,)):
        raise ValueError(f"time stamps are uint64[{len(table) + 1}], not "
                         f"{stamps.dtype}{list(stamps.shape)}")
    state = aligned(1, CONTEXT)
    state["launches"] = table.ctypes.data
    state["last"] = len(table)
    state["threads"] = threads
    state["spins"] = SPINS if threads <= len(cores.usable()) else SPINS_CROWDED
    state["scratch"] = scratch
    state["scratch_bytes"] = scratch_bytes
    state["stamps"] = 0 if stamps is None else stamps.ctypes.data
    state["wait"], state["wake"] = _sleeping_functions()
    return state


def _sleeping_functions() -> tuple[int, int]:
    """Addresses of the system's functions for sleeping on a word and for waking the sleepers."""
    if sys.platform == "win32":
        synch = ctypes.WinDLL("api-ms-win-core-synch-l1-2-0")
        return _address(synch.WaitOnAddress), _address(synch.WakeByAddressAll)
    if sys.platform == "darwin":
        system = ctypes.CDLL(None)
        return _address(system.__ulock_wait), _address(system.__ulock_wake)
    return 0, 0


def _address(function: Any) -> int:
    """The address of a ctypes function's code."""
    return ctypes.cast(function, ctypes.c_void_p).value


@cache
def _function(entry_address: int) -> Callable[[int, int], None]:
    return _DRIVER(entry_address)


@lru_cache(maxsize=1)
def _driver() -> tuple[Executable, int]:
    """The driver's code, and its address."""
    code = (arm64_driver(sys.platform, "atomics" in cpu().features) if architecture() == "arm64"
            else x86_driver(sys.platform))
    executable = Executable(code.bytes)
    return executable, executable.address + code.entry


def driver_entry() -> int:
    """Address of the driver, which every worker calls once a run."""
    with _making:  # if two threads made one at the same time, one would be freed while it runs
        return _driver()[1]


def call(entry_address: int, context_address: int) -> None:
    """Run a context as thread 0 in the calling thread, without holding the GIL."""
    _function(entry_address)(context_address, 0)


class Workers:
    """A pool of `count` threads that wait for runs; they end with the process, or by `close`.

    Raises DeviceError if the system gives no more threads.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"a pool has at least one worker, not {count}")
        self.count = count
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._turn = threading.Lock()
        self._ticket = 0
        self._finished = [0] * self.count
        self._jobs: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in range(self.count)]
        self._news: queue.SimpleQueue = queue.SimpleQueue()
        for number in range(self.count):
            thread = threading.Thread(target=self._work, args=(number, self._jobs[number]),
                                      name=f"smalti-{number}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self.close()
                raise DeviceError(f"the system gives no {self.count} threads ({error}); ask for "
                                  f"fewer with SMALTI_THREADS") from None

    def _work(self, number: int, jobs: queue.SimpleQueue) -> None:
        """Run jobs until None comes; a job that has been done already is skipped."""
        while (job := jobs.get()) is not None:
            ticket, entry, context_address, _ = job
            if ticket > self._finished[number]:
                _function(entry)(context_address, number)
                self._finished[number] = ticket
                if self._all_finished(ticket):
                    self._news.put(None)

    def _all_finished(self, ticket: int) -> bool:
        return all(done == ticket for done in self._finished)

    def run(self, entry_address: int, context_address: int, keep: object = None,
            brief: bool = False) -> None:
        """Call the driver at `entry_address` in every worker; return when all have returned.

        The context's `cancel` and `stopped` are cleared first. On Ctrl-C, `cancel` is set, the
        workers return after the kernel that is running, and then KeyboardInterrupt is raised. Calls
        from several Python threads take turns.

        In a `brief` run, too short to wait for in another thread, the caller itself is thread 0,
        and Ctrl-C takes effect at the end. Workers may then return from the driver after this
        method does: `keep` keeps alive what they still need, code and context.
        """
        if self._process != os.getpid():  # after a fork the threads are the parent's
            self._start()
        with self._turn:
            self._ticket += 1
            job = (self._ticket, entry_address, context_address, keep)
            _write(context_address, "cancel", 0)
            _write(context_address, "stopped", 0)
            if brief:
                self._run_along(job)
            else:
                self._run_beside(job)

    def _run_beside(self, job: Job) -> None:
        try:
            self._hand_out(job, 0)
            while not self._all_finished(job[0]):
                self._wait()
        except BaseException:
            _write(job[2], "cancel", 1)
            self._leave(job)
            raise

    def _run_along(self, job: Job) -> None:
        """Run with the caller as thread 0. It returns after the last barrier, without waiting for
        the other threads to leave the driver."""
        _, entry, context_address, _ = job
        before = _read(context_address, "generation")
        try:
            self._hand_out(job, 1)
            call(entry, context_address)
        except BaseException:
            self._finish_along(job, before)
            raise

    def _finish_along(self, job: Job, before: int) -> None:
        """End a run during which the caller was interrupted, before its own call of the driver or
        after it.

        Afterwards no thread is in the driver, so none can miss that the run was cancelled.
        """
        ticket, entry, context_address, _ = job
        while True:
            try:
                if _read(context_address, "generation") == before:  # the others wait for thread 0
                    _write(context_address, "cancel", 1)
                    self._hand_out(job, 1)
                    call(entry, context_address)
                self._finished[0] = ticket
                while not self._all_finished(ticket):
                    self._wait()
                return
            except KeyboardInterrupt:
                continue

    def _hand_out(self, job: Job, first: int) -> None:
        """Give the job to the workers from number `first` on."""
        for jobs in self._jobs[first:]:
            jobs.put(job)

    def _wait(self) -> None:
        try:
            self._news.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            return

    def _leave(self, job: Job) -> None:
        """Wait until the cancelled job is done, whatever interrupts; then memory may be freed."""
        handed_out = False
        while not self._all_finished(job[0]):
            try:
                if not handed_out:  # the interrupt may have come between two workers
                    self._hand_out(job, 0)
                    handed_out = True
                self._wait()
            except KeyboardInterrupt:
                continue

    def close(self) -> None:
        """End the threads as soon as they are idle; the pool cannot be used afterwards."""
        for jobs in self._jobs:
            jobs.put(None)


def _write(context_address: int, field: str, value: int) -> None:
    ctypes.c_uint64.from_address(context_address + offset(CONTEXT, field)).value = value


def _read(context_address: int, field: str) -> int:
    return ctypes.c_uint64.from_address(context_address + offset(CONTEXT, field)).value


_pools: dict[int, Workers] = {}
_pools_lock = threading.Lock()


def workers(count: int) -> Workers:
    """The pool of `count` workers that all programs of this process share."""
    with _pools_lock:
        if count not in _pools:
            _pools[count] = Workers(count)
        return _pools[count]
