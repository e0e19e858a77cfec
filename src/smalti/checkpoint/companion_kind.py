"""Kinds of networks that stand beside a model, one record each: ControlNets, upscalers, TAESD."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from smalti.checkpoint.keys import (
    controlnet_config,
    taesd_config,
    taesd_renaming,
    upscaler_config,
    upscaler_renaming,
)
from smalti.checkpoint.keys.transformer_controlnets import (
    flux_controlnet_config,
    qwen_image_controlnet_config,
    sd3_controlnet_config,
    z_image_controlnet_config,
)
from smalti.dataclass import dataclass
from smalti.families import families
from smalti.families.keys import (
    FLUX_CONTROLNET_DIFFUSERS,
    FLUX_CONTROLNET_ORIGINAL,
    SD3_CONTROLNET_DIFFUSERS,
    Z_IMAGE_CONTROLNET_DIFFUSERS,
    Expression,
    StoredRows,
    Table,
    expressions,
    sd35_controlnet,
)
from smalti.families.keys.renaming import CONTROL, controlnet_renaming
from smalti.graph import Graph
from smalti.models import (
    ControlNetConfig,
    FluxControlNetConfig,
    MMDiTControlNetConfig,
    QwenImageControlNetConfig,
    RrdbConfig,
    SrvggConfig,
    TaesdConfig,
    ZImageControlNetConfig,
    controlnet_graph,
    flux_controlnet_graph,
    qwen_image_controlnet_graph,
    sd3_controlnet_graph,
    taesd_decoder_graph,
    taesd_encoder_graph,
    upscaler_graph,
    z_image_controlnet_graph,
)
from smalti.models.transformer_config import ALONE, LAYERS, STEERING
from smalti.models.z_image_controlnet import EMBEDDER, REFINERS

CompanionConfig = (ControlNetConfig | FluxControlNetConfig | MMDiTControlNetConfig
                   | QwenImageControlNetConfig | RrdbConfig | SrvggConfig | TaesdConfig
                   | ZImageControlNetConfig)
Shapes = Mapping[str, tuple[int, ...]]
Stored = Mapping[str, Expression]

TRAINED_ON = "control_type"
"""A tensor of one number: what a ControlNet of 3.5 large was trained on."""


IDLE = f"{REFINERS}.0.before_proj.weight"
"""A tensor of ControlNets of Z-Image that 2.0 was trained without, and begins with zeros."""


@dataclass(frozen=True)
class StatedKind:
    """What shapes do not tell of a ControlNet: the folder's config.json as `table`, whether only
    the mean over all pixels is handed on, whether it is for edges, whether the tensor `IDLE` of
    its file is all zeros, and whether its name says that it is for inpainting."""

    table: Mapping[str, object]
    pooled: bool
    canny: bool
    idle: bool = False
    inpainting: bool = False


@dataclass(frozen=True)
class CompanionKind:
    """A kind of network beside a model.

    configs   the classes of its configurations
    stored    (shapes in a file) -> where in it the parameters lie, None for a file of another kind
    config    (file for messages, shapes of parameters, what is stated) -> its hyperparameters
    graphs    (hyperparameters, shapes of parameters) -> the smallest graphs that read all of it
    title     (hyperparameters) -> what it is, in words, and `details`, how large
    idle      (hyperparameters) -> what the names of parameters begin with that nothing reads
    use       the command that uses it
    """

    configs: tuple[type, ...]
    stored: Callable[[Shapes], Stored | None]
    config: Callable[[Path, Shapes, StatedKind], CompanionConfig]
    graphs: Callable[[Any, Shapes], list[Graph]]
    title: Callable[[Any], str]
    details: Callable[[Any], str]
    use: str = "smalti generate PROMPT --control FILE PICTURE"
    idle: Callable[[Any], tuple[str, ...]] = lambda config: ()


def _by_table(shapes: Shapes, table: Table) -> Stored:
    """Parameters of a ControlNet for a transformer; too few rows are told with their number later.
    """
    found, unknown = expressions([name for name in shapes if name != TRAINED_ON], table)
    found.update({name: (StoredRows(name),) for name in unknown})
    return {CONTROL + name: tuple(part for part in expression if part.name in shapes)
            for name, expression in found.items()}


def _union(count: int) -> str:
    return "union of ControlNets" if count else "ControlNet"


def _fills(config: Any, how: str = "") -> str:
    return f", which {how}fills parts of pictures" if config.fills else ""


def _kinds(count: int) -> str:
    return f", {count} kinds of pictures" if count else ""


# ---------------------------------------------------------------------- ControlNets

CONTROL_ORIGINAL, CONTROL_DIFFUSERS = "zero_convs.0.0.weight", "controlnet_down_blocks.0.weight"
"""Tensors that show a ControlNet for a UNet, in either naming."""


def _flux_stored(shapes: Shapes) -> Stored | None:
    if {"controlnet_x_embedder.weight", "x_embedder.weight"} <= shapes.keys():
        return _by_table(shapes, FLUX_CONTROLNET_DIFFUSERS)
    if {"pos_embed_input.weight", "img_in.weight"} <= shapes.keys():
        return _by_table(shapes, FLUX_CONTROLNET_ORIGINAL)
    return None


def _sd3_stored(shapes: Shapes) -> Stored | None:
    if "pos_embed_input.proj.weight" not in shapes:
        return None
    own_text = "context_embedder.weight" in shapes
    return _by_table(shapes, SD3_CONTROLNET_DIFFUSERS if own_text else sd35_controlnet(shapes))


def _qwen_image_stored(shapes: Shapes) -> Stored | None:
    if {"controlnet_x_embedder.weight", "txt_norm.weight"} <= shapes.keys():
        return {CONTROL + name: (StoredRows(name),) for name in shapes}
    return None


def _z_image_stored(shapes: Shapes) -> Stored | None:
    if f"{EMBEDDER}.weight" not in shapes:
        return None
    divided = any(".attention.to_q." in name for name in shapes)
    return _by_table(shapes, Z_IMAGE_CONTROLNET_DIFFUSERS if divided else {})


def _unet_stored(shapes: Shapes) -> Stored | None:
    inner = {name.removeprefix(CONTROL): name for name in shapes if name.startswith(CONTROL)}
    inner = inner or {name: name for name in shapes}  # else the model beside it is passed over
    if CONTROL_ORIGINAL in inner:
        return {CONTROL + name: (StoredRows(original),) for name, original in inner.items()}
    if CONTROL_DIFFUSERS in inner:
        rename = controlnet_renaming(inner)
        return {rename(name): (StoredRows(original),) for name, original in inner.items()}
    return None


def _unet_config(path: Path, shapes: Shapes, stated: StatedKind) -> ControlNetConfig:
    groups = stated.table.get("norm_num_groups")
    known = {"norm_groups": groups} if isinstance(groups, int) and groups > 0 else {}
    found = controlnet_config(path, shapes, _heads(stated.table), pooled=stated.pooled, **known)
    return replace(found, fills=stated.inpainting)


def _heads(table: Mapping[str, object]) -> list[int]:
    """Heads of each level, as a folder of diffusers says; that calls them dimensions."""
    found = table.get("num_attention_heads") or table.get("attention_head_dim")
    levels = table.get("block_out_channels")
    if isinstance(found, int) and isinstance(levels, list):
        found = [found] * len(levels)
    if isinstance(found, list) and all(isinstance(count, int) and count > 0 for count in found):
        return found
    return []


def _unet_graphs(config: ControlNetConfig, shapes: Shapes) -> list[Graph]:
    side = config.unet.multiple
    return [controlnet_graph(config, 1, side, side, tokens=1)]


def _unet_title(config: ControlNetConfig) -> str:
    width = config.unet.context_dim
    models = {denoiser.context_dim: family.title for family in families().values()
              for denoiser in family.published if denoiser.part == config.unet.part}
    return (f"a {_union(config.types)} for "
            f"{models.get(width, f'a UNet that reads prompts of width {width}')}{_fills(config)}")


def _unet_details(config: ControlNetConfig) -> str:
    mean = ", of which it hands on the mean" if config.pooled else ""
    return (f"levels of {', '.join(map(str, config.unet.block_channels))}{_kinds(config.types)}"
            f"{mean}")


FLUX_CONTROL = CompanionKind(
    configs=(FluxControlNetConfig,),
    stored=_flux_stored,
    config=lambda path, shapes, stated: flux_controlnet_config(path, shapes),
    graphs=lambda config, shapes: [flux_controlnet_graph(config, 1, 2, 2, 1)],
    title=lambda config: f"a {_union(config.modes)} for FLUX.1",
    details=lambda config: (f"{config.double_blocks} + {config.single_blocks} blocks"
                            f"{_kinds(config.modes)}"),
)

SD3_CONTROL = CompanionKind(
    configs=(MMDiTControlNetConfig,),
    stored=_sd3_stored,
    config=lambda path, shapes, stated: sd3_controlnet_config(path, shapes, stated.canny),
    graphs=lambda config, shapes: [sd3_controlnet_graph(config, 1, 2, 2, 1)],
    title=lambda config: ("a ControlNet for Stable Diffusion 3" if config.joint else
                          "a ControlNet for Stable Diffusion 3.5 large"),
    details=lambda config: f"{config.blocks} blocks of {config.hidden_size}",
)

QWEN_IMAGE_CONTROL = CompanionKind(
    configs=(QwenImageControlNetConfig,),
    stored=_qwen_image_stored,
    config=lambda path, shapes, stated: qwen_image_controlnet_config(path, shapes),
    graphs=lambda config, shapes: [qwen_image_controlnet_graph(config, 1, 2, 2, 1)],
    title=lambda config: f"a ControlNet for Qwen-Image{_fills(config)}",
    details=lambda config: f"{config.blocks} blocks of {config.hidden_size}",
)

RELEASES = {ALONE: "1.0", LAYERS: "2.0", STEERING: "2.1"}
"""How a ControlNet of Z-Image refines its picture -> the release that did so first."""

Z_IMAGE_CONTROL = CompanionKind(
    configs=(ZImageControlNetConfig,),
    stored=_z_image_stored,
    config=lambda path, shapes, stated: z_image_controlnet_config(
        path, shapes, stated.table, stated.idle),
    graphs=lambda config, shapes: [z_image_controlnet_graph(config, config, 1, 2, 2, 1)],
    title=lambda config: f"a union of ControlNets for Z-Image{_fills(config, 'also ')}",
    details=lambda config: (f"{config.blocks} blocks of {config.hidden_size}, as of "
                            f"{RELEASES[config.refining]}"),
    idle=lambda config: (f"{CONTROL}{REFINERS}.",) * (config.refining == LAYERS),
)

UNET_CONTROL = CompanionKind(
    configs=(ControlNetConfig,),
    stored=_unet_stored,
    config=_unet_config,
    graphs=_unet_graphs,
    title=_unet_title,
    details=_unet_details,
)


# ---------------------------------------------------------------------- TAESD, upscalers


def _taesd_stored(shapes: Shapes) -> Stored | None:
    rename = taesd_renaming(shapes)
    found = {rename(name): (StoredRows(name),) for name in shapes}
    return found if any(name.startswith("taesd.") for name in found) else None


def _taesd_graphs(config: TaesdConfig, shapes: Shapes) -> list[Graph]:
    side, halves = config.downscale, []
    if any(name.startswith("taesd.decoder.") for name in shapes):
        halves.append(taesd_decoder_graph(config, 1, 1, 1))
    if any(name.startswith("taesd.encoder.") for name in shapes):
        halves.append(taesd_encoder_graph(config, 1, side, side))
    return halves


TAESD = CompanionKind(
    configs=(TaesdConfig,),
    stored=_taesd_stored,
    config=lambda path, shapes, stated: taesd_config(path, shapes),
    graphs=_taesd_graphs,
    title=lambda config: f"a tiny autoencoder (TAESD) for latents of {config.z_channels} channels",
    details=lambda config: "",
    use="smalti generate PROMPT --preview FILE",
)


def _upscaler_stored(shapes: Shapes) -> Stored:
    rename = upscaler_renaming(shapes)
    return {rename(name): (StoredRows(name),) for name in shapes}


def _upscaler_graphs(config: RrdbConfig | SrvggConfig, shapes: Shapes) -> list[Graph]:
    return [upscaler_graph(config, 1, config.unshuffle, config.unshuffle)]


UPSCALER = CompanionKind(
    configs=(RrdbConfig, SrvggConfig),
    stored=_upscaler_stored,
    config=lambda path, shapes, stated: upscaler_config(path, shapes),
    graphs=_upscaler_graphs,
    title=lambda config: f"{config.title} upscaler, x{config.scale:g}",
    details=lambda config: config.outline(),
    use="smalti upscale PICTURE --model FILE",
)

KINDS = (FLUX_CONTROL, SD3_CONTROL, QWEN_IMAGE_CONTROL, Z_IMAGE_CONTROL, UNET_CONTROL, TAESD,
         UPSCALER)
"""In the order in which a file is asked; the last takes what none of the others does."""


def stored_in(shapes: Shapes) -> tuple[CompanionKind, Stored]:
    """The kind of a file whose tensors have these shapes, and where in it the parameters lie."""
    for kind in KINDS:
        if (stored := kind.stored(shapes)) is not None:
            return kind, stored
    raise AssertionError("the last kind takes every file")


def kind_of(config: CompanionConfig) -> CompanionKind:
    """The kind of a network by its hyperparameters."""
    return next(kind for kind in KINDS if type(config) in kind.configs)
