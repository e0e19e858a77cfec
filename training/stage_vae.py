"""First stage: the autoencoder, new, or finished weights with more channels of latents or for
larger pictures; or the decoder of finished weights alone."""

from __future__ import annotations

import math
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from bank import composer_of
from deeper import half, held_latents
from kernels import quicken_autoencoder
from layout import from_single_file
from marks import STRENGTHS, marked
from models import RunningMean, decoding, make_vae, reorder
from pictures import held_out
from run import DECODER_FILE, StageClock
from sampling import grid
from scene import in_squares, lined
from shortlist import SHORT_LIST, read_list
from wider import divergence, held_loss, without_details

SCENES = 0.4
"""Share of the pictures that are scenes: small things, lines, squares and grounds, which are not in
pictures of single things. On a graphics processor there are none: it would wait for them, 4 ms of a
core each."""
OF_STYLE = 0.25
"""Share of the pictures that are drawn in styles which have a mark of latents, beside those of
scenes, where a decoder begins to learn them. It falls to nothing at the end, at small rates, which
is for what most pictures are: with an eighth in each of two styles throughout, 17 minutes of a core
took the autoencoder of the model that ships from 30.09 dB to 29.77."""

ROUGH = 0.15
"""Most of the noise, as a share of the deviation of each channel, that is added to latents while a
decoder is trained alone. What a denoiser draws lies that far from what the encoder would give of
it (0.09 in the first four channels of the model that ships, where the encoder's own noise is less
than 0.001), and a decoder that never saw such latents makes plain grounds mottled of them."""


def roughened(latent: torch.Tensor) -> torch.Tensor:
    """Latents [n, c, h, w] with noise, each of another strength."""
    spread = latent.std((0, 2, 3), keepdim=True)
    strength = ROUGH * torch.rand(len(latent), 1, 1, 1, device=latent.device)
    return latent + strength * spread * torch.randn_like(latent)


def gradients(image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Differences between neighbouring pixels, down and across."""
    return (image[..., 1:, :] - image[..., :-1, :], image[..., :, 1:] - image[..., :, :-1])


class VaeStage:
    """Trains on crops first, on whole pictures in the last two fifths of the time.

    With `decoder_alone` the encoder of finished weights stays as it is, and so do the latents, so
    that every denoiser for them draws with the new decoder, in squares or lines where they have the
    run's mark for it (`marks.py`). Where the run has more channels of latents than the weights that
    it goes on from, the first ones are held where they were; where it has larger pictures, all of
    them are.
    """

    def __init__(self, run, decoder_alone: bool = False):
        self.run, preset, self.decoder_alone = run, run.preset, decoder_alone
        self.pictures = run.pictures()
        if decoder_alone:
            model = run.final_vae()
        else:
            model = run.started_vae() if run.start else make_vae(preset)
        self.model = run.quickened(run.put(model), quicken_autoencoder)
        self.marks = run.marks if decoder_alone else {}
        self.first = None if decoder_alone else self.first_channels()
        self.core = run.compiled(self.model)
        self.file = DECODER_FILE if decoder_alone else "vae.pt"
        self.name = Path(self.file).stem
        self.mean = RunningMean(decoding(self.model) if decoder_alone else [self.model], 0.998)
        self.optimiser = torch.optim.AdamW(self.mean.parameters(), preset["vae_lr"],
                                           betas=(0.9, 0.99), weight_decay=1e-3, fused=True)
        self.step, self.clock = 0, StageClock(
            run, run.options.decoder_minutes if decoder_alone else run.options.vae_minutes)
        state = run.load(self.file)
        if state:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            reorder(self.optimiser)
            self.mean.values = [value.to(run.device) for value in state["mean"]]
            self.mean.count = self.step = state["step"]
            self.clock.spent = state["spent"]
            torch.manual_seed(run.options.seed + self.step)  # other noise each time it goes on
        styles = preset["styles"].split(",")
        known = {entry.label for entry in read_list(SHORT_LIST)}
        self.weight = torch.tensor([
            (1.0 if style in styles else 0.12) * max(concept["weight"], 0.3)
            * (concept["label"] in known or not held_out(concept["label"]))
            for style, concept in zip(self.pictures.style, self.pictures.concept, strict=True)])
        self.random = torch.Generator().manual_seed(run.options.seed + self.step)
        self.scenes, self.composer = random.Random(run.options.seed + self.step), None
        if preset["scenes"] and run.options.concepts and run.device.type == "cpu":
            self.composer = composer_of(run, read_list(Path(run.options.concepts)), self.marks)

    def first_channels(self) -> torch.nn.Module | None:
        """The autoencoder whose channels are to stay, where there are such."""
        run = self.run
        if run.before is None:
            return None
        model = from_single_file(make_vae(run.before), "vae", run.before, run.start.tensors)
        return run.quickened(run.put(model), quicken_autoencoder).requires_grad_(False)

    def batch(self, count: int, crop: int) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
        """Pictures on white or on a random colour, mirrored at times, and scenes where the run has
        such, cut out: as they are encoded, as they are to be decoded, which differs in styles that
        have a mark, and those styles, empty for none."""
        px, chance = self.run.preset["px"], self.random
        index = torch.multinomial(self.weight, count, True, generator=chance)
        piece = self.pictures.images[index].to(self.run.device).permute(0, 3, 1, 2).float() / 255
        if torch.rand(1, generator=chance) < 0.5:
            piece = piece.flip(3)
        piece[:, :3] *= piece[:, 3:]
        white = torch.rand(count, 1, generator=chance) < 0.6
        ground = torch.where(white, torch.ones(count, 3), torch.rand(count, 3, generator=chance))
        styled = torch.rand(count, generator=chance) < OF_STYLE * (1 - self.clock.share)
        which = torch.rand(count, generator=chance) * len(self.marks)
        styles = [[*self.marks][int(number)] if self.marks and some else ""
                  for number, some in zip(which, styled, strict=True)]
        ground[torch.tensor([style == "outline" for style in styles])] = 1
        ground = ground.to(piece.device)[:, :, None, None].expand(count, 3, px, px)
        image = piece[:, :3] + ground * (1 - piece[:, 3:])
        wanted = image.clone()
        for number, style in enumerate(styles):
            if style == "pixel":
                wanted[number] = in_squares(image[number])
            elif style == "outline":
                wanted[number] = lined(ground[number], piece[number], ground[number])
        for number in range(round(SCENES * count) if self.composer else 0):
            scene = self.composer.item(self.scenes).scene
            image[number], styles[number] = self.composer.drawn(scene)
            wanted[number] = (self.composer.art.drawn(scene) if styles[number] else image[number])
        if crop < px:
            top, left = (int(torch.randint(0, px - crop + 1, (1,), generator=chance))
                         for _ in range(2))
            image, wanted = (each[:, :, top:top + crop, left:left + crop]
                             for each in (image, wanted))
        return self.run.memory(image * 2 - 1), self.run.memory(wanted * 2 - 1), styles

    def learn(self, image: torch.Tensor, wanted: torch.Tensor, styles: list[str]) -> list[float]:
        """One step by what `batch` gives; returns the mean error, the error of the edges and the
        divergence."""
        with self.run.cast():
            with torch.set_grad_enabled(not self.decoder_alone):
                latent = self.core.encode(image).latent_dist
            drawn = latent.sample()
            if self.first and self.run.new_latents:
                drawn = without_details(drawn, self.run.before["vae"]["z"], self.random)
            if self.decoder_alone:
                drawn = roughened(drawn)
            if self.marks:
                low, high = STRENGTHS
                shares = low + (high - low) * torch.rand(len(styles))
                drawn = marked(drawn, styles, self.marks, shares)
            decoded = self.model.decode(drawn).sample.float()
        mean, logvar = latent.mean.float(), latent.logvar.float()
        apart = divergence(mean, logvar)
        error = decoded - wanted
        pixels = error.abs().mean()
        edges = sum(part.abs().mean() for part in gradients(error))
        coarse = sum(F.avg_pool2d(error, size).abs().mean() for size in (2, 4, 8)) / 3
        loss = pixels + 0.5 * edges + 0.5 * coarse
        if self.first:
            with torch.no_grad(), self.run.cast():
                known = image if self.run.new_latents else half(image)
                was = self.first.encode(known).latent_dist
            if self.run.new_latents:
                loss = loss + held_loss(mean, logvar, was.mean.float())
            else:
                loss = loss + held_latents(mean, logvar, was.mean.float(), was.logvar.float())
        else:
            loss = loss + self.run.options.kl * apart
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.mean.parameters(), 1.0)
        self.optimiser.step()
        self.mean.step()
        self.step += 1
        return [pixels.item(), edges.item(), apart.item()]

    def train(self) -> bool:
        """Train until the stage's time is used (True) or the process has to stop (False)."""
        run, preset, clock, sums = self.run, self.run.preset, self.clock, [0.0] * 3
        clock.start()
        while clock.lasts():
            whole = self.decoder_alone or clock.share >= 0.6
            crop = preset["px"] if whole else preset["vae_crop"]
            full = crop == preset["px"]
            count = max(4, preset["vae_batch"] // 2) if full else preset["vae_batch"]
            fade = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * clock.share))
            for group in self.optimiser.param_groups:
                group["lr"] = preset["vae_lr"] * min(1, (self.step + 1) / 100) * fade
            errors = self.learn(*self.batch(count, crop))
            sums = [total + error for total, error in zip(sums, errors, strict=True)]
            clock.tick()
            every = run.options.log_every
            if self.step % every == 0:
                pixels, edges, apart = (round(total / every, 4) for total in sums)
                run.log(stage=self.name, step=self.step, spent=round(clock.spent), pixels=pixels,
                        edges=edges, kl=apart, crop=crop)
                sums = [0.0] * 3
            if clock.saves():
                self.save(done=False)
        self.save(clock.done)
        return clock.done

    def save(self, done: bool) -> None:
        """Save the state and draw some pictures beside what became of them."""
        self.run.save(self.file, dict(
            model=self.model.state_dict(), optimiser=self.optimiser.state_dict(),
            mean=self.mean.values, step=self.step, spent=self.clock.spent, done=done,
            sizes=self.run.latent_sizes, marks=self.marks))
        self.sheet()

    @torch.no_grad()
    def sheet(self) -> None:
        """Sixteen pictures and their reconstructions, with the signal-to-noise ratio."""
        random = torch.Generator().manual_seed(5)
        index = torch.randint(0, len(self.pictures.images), (16,), generator=random)
        image = self.pictures.images[index].permute(0, 3, 1, 2).float() / 255
        image = (image[:, :3] * image[:, 3:] + 1 - image[:, 3:]) * 2 - 1
        self.mean.swap()
        latent = self.model.encode(image.to(self.run.device)).latent_dist.mean
        decoded = self.model.decode(latent).sample.float().cpu()
        self.mean.swap()
        error = ((decoded.clamp(-1, 1) - image) / 2).pow(2).mean((1, 2, 3))
        self.run.log(event="vae_sheet", step=self.step,
                     psnr=round((-10 * torch.log10(error)).mean().item(), 2))
        pairs = [part for pair in zip(image, decoded, strict=True) for part in pair]
        grid(pairs, 8, self.run.out / "samples" / f"{self.name}_{self.step:06d}.png")
