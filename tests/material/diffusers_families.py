"""Tiny pipelines of diffusers with random weights, one of each family, and folders of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny_families as tiny
from diffusers_texts import (
    PAD_NUMBER,
    BeginningTokenizer,
    ChatTokenizer,
    MistralTokenizer,
    PaddedTokenizer,
    PictureProcessor,
    PieceTokenizer,
    TextProcessor,
    Tokenizer,
    WindowTokenizer,
    WordTokenizer,
    gemma_tokenizer,
    text_encoder,
)
from transformer_peers import (
    anima_module,
    anima_text_module,
    ernie_image_module,
    flux2_module,
    flux3_module,
    krea2_module,
    longcat_image_module,
    lumina2_module,
    ovis_image_module,
    qwen_image21_module,
    qwen_image_module,
    residual_autoencoder,
    z_image_module,
)

from smalti.benchmark import peers
from smalti.diffusion.tokenizer import END
from smalti.models.config import CausalVaeConfig, ResidualVaeConfig
from smalti.models.newer_transformer_config import ErnieImageConfig
from smalti.models.transformer_config import (
    Krea2Config,
    QwenImageConfig,
    ZImageConfig,
)


def autoencoder(family: str) -> Any:
    import torch
    from diffusers import AutoencoderKL, AutoencoderKLFlux2, AutoencoderKLQwenImage

    config = tiny.FAMILIES[family].vae
    if isinstance(config, ResidualVaeConfig):
        return residual_autoencoder(config)
    if isinstance(config, CausalVaeConfig):
        return AutoencoderKLQwenImage(
            base_dim=config.channels, z_dim=config.z_channels,
            dim_mult=[width // config.channels for width in config.block_channels],
            num_res_blocks=config.res_blocks,
            temperal_downsample=[True] * (len(config.block_channels) - 1),
            latents_mean=list(config.latents_mean), latents_std=list(config.latents_std))
    shared = dict(
        latent_channels=config.inner_channels, block_out_channels=config.block_channels,
        layers_per_block=config.res_blocks, norm_num_groups=config.norm_groups,
        down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2,
        use_quant_conv=config.quant_conv, use_post_quant_conv=config.quant_conv)
    if config.patch == 1:
        return AutoencoderKL(**shared, scaling_factor=config.scaling_factor,
                             shift_factor=config.shift_factor or None)
    module = AutoencoderKLFlux2(**shared, decoder_block_out_channels=config.decoder_widths)
    torch.nn.init.normal_(module.bn.running_mean)
    torch.nn.init.uniform_(module.bn.running_var, 0.5, 2)
    return module


def unet(family: str) -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(sample_size=16,
                                **peers.unet_arguments(tiny.FAMILIES[family].denoiser))


def transformer(family: str) -> Any:
    import diffusers

    config = tiny.FAMILIES[family].denoiser
    if family == "sd3":
        return diffusers.SD3Transformer2DModel(
            sample_size=32, patch_size=2, in_channels=16, out_channels=16,
            num_layers=config.blocks, attention_head_dim=64, num_attention_heads=config.heads,
            joint_attention_dim=config.context_dim, caption_projection_dim=config.hidden_size,
            pooled_projection_dim=config.pooled_dim, pos_embed_max_size=config.positions,
            dual_attention_layers=tuple(range(config.dual_blocks)), qk_norm="rms_norm")
    if family == "z-image":
        return z_image_transformer(config)
    if family in ("flux2", "flux2-dev"):
        return flux2_module(config)
    if family == "flux3":
        return flux3_module(config)
    if family == "anima":
        return anima_module(config)
    if family == "krea2":
        return krea2_transformer(config)
    if family == "lumina2":
        return lumina2_module(config)
    if family == "ernie-image":
        return ernie_image_transformer(config)
    if family == "ovis-image":
        return ovis_image_module(config)
    if family == "longcat-image":
        return longcat_image_module(config)
    if family == "qwen-image21":
        return qwen_image21_module(config)
    if isinstance(config, QwenImageConfig):
        return qwen_image_module(config)
    shared = dict(in_channels=4 * config.in_channels, num_layers=config.double_blocks,
                  num_single_layers=config.single_blocks, attention_head_dim=config.head_dim,
                  num_attention_heads=config.heads, joint_attention_dim=config.context_dim,
                  axes_dims_rope=config.axes)
    if family == "chroma":
        return diffusers.ChromaTransformer2DModel(
            **shared, approximator_hidden_dim=config.approximator_size,
            approximator_layers=config.approximator_layers)
    return diffusers.FluxTransformer2DModel(
        **shared, out_channels=64, pooled_projection_dim=config.pooled_dim,
        guidance_embeds=config.guidance)


def z_image_transformer(config: ZImageConfig) -> Any:
    """Its tokens that fill up start as zeros, which are made others."""
    import torch

    module = z_image_module(config)
    for tensor in (module.x_pad_token, module.cap_pad_token):
        torch.nn.init.normal_(tensor.data)
    return module


def krea2_transformer(config: Krea2Config) -> Any:
    """Its tables and the factors of its norms start as zeros, which are made others."""
    import torch

    module = krea2_module(config)
    for name, tensor in module.named_parameters():
        if "norm" in name or "table" in name:
            torch.nn.init.normal_(tensor.data, 0, 0.2)
    return module


def ernie_image_transformer(config: ErnieImageConfig) -> Any:
    """What modulates blocks, and its last layer, start as zeros, which are made others."""
    import torch

    module = ernie_image_module(config)
    for layer in (module.adaLN_modulation[1], module.final_linear):
        torch.nn.init.normal_(layer.weight.data, 0, config.hidden_size**-0.5)
        torch.nn.init.normal_(layer.bias.data, 0, 0.1)
    return module


def pipeline(family: str, prediction: str = "epsilon") -> Any:
    """A pipeline of diffusers with seeded weights; its scheduler is Euler's."""
    import diffusers
    import torch

    torch.manual_seed(0)
    texts = [text_encoder(config).eval() for config in tiny.FAMILIES[family].texts.values()]
    clip, big, t5 = Tokenizer(END), Tokenizer(0), Tokenizer(None)
    vae = autoencoder(family).eval()
    euler = diffusers.EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
        timestep_spacing="linspace", use_karras_sigmas=True, prediction_type=prediction)
    if family in ("sd1", "sd2"):
        return diffusers.StableDiffusionPipeline(
            vae=vae, text_encoder=texts[0], tokenizer=clip if family == "sd1" else big,
            unet=unet(family).eval(), scheduler=euler, safety_checker=None,
            feature_extractor=None, requires_safety_checker=False)
    larger = dict(vae=vae, tokenizer_2=big, scheduler=euler, force_zeros_for_empty_prompt=False,
                  add_watermarker=False)
    if family == "sdxl":
        return diffusers.StableDiffusionXLPipeline(
            text_encoder=texts[0], text_encoder_2=texts[1], tokenizer=clip,
            unet=unet(family).eval(), **larger)
    if family == "sdxl-refiner":
        return diffusers.StableDiffusionXLImg2ImgPipeline(
            text_encoder=None, text_encoder_2=texts[0], tokenizer=None,
            unet=unet(family).eval(), requires_aesthetics_score=True, **larger)
    network = transformer(family).eval()
    if family == "chroma":
        return diffusers.ChromaPipeline(
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0), vae=vae,
            text_encoder=texts[0], tokenizer=t5, transformer=network)
    flow = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=family in (
        "flux", "flux2", "flux2-dev", "longcat-image", "ovis-image"))
    if family == "anima":
        return anima_pipeline(flow, vae, texts[0], network)
    if family == "flux3":
        return flux3_pipeline(vae=vae, text_encoder=texts[0], transformer=network)
    if family in LANGUAGE_MODELS:
        return language_pipeline(family, flow, vae=vae, text_encoder=texts[0],
                                 transformer=network)
    if family.startswith("qwen-image"):
        return qwen_image_pipeline(family, vae=vae, text_encoder=texts[0], transformer=network)
    if family == "sd3":
        return diffusers.StableDiffusion3Pipeline(
            transformer=network, scheduler=flow, vae=vae, text_encoder=texts[0],
            tokenizer=clip, text_encoder_2=texts[1], tokenizer_2=big, text_encoder_3=texts[2],
            tokenizer_3=t5)
    return diffusers.FluxPipeline(
        scheduler=flow, vae=vae, text_encoder=texts[0], tokenizer=clip, text_encoder_2=texts[1],
        tokenizer_2=t5, transformer=network)


LANGUAGE_MODELS = {"z-image", "flux2", "krea2", "flux2-dev", "lumina2", "ernie-image",
                   "longcat-image", "ovis-image"}
"""Families that are read by one language model, but for those of Qwen-Image."""


def language_pipeline(family: str, flow: Any, **parts: Any) -> Any:
    """The pipeline of one of LANGUAGE_MODELS; `flow` is the scheduler that most of them have."""
    import diffusers

    if family == "z-image":
        return diffusers.ZImagePipeline(scheduler=flow, tokenizer=ChatTokenizer(), **parts)
    if family == "flux2":
        return diffusers.Flux2KleinPipeline(scheduler=flow, tokenizer=ChatTokenizer(),
                                            is_distilled=False, **parts)
    if family == "krea2":
        return diffusers.Krea2Pipeline(
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
                use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=256,
                max_image_seq_len=6400), tokenizer=PaddedTokenizer(), **parts)
    if family == "flux2-dev":
        return diffusers.Flux2Pipeline(scheduler=flow, tokenizer=MistralTokenizer(), **parts)
    if family == "lumina2":
        return diffusers.Lumina2Pipeline(scheduler=flow, tokenizer=gemma_tokenizer(), **parts)
    if family == "ernie-image":
        return diffusers.ErnieImagePipeline(
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=4.0),
            tokenizer=BeginningTokenizer(), **parts)
    if family == "longcat-image":
        return diffusers.LongCatImagePipeline(scheduler=flow, tokenizer=PieceTokenizer(),
                                              text_processor=None, **parts)
    return diffusers.OvisImagePipeline(scheduler=flow, tokenizer=ChatTokenizer(), **parts)


def qwen_image_pipeline(family: str, **parts: Any) -> Any:
    """That which makes pictures, or one that changes them."""
    import diffusers

    parts["scheduler"] = diffusers.FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, base_image_seq_len=256,
        max_image_seq_len=8192, shift_terminal=0.02)
    if family == "qwen-image21":
        return diffusers.QwenImage21Pipeline(processor=TextProcessor(), **parts)
    parts["tokenizer"] = WordTokenizer()
    if family == "qwen-image":
        return diffusers.QwenImagePipeline(**parts)
    kind = (diffusers.QwenImageEditPipeline if family == "qwen-image-edit" else
            diffusers.QwenImageEditPlusPipeline)
    encode = parts["text_encoder"].forward
    parts["text_encoder"].forward = lambda input_ids, **more: encode(
        input_ids=input_ids, mm_token_type_ids=(input_ids == PAD_NUMBER).long(), **more)
    return kind(processor=PictureProcessor(), **parts)


def anima_pipeline(scheduler: Any, vae: Any, text: Any, network: Any) -> Any:
    """Put together of blocks, one of which reads texts with two tokenizers."""
    from diffusers.modular_pipelines import AnimaAutoBlocks

    pipe = AnimaAutoBlocks().init_pipeline()
    pipe.update_components(
        scheduler=scheduler, vae=vae, text_encoder=text, tokenizer=ChatTokenizer(),
        t5_tokenizer=Tokenizer(None), transformer=network,
        text_conditioner=anima_text_module(tiny.FAMILIES["anima"].denoiser).eval())
    return pipe


def flux3_pipeline(**parts: Any) -> Any:
    """Put together of blocks, but for those that rewrite prompts; its scheduler is its own."""
    from diffusers.modular_pipelines import Flux3AutoBlocks, Flux3DistilledAutoBlocks

    distilled = parts["transformer"].config.flow_map
    blocks = (Flux3DistilledAutoBlocks if distilled else Flux3AutoBlocks)()
    blocks.sub_blocks.pop("prompt_upsampler")
    pipe = blocks.init_pipeline()
    pipe.update_components(tokenizer=WindowTokenizer(), **parts)
    return pipe


BESIDE = ("guider", "image_processor")
"""Components of pipelines of blocks that hold no weights."""


def normalised(pipe: Any, latents: Any) -> Any:
    """The latents that FLUX.2's transformer works on, from those of the convolutions."""
    mean, variance = (getattr(pipe.vae.bn, f"running_{name}").view(1, -1, 1, 1)
                      for name in ("mean", "var"))
    packed = pipe._patchify_latents(latents)
    return (packed - mean) / (variance + pipe.vae.config.batch_norm_eps).sqrt()


def spread(pipe: Any, latents: Any) -> Any:
    """The inverse of `normalised`."""
    mean, variance = (getattr(pipe.vae.bn, f"running_{name}").view(1, -1, 1, 1)
                      for name in ("mean", "var"))
    deviation = (variance + pipe.vae.config.batch_norm_eps).sqrt()
    return pipe._unpatchify_latents(latents * deviation + mean)


def decoded(pipe: Any, latents: np.ndarray) -> np.ndarray:
    """Pixels from 0 to 255, [height, width, 3]."""
    import torch

    vae, found = pipe.vae, torch.from_numpy(latents)
    with torch.no_grad():
        if "z_dim" in vae.config:  # of films
            mean, std = (torch.tensor(vae.config[name])[:, None, None]
                         for name in ("latents_mean", "latents_std"))
            image = vae.decode((found * std + mean)[:, :, None]).sample[0, :, 0]
        else:
            scaled = (spread(pipe, found) if hasattr(vae, "bn") else
                      found / vae.config.scaling_factor + (vae.config.shift_factor or 0))
            image = vae.decode(scaled).sample[0]
    return ((image / 2 + 0.5).clamp(0, 1) * 255).round().permute(1, 2, 0).numpy()


def save(pipe: Any, folder: Path, **options: Any) -> Path:
    """The folder of a pipeline, but for its tokenizers, which are ours."""
    index: dict[str, Any] = {"_class_name": type(pipe).__name__}
    for name, component in pipe.components.items():
        if component is None or isinstance(component, Tokenizer) or name in BESIDE:
            continue
        own = {} if name == "scheduler" else options
        component.save_pretrained(folder / name, **own)
        index[name] = [type(component).__module__.split(".")[0], type(component).__name__]
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder
