"""`smalti serve`: pictures for programs, over HTTP."""

from __future__ import annotations

from pathlib import Path

import click

from smalti import settings
from smalti.cli.interrupt import loading_modules
from smalti.errors import InputError

PORT = 7860
"""That of A1111 and Forge, where their clients look first."""
SURE = {"auto", "cpu"}
"""Devices that are always there, so that nothing need be loaded to know it."""
OUTPUT = Path("smalti-pictures")
TOKEN_CHARACTERS_MAX = 4096
"""Of a file's first line: far more than a header may be."""


@click.command()
@click.option("--models", multiple=True, type=click.Path(path_type=Path), metavar="FOLDER",
              help="Folder with models, LoRAs and others: that of A1111, Forge, ComfyUI, Easy "
                   "Diffusion, the cache of the hub, or laid out in any way; or a file like "
                   "ComfyUI's extra_model_paths.yaml. May be given several times.")
@click.option("--output", default=OUTPUT, type=click.Path(path_type=Path), show_default=True,
              metavar="FOLDER", help="Where pictures go, and the queue is kept.")
@click.option("--port", default=PORT, type=click.IntRange(0, 65535), show_default=True,
              help="0 takes one that is free.")
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address to listen on; another than this computer's own needs --token.")
@click.option("--token", default=None,
              help="What clients have to send: as Bearer token, or as password of any user. Other "
                   "users of this computer see it here; they do not in SMALTI_TOKEN.")
@click.option("--token-file", default=None, type=click.Path(path_type=Path), metavar="FILE",
              help="File whose first line is the token.")
@click.option("--device", "devices", multiple=True, default=("auto",), show_default=True,
              help="One of `smalti devices`, or parts and devices, such as "
                   "denoiser=vulkan:0,text=cpu; may be given several times, a job runs on one.")
@click.option("--threads", type=int, default=None, help="Worker threads. Default: all cores.")
@click.option("--precision", default="auto", show_default=True,
              help="auto, f32, bf16, int8, or f16 on a GPU.")
@click.option("--memory", default=None, metavar="SIZE",
              help="What all models may take of main memory, such as 6GB. Default: what there is.")
@click.option("--gpu-memory", default=None, metavar="SIZE",
              help="What they may take of the memory of GPUs, each of which has its own then. "
                   "Default: what these have.")
def serve(models: tuple[Path, ...], output: Path, port: int, host: str, token: str | None,
          token_file: Path | None, devices: tuple[str, ...], threads: int | None, precision: str,
          memory: str | None, gpu_memory: str | None) -> None:
    """Make pictures for programs that ask over HTTP.

    It ends with Ctrl-C. Jobs wait in one queue, which is kept: a server that is started again goes
    on.
    """
    with loading_modules():
        from smalti.server.serve import listening
        from smalti.server.serve import serve as run
        from smalti.server.site import Site
    for each in models:
        check_models(each)
    token = asked_token(token, token_file)
    check_loading(devices, threads, precision, memory, gpu_memory)
    bound = listening(host, port, token)
    site = Site(output, models, devices, threads=threads, precision=precision, memory=memory,
                gpu_memory=gpu_memory)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{bound.getsockname()[1]}"
    run(site, bound, host, token, lambda: click.echo(f"Smalti serves {address} (Ctrl-C ends it)"))


def check_models(path: Path) -> None:
    """Raise InputError where no models can be found by what was given."""
    if path.suffix.lower() in (".yaml", ".yml"):
        from smalti.server.comfy import extra_folders

        extra_folders(path, lambda text: None)  # it warns when models are looked for
    elif not path.is_dir():
        raise InputError(f"--models {path} is no folder; give one with models, or a file like "
                         f"ComfyUI's extra_model_paths.yaml")


def asked_token(token: str | None, file: Path | None) -> str | None:
    """What clients have to send: as given, else of a file, else of the environment."""
    if token is not None and file is not None:
        raise InputError("--token and --token-file are both given; give one")
    if file is None:
        return token if token is not None else settings.token()
    try:
        with file.open(encoding="utf-8-sig") as opened:
            line = opened.readline(TOKEN_CHARACTERS_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--token-file {file} cannot be read: {error}") from None
    if not line:
        raise InputError(f"--token-file {file} has no token in its first line")
    return line


def check_loading(devices: tuple[str, ...], threads: int | None = None, precision: str = "auto",
                  memory: str | None = None, gpu_memory: str | None = None) -> None:
    """Raise InputError for what no model could be loaded with; what is usual is not looked at, so
    that the server answers at once."""
    if len(set(devices)) < len(devices):
        raise InputError(f"--device is given twice for one: {', '.join(devices)}")
    if threads is not None:
        from smalti.settings import checked_threads

        checked_threads(threads)
    if not {*devices} <= SURE or precision != "auto" or gpu_memory is not None:
        from smalti.diffusion.load_options import LoadOptions

        for each in devices:
            LoadOptions(device=each, threads=threads, precision=precision, gpu_memory=gpu_memory)
    if given := [each for each in (memory, gpu_memory) if each is not None]:
        from smalti.diffusion.request import memory_bytes

        for each in given:
            memory_bytes(each)
