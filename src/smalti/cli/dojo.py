"""`smalti dojo`: training schedulers on simulated devices, and how good they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from smalti.cli.bench import say
from smalti.cli.interrupt import loading_modules
from smalti.cli.output import check_writable, replace_file
from smalti.cli.seconds import Seconds
from smalti.errors import InputError

if TYPE_CHECKING:
    from smalti.dojo import Policy, Task

SECONDS = 60.0
"""Training time; the agents in docs/dojo.md were trained for as long."""
HERE = ((512, 320, 320), (77, 768, 768), (1024, 640, 64))
"""Rows, columns and depth of the products that are measured on this CPU."""
CHART_WIDTH = 560
"""Pixels: wide enough for the legend of all contenders beside the curves."""


@click.group()
def dojo() -> None:
    """Train and judge agents that schedule kernels.

    An agent chooses the schedule (tile sizes and the like) of a kernel, knowing the kernel and what
    earlier choices cost. See docs/dojo.md.
    """


def trains(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of training (level, seconds, seed) to `command`."""
    level = click.option("--level", "name", default="perturbed", show_default=True,
                         help="What to train on: simulator or perturbed.")
    seconds = click.option("--seconds", type=Seconds(1, 86400), default=SECONDS,
                           show_default=True, help="How long to train.")
    seed = click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
    return level(seconds(seed(command)))


@dojo.command()
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="The agent, .npz.")
@trains
def train(output: Path, name: str, seconds: float, seed: int) -> None:
    """Train the baseline agent on simulated devices.

    It is a small policy network; its weights are written as an .npz file.
    """
    with loading_modules():
        from smalti import dojo as room
    check_writable([output])
    policy = room.train(room.level(name), seconds, seed, progress=say)
    replace_file(output, policy.saved())
    click.echo(f"{output}: trained for {seconds:g} s on {name} devices")


@dojo.command()
@click.option("--agent", type=click.Path(path_type=Path), default=None, metavar="FILE",
              help="What `smalti dojo train` wrote. Default: one that is trained now.")
@trains
@click.option("--tasks", "count", type=click.IntRange(1, 1000), default=8, show_default=True,
              help="How many are drawn of each level that needs no measurements.")
@click.option("--timings", type=click.Path(path_type=Path), default=None, metavar="FOLDER",
              help="Published timings, to replay measured spaces.")
@click.option("--here", is_flag=True, help="Also measure products on this CPU.")
@click.option("--chart", "chart_path", type=click.Path(path_type=Path), default=None,
              metavar="FILE", help="Regret curves of the last task, .svg or .png.")
def score(agent: Path | None, name: str, seconds: float, seed: int, count: int,
          timings: Path | None, here: bool, chart_path: Path | None) -> None:
    """Print how soon each contender finds a good schedule.

    The numbers are times: the best of the first 1, 10 and 100 schedules that a contender tries,
    divided by the best of all. Contenders are the timing model, a search that learns from what it
    measures, the agent, the order that is best on another device, and chance.
    """
    with loading_modules():
        import numpy as np

        from smalti import dojo as room
        from smalti.dojo.here import on_this_cpu
        from smalti.dojo.scoring import means
    if chart_path is not None and chart_path.suffix not in (".svg", ".png"):
        raise InputError(f"--chart is {chart_path}; give a name that ends in .svg or .png")
    check_writable([chart_path] if chart_path else [])
    replayed = room.replays(timings) if timings else []
    measured = [on_this_cpu(*sizes) for sizes in HERE] if here else []
    policy = (room.Policy.load(agent, room.product_space()) if agent is not None
              else room.train(room.level(name), seconds, seed, progress=say))
    scores = []
    for title in room.LEVELS:
        random = np.random.default_rng(seed + 1)
        tasks = [room.level(title)(random) for _ in range(count)]
        scores += means(f"{title}, {count} tasks" if count > 1 else title,
                        room.score(policy, tasks))
    scores += room.score(policy, [*replayed, *measured])
    click.echo(room.table(scores))
    if not replayed:
        say("no measured spaces were replayed: give their folder with --timings")
    if chart_path is not None:
        write_chart(chart_path, policy, (replayed or tasks)[0])


def write_chart(path: Path, policy: Policy, task: Task) -> None:
    """Write a chart of one task: for each contender, its regret (time of the best schedule so far
    over that of the best of all) by the number of schedules it has measured."""
    from smalti import dojo as room
    from smalti.benchmark import chart
    from smalti.benchmark.plot import Series, plot

    budgets = tuple(range(1, 101))
    scores = room.score(policy, [task], budgets)
    drawing = plot([Series(each.contender, tuple(zip(budgets, each.regrets, strict=True)))
                    for each in scores], f"{task.name}: how soon a good schedule is found",
                   "measured schedules", "time over that of the best", CHART_WIDTH)
    replace_file(path, chart.png(drawing) if path.suffix == ".png"
                 else chart.svg(drawing).encode())
