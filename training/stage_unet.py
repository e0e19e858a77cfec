"""Third stage: denoiser and text encoder together, on the bank of latents."""

from __future__ import annotations

import torch
from batches import Batches, spread_places
from heldout import held_errors
from models import signal_shares
from presets import TRAIN_STEPS
from run import UNET_FILE
from sampling import sample
from stage_denoiser import DenoiserStage


class UnetStage(DenoiserStage):
    """min-SNR weighting, stratified steps, some captions emptied for guidance."""

    name, file = "unet", UNET_FILE

    def __init__(self, run, bank: dict) -> None:
        options = run.options
        self.bank = bank
        self.unet, self.text = run.fresh_unet(), run.fresh_text(bank["vocab"], bank["like"])
        pretrained = run.load("text.pt")
        if pretrained:
            self.text.load_state_dict(pretrained["text"])
        for path, model, key in ((options.init_text, self.text, "text"),
                                 (options.init_unet, self.unet, "unet")):
            if path:
                model.load_state_dict(
                    torch.load(path, map_location="cpu", weights_only=False)[key])
        super().__init__(run, [self.unet, self.text], options.unet_minutes, run.preset["lr"],
                         run.preset["warmup"])
        self.fast_unet = run.compiled(self.unet)
        self.fast_text = run.compiled(self.text) if run.device.type == "cuda" else self.text
        self.batches = Batches(bank, run.device, options.cfg_drop)
        self.shares = signal_shares().to(run.device)

    def parts(self) -> dict[str, torch.nn.Module]:
        """The models that are saved, by name."""
        return dict(unet=self.unet, text=self.text)

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Latents, captions and steps of a batch; the steps are spread over the whole range."""
        latent, caption = self.batches.draw(count)
        return latent, caption, spread_places(count, TRAIN_STEPS, latent.device)

    def errors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The error of each sample: that of the picture, weight min(SNR + 1, gamma)."""
        latent, caption, moment = self.draw(self.run.preset["batch"])
        share = self.shares[moment][:, None, None, None]
        noise = torch.randn_like(latent)
        noisy = self.run.memory(share.sqrt() * latent + (1 - share).sqrt() * noise)
        with self.run.cast():
            words = self.fast_text(input_ids=caption).last_hidden_state
            output = self.fast_unet(noisy, moment, encoder_hidden_states=words).sample
        ratio = (share / (1 - share)).flatten()
        weight = (ratio + 1).clamp(max=self.run.options.gamma)
        if self.run.options.pred == "v":
            target, scale = share.sqrt() * noise - (1 - share).sqrt() * latent, ratio + 1
        else:
            target, scale = noise, ratio
        error = (output.float() - target).pow(2).mean((1, 2, 3)) * weight / scale
        return error, moment

    def sheet(self) -> None:
        """Draw the sheet of prompts with the mean weights, and log what they have understood."""
        self.mean.swap()
        path = self.run.out / "samples" / f"unet_{self.step:06d}.png"
        sample(self.run, self.unet, self.text, self.bank, path)
        if "held" in self.bank:
            self.run.log(event="held", step=self.step, **held_errors(
                self.run, self.unet, self.text, self.bank["held"]))
        self.mean.swap()
