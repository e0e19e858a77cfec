"""What all stages of a run share: settings, device, log, saved states, data and models."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from deeper import deeper_preset, deeper_vae
from kernels import quicken
from layout import TOKEN_TABLE, from_single_file, preset_of, read_file, trained_tokens
from marks import Marks, same_marks
from models import decoding, make_text, make_unet, make_vae, multiplies_bfloat16
from peers import Place
from pictures import Pictures
from presets import LATENT_SCALE, PRESETS
from wider import FINE, wider_unet, wider_vae

ASSETS = Path(__file__).resolve().parents[1] / "src" / "smalti" / "assets"

ALONE = Place()
UNET_FILE, DECODER_FILE, MARKS_FILE = "unet.pt", "decoder.pt", "marks.pt"
"""The states of the denoiser, and of a decoder that was trained by itself; the marks of latents."""


@dataclass
class Start:
    """Finished weights that a run goes on from."""

    tensors: dict[str, torch.Tensor]
    config: dict
    tokens: list[int]
    unknown: torch.Tensor

    @classmethod
    def read(cls, path: Path) -> Start:
        """Read a single file."""
        tensors, config = read_file(path)
        unknown, tokens = trained_tokens(tensors[TOKEN_TABLE])
        return cls(tensors, config, tokens, unknown)

    def words(self, vocabulary: list[int], like: dict[int, int]) -> torch.Tensor:
        """The token table for a compact vocabulary: unknown first; new words begin near that, or
        near the known ones that they are `like`."""
        known = set(self.tokens)
        begun = [like.get(token, token) if token not in known else token for token in vocabulary]
        rows = self.tensors[TOKEN_TABLE][torch.tensor(begun)].float()
        fresh = torch.tensor([token not in known for token in vocabulary])
        rows = rows + fresh[:, None] * 0.02 * torch.randn(rows.shape)
        return torch.cat([self.unknown[None].float(), rows])


SHARES = frozenset("plain regular centred moved painted p_flip p_bg p_hue p_pair".split())
"""Settings of presets that are shares of what is drawn."""


def changed_preset(options: argparse.Namespace) -> dict:
    """The preset with what the command line changes. Raises SystemExit for what cannot be."""
    preset = dict(PRESETS[options.preset])
    for name in ("styles", "batch", "lr", "bank_k", "vae_batch", "ema"):
        if getattr(options, name) is not None:
            preset[name] = getattr(options, name)
    for pair in options.set:
        name, _, text = pair.partition("=")
        if not isinstance(preset.get(name), int | float | str):
            known = sorted(key for key, value in preset.items() if isinstance(value, int | float))
            raise SystemExit(f"--set {pair}: there is no {name!r}; known: {', '.join(known)}")
        try:
            preset[name] = type(preset[name])(text)
        except ValueError:
            raise SystemExit(f"--set {pair}: expected a number") from None
        if name in SHARES and not 0 <= preset[name] <= 1:
            raise SystemExit(f"--set {pair}: expected a share from 0 to 1")
    return preset


class Run:
    """One run in one folder; `state/*.pt` let it go on where it stopped."""

    def __init__(self, options: argparse.Namespace, place: Place = ALONE):
        self.place = place
        self.options, self.preset = options, changed_preset(options)
        self.start = Start.read(Path(options.start)) if options.start else None
        self.before: dict | None = None
        if self.start:
            self.preset.update(preset_of(self.start.config))
        channels = self.preset["vae"]["z"]
        if options.latents < 0:
            raise SystemExit(f"--latents {options.latents}: expected a number of channels, or 0")
        if options.latents and options.latents != channels:
            if self.start and options.latents < channels:
                raise SystemExit(f"--latents {options.latents}: {options.start} has {channels} "
                                 f"channels of latents, and none can be taken away")
            self.before = dict(self.preset) if self.start else None
            self.preset["vae"] = {**self.preset["vae"], "z": options.latents}
        if options.px and options.px != self.preset["px"]:
            self.deepen(options.px)
        self.out, self.device = Path(options.out), torch.device(options.device)
        self.began, self._pictures, self.asked_to_end = time.time(), None, False
        self.marks = self.known_marks()
        for folder in ("state", "samples"):
            (self.out / folder).mkdir(parents=True, exist_ok=True)
        if self.marks and self.before:
            self.log(event="marks", note="the decoder learns them in --decoder-minutes")
        self.amp = options.amp
        if self.amp == "auto":
            self.amp = "bf16" if multiplies_bfloat16(self.device) else "none"
        torch.set_num_threads(options.threads)
        torch.manual_seed(options.seed + place.rank)
        random.seed(options.seed)
        np.random.seed(options.seed)
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True
            torch.backends.cudnn.benchmark = True
        elif self.amp == "bf16":  # plain matrix products train faster than the flash path then
            torch.backends.cuda.enable_flash_sdp(False)
            torch.backends.cuda.enable_mem_efficient_sdp(False)

    def deepen(self, px: int) -> None:
        """Have the run learn pictures of twice the side from the latents of the file it goes on
        from. Raises SystemExit for another size, and beside more channels of latents."""
        if not self.start or px != 2 * self.preset["px"]:
            raise SystemExit(f"--px {px}: expected twice the {self.preset['px']} pixels of a file "
                             f"that the run goes on from (--start)")
        if self.before:
            raise SystemExit("--px and --latents: expected one of them; more channels first")
        self.before = dict(self.preset)
        self.preset.update(deeper_preset(self.preset))
        self.preset["vae_crop"] *= 2

    @property
    def given_marks(self) -> dict[str, list[float]]:
        """The marks of the file that the run goes on from."""
        return self.start.config["train"].get("marks", {}) if self.start else {}

    def known_marks(self) -> Marks:
        """The marks of latents: those of the file which the run goes on from, with zeros for
        channels that are added, and those that the run has made. Raises SystemExit where `--marks`
        asks for some that cannot be made."""
        channels, lacking = self.preset["vae"]["z"], {*self.options.marks} - {*self.given_marks}
        if lacking and (not self.start or self.new_latents):
            raise SystemExit("--marks: expected the latents of a finished file (--start, without "
                             "--latents)")
        if lacking and not (self.options.concepts and self.preset["scenes"]):
            raise SystemExit("--marks: expected scenes, of which some are in its styles (a preset "
                             "with scenes, and --concepts)")
        given = {style: torch.tensor([*mark, *[0.0] * (channels - len(mark))])
                 for style, mark in self.given_marks.items()}
        marks = self.load(MARKS_FILE) or given
        if not same_marks({**marks, **given}, marks):
            raise SystemExit(f"{self.out} has other marks of latents than {self.options.start}: "
                             f"give another --out")
        return marks

    @property
    def new_latents(self) -> bool:
        """Whether the denoiser of the file that the run goes on from does not know its latents."""
        return self.before is not None and self.before["vae"]["z"] != self.preset["vae"]["z"]

    def log(self, **facts: object) -> None:
        """Print a line of facts and keep it in `log.jsonl`; of several processes the first does."""
        if self.place.rank:
            return
        line = json.dumps({**facts, "t": round(time.time() - self.began, 1)})
        print(line, flush=True)
        with open(self.out / "log.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def cast(self):
        """The context in which models compute."""
        if self.amp == "none":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def memory(self, images: torch.Tensor) -> torch.Tensor:
        """Images in the order of memory that the models have."""
        last = self.options.channels_last
        return images.contiguous(
            memory_format=torch.channels_last if last else torch.contiguous_format)

    def put(self, model: torch.nn.Module) -> torch.nn.Module:
        """A model on the device, in the order of memory asked for."""
        model = model.to(self.device)
        return model.to(memory_format=torch.channels_last) if self.options.channels_last else model

    def compiled(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model, compiled where that was asked for."""
        return torch.compile(model) if self.options.compile else model

    def pictures(self) -> Pictures:
        """The data, read on first use."""
        if self._pictures is None:
            data, preset = Path(self.options.data), self.preset
            table = data.with_name("bpe_simple_vocab_16e6.txt.gz")
            if not table.exists():
                table = ASSETS / table.name
            named = f"{preset['styles']},{preset['vae_styles']}" if preset["vae_styles"] else ""
            self._pictures = Pictures(data, table, preset["px"],
                                      [style for style in named.split(",") if style],
                                      self.options.threads)
            packed = self._pictures.packed_px
            if packed < preset["px"]:
                raise SystemExit(f"{data} has pictures of {packed} pixels a side, and the run is "
                                 f"for {preset['px']}: give larger ones (pack_data.py "
                                 f"{preset['px']} ...)")
            self.log(event="data", images=len(self._pictures.images),
                     styles=sorted(set(self._pictures.style)),
                     one_hue=sum(hue is not None for hue in self._pictures.hue))
        return self._pictures

    def stopping(self) -> bool:
        """Whether this process has used the minutes it was given, or was asked to end."""
        minutes = self.options.stop_after
        return self.asked_to_end or bool(minutes) and time.time() - self.began > minutes * 60

    def seconds(self) -> float:
        """The clock of the stages' budgets. On processor cores it is the time that they have worked
        for the run, so that one that has to wait for others does not end with less learnt."""
        if self.device.type == "cpu":
            return time.process_time() / self.options.threads
        return time.time()

    def save(self, name: str, state: dict) -> None:
        """Save a state so that a crash leaves the earlier one; of several processes the first
        does."""
        if self.place.rank:
            return
        path = self.out / "state" / name
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def load(self, name: str) -> dict | None:
        """A saved state, or None."""
        path = self.out / "state" / name
        return torch.load(path, map_location="cpu", weights_only=False) if path.exists() else None

    @property
    def latent_sizes(self) -> list[int]:
        """Pixels a side of the run's pictures, and channels of its latents."""
        return [self.preset["px"], self.preset["vae"]["z"]]

    def started_vae(self) -> torch.nn.Module:
        """The autoencoder of the file that the run goes on from, with the channels of the run."""
        if self.before:
            more = wider_vae if self.new_latents else deeper_vae
            return more(self.preset, self.start.tensors, self.before)
        return from_single_file(make_vae(self.preset), "vae", self.preset, self.start.tensors)

    def final_vae(self) -> torch.nn.Module:
        """The finished autoencoder."""
        model = self.started_vae() if self.start else make_vae(self.preset)
        kept = self.start and not self.before  # then no stage has trained all of it
        whole = self.load("vae.pt") or {}
        if self.before and not whole.get("done"):
            raise SystemExit(f"{self.out} has no finished autoencoder for --px or --latents: train "
                             f"it first (--stage vae --vae-minutes 18)")
        if kept and whole.get("sizes", self.latent_sizes) != self.latent_sizes:
            raise SystemExit(f"{self.out} was begun with --px or --latents: give that again, or "
                             f"another --out")
        decoder = self.load(DECODER_FILE)
        if decoder and not same_marks(decoder.get("marks", {}), self.marks):
            raise SystemExit(f"{self.out} has a decoder that was trained with other marks of "
                             f"latents: give another --out")
        for state, trained in (({} if kept else whole, [model]), (decoder, decoding(model))):
            parameters = [each for part in trained for each in part.parameters()]
            for parameter, mean in zip(parameters, state["mean"], strict=True) if state else ():
                parameter.data.copy_(mean)
        return self.put(model).eval()

    def started_unet(self) -> torch.nn.Module:
        """The denoiser of the file that the run goes on from, for the channels of the run."""
        if self.new_latents:
            return wider_unet(self.preset, self.start.tensors, self.before)
        return from_single_file(make_unet(self.preset), "unet", self.preset, self.start.tensors)

    def fresh_unet(self) -> torch.nn.Module:
        """The denoiser at the beginning of its training."""
        model = self.started_unet() if self.start else make_unet(self.preset)
        return self.quickened(self.put(model), quicken)

    def quickened(self, model: torch.nn.Module, quicken: Callable[[torch.nn.Module, bool], bool]
                  ) -> torch.nn.Module:
        """A model with faster layers, which `quicken` puts in, where it trains on processor
        cores: all of them in float32, in bfloat16 those other than 3x3 convolutions."""
        if self.device.type == "cpu" and self.options.kernels:
            self.log(event="kernels", compiled=quicken(model, self.amp == "none"))
        return model.eval()  # it has no dropout; diffusers reorders its memory while it trains

    def whitening(self, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What latents [n, c, h, w] are shifted and divided by, [c] each, so that the denoiser
        reads them with unit variance: those of a file that the run goes on from have it."""
        mean, std = latent.mean((0, 2, 3)), latent.std((0, 2, 3))
        if self.start:
            known = (self.before or self.preset)["vae"]["z"]
            mean[:known], std[:known] = 0.0, 1 / LATENT_SCALE
            std[known:] /= FINE
        return mean, std

    def fresh_text(self, vocabulary: list[int], like: dict[int, int]) -> torch.nn.Module:
        """The text encoder at the beginning of its training; see `Start.words`."""
        model = make_text(self.preset, len(vocabulary) + 1)
        if self.start:
            table = {TOKEN_TABLE: self.start.words(vocabulary, like)}
            from_single_file(model, "text", self.preset, {**self.start.tensors, **table})
        return model.to(self.device)

    def finished(self) -> tuple[torch.nn.Module, torch.nn.Module, dict, dict]:
        """The trained denoiser and text encoder, the bank, and the saved state; those of the file
        that the run goes on from where none were trained."""
        bank, state = self.load("bank.pt"), self.load(UNET_FILE)
        if state is None and self.start and not self.new_latents:
            text = self.fresh_text(bank["vocab"], bank["like"])
            return self.put(self.started_unet()).eval(), text.eval(), bank, dict(step=0, spent=0.0)
        if state is None:
            raise SystemExit(f"{self.out} has no trained denoiser: train one (--stage unet), or "
                             f"give a finished file (--start)")
        unet, text = make_unet(self.preset), make_text(self.preset, len(bank["vocab"]) + 1)
        parameters = [*unet.parameters(), *text.parameters()]
        for parameter, mean in zip(parameters, state["mean"], strict=True):
            parameter.data.copy_(mean)
        return self.put(unet).eval(), text.to(self.device).eval(), bank, state


class StageClock:
    """What a stage has used of its minutes, in all processes that worked on it, and when its state
    is to be saved.

    A stage sets `spent` to what its saved state says, calls `start`, and `tick` after each step.
    """

    def __init__(self, run: Run, minutes: float):
        self.run, self.budget, self.spent = run, minutes * 60, 0.0

    def start(self) -> None:
        """Begin to count."""
        self._before, self._since, self._saved = self.spent, self.run.seconds(), time.time()

    @property
    def share(self) -> float:
        """What was used, of what there is."""
        return self.spent / self.budget

    @property
    def done(self) -> bool:
        """Whether the minutes are used."""
        return self.spent >= self.budget

    def lasts(self) -> bool:
        """Whether there is time for another step, in the stage and in this process."""
        return not self.done and not self.run.stopping()

    def tick(self) -> None:
        """Count what was used until now."""
        self.spent = self._before + self.run.seconds() - self._since

    def saves(self) -> bool:
        """Whether a state was last saved so long ago that it is to be saved now."""
        now = time.time()
        due = now - self._saved > self.run.options.ckpt_minutes * 60
        if due:
            self._saved = now
        return due
