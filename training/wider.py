"""More channels for the latents of finished weights. The first channels stay what they were, and a
denoiser for them goes on from what it knows: it reads the others as zeros and says nothing of them
until it has learnt them."""

from __future__ import annotations

import torch
from layout import from_single_file
from models import make_unet, make_vae
from presets import LATENT_SCALE

FINE = 0.5
"""Standard deviation of the channels that are added, where those that were there have 1: noise
covers them for longer, so that a denoiser draws what is coarse first, and details that it gets
wrong weigh less."""
QUIET = -4.0
"""Log variance of channels that are added, at first: of little noise."""
ABSENT = 0.15
"""Share of the pictures whose added channels are zeros while the autoencoder is trained: a decoder
for latents without their details draws what is there."""
KEEP = 3.0
"""Weight of the difference between the first channels and what they were, in their own variance,
beside a loss of about 0.1: 0.1 % of the variance are 0.003 of the loss."""
ADDED_DIVERGENCE = 5e-4
"""Weight of the divergence of the added channels from a normal distribution, alone: the others are
held where they were."""


def wider_vae(preset: dict, tensors: dict[str, torch.Tensor], before: dict) -> torch.nn.Module:
    """An autoencoder with the channels that `preset` has, from the weights `tensors` of one with
    those of `before`."""
    old = from_single_file(make_vae(before), "vae", before, tensors).state_dict()
    model = make_vae(preset)
    few, many = before["vae"]["z"], preset["vae"]["z"]
    was = torch.tensor([*range(few), *range(many, many + few)])  # means, then log variances
    fresh = torch.tensor([*range(few, many)])
    state = model.state_dict()
    for name, value in state.items():
        if value.shape == old[name].shape:
            value.copy_(old[name])
    for name in ("encoder.conv_out.weight", "encoder.conv_out.bias"):
        state[name][was] = old[name]
    state["encoder.conv_out.bias"][fresh] = 0.0
    state["encoder.conv_out.bias"][fresh + many] = QUIET
    through = torch.eye(2 * many)
    through[was[:, None], was] = old["quant_conv.weight"][:, :, 0, 0]
    state["quant_conv.weight"].copy_(through[:, :, None, None])
    state["quant_conv.bias"].zero_()[was] = old["quant_conv.bias"]
    through = torch.eye(many)
    through[:few, :few] = old["post_quant_conv.weight"][:, :, 0, 0]
    state["post_quant_conv.weight"].copy_(through[:, :, None, None])
    state["post_quant_conv.bias"].zero_()[:few] = old["post_quant_conv.bias"]
    state["decoder.conv_in.weight"][:, :few] = old["decoder.conv_in.weight"]
    model.load_state_dict(state)
    return model


def wider_unet(preset: dict, tensors: dict[str, torch.Tensor], before: dict) -> torch.nn.Module:
    """A denoiser with the channels that `preset` has, from the weights `tensors` of one with those
    of `before`: it does with the first channels what that one does."""
    old = from_single_file(make_unet(before), "unet", before, tensors).state_dict()
    model, few = make_unet(preset), before["vae"]["z"]
    state = model.state_dict()
    for name, value in state.items():
        if value.shape == old[name].shape:
            value.copy_(old[name])
            continue
        value.zero_()
        if name.startswith("conv_in"):
            value[:, :few] = old[name]
        else:  # conv_out
            value[:few] = old[name]
    model.load_state_dict(state)
    return model


def divergence(mean: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
    """The mean divergence of normal distributions from the one with mean 0 and variance 1."""
    return 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()


def kept(mean: torch.Tensor, was: torch.Tensor) -> torch.Tensor:
    """What keeps means [n, c, h, w] of latents where they were."""
    return KEEP * (mean - was).square().mean() * LATENT_SCALE ** 2


def held_loss(mean: torch.Tensor, logvar: torch.Tensor, was: torch.Tensor) -> torch.Tensor:
    """What keeps latents [n, c, h, w] in their places: the first channels where they `was`, the
    others near a normal distribution."""
    few = was.shape[1]
    added = divergence(mean[:, few:], logvar[:, few:])
    return kept(mean[:, :few], was) + ADDED_DIVERGENCE * added


def without_details(latent: torch.Tensor, few: int, random: torch.Generator) -> torch.Tensor:
    """Latents [n, c, h, w], of which a share `ABSENT` has zeros behind the first `few` channels."""
    absent = torch.rand(len(latent), 1, 1, 1, generator=random).to(latent.device) < ABSENT
    fine = torch.where(absent, 0.0, latent[:, few:])
    return torch.cat([latent[:, :few], fine], 1)
