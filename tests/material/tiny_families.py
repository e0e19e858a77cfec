"""A tiny model of each family with random weights, and files of them as they are published.

Widths are such that nothing needs to be stated: 64 channels a head of CLIP, of UNets after SD 1.x
and of SD 3, 32 groups, 32 channels a head of Flux.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from smalti.families.expected import expected_tensors
from smalti.families.keys.language import FRAMES, PATCHES
from smalti.models.config import (
    CLIP_L,
    FLUX2_VAE,
    FLUX_VAE,
    OPENCLIP_G,
    OPENCLIP_H,
    QWEN_IMAGE21_VAE,
    SD3_VAE,
    SD_VAE,
    SDXL_VAE,
    WAN_VAE,
    CausalVaeConfig,
    ModelConfig,
    ResidualVaeConfig,
    UNetConfig,
)
from smalti.models.language import language_graph
from smalti.models.language_config import (
    GEMMA2_2B,
    MINISTRAL_3B,
    LanguageConfig,
    ReduxConfig,
    VisionConfig,
)
from smalti.models.newer_transformer_config import (
    ErnieImageConfig,
    Flux3Config,
    LongCatImageConfig,
    OvisImageConfig,
    QwenImage21Config,
)
from smalti.models.transformer_config import (
    AnimaConfig,
    ChromaConfig,
    Flux2Config,
    FluxConfig,
    Krea2Config,
    Lumina2Config,
    MMDiTConfig,
    QwenImageConfig,
    T5Config,
    ZImageConfig,
)

Weights = Mapping[str, np.ndarray]

SMALL = {"hidden_size": 64, "intermediate_size": 64, "layers": 2, "heads": 1}
CLIP = {
    "clip_l": replace(CLIP_L, **SMALL),
    "clip_h": replace(OPENCLIP_H, **SMALL, projection=0),
    "clip_g": replace(OPENCLIP_G, **SMALL, projection=64),
}
T5 = T5Config(32128, hidden_size=128, mlp_size=64, layers=1, heads=2, head_dim=64)
QWEN3 = LanguageConfig(151936, hidden_size=32, mlp_size=48, layers=3, heads=4, kv_heads=2,
                       head_dim=16, qk_norm=True)
DEEP = replace(QWEN3, layers=28)
"""One of which three states are read, behind 9, 18 and 27 layers."""
QWEN25 = LanguageConfig(151680, hidden_size=48, mlp_size=48, layers=2, heads=2, kv_heads=1,
                        head_dim=128, qkv_bias=True)
QWEN3_VL = replace(QWEN3, hidden_size=24, layers=36, rotary_base=5e6)
UNET = UNetConfig(
    in_channels=4, out_channels=4, block_channels=(32, 64), res_blocks=1, attention=(False, True),
    heads=8, head_dim=None, transformer_depth=(0, 1), context_dim=64)
SD2_UNET = replace(UNET, block_channels=(64, 64), head_dim=64, linear_projection=True)
SDXL_UNET = replace(SD2_UNET, transformer_depth=(0, 2), context_dim=128, vector_dim=64 + 6 * 256)
FLUX = {"hidden_size": 64, "heads": 2, "mlp_size": 128, "double_blocks": 1, "single_blocks": 2,
        "context_dim": 128, "axes": (4, 14, 14)}


def vae(known):
    """The autoencoder of a family with two levels."""
    return replace(known, channels=32, block_channels=(32, 32), res_blocks=1)


def clips(*names: str):
    return {name: CLIP[name] for name in names}


FAMILIES = {
    "sd1": ModelConfig("sd1", clips("clip_l"), UNET, vae(SD_VAE)),
    "sd2": ModelConfig("sd2", clips("clip_h"), SD2_UNET, vae(SD_VAE)),
    "sdxl": ModelConfig("sdxl", clips("clip_l", "clip_g"), SDXL_UNET, vae(SDXL_VAE)),
    "sdxl-refiner": ModelConfig(
        "sdxl-refiner", clips("clip_g"),
        replace(SDXL_UNET, context_dim=64, vector_dim=64 + 5 * 256), vae(SDXL_VAE)),
    "sd3": ModelConfig(
        "sd3", {"clip_l": replace(CLIP["clip_l"], projection=64), **clips("clip_g"), "t5xxl": T5},
        MMDiTConfig(128, heads=2, blocks=2, positions=16, qk_norm=True, dual_blocks=1,
                    context_dim=128, pooled_dim=128), vae(SD3_VAE), "flow"),
    "flux": ModelConfig("flux", {**clips("clip_l"), "t5xxl": T5},
                        FluxConfig(**FLUX, pooled_dim=64), vae(FLUX_VAE), "flow"),
    "chroma": ModelConfig("chroma", {"t5xxl": T5},
                          ChromaConfig(**FLUX, approximator_size=64, approximator_layers=2),
                          vae(FLUX_VAE), "flow"),
    "z-image": ModelConfig(
        "z-image", {"qwen3": QWEN3},
        ZImageConfig(64, heads=2, mlp_size=170, blocks=2, refiners=1, context_dim=32,
                     vector_size=64, axes=(8, 12, 12)), vae(FLUX_VAE), "flow"),
    "flux2": ModelConfig(
        "flux2", {"qwen3": DEEP},
        Flux2Config(64, heads=2, mlp_size=192, double_blocks=1, single_blocks=2, context_dim=96,
                    axes=(8, 8, 8, 8)), vae(FLUX2_VAE), "flow"),
    "krea2": ModelConfig(
        "krea2", {"qwen3vl": QWEN3_VL},
        Krea2Config(64, heads=2, kv_heads=1, mlp_size=96, blocks=2, text_dim=24, taps=12,
                    text_heads=2, text_kv_heads=1, text_mlp_size=40, layer_blocks=1, text_blocks=1,
                    axes=(8, 12, 12)), vae(WAN_VAE), "flow", flow_shift=None),
    "anima": ModelConfig(
        "anima", {"qwen3": QWEN3},
        AnimaConfig(48, heads=2, mlp_size=96, blocks=2, context_dim=32, rank=8, text_dim=32,
                    text_heads=2, text_mlp_size=64, text_blocks=2), vae(WAN_VAE), "flow"),
    "qwen-image": ModelConfig(
        "qwen-image", {"qwen25": QWEN25},
        QwenImageConfig(64, heads=2, mlp_size=256, blocks=2, context_dim=48, axes=(4, 14, 14)),
        vae(WAN_VAE), "flow"),
}

FLUX2_DEV = ModelConfig(
    "flux2-dev", {"mistral": LanguageConfig(
        1024, hidden_size=32, mlp_size=160, layers=31, heads=2, kv_heads=1, head_dim=128,
        rotary_base=1e9, eps=1e-5)},
    replace(FAMILIES["flux2"].denoiser, guidance=True), vae(FLUX2_VAE), "flow")
"""Not among the others: its tokenizer does not ship, so that each model brings one along."""

ERNIE_IMAGE = ModelConfig(
    "ernie-image", {"ministral": replace(MINISTRAL_3B, vocab_size=1024, hidden_size=32, mlp_size=48,
                                         layers=3, heads=2, kv_heads=1)},
    ErnieImageConfig(64, heads=2, mlp_size=96, blocks=2, context_dim=32, axes=(8, 12, 12)),
    replace(vae(FLUX2_VAE), statistics_eps=1e-5), "flow")
"""The same, of a text encoder of that kind."""

FLUX3 = ModelConfig(
    "flux3", {"qwen3vl": QWEN3_VL},
    Flux3Config(64, heads=2, mlp_size=192, stream_blocks=1, blocks=2, context_dim=192,
                axes=(8, 8, 8, 8), flow_map=True), vae(FLUX2_VAE), "flow")
"""Not among the others: FLUX.2 has its autoencoder, Krea 2 its text encoder."""

LONGCAT_IMAGE = ModelConfig(
    "longcat-image", {"qwen25": QWEN25},
    LongCatImageConfig(**{**FLUX, "mlp_size": 256, "context_dim": 48}), vae(FLUX_VAE), "flow")
"""As the next one."""

QWEN_IMAGE21 = ModelConfig(
    "qwen-image21", {"qwen3vl": replace(QWEN3_VL, layers=3)},
    QwenImage21Config(64, heads=2, mlp_size=192, blocks=2, context_dim=24, axes=(4, 14, 14)),
    replace(QWEN_IMAGE21_VAE, channels=8, block_channels=(8, 8, 16, 16, 16), res_blocks=1,
            decoder_channels=(12, 12, 24, 24, 24)), "flow", flow_shift=None, flow_terminal=0.02)
"""Not among the others: a pixel of its latents is one of 16 x 16, and its pictures have opacity."""

OVIS_IMAGE = ModelConfig(
    "ovis-image", {"qwen3": QWEN3},
    OvisImageConfig(**{**FLUX, "mlp_size": 256, "context_dim": 32}), vae(FLUX_VAE), "flow")
"""Not among the others: its blocks are those of Flux.1."""

LUMINA2 = ModelConfig(
    "lumina2", {"gemma2": replace(GEMMA2_2B, vocab_size=512, hidden_size=32, mlp_size=48, layers=3,
                                  heads=2, kv_heads=1)},
    Lumina2Config(72, heads=3, kv_heads=1, mlp_size=288, blocks=2, refiners=1, context_dim=32,
                  time_size=72, vector_size=72, axes=(8, 8, 8)), vae(FLUX_VAE), "flow")
"""The same of Gemma's."""

REDUX = ReduxConfig(hidden_size=144, intermediate_size=64, layers=2, heads=2, grid=3,
                    middle_size=48, out_size=128)
FLUX_REDUX = replace(FAMILIES["flux"], texts={**FAMILIES["flux"].texts, "redux": REDUX})
"""Not among the others: what reads pictures comes in files of its own, beside the model."""

VISION = VisionConfig(hidden_size=160, mlp_size=48, blocks=2, heads=2, out_size=48,
                      seeing_all=())
"""As shapes show it, where nothing is stated: its blocks that see all would be the eighth, ..."""
EDITS = {f"qwen-image-edit{version}": ModelConfig(
             f"qwen-image-edit{version}", {"qwen25": replace(QWEN25, vision=VISION)},
             replace(FAMILIES["qwen-image"].denoiser, references=references, clean=clean),
             vae(WAN_VAE), "flow")
         for version, references, clean in (
             ("", 1, False), ("-2509", 3, False), ("-2511", 3, True))}
"""Not among the others, too: they are known by their names, and make no picture of a prompt."""


def _wordless(config: ModelConfig) -> ModelConfig:
    return replace(config, texts={name: replace(text, vocab_size=96)
                                  for name, text in config.texts.items()})


WORDLESS = {name: _wordless(config)
            for name, config in [*FAMILIES.items(), ("flux2-dev", FLUX2_DEV),
                                 ("ernie-image", ERNIE_IMAGE), ("lumina2", LUMINA2),
                                 ("longcat-image", LONGCAT_IMAGE), ("ovis-image", OVIS_IMAGE),
                                 ("flux3", FLUX3), ("qwen-image21", QWEN_IMAGE21)]}
"""The same with so few tokens that they read no prompts, but are written at once."""
WORDLESS_EDITS = {name: _wordless(config) for name, config in EDITS.items()}

TEXT_PREFIXES = {  # family -> text encoder -> its prefix in a file of a whole model
    "sd1": {"clip_l": "cond_stage_model.transformer."},
    "sd2": {"clip_h": "cond_stage_model.model."},
    "sdxl": {"clip_l": "conditioner.embedders.0.transformer.",
             "clip_g": "conditioner.embedders.1.model."},
    "sdxl-refiner": {"clip_g": "conditioner.embedders.0.model."},
    "sd3": {name: f"text_encoders.{name}.transformer." for name in ("clip_l", "clip_g", "t5xxl")},
    "flux": {name: f"text_encoders.{name}.transformer." for name in ("clip_l", "t5xxl")},
    "chroma": {"t5xxl": "text_encoders.t5xxl.transformer."},
    **dict.fromkeys(("z-image", "flux2"),
                    {"qwen3": "text_encoders.qwen3_4b.transformer.model."}),
    "flux2-dev": {"mistral": "text_encoders.mistral3_24b.transformer.model."},
    "ernie-image": {"ministral": "text_encoders.ministral3_3b.transformer.model."},
    "lumina2": {"gemma2": "text_encoders.gemma2_2b.transformer.model."},
    "ovis-image": {"qwen3": "text_encoders.qwen3_2b.transformer.model."},
    **dict.fromkeys(("krea2", "flux3"),
                    {"qwen3vl": "text_encoders.qwen3vl_4b.transformer.model."}),
    "qwen-image21": {"qwen3vl": "text_encoders.qwen3vl_8b.transformer.model."},
    "anima": {"qwen3": "text_encoders.qwen3_06b.transformer.model."},
    **dict.fromkeys(("qwen-image", "longcat-image", *EDITS),
                    {"qwen25": "text_encoders.qwen25_7b.transformer.model."}),
}
PICTURES = "visual.deepstack_merger_list.0.norm.weight"
"""A tensor that only Qwen3-VL has, of what reads pictures."""
PLAIN = ("t5xxl", "qwen3", "qwen25", "qwen3vl", "gemma2", "mistral", "ministral")
"""Text encoders that read the plain text, and are named alike inside."""
NEWER = ("flux", "chroma", "z-image", "flux2", "flux2-dev", "krea2", "anima", "qwen-image",
         "lumina2", "ernie-image", "longcat-image", "ovis-image", "flux3", "qwen-image21")
"""Families whose whole files begin the names of the autoencoder with `vae.`, and that read plain
texts."""
DENOISER, VAE = "model.diffusion_model.", "first_stage_model."

OPENCLIP_NAMES = (  # of transformers -> of OpenCLIP
    (r"text_model\.encoder\.layers\.", "transformer.resblocks."),
    (r"text_model\.embeddings\.token_embedding\.", "token_embedding."),
    (r"text_model\.embeddings\.position_embedding\.weight", "positional_embedding"),
    (r"text_model\.final_layer_norm\.", "ln_final."),
    (r"text_projection\.weight", "text_projection"),
    (r"\.layer_norm(\d)\.", r".ln_\1."),
    (r"\.mlp\.fc1\.", ".mlp.c_fc."),
    (r"\.mlp\.fc2\.", ".mlp.c_proj."),
    (r"\.self_attn\.out_proj\.", ".attn.out_proj."),
)


def unread(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of what files of language models hold of the layers behind those that are read."""
    found = {name: value.shape for key, text in config.texts.items()
             if isinstance(text, LanguageConfig)
             for name, value in language_graph(
                 text, 1, 1, taps=(text.layers,), final_norm=True,
                 prefix=inner_prefix(config, key).rstrip(".")).parameters.items()}
    if "qwen3vl" in config.texts:
        found[inner_prefix(config, "qwen3vl") + PICTURES] = (8,)
    return found


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded numbers that keep signals at a size of one, by internal names, as float16. Tests share
    the arrays, which cannot be written to; the table of them is the caller's own."""
    key = repr(config), seed
    if key not in MADE:
        MADE[key] = made(config, seed)
    return dict(MADE[key])


MADE: dict[tuple[str, int], dict[str, np.ndarray]] = {}
"""Weights by what they are made of: a text, as configurations hold tables."""


def made(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """What `random_weights` gives, anew."""
    random, weights = np.random.default_rng(seed), {}
    for name, shape in {**unread(config), **expected_tensors(config)}.items():
        noise = random.standard_normal(shape, np.float32)
        if len(shape) == 1:
            noise = np.float32(0.1) * noise + np.float32(name.endswith(("weight", "scale", "var")))
        else:
            noise /= np.float32(np.prod(shape[1:]) ** 0.5)
        weights[name] = noise.astype(np.float16)
        weights[name].flags.writeable = False
    return weights


def inner_prefix(config: ModelConfig, name: str) -> str:
    """What the parameters of a text encoder start with inside."""
    if name in PLAIN:
        return f"text_encoders.{name}.transformer."
    return f"{config.texts[name].prefix}."


def part(weights: Weights, prefix: str, new: str = "") -> dict[str, np.ndarray]:
    """The tensors below a prefix, below another."""
    return {new + name.removeprefix(prefix): value for name, value in weights.items()
            if name.startswith(prefix)}


def film_shape(name: str, shape: tuple[int, ...], still: bool = False) -> tuple[int, ...]:
    """That of a tensor of an autoencoder of films in a file: kernels of three frames, or of one
    where it is for `still` pictures, norms with axes for time and place."""
    if name.endswith(".gamma"):
        return (*shape, 1, 1) if ".attentions." in name else (*shape, 1, 1, 1)
    if name.endswith("weight") and not any(part in name for part in ("resample", "qkv", "proj.")):
        return (*shape[:2], 1 if still else shape[2], *shape[2:])
    return shape


def of_films(weights: Weights, still: bool = False) -> dict[str, np.ndarray]:
    """The tensors of such an autoencoder in a file: taps that a picture does not read are ones."""
    found = {}
    for name, value in weights.items():
        found[name] = np.ones(film_shape(name, value.shape, still), value.dtype)
        if found[name].ndim == 5 and value.ndim == 4:
            found[name][:, :, -1] = value
        else:
            found[name][...] = value.reshape(found[name].shape)
    return found


def of_wan22(stored: Mapping[str, Any], config: ResidualVaeConfig) -> dict[str, Any]:
    """The tensors of such an autoencoder of levels within levels with diffusers' names, as the
    authors of Wan 2.2 call them, and ComfyUI those of Qwen-Image-2.1."""
    numbers = ((r"(down|up)_blocks\.(\d+)\.resnets\.(\d+)", r"\1samples.\2.\1samples.\3"),
               (r"down_blocks\.(\d+)\.downsampler",
                rf"downsamples.\1.downsamples.{config.res_blocks}"),
               (r"up_blocks\.(\d+)\.upsampler", rf"upsamples.\1.upsamples.{config.res_blocks + 1}"),
               (r"mid_block\.resnets\.0", "middle.0"), (r"mid_block\.resnets\.1", "middle.2"))
    return _renamed(stored, (*numbers, *OF_WAN))


def of_wan(stored: Mapping[str, Any], config: CausalVaeConfig) -> dict[str, Any]:
    """The tensors of an autoencoder with diffusers' names as the authors of Wan call them."""
    level = config.res_blocks + 2  # the blocks of the way up, and what doubles the size
    numbers: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
        (r"down_blocks\.(\d+)", lambda match: f"downsamples.{match[1]}"),
        (r"up_blocks\.(\d+)\.resnets\.(\d+)",
         lambda match: f"upsamples.{level * int(match[1]) + int(match[2])}"),
        (r"up_blocks\.(\d+)\.upsamplers\.0",
         lambda match: f"upsamples.{level * int(match[1]) + level - 1}"),
        (r"mid_block\.resnets\.(\d)", lambda match: f"middle.{2 * int(match[1])}"))
    return _renamed(stored, (*numbers, *OF_WAN))


OF_WAN = ((r"(?<=\d\.)norm1", "residual.0"), (r"(?<=\d\.)conv1", "residual.2"),
          (r"(?<=\d\.)norm2", "residual.3"), (r"(?<=\d\.)conv2", "residual.6"),
          (r"conv_shortcut", "shortcut"), (r"mid_block\.attentions\.0", "middle.1"),
          (r"conv_in", "conv1"), (r"norm_out", "head.0"), (r"conv_out", "head.2"),
          (r"^quant_conv", "conv1"), (r"^post_quant_conv", "conv2"))
"""Layers of diffusers' autoencoder of films, and those of Wan."""


def _renamed(stored: Mapping[str, Any], rules: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The same tensors by other names."""
    found = {}
    for name, value in stored.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        found[name] = value
    return found


def as_openclip(weights: Weights) -> dict[str, np.ndarray]:
    """A text encoder under OpenCLIP's names, with one matrix for queries, keys and values."""
    found: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        if re.search(r"\.[kv]_proj\.", name):
            continue
        if ".q_proj." in name:
            rows = [weights[name.replace("q_proj", f"{kind}_proj")] for kind in "qkv"]
            value = np.concatenate(rows)
            name = re.sub(r"\.self_attn\.q_proj\.(\w+)$", r".attn.in_proj_\1", name)
        for pattern, replacement in OPENCLIP_NAMES:
            name = re.sub(pattern, replacement, name)
        found[name] = np.ascontiguousarray(value.T) if name == "text_projection" else value
    return found


def text_encoder(config: ModelConfig, weights: Weights, name: str) -> dict[str, np.ndarray]:
    """A text encoder alone under transformers' names; the matrices of two frames are a kernel."""
    found = part(weights, inner_prefix(config, name))
    if f"{PATCHES}.0.weight" in found:
        frames = [found.pop(f"{PATCHES}.{i}.weight") for i in range(FRAMES)]
        found[f"{PATCHES}.weight"] = np.stack([each.reshape(len(each), 3, 14, 14)
                                               for each in frames], axis=2)
    return found


def redux_files(folder: Path) -> tuple[Path, Path]:
    """FLUX.1 Redux as people have it: the layers behind the image encoder, and that."""
    found = part(random_weights(FLUX_REDUX), "text_encoders.redux.")
    tower = part(found, "visual.", "vision_model.")
    kernel = tower["vision_model.embeddings.patch_embedding.weight"]
    tower["vision_model.embeddings.patch_embedding.weight"] = kernel.reshape(-1, 3, 14, 14)
    tower["vision_model.head.probe"] = np.ones((1, 1, 144), np.float16)
    folder.mkdir(parents=True, exist_ok=True)
    return (write(folder / "flux1-redux-dev.safetensors", part(found, "redux", "redux")),
            write(folder / "sigclip_vision_patch14_384.safetensors", tower))


def autoencoder(config: ModelConfig, weights: Weights, prefix: str = "") -> dict[str, np.ndarray]:
    """The autoencoder as files have it."""
    tensors = part(weights, VAE, prefix)
    still = isinstance(config.vae, ResidualVaeConfig)
    return of_films(tensors, still) if isinstance(config.vae, CausalVaeConfig) else tensors


def single_file(config: ModelConfig, weights: Weights) -> dict[str, np.ndarray]:
    """All parts as one published file holds them."""
    stored = {**part(weights, DENOISER, DENOISER)}
    stored |= autoencoder(config, weights, "vae." if config.family in (*NEWER, *EDITS) else VAE)
    for name, prefix in TEXT_PREFIXES[config.family].items():
        if name not in config.texts:
            continue
        tensors = text_encoder(config, weights, name)
        if prefix.endswith(".model.") and name not in PLAIN:
            tensors = as_openclip(tensors)
        stored |= {prefix + inner: value for inner, value in tensors.items()}
    return stored


def write(path: Path, stored: Weights, metadata: dict[str, str] | None = None) -> Path:
    """A safetensors file."""
    save_file({name: np.ascontiguousarray(value) for name, value in stored.items()}, path,
              metadata)
    return path


def write_whole(path: Path, config: ModelConfig, weights: Weights | None = None,
                **more: np.ndarray) -> Path:
    """A model in one file: with these weights, or random ones, and more tensors."""
    weights = random_weights(config) if weights is None else weights
    return write(path, {**single_file(config, weights), **more})


class Files(dict[str, Path]):
    """The model of each of `FAMILIES` in a file, which is written when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, family: str) -> Path:
        self[family] = write_whole(self._folder / f"{family}.safetensors", FAMILIES[family])
        return self[family]


def write_parts(root: Path, config: ModelConfig) -> None:
    """A model as ComfyUI has it: its denoiser, text encoders and autoencoder in files of their own,
    called after the family and the parts."""
    weights = random_weights(config)
    for folder in ("diffusion_models", "text_encoders", "vae"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    write(root / "diffusion_models" / f"{config.family}.safetensors", part(weights, DENOISER))
    for name in config.texts:
        write(root / "text_encoders" / f"{name}.safetensors", text_encoder(config, weights, name))
    write(root / "vae" / "ae.safetensors", autoencoder(config, weights))
