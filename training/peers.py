"""Several processes that learn together: each draws a batch of its own, and all take the mean of
their gradients, so that they stay the same."""

from __future__ import annotations

import argparse
import multiprocessing
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    """Which of so many processes this one is, and the port at which the first is met."""

    rank: int = 0
    count: int = 1
    port: int = 0


class Peers:
    """The processes as one of them sees them, while all train the same parameters.

    Gradients lie one behind the other in one buffer, with the seconds used and whether a process
    has to stop at its end, so that one exchange a step tells all of it.
    """

    def __init__(self, place: Place, parameters: list[torch.nn.Parameter]):
        self.count, end = place.count, 0
        dist.init_process_group("gloo", init_method=f"tcp://{HOST}:{place.port}",
                                rank=place.rank, world_size=place.count)
        self.shared = torch.zeros(sum(each.numel() for each in parameters) + 2)
        for parameter in parameters:
            dist.broadcast(parameter.data, 0)  # new words begin by chance
            view = self.shared[end:end + parameter.numel()]
            parameter.grad = view.as_strided(parameter.shape, parameter.stride(),
                                             view.storage_offset())
            end += parameter.numel()

    def meet(self, spent: float, stops: bool) -> tuple[float, bool]:
        """Take the mean of all gradients. Returns the mean of the seconds used, and whether any
        process has to stop."""
        self.shared[-2], self.shared[-1] = spent, float(stops)
        dist.all_reduce(self.shared)
        self.shared /= self.count
        return float(self.shared[-2]), bool(self.shared[-1] > 0)


@contextmanager
def helpers(count: int, work: Callable[[argparse.Namespace, Place], None],
            options: argparse.Namespace) -> Iterator[Place]:
    """Start the other processes; each does `work`, and ends with this one. Gives the place of this
    one among them."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=work, args=(options, Place(rank, count, port)), daemon=True)
               for rank in range(1, count)]
    for process in started:
        process.start()
    try:
        yield Place(0, count, port)
    except BaseException:  # else they would wait for this one
        for process in started:
            process.terminate()
        raise
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        for process in started:
            process.join()
