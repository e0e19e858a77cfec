"""Options of commands that load a model: what is loaded, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from click import option

F = TypeVar("F", bound=Callable[..., Any])

MODEL = (
    option("-m", "--model", default=None, metavar="PATH|NAME",
           help="Checkpoint (.safetensors, .ckpt, .gguf), diffusers folder, or a name to fetch "
                "one by (hf:OWNER/NAME, civitai:ID, a short name: smalti models). Default: the "
                "model that ships with Smalti, which draws one to four of 200 things, such as a "
                "red apple, two cats; `smalti inspect` says which."),
    option("--text-encoder", "text_encoders", multiple=True, metavar="PATH",
           help="File of a text encoder that the model lacks, or instead of its own; may be "
                "given several times."),
    option("--vae", default=None, metavar="PATH",
           help="File of an autoencoder that the model lacks, or instead of its own."),
    option("--prediction", default=None,
           help="What the denoiser predicts, where the file tells it wrong: epsilon, "
                "v_prediction, ..."),
    option("--zero-terminal-snr/--no-zero-terminal-snr", default=None,
           help="Whether it was trained down from noise alone, where the file tells it wrong."),
    option("--refiner", default=None, metavar="PATH",
           help="A model that takes the last steps over, such as that of SDXL."),
    option("--lora", "loras", multiple=True, metavar="PATH[:WEIGHT[:TEXT_WEIGHT]]",
           help="Adapter (LoRA and its relatives), how much of it, and how much of it for the "
                "text encoders; may be given several times."),
    option("--lora-dir", default=None, metavar="FOLDER",
           help="Where the adapters are that the prompt names as <lora:name:0.8>."),
    option("--embedding", "embeddings", multiple=True, metavar="PATH",
           help="File of a textual inversion, which the prompt names by its file; may be given "
                "several times."),
    option("--embedding-dir", "embedding_dirs", multiple=True, metavar="FOLDER",
           help="Folder of such files; may be given several times."),
)
COMPUTE = (
    option("--device", default="auto", show_default=True,
           help="One of `smalti devices`; or parts and devices, such as "
                "denoiser=vulkan:0,text=cpu."),
    option("--threads", type=int, default=None, help="Worker threads. Default: all cores."),
    option("--precision", default="auto", show_default=True,
           help="auto, f32, bf16, int8, or f16 on a GPU."),
    option("--supervise/--no-supervise", default=False, show_default=True,
           help="Look for faster schedules while the picture is made; it is the same with and "
                "without."),
    option("--objective", default="latency", show_default=True,
           help="What a CPU's schedules are chosen for: latency, throughput or energy."),
    option("--memory", default=None, metavar="SIZE",
           help="What all of it may take of main memory, such as 6GB. Default: what there is."),
    option("--gpu-memory", default=None, metavar="SIZE",
           help="What it may take of the memory of a GPU that has its own. Default: what that "
                "has."),
)


def _with(options: Sequence[Callable[[F], F]], command: F) -> F:
    for each in reversed(options):
        command = each(command)
    return command


def model_options(command: F) -> F:
    """A command with the options that say what is loaded."""
    return _with(MODEL, command)


def compute_options(command: F) -> F:
    """A command with the options that say where and how it runs."""
    return _with(COMPUTE, command)
