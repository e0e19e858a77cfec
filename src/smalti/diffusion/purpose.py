"""What a model is made for: whether it reads pictures, and which options mean nothing to it."""

from __future__ import annotations

from smalti.errors import InputError
from smalti.families import family_of
from smalti.families.redux import FILES
from smalti.models.config import ModelConfig

TEXT, EDIT, REFERRING = "text", "edit", "reference"


def purpose(config: ModelConfig) -> str:
    """What a denoiser is made for: "text" alone, or "edit", "control", "inpaint", "fill",
    "reference".

    Raises InputError for one that reads other channels.

    >>> from smalti.models.config import SD15
    >>> purpose(SD15)
    'text'
    """
    latent = config.vae.z_channels
    known = config.denoiser.purposes(latent, config.vae.downscale)
    more = config.denoiser.in_channels - latent
    if more not in known:
        raise InputError(f"this model reads {more} channels beside the {latent} of a picture's "
                         f"latents; known are {', '.join(map(str, known))}")
    return known[more]


def pictures_read(config: ModelConfig) -> int:
    """How many pictures a model takes at most: one to begin with, or those that it reads.

    >>> from smalti.models.config import SD15
    >>> pictures_read(SD15)
    1
    """
    return max(1, config.denoiser.references)


def untaken(config: ModelConfig) -> dict[str, str]:
    """The options of a picture that mean nothing to a model, each with what is said to somebody
    who gives it.

    >>> from smalti.models.config import SD15
    >>> list(untaken(SD15))
    ['distilled_guidance', 'skip_layers', 'skip_guidance', 'image_guidance', 'redux', \
'redux_strength', 'redux_pooled', 'redux_sum', 'redux_bias']
    """
    denoiser, found = config.denoiser, {}
    if not denoiser.guidance:
        found["distilled_guidance"] = (
            "distilled_guidance is for models that were distilled from guided ones, such as "
            "FLUX.1 dev; use guidance_scale")
    if not denoiser.skippable_blocks:
        found["skip_layers"] = found["skip_guidance"] = (
            "layers can be skipped in models of the family of Stable Diffusion 3 only")
    if purpose(config) != EDIT:
        found["image_guidance"] = (
            "image_guidance is for models that edit pictures, such as InstructPix2Pix")
    if not denoiser.tileable:
        found["tiling"] = ("pictures that can be repeated are made by models with a UNet; this one "
                           "is a transformer")
        found["token_downsampling"] = (
            "token_downsampling leaves out tokens of models with a UNet; this one is a transformer")
    texts = map(family_of(config).text, config.texts)
    if not any(text.encoder.chunked and not text.pooled_alone for text in texts):
        found["clip_skip"] = (
            "clip_skip is for models that read tokens of CLIP, as this one does not; leave it out")
        found["emphasis"] = (
            "emphasis is what weights in a prompt do, which only tokens of CLIP have, and this "
            "model reads none; leave it out")
    if all(not family_of(config).text(name).encoder.of_pictures for name in config.texts):
        found |= dict.fromkeys(
            ("redux", "redux_strength", "redux_pooled", "redux_sum", "redux_bias"),
            _without_redux(config))
    return found


def _without_redux(config: ModelConfig) -> str:
    """Why a model reads no pictures with Redux."""
    readers = [text.encoder for text in family_of(config).texts if text.encoder.of_pictures]
    if not readers:
        return "redux is for models of FLUX.1, which read pictures with FLUX.1 Redux beside them"
    return (f"redux needs FLUX.1 Redux beside the model, which reads pictures: give its two files, "
            f"{' and '.join(FILES)}, each with --text-encoder (text_encoders=), or their folder; "
            f"they are usually where FLUX.1 Redux was published, and in models/style_models and "
            f"models/clip_vision of ComfyUI")
