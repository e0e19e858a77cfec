"""The options of `smalti generate` about pictures that are changed, varied, and made larger."""

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
    click.option("--mask", default=None, metavar="PICTURE",
                 help="White where it is made anew; the rest stays as it is."),
    click.option("--mask-blur", type=int, default=None,
                 help="Pixels over which the mask fades. Default: 4."),
    click.option("--only-masked", is_flag=True,
                 help="Make what is masked in the size asked for, and put it back."),
    click.option("--padding", type=int, default=None,
                 help="Pixels around it that are made with it. Default: 32."),
    click.option("--extend", type=int, nargs=4, default=None, metavar="LEFT TOP RIGHT BOTTOM",
                 help="Pixels to add to the picture on each side."),
    click.option("--image-guidance", type=float, default=None,
                 help="How strongly the picture steers models for edits. Default: 1.5."),
    click.option("--variation-seed", type=int, default=None,
                 help="Noise to go towards, for a picture a little different. Default: a random "
                      "one."),
    click.option("--variation-strength", type=float, default=0.0,
                 help="How far, 0 to 1; 0.1 changes little."),
    click.option("--hires", type=float, default=None,
                 help="Make it so many times as large in a second pass."),
    click.option("--hires-strength", type=float, default=None,
                 help="How much is made anew in that. Default: 0.7."),
    click.option("--hires-steps", type=int, default=None,
                 help="Its steps. Default: --steps times --hires-strength."),
    click.option("--hires-upscaler", default=None, metavar="PATH",
                 help="A network of the ESRGAN family that enlarges before it. Default: latents "
                      "are enlarged."),
    click.option("--step-cache", "cache", type=float, default=0.0, metavar="SHARE",
                 help="Leave out evaluations whose change is foretold to be below this; 0.1 is "
                      "usual. Default: 0, none."),
)


def change_options(command: Command) -> Command:
    """A command with these options, which are named as those of `Pipeline.steps`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command
