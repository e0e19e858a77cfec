"""Small models of many kinds with random weights, as PyTorch modules to be exported to ONNX.

    module, inputs = MODELS["bert"]()         # inputs: tensors by name, in the order of `forward`
    path, inputs = export(folder, "bert", "dynamo", 20)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Made = tuple[Any, dict[str, Any]]
EXPORTERS = {"dynamo": 20, "torchscript": 17}
"""The exporters of PyTorch: by torch.export and by tracing, each with a usual opset."""
NOT_EXPORTED = {("flux", "torchscript"), ("gpt2", "torchscript"), ("llama", "torchscript"),
                ("detector", "dynamo")}
"""What an exporter of PyTorch 2.13 does not know: rms_norm, diff; NonMaxSuppression."""


def _made(module: Any, call: Callable[..., Any] | None = None, **inputs: Any) -> Made:
    """A module whose `forward(*inputs)` is `call(module, *inputs)`."""
    from torch import nn

    class Wrapped(nn.Module):
        """What is exported."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *given: Any) -> Any:
            return (call or (lambda module, *given: module(*given)))(self.module, *given)

    return Wrapped().eval(), inputs


def _tokens(batch: int, count: int, vocabulary: int) -> Any:
    import torch

    return torch.randint(3, vocabulary, (batch, count))


# ---------------------------------------------------------------------- diffusion


def unet_sd15() -> Made:
    """The UNet of SD 1.5, two levels of it."""
    import torch
    from diffusers import UNet2DConditionModel

    module = UNet2DConditionModel(
        in_channels=4, out_channels=4, block_out_channels=(32, 64), layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=4,
        cross_attention_dim=48, norm_num_groups=8)
    return _made(module, lambda m, *x: m(*x, return_dict=False)[0],
                 latent=torch.randn(2, 4, 16, 16), timesteps=torch.tensor([681.0, 681.0]),
                 context=torch.randn(2, 77, 48))


def unet_sdxl() -> Made:
    """The UNet of SDXL: linear projections, deeper transformers, an embedding of the size."""
    import torch
    from diffusers import UNet2DConditionModel

    module = UNet2DConditionModel(
        in_channels=4, out_channels=4, block_out_channels=(32, 64), layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), attention_head_dim=(2, 4),
        transformer_layers_per_block=(1, 2), cross_attention_dim=48, norm_num_groups=8,
        use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + 32)

    def call(m, latent, timesteps, context, pooled, sizes):
        return m(latent, timesteps, context, return_dict=False,
                 added_cond_kwargs={"text_embeds": pooled, "time_ids": sizes})[0]

    return _made(module, call, latent=torch.randn(1, 4, 16, 24), timesteps=torch.tensor([500.0]),
                 context=torch.randn(1, 20, 48), pooled=torch.randn(1, 32),
                 sizes=torch.tensor([[128.0, 192, 0, 0, 128, 192]]))


def controlnet() -> Made:
    """A ControlNet: all the residuals that it adds to a UNet."""
    import torch
    from diffusers import ControlNetModel
    from torch import nn

    module = ControlNetModel(
        in_channels=4, block_out_channels=(32, 64), layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=4,
        cross_attention_dim=48, norm_num_groups=8, conditioning_embedding_out_channels=(16, 32))
    for parameter in module.parameters():  # its last convolutions start as zeros
        if not parameter.any():
            nn.init.normal_(parameter, std=0.05)

    def call(m, *x):
        down, middle = m(*x, return_dict=False)
        return (*down, middle)

    return _made(module, call, latent=torch.randn(1, 4, 16, 16), timesteps=torch.tensor([200.0]),
                 context=torch.randn(1, 9, 48), hint=torch.rand(1, 3, 32, 32))


def _autoencoder() -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(block_out_channels=(16, 32), norm_num_groups=8, latent_channels=4,
                         down_block_types=("DownEncoderBlock2D",) * 2,
                         up_block_types=("UpDecoderBlock2D",) * 2)


def vae_decoder() -> Made:
    """The decoder of an autoencoder."""
    import torch
    return _made(_autoencoder(), lambda m, z: m.decode(z, return_dict=False)[0],
                 latent=torch.randn(1, 4, 12, 16))


def vae_encoder() -> Made:
    """The encoder of an autoencoder: mean and logarithm of the variance."""
    import torch
    return _made(_autoencoder(), lambda m, x: m.quant_conv(m.encoder(x)),
                 image=torch.rand(1, 3, 32, 24) * 2 - 1)


def flux() -> Made:
    """The transformer of Flux: a double and a single block, rotary embedding of pairs."""
    import torch
    from diffusers import FluxTransformer2DModel

    module = FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=24,
        guidance_embeds=True, axes_dims_rope=(4, 6, 6))
    grid = torch.cartesian_prod(torch.arange(1.0), torch.arange(4.0), torch.arange(5.0))

    def call(m, img, txt, pooled, timestep, guidance):
        return m(img, encoder_hidden_states=txt, pooled_projections=pooled, timestep=timestep,
                 guidance=guidance, img_ids=grid, txt_ids=torch.zeros(7, 3), return_dict=False)[0]

    return _made(module, call, img=torch.randn(1, 20, 16), txt=torch.randn(1, 7, 32),
                 pooled=torch.randn(1, 24), timestep=torch.tensor([0.5]),
                 guidance=torch.tensor([3.5]))


def sd3() -> Made:
    """The transformer of SD 3: patches, joint blocks of attention."""
    import torch
    from diffusers import SD3Transformer2DModel

    module = SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=24, caption_projection_dim=32,
        pooled_projection_dim=20, out_channels=4, pos_embed_max_size=12, qk_norm="rms_norm")
    return _made(module, lambda m, x, c, p, t: m(x, c, p, t, return_dict=False)[0],
                 latent=torch.randn(1, 4, 16, 16), context=torch.randn(1, 9, 24),
                 pooled=torch.randn(1, 20), timestep=torch.tensor([300.0]))


# ---------------------------------------------------------------------- text


def clip_text() -> Made:
    """CLIP's text encoder: a causal mask, quick GELU."""
    from transformers import CLIPTextConfig, CLIPTextModel

    module = CLIPTextModel(CLIPTextConfig(
        vocab_size=96, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=77))
    return _made(module, lambda m, ids: m(ids).last_hidden_state, ids=_tokens(2, 77, 94))


def t5_encoder() -> Made:
    """The encoder of T5: RMS norms, attention with a bias of relative positions, gated GELU."""
    from transformers import T5Config, T5EncoderModel

    module = T5EncoderModel(T5Config(vocab_size=96, d_model=48, d_kv=16, d_ff=80, num_layers=2,
                                     num_heads=4, feed_forward_proj="gated-gelu"))
    return _made(module, lambda m, ids: m(ids).last_hidden_state, ids=_tokens(1, 33, 94))


def bert() -> Made:
    """BERT with a padding mask."""
    import torch
    from transformers import BertConfig, BertModel

    module = BertModel(BertConfig(vocab_size=96, hidden_size=48, intermediate_size=96,
                                  num_hidden_layers=2, num_attention_heads=4))
    mask = torch.ones(2, 21, dtype=torch.int64)
    mask[1, 13:] = 0
    return _made(module, lambda m, ids, mask: m(ids, mask)[:2], ids=_tokens(2, 21, 96), mask=mask)


def gpt2() -> Made:
    """GPT-2: one matrix for queries, keys and values, GELU by tanh, logits."""
    from transformers import GPT2Config, GPT2LMHeadModel

    module = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=64, n_embd=48, n_layer=2,
                                        n_head=4, use_cache=False))
    return _made(module, lambda m, ids: m(ids).logits, ids=_tokens(1, 19, 96))


def llama() -> Made:
    """Llama: RMS norms, rotary embedding of halves, fewer keys than queries, SwiGLU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    module = LlamaForCausalLM(LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, use_cache=False))
    return _made(module, lambda m, ids: m(ids).logits, ids=_tokens(1, 17, 96))


def decoder_step() -> Made:
    """A step of Llama: the next token, with the keys and values of those before it; logits and all
    keys and values."""
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    layers, heads, depth, seen = 2, 2, 16, 11
    module = LlamaForCausalLM(LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=heads))
    past = {f"{kind}_{i}": torch.randn(2, heads, seen, depth)
            for i in range(layers) for kind in ("key", "value")}

    def call(m, ids, *past):
        cache = DynamicCache(list(zip(past[::2], past[1::2])))
        found = m(ids, past_key_values=cache, use_cache=True,
                  position_ids=torch.full((2, 1), seen))
        cache = found.past_key_values
        return (found.logits, *(x for layer in cache.layers for x in (layer.keys, layer.values)))

    return _made(module, call, ids=_tokens(2, 1, 96), **past)


# ---------------------------------------------------------------------- pictures and sound


def vit() -> Made:
    """ViT: patches, a class token, exact GELU."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    module = ViTForImageClassification(ViTConfig(
        hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        image_size=32, patch_size=8, num_labels=10))
    return _made(module, lambda m, x: m(x).logits, image=torch.randn(1, 3, 32, 32))


def _lively(module: Any) -> Any:
    """Batch normalisations get statistics that differ from 0 and 1."""
    from torch import nn

    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, std=0.3)
            nn.init.uniform_(part.running_var, 0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 1.5)
    return module


def resnet() -> Made:
    """ResNet: batch normalisation, pooling of windows."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    module = ResNetForImageClassification(ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2], num_labels=10))
    return _made(_lively(module), lambda m, x: m(x).logits, image=torch.randn(1, 3, 64, 48))


def mobilenet_v2() -> Made:
    """MobileNetV2: depthwise convolutions, ReLU6."""
    import torch
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    module = MobileNetV2ForImageClassification(MobileNetV2Config(
        depth_multiplier=0.35, image_size=64, num_labels=10))
    return _made(_lively(module), lambda m, x: m(x).logits, image=torch.randn(1, 3, 64, 64))


def convnext() -> Made:
    """ConvNeXt: layer norms over channels, wide depthwise windows."""
    import torch
    from transformers import ConvNextConfig, ConvNextForImageClassification

    module = ConvNextForImageClassification(ConvNextConfig(
        hidden_sizes=[16, 32], depths=[1, 2], num_stages=2, num_labels=10))
    return _made(module, lambda m, x: m(x).logits, image=torch.randn(1, 3, 32, 32))


def whisper_encoder() -> Made:
    """The encoder of Whisper: convolutions along time, then transformer blocks."""
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    module = WhisperEncoder(WhisperConfig(
        num_mel_bins=20, d_model=48, encoder_layers=2, encoder_attention_heads=4,
        encoder_ffn_dim=96, max_source_positions=25, vocab_size=96, pad_token_id=0))
    return _made(module, lambda m, x: m(x).last_hidden_state, mel=torch.randn(1, 20, 50))


def upscaler(channels: int = 16) -> Made:
    """A residual dense block, then an enlargement by shuffled pixels and one by neighbours, as in
    ESRGAN (Wang et al. 2018, arXiv:1809.00219)."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Upscaler(nn.Module):
        """[n, 3, h, w] -> [n, 3, 4 h, 4 w]."""

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, channels, 3, padding=1)
            self.dense = nn.ModuleList(nn.Conv2d(channels * i, channels, 3, padding=1)
                                       for i in (1, 2, 3))
            self.shuffled = nn.Conv2d(channels, 4 * channels, 3, padding=1)
            self.enlarged = nn.Conv2d(channels, channels, 3, padding=1)
            self.last = nn.Conv2d(channels, 3, 3, padding=1)

        def forward(self, image: Any) -> Any:
            features = [self.first(image)]
            for layer in self.dense:
                features.append(functional.leaky_relu(layer(torch.cat(features, 1)), 0.2))
            x = features[0] + 0.2 * features[-1]
            x = functional.leaky_relu(functional.pixel_shuffle(self.shuffled(x), 2), 0.2)
            x = functional.interpolate(x, scale_factor=2, mode="nearest")
            return self.last(functional.leaky_relu(self.enlarged(x), 0.2))

    return _made(Upscaler(), image=torch.rand(1, 3, 12, 16))


def detector(channels: int = 16, classes: int = 3) -> Made:
    """A pyramid of features from two levels, boxes and scores, then the boxes that overlap no
    better one, as in YOLO (Redmon & Farhadi 2018, arXiv:1804.02767)."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Suppression(torch.autograd.Function):
        """ONNX's NonMaxSuppression, which PyTorch has no operator for; here, nothing overlaps."""

        @staticmethod
        def forward(ctx: Any, boxes: Any, scores: Any) -> Any:
            return torch.zeros(1, 3, dtype=torch.int64)

        @staticmethod
        def symbolic(g: Any, boxes: Any, scores: Any) -> Any:
            limits = [g.op("Constant", value_t=torch.tensor([x])) for x in (20, 0.4, 0.3)]
            return g.op("NonMaxSuppression", boxes, scores, *limits)

    class Detector(nn.Module):
        """[1, 3, h, w] -> boxes [found, 4] and their scores [found]."""

        def __init__(self) -> None:
            super().__init__()
            def layer(i, o, stride):
                return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1), nn.BatchNorm2d(o), nn.SiLU())

            self.fine = nn.Sequential(layer(3, channels, 2), layer(channels, channels, 2))
            self.coarse = layer(channels, 2 * channels, 2)
            self.both = layer(3 * channels, channels, 1)
            self.heads = nn.ModuleList(nn.Conv2d(n, 4 + classes, 1)
                                       for n in (channels, 2 * channels))

        def forward(self, image: Any) -> Any:
            fine = self.fine(image)
            coarse = self.coarse(fine)
            enlarged = functional.interpolate(coarse, size=fine.shape[2:], mode="nearest")
            fine = self.both(torch.cat([enlarged, fine], 1))
            found = torch.cat([head(x).flatten(2) for head, x in zip(self.heads, (fine, coarse))],
                              2).transpose(1, 2)
            centre, extent = found[..., :2] * 2, found[..., 2:4].exp()
            boxes = torch.cat([centre - extent, centre + extent], 2)
            scores = found[..., 4:].sigmoid()
            chosen = Suppression.apply(boxes, scores.transpose(1, 2))
            return boxes[0, chosen[:, 2]], scores[0, chosen[:, 2], chosen[:, 1]]

    return _made(_lively(Detector()), image=torch.rand(1, 3, 48, 64))


def recurrent() -> Made:
    """A bidirectional LSTM, then a GRU, over steps of time."""
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        """[n, t, 12] -> [n, t, 8] and the last state."""

        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(12, 16, bidirectional=True, batch_first=True)
            self.gru = nn.GRU(32, 8, batch_first=True)

        def forward(self, x: Any) -> tuple[Any, Any]:
            return self.gru(self.lstm(x)[0])

    return _made(Recurrent(), steps=torch.randn(2, 9, 12))


MODELS: dict[str, Callable[[], Made]] = {make.__name__: make for make in (
    unet_sd15, unet_sdxl, controlnet, vae_decoder, vae_encoder, flux, sd3, clip_text, t5_encoder,
    bert, gpt2, llama, decoder_step, vit, resnet, mobilenet_v2, convnext, whisper_encoder, upscaler,
    detector, recurrent)}


def export(folder: Path, name: str, exporter: str, opset: int,
           half: bool = False) -> tuple[Path, Arrays]:
    """An ONNX file of a model, in half precision on demand, and arrays to run it with."""
    import torch
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    if half:
        module = module.half()
        inputs = {name: tensor.half() if tensor.is_floating_point() else tensor
                  for name, tensor in inputs.items()}
    path = folder / f"{name}-{exporter}-{opset}.onnx"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(inputs.values()), path, input_names=list(inputs),
                          opset_version=opset, dynamo=exporter == "dynamo", verbose=False)
    return path, {name: tensor.numpy() for name, tensor in inputs.items()}
