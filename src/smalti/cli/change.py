"""The options of `smalti generate` that are about pictures that are changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]
OPTIONS = (
    click.option("--image", default=None, metavar="PICTURE",
                 help="A picture to change, instead of making one from noise alone."),
    click.option("--strength", type=float, default=None,
                 help="How much of it is changed, above 0 to 1. Default: 0.75."),
)


def change_options(command: Command) -> Command:
    """A command with these options, which are named as those of `Pipeline.steps`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command
