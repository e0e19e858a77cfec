"""What a pipeline is loaded with: the files of a model, where it runs, and what it may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, field, fields
from pathlib import Path
from typing import Any

from smalti import settings
from smalti.compiler.options import ROUNDED
from smalti.dataclass import dataclass
from smalti.diffusion.adapters import Entry
from smalti.diffusion.guidance import Guide
from smalti.diffusion.keywords import check_known
from smalti.diffusion.kinds import check_name
from smalti.diffusion.options import OPTIONS
from smalti.diffusion.placement import AUTO, placed
from smalti.diffusion.residents import Residents, ignore
from smalti.diffusion.samplers import find_sampler
from smalti.errors import InputError
from smalti.runtime.choice import described, precisions
from smalti.runtime.device import LIBRARY
from smalti.runtime.inputs import checked_path
from smalti.tune.objective import OBJECTIVES

DEFAULTS = {"steps": "steps", "guidance_scale": "guidance", "sampler": "sampler", "noise": "noise",
            "width": "width", "height": "height", "distilled_guidance": "distilled_guidance",
            "guidance_time": "guidance_time"}
"""Settings that models have their own of, and what `Hints` calls them."""


@dataclass
class LoadOptions:
    """A checkpoint (a file of weights, a diffusers folder, a name that it is fetched by such as
    "hf:org/name", None for the model that ships with Smalti), and how it is to run.

    `text_encoders` and `vae` are files of parts that the checkpoint does not hold, or that are
    to replace its own; which text encoder one is, is seen in it. `prediction` ("epsilon",
    "v_prediction", ...) is what the denoiser predicts, and `zero_terminal_snr` whether it was
    trained down from noise alone, where the file tells it wrong. `defaults` are what pictures are
    made with where nothing else is said, as {"steps": 30, "guidance_scale": 5.0}: any of
    `DEFAULTS`, instead of what the file tells or is usual for its family. `loras` are adapters to
    begin with (see `Pipeline.loras`); `lora_folder` is where those are that prompts name as
    <lora:name:0.8>, or several folders. `embeddings` are textual inversions, files or folders of
    them, which prompts name by their files. `refiner` is a model that takes the last steps over,
    such as that of SDXL.

    `device`, `precision`, `threads` and `objective` are as for `smalti.compile`; `device` may also
    give parts a device each, as {"denoiser": "vulkan:0", "text": "cpu"} (see `placement`), and
    is then a text of these. With `supervise`, faster schedules are looked for while pictures are
    made, which are the same with and without.
    `memory` is what all of it may take of main memory: bytes, or "6GB"; default: nine tenths of
    what there is. `gpu_memory` is the same of the memory of each GPU that has its own. What does
    not fit is evicted when another part is needed, weights of a denoiser are streamed while it
    runs, and pictures are decoded in tiles; the result's warnings say so. Weights stay bound for
    the next call in up to half of that; without `keep` each part is evicted as soon as it is done
    with, so that the next one takes over its memory. `residents` are those of another pipeline,
    whose memory this one shares. `progress` is called with a line of text
    before and during anything that takes long; a line that is to stay, such as that of what is
    fetched, ends with a line break. Raises InputError for an unknown device, precision
    or objective, a number of threads outside 1 to 256, and what is no path.
    """

    path: str | Path | None = None
    device: str | Mapping[str, str] = "auto"
    precision: str = "auto"
    threads: int | None = None
    progress: Callable[[str], None] = ignore
    keep: bool = True
    _: KW_ONLY
    text_encoders: str | Path | Sequence[str | Path] = ()
    vae: str | Path | None = None
    prediction: str | None = None
    zero_terminal_snr: bool | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    loras: Sequence[Entry] = ()
    lora_folder: str | Path | Sequence[str | Path] | None = None
    embeddings: str | Path | Sequence[str | Path] = ()
    refiner: str | Path | None = None
    supervise: bool = False
    memory: int | str | None = None
    gpu_memory: int | str | None = None
    objective: str = "latency"
    residents: Residents | None = None

    def __post_init__(self) -> None:
        check_name("objective", self.objective, OBJECTIVES)
        if self.objective == "throughput" and self.threads is None:
            self.threads = 1
        if self.threads is not None:
            settings.checked_threads(self.threads)
        self.defaults = checked_defaults(self.defaults)
        for name in ("vae", "refiner"):
            if getattr(self, name) is not None:
                checked_path(getattr(self, name), f"loading with {name}", "a path")
        self.text_encoder_files = _paths("text_encoders", self.text_encoders)
        self.embedding_files = _paths("embeddings", self.embeddings)
        self.lora_folders = [] if self.lora_folder is None else _paths("lora_folder",
                                                                       self.lora_folder)
        self.placement = placed(self.device)
        if self.device != AUTO:  # of which parts may be elsewhere when the model is known
            self.device = str(self.placement)
        several = self.placement.devices
        if self.gpu_memory is not None and not any(
                described(each).has_own_memory for each in several):
            raise InputError(f"gpu_memory is {self.gpu_memory!r}, and {' and '.join(several)} "
                             f"computes in main memory; give memory (--memory) instead")
        for each in several:
            if self.precision == ROUNDED and each.startswith(f"{LIBRARY}:"):
                raise InputError(f"what int8 takes is foretold for the CPU of this computer only "
                                 f"(device cpu); of {each.removeprefix(f'{LIBRARY}:')} "
                                 f"{', '.join(precisions(each))} are")
            if self.precision == ROUNDED and ROUNDED not in precisions(each):
                raise InputError(f"precision int8 needs a CPU that multiplies integers of 8 bits; "
                                 f"{each} has {', '.join(precisions(each))} (or give device cpu)")
            check_name("precision" + f" on {each}" * (len(several) > 1), self.precision,
                       precisions(each))

    @classmethod
    def of(cls, *args: Any, **given: Any) -> LoadOptions:
        """The options of these arguments. Raises UnknownOptionError for another name."""
        check_known(given, [each.name for each in fields(cls)], {
            "torch_dtype": "precision", "dtype": "precision", "lora_dir": "lora_folder",
            "model": "path", "text_encoder": "text_encoders", "lora": "loras",
            "embedding": "embeddings"})
        return cls(*args, **given)


def checked_defaults(defaults: object) -> dict[str, Any]:
    """Settings that a model may have its own of, each in one form.

    Raises InputError for what is no mapping of these, or for values that cannot be.
    """
    if not isinstance(defaults, Mapping):
        raise InputError(f"defaults is {defaults!r:.80}; expected settings by their names, such as "
                         f'{{"steps": 30}}')
    check_known(defaults, DEFAULTS)
    found = {name: OPTIONS[name].checked(value) for name, value in defaults.items()}
    if "sampler" in found:
        find_sampler(found["sampler"])
    if (interval := found.get("guidance_time")) is not None:
        Guide(start=interval[0], end=interval[1])
    return found


def _paths(what: str, given: object) -> list[str | Path]:
    """One path, or several, as a list. Raises InputError for anything else."""
    several = [given] if isinstance(given, str | Path) else given
    if not isinstance(several, Sequence):
        raise InputError(f"{what} is {given!r:.80}; expected a path, or several")
    return [Path(checked_path(each, f"loading with {what}", "a path")) for each in several]
