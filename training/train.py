#!/usr/bin/env python3
"""Train a small, complete SD 1.x model on emoji: autoencoder, text encoder and UNet.

    train.py --preset smoke --data DATA.npz --out out/smoke
    train.py --preset cpu128 --data DATA.npz --out out/small --start MODEL.safetensors \\
             --concepts concepts.txt --text-minutes 2 --unet-minutes 67
    train.py --preset compose128 --data DATA.npz --out out/composed --threads 1

Stages: vae, bank (latents and captions), text (words alone), unet (UNet and text encoder together),
few (the UNet for few steps, a file of its own), decoder (of a finished file, alone), export. The
last two trainings take place where their minutes are given. Each can be cut into several processes
with --stop-after: the next one goes on from `state/` in the folder of the run. Learning rates
follow the share of a stage's time.
`concepts.json` is read beside the data; nothing is fetched.
"""

from __future__ import annotations

import argparse
import os
import signal
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from bank import focus, make_bank, take_marks
from export import export_all
from marks import MARKED
from peers import Place, helpers
from presets import MINUTES, PRESETS
from run import ASSETS, DECODER_FILE, UNET_FILE, Run
from sampling import sample
from stage_denoiser import DenoiserStage
from stage_few import FEW_FILE, FewStage
from stage_text import TEXT_FILE, pretrain_text
from stage_unet import UnetStage
from stage_vae import VaeStage

STAGES = ["all", "vae", "bank", "text", "unet", "few", "decoder", "export", "sample"]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--preset", default="cpu128", choices=PRESETS)
    add("--stage", default="all", choices=STAGES)
    add("--data", required=True, help="packed pictures (.npz)")
    add("--out", required=True, help="folder of the run")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--processes", type=int, default=1, help="that train the denoiser together on processor "
        "cores, each with a batch")
    add("--threads", type=int, help="of each process; default: a share of the cores")
    add("--seed", type=int, default=0)
    add("--minutes", type=float, help="in all: 27 of 100 for vae, the rest for unet")
    for stage in ("vae", "text", "unet"):
        add(f"--{stage}-minutes", type=float)
    add("--decoder-minutes", type=float, default=0, help="of a finished file: the decoder alone")
    add("--marks", nargs="+", default=[], choices=MARKED, help="styles told by marks: marks.py")
    add("--few-minutes", type=float, default=0, help="a denoiser for few steps, without guidance")
    add("--start", default="", help="a single file to go on from; its autoencoder is "
        "kept, but for --latents, --px and --decoder-minutes")
    add("--latents", type=int, default=0, help="channels of latents: what --start lacks of them "
        "its autoencoder learns in --vae-minutes, then its denoiser; 0: as many as it has")
    add("--px", type=int, default=0, help="pixels a side: twice those of --start, whose "
        "autoencoder then learns to draw them in --vae-minutes; 0: as many as it has")
    add("--concepts", default="", help="a short list of pictures and words to train on")
    add("--focus", default="", help="a file of emoji labels: draw only these")
    add("--init-text", default="", help="a state/unet.pt to take the text encoder from")
    add("--init-unet", default="", help="a state/unet.pt to take the UNet from")
    add("--stop-after", type=float, default=0, help="minutes until this process saves and ends")
    add("--pred", default="v", choices=["v", "eps"])
    add("--gamma", type=float, default=5.0, help="cap of the min-SNR weight")
    add("--cfg-drop", type=float, default=0.1, help="share of captions emptied")
    add("--kl", type=float, default=2e-4)
    add("--amp", default="auto", choices=["auto", "bf16", "none"],
        help="auto: bf16 where the device multiplies it itself")
    add("--channels-last", type=int, default=1)
    add("--kernels", type=int, default=1, help="0: PyTorch's layers on processor cores as well")
    add("--compile", action="store_true", help="slower on processor cores for these sizes")
    add("--styles")
    for name, kind in (("batch", int), ("lr", float), ("bank-k", int), ("vae-batch", int),
                       ("ema", float)):
        add(f"--{name}", type=kind)
    add("--set", nargs="*", default=[], help="any other number of the preset, name=value")
    add("--log-every", type=int, default=50)
    add("--ckpt-minutes", type=float, default=4)
    add("--sample-minutes", type=float, default=6)
    add("--prompts", help="for --stage sample: prompts separated by |")
    add("--cfg", type=float, default=4.0)
    add("--steps", type=int, default=25)
    add("--png", default="")
    options = parser.parse_args()
    if options.minutes:
        options.vae_minutes, options.unet_minutes = options.minutes * 0.27, options.minutes * 0.73
    for stage, minutes in zip(("vae", "text", "unet"), MINUTES[options.preset], strict=True):
        if getattr(options, f"{stage}_minutes") is None:
            setattr(options, f"{stage}_minutes", minutes)
    if options.processes < 1:
        raise SystemExit(f"--processes {options.processes}: expected 1 or more")
    if options.processes > 1 and options.device != "cpu":
        raise SystemExit(f"--processes {options.processes}: several share gradients on processor "
                         f"cores alone; --device {options.device} is trained by one")
    options.threads = options.threads or max(1, os.cpu_count() // options.processes)
    preset = PRESETS[options.preset]
    if preset["start"] and not options.start:
        options.start = str(ASSETS / preset["start"])
    if preset["concepts"] and not options.concepts:
        options.concepts = str(Path(__file__).with_name(preset["concepts"]))
    return options


def done(run: Run, name: str) -> bool:
    """Whether a stage has used its time."""
    state = run.load(name)
    return bool(state and state.get("done"))


def trained(run: Run, bank: dict, stage: Callable[[Run, dict], DenoiserStage]) -> bool:
    """Train a denoiser; whether its minutes are used."""
    count = run.options.processes
    if count < 2:
        return stage(run, bank).train()
    with helpers(count, partial(help_train, stage=stage), run.options) as run.place:
        return stage(run, bank).train()


def help_train(options: argparse.Namespace, place: Place,
               stage: Callable[[Run, dict], DenoiserStage]) -> None:
    """Train a denoiser beside the process that was started first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run = Run(options, place)
    bank = make_bank(run)
    stage(run, focus(bank, run) if options.focus else bank).train()


def main() -> None:
    """Run the stages that were asked for."""
    warnings.filterwarnings("ignore")
    options = parse()
    run = Run(options)
    signal.signal(signal.SIGTERM, lambda *_: setattr(run, "asked_to_end", True))
    run.log(event="start", options=vars(options), torch=torch.__version__)
    wanted = set(STAGES[1:8]) if options.stage == "all" else {options.stage}
    if "vae" in wanted and run.before and not options.vae_minutes and not done(run, "vae.pt"):
        raise SystemExit("--px and --latents change the autoencoder, which has to learn: give it "
                         "minutes (--vae-minutes 18)")
    if "vae" in wanted and (not run.start or run.before) and not done(run, "vae.pt") \
            and not VaeStage(run).train():
        return
    take_marks(run)
    if wanted & {"bank", "text", "unet", "few"}:
        bank = make_bank(run)
        bank = focus(bank, run) if options.focus else bank
    learnt = run.load(UNET_FILE) is not None or done(run, TEXT_FILE)
    if "text" in wanted and options.text_minutes and not learnt and not pretrain_text(run, bank):
        return
    if "unet" in wanted and not done(run, UNET_FILE) and not trained(run, bank, UnetStage):
        return
    few = "few" in wanted and options.few_minutes and not done(run, FEW_FILE)
    if few and not trained(run, bank, FewStage):
        return
    alone = "decoder" in wanted and run.start and options.decoder_minutes
    if alone and not done(run, DECODER_FILE) and not VaeStage(run, decoder_alone=True).train():
        return
    if wanted & {"unet", "export", "few"}:
        export_all(run)
    if "sample" in wanted:
        unet, text, bank, _ = run.finished()
        prompts = options.prompts.split("|") if options.prompts else None
        path = Path(options.png) if options.png else run.out / "samples" / "asked.png"
        sample(run, unet, text, bank, path, prompts)


if __name__ == "__main__":
    main()
