"""The three models, built by diffusers and transformers, and the running mean of weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from presets import CONTEXT, LATENT_SCALE, TRAIN_STEPS


def latent_side(preset: dict) -> int:
    """Pixels a side of the latents: each level of the autoencoder but the first halves it."""
    return preset["px"] // 2 ** (len(preset["vae"]["ch"]) - 1)


def make_vae(preset: dict) -> torch.nn.Module:
    """The autoencoder: KL, latents of `latent_side`."""
    from diffusers import AutoencoderKL

    size = preset["vae"]
    levels = len(size["ch"])
    return AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=size["z"],
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=tuple(size["ch"]), layers_per_block=size["lpb"],
        norm_num_groups=size["groups"], sample_size=preset["px"], scaling_factor=LATENT_SCALE)


def decoding(vae: torch.nn.Module) -> list[torch.nn.Module]:
    """The parts of an autoencoder that make a picture of latents."""
    return [vae.post_quant_conv, vae.decoder]


def make_unet(preset: dict) -> torch.nn.Module:
    """The denoiser: a UNet that attends to the words on the levels that `attn` names."""
    from diffusers import UNet2DConditionModel

    size, latent = preset["unet"], preset["vae"]["z"]
    down = ["CrossAttnDownBlock2D" if attends else "DownBlock2D" for attends in size["attn"]]
    rise = ["CrossAttnUpBlock2D" if attends else "UpBlock2D"
            for attends in reversed(size["attn"])]
    return UNet2DConditionModel(
        sample_size=latent_side(preset), in_channels=latent, out_channels=latent,
        down_block_types=tuple(down), up_block_types=tuple(rise),
        block_out_channels=tuple(size["ch"]), layers_per_block=size["lpb"],
        cross_attention_dim=preset["text"]["width"], norm_num_groups=size["groups"],
        attention_head_dim=size["heads"])  # diffusers means the number of heads here


def make_text(preset: dict, words: int) -> torch.nn.Module:
    """CLIP's text encoder with a table of this many words."""
    from transformers import CLIPTextConfig, CLIPTextModel

    size = preset["text"]
    return CLIPTextModel(CLIPTextConfig(
        vocab_size=words, hidden_size=size["width"], intermediate_size=4 * size["width"],
        num_hidden_layers=size["layers"], num_attention_heads=size["heads"],
        max_position_embeddings=CONTEXT, projection_dim=size["width"], hidden_act="quick_gelu",
        bos_token_id=min(1, words - 1), eos_token_id=words - 1, pad_token_id=words - 1))


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a device has arithmetic in bfloat16: processors without it (AVX2, say) compute it in
    float32 one by one, many times slower than float32 itself."""
    return device.type != "cpu" or (  # PyTorch without oneDNN does not have that operator
        torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def signal_shares() -> torch.Tensor:
    """The share of the picture in the noisy picture, squared, at each of SD 1's 1000 steps."""
    roots = torch.linspace(0.00085 ** 0.5, 0.012 ** 0.5, TRAIN_STEPS, dtype=torch.float64)
    return torch.cumprod(1 - roots ** 2, 0).float()


class RunningMean:
    """The exponential mean of the parameters of some models, of every `EACH`th step."""

    EACH = 4

    def __init__(self, modules: Iterable[torch.nn.Module], decay: float):
        self.modules, self.decay, self.count = list(modules), decay, 0
        self.values = [parameter.detach().clone() for parameter in self.parameters()]

    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters themselves, in a fixed order."""
        return [parameter for module in self.modules for parameter in module.parameters()]

    @torch.no_grad()
    def step(self) -> None:
        """Take the present parameters into the mean; the mean is short at first."""
        self.count += 1
        if self.count % self.EACH:
            return
        decay = min(self.decay, (1 + self.count) / (10 + self.count)) ** self.EACH
        torch._foreach_lerp_(self.values, [p.detach() for p in self.parameters()], 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the parameters and their mean."""
        for mean, parameter in zip(self.values, self.parameters(), strict=True):
            present = parameter.detach().clone()
            parameter.copy_(mean)
            mean.copy_(present)


class CaptionHead(torch.nn.Module):
    """A small head that guesses a latent from encoded words; thrown away after pre-training."""

    GRID = 4

    def __init__(self, width: int, side: int, channels: int):
        super().__init__()
        nn = torch.nn
        self.patch, self.channels = side // self.GRID, channels
        self.query = nn.Parameter(torch.randn(self.GRID ** 2, width) * 0.5)
        self.attend = nn.ModuleList(
            [nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(2)])
        self.norm = nn.ModuleList([nn.LayerNorm(width) for _ in range(4)])
        self.think = nn.ModuleList([
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(2)])
        self.out = nn.Linear(width, channels * self.patch ** 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        state = self.query[None].expand(len(words), -1, -1)
        for layer in range(2):
            query = self.norm[2 * layer](state)
            state = state + self.attend[layer](query, words, words, need_weights=False)[0]
            state = state + self.think[layer](self.norm[2 * layer + 1](state))
        grid, patch, channels = self.GRID, self.patch, self.channels
        tiles = self.out(state).view(len(words), grid, grid, channels, patch, patch)
        return tiles.permute(0, 3, 1, 4, 2, 5).reshape(
            len(words), channels, grid * patch, grid * patch)


def reorder(optimiser: torch.optim.Optimizer) -> None:
    """Bring an optimiser's moments into the order of memory that their parameters have: its fused
    step reads both as they lie there, and a state may come from layers of another order."""
    for parameter, kept in optimiser.state.items():
        for name in ("exp_avg", "exp_avg_sq"):
            kept[name] = torch.empty_like(parameter.data).copy_(kept[name])
