"""Tiny pipelines of diffusers with random weights, one of each family, and folders of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tiny_families as tiny
from tiny_gemma import TREE as GEMMA_TREE
from tiny_tekken import SPECIAL as TEKKEN_SPECIAL
from tiny_tekken import TEKKEN
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
from smalti.diffusion import byte_bpe, tekken
from smalti.diffusion.t5_tokenizer import shipped
from smalti.diffusion.tokenizer import END, encode
from smalti.families.language import CHATML, CHATML_ANSWER
from smalti.models.config import CausalVaeConfig, ClipTextConfig, ResidualVaeConfig
from smalti.models.language_config import LanguageConfig
from smalti.models.newer_transformer_config import ErnieImageConfig
from smalti.models.transformer_config import (
    Krea2Config,
    QwenImageConfig,
    T5Config,
    ZImageConfig,
)

PAD, PAD_NUMBER = "<|image_pad|>", 151_655
"""What stands for a part of a picture in a text of Qwen2.5-VL."""
TEKKEN_PADDING = TEKKEN_SPECIAL.index("<pad>")


class Tokenizer:
    """Our tokenizers behind the interface of transformers; CLIP's fills up with `padding`."""

    model_max_length = 77
    added_tokens_encoder: dict[str, int] = {}

    def __init__(self, padding: int | None) -> None:
        self.padding = padding

    def __call__(self, prompts: str | list[str], max_length: int | None = None, **_: Any) -> Any:
        import torch
        from transformers import BatchEncoding

        length = max_length or self.model_max_length
        texts = [prompts] if isinstance(prompts, str) else prompts
        rows, masks = [], []
        for text in texts:
            tokens = (encode(text, length) if self.padding is not None
                      else shipped().encode(text, length))
            count = tokens.count + (2 if self.padding is not None else 1)
            ids = np.array(tokens.ids)
            if self.padding is not None:
                ids[count:] = self.padding
            rows.append(ids)
            masks.append(np.arange(length) < count)
        return BatchEncoding({"input_ids": torch.tensor(np.array(rows), dtype=torch.long),
                              "attention_mask": torch.tensor(np.array(masks), dtype=torch.long)})

    def tokenize(self, text: str) -> list[str]:
        """Words, among which are no learned ones."""
        return text.split()

    def batch_decode(self, ids: Any) -> list[str]:
        """What was cut; the tests cut nothing."""
        return [""] * len(ids)


class ChatTokenizer(Tokenizer):
    """That of Qwen3, with its template for a message."""

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, prompts: str | list[str], max_length: int = 512, **_: Any) -> Any:
        import torch
        from transformers import BatchEncoding

        texts = [prompts] if isinstance(prompts, str) else prompts
        read = [byte_bpe.qwen3().encode(text, max_length) for text in texts]
        masks = [np.arange(max_length) < tokens.count for tokens in read]
        return BatchEncoding({"input_ids": torch.tensor([tokens.ids for tokens in read]),
                              "attention_mask": torch.tensor(np.array(masks), dtype=torch.long)})

    def apply_chat_template(self, messages: list[dict[str, str]], enable_thinking: bool = True,
                            **_: Any) -> str:
        """A message before an answer."""
        template = CHATML if enable_thinking else CHATML_ANSWER
        return template.format(messages[0]["content"])


class PaddedTokenizer(ChatTokenizer):
    """That of Krea 2's pipeline, which fills up a prompt, and puts more behind it."""

    def __call__(self, prompts: list[str], max_length: int = 0, **more: Any) -> Any:
        longest = max(len(byte_bpe.qwen3().tokenize(text)) for text in prompts)
        return super().__call__(prompts, max_length or longest, **more)


class WindowTokenizer(ChatTokenizer):
    """The processor of FLUX.3's pipeline, whose tokenizer is asked twice: for the length of a text,
    and for one that is filled up."""

    def tokenizer(self, text: str, max_length: int, padding: str = "", **more: Any) -> Any:
        """As that of Qwen3."""
        own = min(len(byte_bpe.qwen3().tokenize(text)), max_length)
        return self([text], max_length if padding else own, **more)


class WordTokenizer(ChatTokenizer):
    """That of Qwen2.5, which fills up to the longest text."""

    def __call__(self, prompts: list[str], max_length: int = 1024, **more: Any) -> Any:
        longest = max(len(byte_bpe.qwen2().tokenize(text)) for text in prompts)
        return super().__call__(prompts, min(longest, max_length), **more)


class PieceTokenizer(Tokenizer):
    """That of Qwen2.5, which LongCat-Image's pipeline asks for pieces of a prompt."""

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, text: str, **_: Any) -> Any:
        return {"input_ids": byte_bpe.qwen2().tokenize(text)}

    def pad(self, given: dict[str, list[list[int]]], max_length: int, **_: Any) -> Any:
        """Rows of as many numbers, and which of these are not filling."""
        import torch
        from transformers import BatchEncoding

        rows, padding = given["input_ids"], byte_bpe.qwen2().vocabulary.padding
        full = [row + [padding] * (max_length - len(row)) for row in rows]
        masks = [[1] * len(row) + [0] * (max_length - len(row)) for row in rows]
        return BatchEncoding({"input_ids": torch.tensor(full),
                              "attention_mask": torch.tensor(masks)})


class PictureProcessor(Tokenizer):
    """That of Qwen2.5-VL: pictures as patches, and texts with a token for each square of them."""

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, text: list[str], images: Any, **_: Any) -> Any:
        from transformers import Qwen2VLImageProcessor

        found = Qwen2VLImageProcessor()(images=images, return_tensors="pt")
        full = []
        for each in text:
            for grid in found["image_grid_thw"]:
                each = each.replace(PAD, "\0" * (int(grid.prod()) // 4), 1)
            full.append(each.replace("\0", PAD))
        read = WordTokenizer()(full, max_length=4096)
        read.update(found)
        return read


class TextProcessor(ChatTokenizer):
    """That of Qwen3-VL, of texts alone, which are filled up in front."""

    @property
    def tokenizer(self) -> Any:
        return self

    def encode(self, text: str) -> list[int]:
        return byte_bpe.qwen3().tokenize(text)

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> list[list[int]]:
        """What the model is told, as token numbers."""
        (message,) = messages
        return [self.encode(f"<|im_start|>{message['role']}\n{message['content'][0]['text']}"
                            "<|im_end|>\n")]

    def __call__(self, text: list[str], **_: Any) -> Any:
        import torch
        from transformers import BatchEncoding

        rows = [self.encode(each) for each in text]
        longest = max(map(len, rows))
        padding = byte_bpe.qwen3().vocabulary.padding
        return BatchEncoding({
            "input_ids": torch.tensor([[padding] * (longest - len(row)) + row for row in rows]),
            "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row)
                                            for row in rows])})


class MistralTokenizer(Tokenizer):
    """A small one of Mistral's kind, with its template for a conversation."""

    def __init__(self) -> None:
        super().__init__(None)

    def apply_chat_template(self, messages: list[Any], max_length: int = 512, **_: Any) -> Any:
        """What is said to the model, filled up in front."""
        import torch
        from transformers import BatchEncoding

        texts = [f"<s>[SYSTEM_PROMPT]{system['content'][0]['text']}[/SYSTEM_PROMPT]"
                 f"[INST]{user['content'][0]['text']}[/INST]" for system, user in messages]
        found = [tekken.vocabulary(TEKKEN).tokenize(text)[:max_length] for text in texts]
        rows = [[TEKKEN_PADDING] * (max_length - len(ids)) + ids for ids in found]
        masks = [[0] * (max_length - len(ids)) + [1] * len(ids) for ids in found]
        return BatchEncoding({"input_ids": torch.tensor(rows),
                              "attention_mask": torch.tensor(masks)})


class BeginningTokenizer(Tokenizer):
    """The same, of plain texts, before which a token of its own stands."""

    bos_token_id = TEKKEN_SPECIAL.index("<s>")

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, text: str, **_: Any) -> Any:
        return {"input_ids": [self.bos_token_id, *tekken.vocabulary(TEKKEN).tokenize(text)]}


def gemma_tokenizer() -> Any:
    """A small one of Gemma's kind, as transformers reads it, which folders have."""
    from tokenizers import Tokenizer as Theirs
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Theirs.from_str(json.dumps(GEMMA_TREE)), bos_token="<bos>",
        eos_token="<eos>", pad_token="<pad>", unk_token="<unk>", padding_side="right")


def gemma(sizes: dict[str, Any], turns: dict[str, Any], config: LanguageConfig) -> Any:
    """Gemma 2, whose factors of norms start as zeros."""
    from transformers import Gemma2Config, Gemma2Model

    return Gemma2Model(Gemma2Config(
        **sizes, head_dim=config.head_dim, rope_parameters=turns,
        query_pre_attn_scalar=config.query_size, attn_logit_softcapping=config.softcap,
        sliding_window=config.window))


def language_model(config: LanguageConfig) -> Any:
    """A module of transformers; it starts with norms of one, which are made others."""
    import torch
    from transformers import MistralConfig, MistralModel, Qwen3Config, Qwen3Model

    sizes = dict(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size,
        intermediate_size=config.mlp_size, num_hidden_layers=config.layers,
        num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
        rms_norm_eps=config.eps)
    turns = {"rope_type": "default", "rope_theta": config.rotary_base}
    if config.qkv_bias:
        module = qwen25_vl(config, sizes, turns)
    elif config.sandwiched:
        module = gemma(sizes, turns, config)
    elif config.stretched > 1:
        module = ministral(sizes, config)
    elif config.rotary_base == tiny.QWEN3_VL.rotary_base:
        module = qwen3_vl(sizes, turns, config.head_dim, speaking=config != tiny.QWEN3_VL)
    else:
        kind, about = ((Qwen3Model, Qwen3Config) if config.qk_norm else
                       (MistralModel, MistralConfig))
        module = kind(about(**sizes, head_dim=config.head_dim, rope_parameters=turns))
    for name, tensor in module.named_parameters():
        torch.nn.init.normal_(tensor.data, float("norm" in name or "ln_q" in name), 0.2)
    return module


def ministral(sizes: dict[str, Any], config: LanguageConfig) -> Any:
    """Ministral 3 with what reads pictures; its configuration has the turns of published ones."""
    from transformers import Ministral3Config, Mistral3Config, Mistral3Model

    text = Ministral3Config(**sizes, head_dim=config.head_dim)
    vision = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                  image_size=28, patch_size=14)
    return Mistral3Model(Mistral3Config(
        text_config=text.to_dict(), vision_config={"model_type": "pixtral", **vision}))


def qwen25_vl(config: LanguageConfig, sizes: dict[str, Any], turns: dict[str, Any]) -> Any:
    """Qwen2.5-VL, whose heads share its width, and of which the second block sees all patches."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    section = list(replace(config, head_dim=config.hidden_size // config.heads).sections)
    seen = config.vision or tiny.VISION
    vision = dict(depth=seen.blocks, hidden_size=seen.hidden_size, num_heads=seen.heads,
                  intermediate_size=seen.mlp_size, out_hidden_size=config.hidden_size,
                  fullatt_block_indexes=[1], window_size=seen.window * seen.patch)
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(
        text_config={**sizes, "rope_parameters": {**turns, "mrope_section": section}},
        vision_config=vision))


def qwen3_vl(sizes: dict[str, Any], turns: dict[str, Any], head_dim: int,
             speaking: bool) -> Any:
    """Qwen3-VL, with the words that it would say or without, as Krea 2's folder has it."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLModel

    section = [head_dim // 2 - 2 * (head_dim // 8), head_dim // 8, head_dim // 8]
    vision = dict(depth=1, hidden_size=32, num_heads=2, intermediate_size=48,
                  out_hidden_size=sizes["hidden_size"], deepstack_visual_indexes=[0])
    kind = Qwen3VLForConditionalGeneration if speaking else Qwen3VLModel
    return kind(Qwen3VLConfig(
        text_config={**sizes, "head_dim": head_dim, "rope_parameters": {
            **turns, "mrope_section": section, "mrope_interleaved": True}},
        vision_config=vision))


def text_encoder(config: ClipTextConfig | T5Config | LanguageConfig) -> Any:
    """A module of transformers."""
    if isinstance(config, LanguageConfig):
        return language_model(config)
    if isinstance(config, ClipTextConfig):
        return peers.clip_text_module(config)
    from transformers import T5Config as Theirs
    from transformers import T5EncoderModel

    return T5EncoderModel(Theirs(
        vocab_size=config.vocab_size, d_model=config.hidden_size, d_kv=config.head_dim,
        d_ff=config.mlp_size, num_layers=config.layers, num_heads=config.heads,
        feed_forward_proj="gated-gelu", dropout_rate=0.0))


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
