"""Stable Diffusion 2.x (Stability AI 2022)."""

from __future__ import annotations

from smalti.families import clip, unet
from smalti.families.autoencoder import KL
from smalti.families.joining import contexts_fit, only_context
from smalti.families.names import FileKind, Names, Shapes
from smalti.families.prefixes import UNET
from smalti.families.record import Defaults, ModelFamily, Read, Text
from smalti.models.config import SD1_UNET, SD2_UNET, Prediction
from smalti.models.denoiser_config import DenoiserConfig

VELOCITY_SIZE = 768
"""Side of the pictures of models that predict the velocity."""

VELOCITY_NORM = f"{UNET}output_blocks.11.1.transformer_blocks.0.norm1.bias"
VELOCITY_DEVIATION_MIN = 0.09
"""Of the values of that norm, in models trained to predict the velocity."""


def _shows(names: Names) -> bool:
    return names.unet and (
        names.has("cond_stage_model.model.") or names.context == SD2_UNET.context_dim
        or names.linear and names.context != SD1_UNET.context_dim
        and not names.has("cond_stage_model."))


def _predicts(shapes: Shapes, read: Read) -> Prediction | None:
    """The values of one norm differ between the two ways of training (ComfyUI tells them apart so,
    too); inpainting models all predict the noise."""
    first = shapes.get(f"{UNET}input_blocks.0.0.weight", (0, 0))
    if first[1] != SD2_UNET.in_channels or VELOCITY_NORM not in shapes:
        return None
    spread = float(read(VELOCITY_NORM).std())
    return "v_prediction" if spread > VELOCITY_DEVIATION_MIN else "epsilon"


def _defaults(denoiser: DenoiserConfig, prediction: Prediction) -> Defaults:
    return Defaults(size=VELOCITY_SIZE if prediction == "v_prediction" else 512)


SD2 = ModelFamily(
    name="sd2",
    title="Stable Diffusion 2.x",
    files=(FileKind("sd2", "a Stable Diffusion 2.x checkpoint", _shows),),
    before=("sd1",),
    texts=(Text(clip.H, final_norm=True),),
    backbone=unet.BACKBONE,
    join=only_context,
    agreements=contexts_fit,
    autoencoder=KL,
    vae_file="vae-ft-mse-840000-ema-pruned.safetensors",
    predicts=_predicts,
    defaults=_defaults,
    published=(SD2_UNET,),
)
"""With 9 input channels for inpainting, with 5 for depth."""
