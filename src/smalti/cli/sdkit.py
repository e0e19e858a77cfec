"""`smalti sdkit`: the server as Easy Diffusion starts its own backend of this name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from smalti.cli.interrupt import loading_modules
from smalti.cli.serve import check_loading

NAME = "sdkit"
"""The name by which Easy Diffusion starts it: a link or a copy of `smalti` that is called so is
this command."""
PORT = 8188
"""That of the program that it stands for; Easy Diffusion gives another one."""
HOST = "127.0.0.1"
OUTPUT = Path("smalti-sdkit")
"""Another folder than that of `smalti serve`, whose queue is for people: this one is emptied."""
FOLDERS = {
    "ckpt-dir": "checkpoints", "vae-dir": "autoencoders", "lora-dir": "LoRAs",
    "embeddings-dir": "embeddings", "controlnet-dir": "ControlNets",
    "text-encoder-dir": "text encoders", "realesrgan-models-path": "upscalers"}
"""Flags of folders that models are looked for in."""
UNUSED_FOLDERS = {"hypernetwork-dir": "hypernetworks", "gfpgan-models-path": "GFPGAN",
                  "codeformer-models-path": "CodeFormer"}
UNUSED = ("vae-on-cpu", "vae-tiling", "offload-to-cpu", "diffusion-fa", "control-net-cpu",
          "clip-on-cpu", "chroma-disable-dit-mask")
LEVELS = ("verbose", "debug", "info", "warning", "error")


class WronglyCalledError(click.UsageError):
    """A flag that there is not, or that says what it cannot."""

    exit_code = 1


class SdkitCommand(click.Command):
    """A command that ends with exit code 1 where it is called wrongly, as the program does that it
    stands for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            click.echo(self.get_help(ctx), err=True)
            raise WronglyCalledError(error.message, ctx) from None


def folders(flags: dict[str, str], used: bool) -> Any:
    """Options of folders."""
    def added(command: Any) -> Any:
        for flag, words in reversed(flags.items()):
            command = click.option(
                f"--{flag}", type=click.Path(path_type=Path), metavar="FOLDER",
                help=f"Folder of {words}" + (", which are looked for below it." if used else
                                             ", which are not used here."))(command)
        return command

    return added


def unused(command: Any) -> Any:
    """Options that say how to save memory or time, which is seen to anyway."""
    for flag in reversed(UNUSED):
        command = click.option(f"--{flag}", is_flag=True, help="Seen to by itself.")(command)
    return click.option("--vae-tile-size", metavar="WxH", help="Seen to by itself.")(command)


@click.command(NAME, cls=SdkitCommand)
@folders(FOLDERS, used=True)
@folders(UNUSED_FOLDERS, used=False)
@click.option("--port", default=PORT, type=click.IntRange(0, 65535), show_default=True,
              help="0 takes one that is free.")
@click.option("--parent-pid", type=int, default=None, metavar="NUMBER",
              help="End when the process of this number has ended.")
@click.option("--log-level", default="info", type=click.Choice(LEVELS), show_default=True,
              help="Taken; warnings and errors are logged.")
@unused
@click.option("--output", default=OUTPUT, type=click.Path(path_type=Path), show_default=True,
              metavar="FOLDER", help="Where pictures are until they are sent.")
@click.option("--device", "devices", multiple=True, default=("auto",), show_default=True,
              help="One of `smalti devices`, or parts and devices, such as "
                   "denoiser=vulkan:0,text=cpu; may be given several times.")
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--precision", default="auto", show_default=True,
              help="auto, f32, bf16, int8, or f16 on a GPU.")
@click.option("--memory", default=None, metavar="SIZE", help="What all models may take.")
def sdkit(port: int, parent_pid: int | None, log_level: str, output: Path,
          devices: tuple[str, ...], threads: int | None, precision: str, memory: str | None,
          **flags: Any) -> None:
    """Serve Easy Diffusion, in the place of its backend sdkit.

    It takes the same flags. Pictures are deleted here once they are sent: Easy Diffusion keeps
    them.
    """
    with loading_modules():
        from smalti.server.parent import ended
        from smalti.server.serve import listening
        from smalti.server.serve import serve as run
        from smalti.server.site import Site
    known = [flags[_name(flag)] for flag in FOLDERS]
    models = [folder for folder in known if folder is not None and folder.is_dir()]
    check_loading(devices, threads, precision, memory)
    gone = None if parent_pid is None else ended(parent_pid)
    bound = listening(HOST, port, None)
    site = Site(output, models, devices, keep_sent=False, threads=threads, precision=precision,
                memory=memory)
    site.queue.cancel_all()  # nobody waits any more for what was asked for before
    needless = [f"--{flag}" for flag in (*UNUSED_FOLDERS, *UNUSED, "vae-tile-size")
                if flags[_name(flag)]]
    if needless:
        click.echo(f"not needed here, and taken without effect: {', '.join(needless)}")
    address = f"http://{HOST}:{bound.getsockname()[1]}"
    run(site, bound, HOST, None, lambda: click.echo(f"Smalti serves {address} (Ctrl-C ends it)"),
        gone)


def _name(flag: str) -> str:
    """What click calls the value of a flag."""
    return flag.replace("-", "_")
