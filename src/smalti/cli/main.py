"""`smalti`: all commands, and how errors become exit codes.

| exit code | meaning                                                            |
| --------- | ------------------------------------------------------------------ |
| 0         | done                                                               |
| 1         | of `smalti bench`: a bound is missed; of `smalti sdkit`: its usage |
| 2         | what was given cannot be used; one message says why and what to do |
| 130       | stopped with Ctrl-C; nothing half-written is left behind           |
| 141       | what standard output was piped to reads no more (`| head`)         |

Anything else is a bug in Smalti and shows its traceback.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

import smalti
from smalti.cli.batch import batch
from smalti.cli.bench import bench
from smalti.cli.calibrate import calibrate
from smalti.cli.compile import compile
from smalti.cli.convert import convert
from smalti.cli.devices import devices
from smalti.cli.doctor import doctor
from smalti.cli.dojo import dojo
from smalti.cli.explain import explain
from smalti.cli.export import export
from smalti.cli.generate import generate
from smalti.cli.inspect import inspect
from smalti.cli.interrupt import STOPPED, raising
from smalti.cli.models import models
from smalti.cli.profile import profile
from smalti.cli.run import run
from smalti.cli.sdkit import NAME as SDKIT
from smalti.cli.sdkit import sdkit
from smalti.cli.serve import serve
from smalti.cli.streams import Refused, prepare_streams
from smalti.cli.tune import tune
from smalti.cli.upscale import upscale
from smalti.errors import DeviceError, InputError, NumericsError


class Commands(click.Group):
    """A group that turns Smalti's errors of input into exit code 2 and Ctrl-C into 130."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            with raising():
                return super().invoke(ctx)
        except (InputError, NumericsError, DeviceError) as error:
            raise Refused(str(error)) from None
        except MemoryError as error:
            raise Refused(f"there is not enough memory ({error}); choose a smaller --size or "
                          f"--batch, or close other programs") from None
        except KeyboardInterrupt:
            click.echo("\nstopped", err=True)
            ctx.exit(STOPPED)


@click.group("smalti", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(smalti.__version__, prog_name="smalti")
def root() -> None:
    """Make pictures from text, and run ONNX models, on an ordinary computer.

    \b
    smalti generate "a red apple" -o apple.png
    smalti serve
    smalti run model.onnx x=input.npy -o results.npz
    smalti compile model.onnx -o model.smalti
    """


for command in (generate, batch, models, serve, sdkit, upscale, compile, run, inspect, convert,
                explain, export, devices, bench, profile, tune, dojo, calibrate, doctor):
    root.add_command(command)


def main() -> None:
    """Run the command that the arguments name, or that this program is called as; ends the process.
    """
    prepare_streams()
    called = [SDKIT] if Path(sys.argv[0]).stem.lower() == SDKIT else []
    root([*called, *sys.argv[1:]], prog_name="smalti")
