"""The models of the suite as modules of PyTorch, diffusers and transformers, with our weights.

PyTorch is imported inside the functions, so that Smalti works where it is not installed.

    peer = peer_unet(SD15.denoiser)
    peer.module(...)          # what diffusers computes
    peer.weights              # numpy arrays under the names of our graphs: the module's memory
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smalti.benchmark.tiny_cnn import tiny_cnn_module
from smalti.benchmark.weights import seeded
from smalti.dataclass import dataclass
from smalti.diffusion import tokenizer
from smalti.errors import InputError
from smalti.families.keys.renaming import (
    controlnet_renaming,
    internal_shape,
    is_ignored,
    text_encoder_name,
    unet_renaming,
    vae_renaming,
)
from smalti.models.config import (
    CLIP_L,
    ClipTextConfig,
    ControlNetConfig,
    MobileNetV2Config,
    ModelConfig,
    UNetConfig,
    VaeConfig,
)
from smalti.models.language import PREFIX as LANGUAGE
from smalti.models.language_config import LanguageConfig
from smalti.models.transformer_config import Flux2Config, FluxConfig, ZImageConfig
from smalti.models.z_image import STREAM_UNIT


@dataclass(frozen=True)
class Peer:
    """A module in evaluation mode, and its weights under our names, which share its memory."""

    module: Any
    weights: Mapping[str, np.ndarray]

    def fill(self, read: Callable[[str], np.ndarray]) -> None:
        """Take every weight from `read(name)`."""
        for name, array in self.weights.items():
            array[...] = read(name)


def peer_tiny_cnn(seed: int = 0) -> Peer:
    """TinyCNN, with seeded weights."""
    return _peer(tiny_cnn_module, lambda state: str, seed)


def peer_unet(config: UNetConfig, seed: int = 0, sinusoids: int = 256) -> Peer:
    """diffusers' UNet2DConditionModel of this configuration, with seeded weights.

    Where it reads a vector, that ends in numbers of so many `sinusoids` each.
    """
    from diffusers import UNet2DConditionModel

    return _peer(lambda: UNet2DConditionModel(**unet_arguments(config, sinusoids)),
                 unet_renaming, seed)


def unet_arguments(config: UNetConfig, sinusoids: int = 256) -> dict[str, Any]:
    """What diffusers calls the hyperparameters of a UNet."""
    attention, levels = config.attention, range(len(config.block_channels))
    added = {"addition_embed_type": "text_time", "addition_time_embed_dim": sinusoids,
             "projection_class_embeddings_input_dim": config.vector_dim}
    middles = {"transformer": "UNetMidBlock2DCrossAttn", "residual": "UNetMidBlock2D",
               "none": None}
    return dict(
        in_channels=config.in_channels,
        out_channels=config.out_channels,
        block_out_channels=config.block_channels,
        layers_per_block=config.res_blocks,
        down_block_types=tuple("CrossAttnDownBlock2D" if a else "DownBlock2D"
                               for a in attention),
        up_block_types=tuple("CrossAttnUpBlock2D" if a else "UpBlock2D"
                             for a in attention[::-1]),
        # a number of heads, in spite of its name; and the last depth is also that of the middle
        attention_head_dim=tuple(config.heads_at(c) for c in config.block_channels),
        transformer_layers_per_block=tuple(d or config.middle_depth
                                           for d in config.transformer_depth),
        reverse_transformer_layers_per_block=(
            [list(config.output_depths(level)) for level in reversed(levels)]
            if config.output_depth else None),
        mid_block_type=middles[config.middle],
        cross_attention_dim=config.context_dim,
        norm_num_groups=config.norm_groups,
        norm_eps=config.eps,
        use_linear_projection=config.linear_projection,
        time_cond_proj_dim=config.guidance_sinusoids if config.guidance else None,
        **added if config.vector_dim else {},
    )


def peer_controlnet(config: ControlNetConfig, seed: int = 0, sinusoids: int = 256) -> Peer:
    """diffusers' ControlNetModel or ControlNetUnionModel, with seeded weights."""
    return _peer(lambda: controlnet_module(config, sinusoids), controlnet_renaming, seed)


def controlnet_module(config: ControlNetConfig, sinusoids: int = 256) -> Any:
    """ControlNetModel, or ControlNetUnionModel where there are types."""
    from diffusers import ControlNetModel, ControlNetUnionModel

    unet = unet_arguments(config.unet, sinusoids)
    for name in ("out_channels", "up_block_types", "reverse_transformer_layers_per_block",
                 "time_cond_proj_dim"):
        del unet[name]
    unet.update(conditioning_channels=config.image_channels,
                conditioning_embedding_out_channels=config.hint_channels,
                global_pool_conditions=config.pooled)
    if not config.types:
        return ControlNetModel(**unet)
    del unet["mid_block_type"]
    width = config.unet.block_channels[0]
    return ControlNetUnionModel(**{
        **unet, "addition_time_embed_dim": config.type_sinusoids, "num_control_type": config.types,
        "num_trans_channel": width, "num_proj_channel": width,
        "num_trans_layer": config.type_layers})


def peer_vae(config: VaeConfig, seed: int = 0) -> Peer:
    """diffusers' AutoencoderKL of this configuration, with seeded weights."""
    from diffusers import AutoencoderKL

    levels = len(config.block_channels)
    return _peer(
        lambda: AutoencoderKL(
            in_channels=config.image_channels,
            out_channels=config.image_channels,
            latent_channels=config.z_channels,
            block_out_channels=config.block_channels,
            layers_per_block=config.res_blocks,
            down_block_types=("DownEncoderBlock2D",) * levels,
            up_block_types=("UpDecoderBlock2D",) * levels,
            norm_num_groups=config.norm_groups,
            scaling_factor=config.scaling_factor,
            shift_factor=config.shift_factor,
            use_quant_conv=config.quant_conv,
            use_post_quant_conv=config.quant_conv,
        ), vae_renaming, seed)


def peer_clip_text(config: ClipTextConfig, seed: int = 0) -> Peer:
    """transformers' CLIPTextModel(WithProjection) of this configuration, with seeded weights."""
    return _peer(lambda: clip_text_module(config), lambda state: clip_text_renaming(config), seed)


def clip_text_renaming(config: ClipTextConfig) -> Callable[[str], str]:
    """From transformers' names of this text encoder to ours."""
    return lambda name: config.prefix + text_encoder_name(name).removeprefix(CLIP_L.prefix)


def clip_text_module(config: ClipTextConfig) -> Any:
    """CLIPTextModel, or CLIPTextModelWithProjection where the configuration has a projection."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    model = CLIPTextModelWithProjection if config.projection else CLIPTextModel
    return model(CLIPTextConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        max_position_embeddings=config.positions,
        hidden_act=config.activation,
        layer_norm_eps=config.eps,
        bos_token_id=config.vocab_size - 2,
        eos_token_id=config.vocab_size - 1,
        projection_dim=config.projection,
    ))


def peer_language(config: LanguageConfig, seed: int = 0) -> Peer:
    """transformers' Qwen3Model of this configuration, with seeded weights."""
    from transformers import Qwen3Config, Qwen3Model

    def build() -> Any:
        return Qwen3Model(Qwen3Config(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.mlp_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rotary_base},
            use_cache=False,
        ))

    return _peer(build, lambda state: f"{LANGUAGE}.{{}}".format, seed)


def peer_mobilenet_v2(config: MobileNetV2Config, seed: int = 0) -> Peer:
    """transformers' MobileNetV2ForImageClassification of this configuration, with seeded weights.

    Its batch normalisations get means and variances that differ from 0 and 1.
    """
    from transformers import MobileNetV2Config as PeerConfig
    from transformers import MobileNetV2ForImageClassification

    return _peer(
        lambda: MobileNetV2ForImageClassification(PeerConfig(
            num_labels=config.classes, depth_multiplier=config.multiplier,
            layer_norm_eps=config.eps, tf_padding=config.same_padding)),
        lambda state: str, seed)


def peer_flux_double_block(config: FluxConfig, seed: int = 0) -> Peer:
    """diffusers' FluxTransformerBlock of this configuration, whose MLP is 4 times as wide."""
    from diffusers.models.transformers.transformer_flux import FluxTransformerBlock

    separate = _peer(
        lambda: FluxTransformerBlock(config.hidden_size, config.heads, config.head_dim,
                                     eps=config.eps), lambda state: str, seed)
    weights = {}
    for name, stream, added in (("img", "", "to_{}"), ("txt", "_context", "add_{}_proj")):
        parts = {f"{name}_mod.lin": [f"norm1{stream}.linear"],
                 f"{name}_attn.qkv": ["attn." + added.format(part) for part in "qkv"],
                 f"{name}_attn.proj": ["attn.to_add_out" if stream else "attn.to_out.0"],
                 f"{name}_mlp.0": [f"ff{stream}.net.0.proj"],
                 f"{name}_mlp.2": [f"ff{stream}.net.2"]}
        for ours, sources in parts.items():
            for kind in ("weight", "bias"):
                weights[f"double_blocks.0.{ours}.{kind}"] = _stacked(
                    separate.module, [f"{part}.{kind}" for part in sources])
        for ours, theirs in (("query_norm", "q"), ("key_norm", "k")):
            norm = f"attn.norm_{'added_' if stream else ''}{theirs}.weight"
            weights[f"double_blocks.0.{name}_attn.norm.{ours}.scale"] = separate.weights[norm]
    _keep_in_unit(separate.module, config)
    return _filled(separate.module, weights, seed)


def _keep_in_unit(module: Any, config: FluxConfig) -> None:
    """Make diffusers' FluxTransformerBlock take and give tokens in `config.unit`, at no cost: its
    norms do not mind, and its gates are what is added."""

    def gates_in_unit(_: Any, __: Any, made: tuple[Any, ...]) -> tuple[Any, ...]:
        normal, gate, shift, scale, mlp_gate = made
        return normal, gate * config.unit, shift, scale, mlp_gate * config.unit

    for norm in (module.norm1, module.norm1_context):
        norm.register_forward_hook(gates_in_unit)
    for norm in (module.norm1.norm, module.norm1_context.norm, module.norm2, module.norm2_context):
        norm.eps = config.stream_eps


def peer_z_image_block(config: ZImageConfig, seed: int = 0) -> Peer:
    """diffusers' ZImageTransformerBlock of this configuration, whose angles are real numbers: what
    is exported to ONNX has no complex ones."""
    from diffusers.models.transformers.transformer_z_image import ZImageTransformerBlock

    separate = _peer(
        lambda: ZImageTransformerBlock(0, config.hidden_size, config.heads, config.heads,
                                       config.eps, qk_norm=True), lambda state: str, seed)
    separate.module.attention.set_processor(_TurnedAttention())
    renamed = {"attention.to_out.0": "attention.out", "attention.norm_q": "attention.q_norm",
               "attention.norm_k": "attention.k_norm"}
    weights = {"layers.0.attention.qkv.weight": _stacked(
        separate.module, [f"attention.to_{part}.weight" for part in "qkv"])}
    for name, value in separate.weights.items():
        path, _, kind = name.rpartition(".")
        if not path.endswith(("to_q", "to_k", "to_v")):
            weights[f"layers.0.{renamed.get(path, path)}.{kind}"] = value
    return _filled(separate.module, weights, seed)


def peer_flux2_single_block(config: Flux2Config, seed: int = 0) -> Peer:
    """diffusers' Flux2SingleTransformerBlock of this configuration, for tokens in its unit."""
    from diffusers.models.transformers.transformer_flux2 import Flux2SingleTransformerBlock

    stored = {"attn.to_qkv_mlp_proj.weight": "linear1.weight", "attn.to_out.weight":
              "linear2.weight", "attn.norm_q.weight": "norm.query_norm.scale",
              "attn.norm_k.weight": "norm.key_norm.scale"}
    found = _peer(
        lambda: Flux2SingleTransformerBlock(
            config.hidden_size, config.heads, config.head_dim,
            mlp_ratio=config.mlp_size / config.hidden_size, eps=config.eps),
        lambda state: lambda name: f"single_blocks.0.{stored[name]}", seed)
    found.module.norm.eps = config.stream_eps
    return found


class _TurnedAttention:
    """What diffusers' ZSingleStreamAttnProcessor computes, with angles (cos, sin)."""

    def __call__(self, attention: Any, x: Any, encoder_hidden_states: Any = None,
                 attention_mask: Any = None, freqs_cis: Any = None) -> Any:
        """Attention of the tokens x [n, t, c] to all of them."""
        from diffusers.models.embeddings import apply_rotary_emb
        from torch.nn.functional import scaled_dot_product_attention

        q, k, v = (project(x).unflatten(-1, (attention.heads, -1)).transpose(1, 2)
                   for project in (attention.to_q, attention.to_k, attention.to_v))
        q, k = (apply_rotary_emb(norm(part), freqs_cis)
                for norm, part in ((attention.norm_q, q), (attention.norm_k, k)))
        mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return attention.to_out[0](mixed)


def _stacked(module: Any, names: Sequence[str]) -> np.ndarray:
    """Parameters of the module as one array, of which they are parts from now on."""
    import torch

    parameters = [module.get_parameter(name) for name in names]
    whole = torch.cat([parameter.data for parameter in parameters])
    for parameter, part in zip(parameters, whole.split([len(p) for p in parameters]),
                               strict=True):
        parameter.data = part
    return whole.numpy()


def sd1_configs(config: ModelConfig) -> tuple[ClipTextConfig, UNetConfig]:
    """The text encoder and the UNet of a Stable Diffusion 1. Raises InputError for other models."""
    text, unet = config.texts.get("clip_l"), config.denoiser
    if not isinstance(text, ClipTextConfig) or not isinstance(unet, UNetConfig):
        raise InputError(f"{config.family} is no Stable Diffusion 1, which has CLIP-L and a UNet")
    return text, unet


def peer_sd1(config: ModelConfig, seed: int = 0) -> tuple[Peer, Peer, Peer]:
    """Text encoder, UNet and autoencoder of a whole model; merge their weights for a file."""
    text, unet = sd1_configs(config)
    return peer_clip_text(text, seed), peer_unet(unet, seed + 1), peer_vae(config.vae, seed + 2)


def clip_tokenizer() -> Any:
    """transformers' tokenizer of CLIP, with the table that Smalti reads."""
    from transformers import CLIPTokenizer

    merges = tokenizer.merges()
    vocabulary = dict(merges.numbers)
    for rank, pair in enumerate(merges.lines):
        vocabulary[pair.replace(" ", "")] = tokenizer.FIRST_MERGE + rank
    vocabulary |= tokenizer.SPECIAL
    pairs = [tuple(pair.split(" ")) for pair in merges.lines]
    return CLIPTokenizer(vocab=vocabulary, merges=pairs)


def _peer(build: Callable[[], Any],
          renaming: Callable[[Mapping[str, Any]], Callable[[str], str]], seed: int) -> Peer:
    """The module that `build` makes, filled; `renaming(state)` gives our name of each of its own.

    The numbers that PyTorch would draw first are not drawn: a UNet takes long enough as it is.
    """
    import torch
    from accelerate import init_empty_weights

    with init_empty_weights():
        module = build()
    state = {name: torch.zeros(tensor.shape, dtype=tensor.dtype)
             for name, tensor in module.state_dict().items()}
    module.load_state_dict(state, assign=True)
    rename, weights = renaming(state), {}
    for name, tensor in state.items():
        ours = rename(name)
        if not is_ignored(ours) and not name.endswith("num_batches_tracked"):
            weights[ours] = tensor.numpy().reshape(internal_shape(ours, tuple(tensor.shape)))
    return _filled(module, weights, seed)


def _filled(module: Any, weights: Mapping[str, np.ndarray], seed: int) -> Peer:
    peer = Peer(module.eval(), weights)
    peer.fill(lambda name: seeded(name, weights[name].shape, seed))
    return peer


# ---------------------------------------------------------------------- calls as ours


def called(peer: Peer, call: Callable[..., Any]) -> Any:
    """A module whose `forward(*inputs)` is `call(peer.module, *inputs)`: one tensor or a tuple."""
    import torch

    class Called(torch.nn.Module):
        """What is run, and exported to ONNX."""

        def __init__(self) -> None:
            super().__init__()
            self.module = peer.module

        def forward(self, *inputs: torch.Tensor) -> Any:
            return call(self.module, *inputs)

    return Called().eval()


def call_directly(module: Any, *inputs: Any) -> Any:
    """What the module gives."""
    return module(*inputs)


def call_text(module: Any, tokens: Any) -> Any:
    """The last hidden state."""
    return module(tokens.long()).last_hidden_state


def call_flux_double_block(module: Any, img: Any, txt: Any, vec: Any, cos: Any,
                           sin: Any) -> tuple[Any, Any]:
    """Tokens of the image, tokens of the text, in the unit in which they are given."""
    txt, img = module(img, txt, vec, _doubled(cos, sin))
    return img, txt


def call_z_image_block(module: Any, x: Any, vec: Any, cos: Any, sin: Any) -> Any:
    """Tokens, in the unit in which they are given."""
    return module(x / STREAM_UNIT, None, _doubled(cos, sin), vec) * STREAM_UNIT


def call_flux2_single_block(module: Any, x: Any, shift: Any, scale: Any, gate: Any, cos: Any,
                            sin: Any) -> Any:
    """Tokens, in the unit in which they are given."""
    import torch

    modulation = torch.cat((shift, scale, gate * Flux2Config.unit), dim=1)
    return module(x, None, modulation, _doubled(cos, sin))


def _doubled(cos: Any, sin: Any) -> tuple[Any, Any]:
    """An angle for each channel instead of one a pair."""
    return cos[0].repeat_interleave(2, dim=1), sin[0].repeat_interleave(2, dim=1)


def call_mobilenet_v2(module: Any, image: Any) -> Any:
    """A number for each class."""
    return module(image).logits


def call_unet(module: Any, latent: Any, timesteps: Any, context: Any) -> Any:
    """The prediction."""
    return module(latent, timesteps, context, return_dict=False)[0]


def call_vae_decode(module: Any, latent: Any) -> Any:
    """The picture."""
    return module.decode(latent, return_dict=False)[0]


def call_vae_encode(module: Any, image: Any) -> Any:
    """Mean and logarithm of the variance."""
    moments = module.encoder(image)
    return moments if module.quant_conv is None else module.quant_conv(moments)
