"""What kind of file holds tensors of these names and shapes: a model of a family, or another.

Names and shapes decide; what a file says about itself in its metadata is often wrong. Kinds are
asked one after the other: adapters and networks beside a model first, since they contain pieces of
the names of the models that they are for; then the models of all families; then parts of a model.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from smalti.checkpoint.unread import UNREAD
from smalti.errors import UnknownFamilyError
from smalti.families import autoencoders, by_name, families, text_encoders
from smalti.families.names import FileKind, Names, Shapes
from smalti.families.records.lumina2 import captioned
from smalti.models.transformer_config import Z_IMAGE

LORA_MARKS = ("lora_down.", "lora_up.", "lora_A.", "lora_B.", "lora.down.", "lora.up.",
              "_lora.down.", "_lora.up.", "lora_linear_layer.", "hada_w1", "lokr_w1", "oft_blocks")
CONTROLNET_MARKS = (
    "control_model.",
    "zero_convs.0.0.weight",
    "controlnet_cond_embedding.conv_in.weight",
    "controlnet_blocks.0.",
    "control_all_x_embedder.",
    "lora_controlnet",
    "input_hint_block.0.weight",
)


def _embedding(names: Names) -> bool:
    if names.has("string_to_param", "emb_params", "clip_l", "clip_g"):
        return not names.unet and not names.transformer
    shapes = list(names.all.values())
    widths = [encoder.width for encoder in text_encoders().values()]
    small = all(len(s) in (1, 2) and s[-1] in widths for s in shapes)
    return 0 < len(shapes) <= 2 and small and not names.contains(".weight", ".bias")


OTHERS: tuple[FileKind, ...] = (
    FileKind(
        "lora", "a LoRA, an addition to a checkpoint",
        lambda n: n.contains(*LORA_MARKS) and not n.has("input_blocks.0.0.weight"),
        advice="use it with one: smalti generate --lora FILE"),
    FileKind(
        "controlnet", "a ControlNet", lambda n: n.has(*CONTROLNET_MARKS),
        advice="use it with one: smalti generate --control FILE PICTURE"),
    FileKind(
        "t2i-adapter", "a T2I-Adapter", lambda n: n.has("adapter.body.", "body.0.block2.weight")),
    FileKind(
        "embedding", "a textual-inversion embedding", _embedding,
        advice="use it with a model: smalti generate --embedding FILE"),
    FileKind(
        "esrgan", "an ESRGAN upscaler",
        lambda n: n.has("conv_first.weight", "1.sub.0.", "RRDB_trunk.0.") or (
            n.size("body.0.weight", 3) == 3 and n.size("body.1.weight", 0) > 0),
        advice="enlarge pictures with it: smalti upscale"),
    FileKind(
        "taesd", "a TAESD preview decoder",
        lambda n: n.has("taesd_decoder.", "decoder.layers.1.", "3.conv.0.weight"),
        advice="use it with one: smalti generate --preview FILE"),
    FileKind("z-image-omni", "a Z-Image Omni checkpoint, which reads pictures",
             lambda n: n.has("siglip_embedder.") and n.has("noise_refiner.")),
    FileKind("z-image-pixels", "a Z-Image checkpoint of pixels, without an autoencoder",
             lambda n: n.has("dec_net.cond_embed") and n.has("noise_refiner.")),
    FileKind("ming-image", "a Ming-Image checkpoint",
             lambda n: captioned(n) and n.size("cap_embedder.1.weight", 0) == Z_IMAGE.hidden_size),
    FileKind("newbie", "a NewBie checkpoint, which reads prompts with Gemma 3 and CLIP",
             lambda n: captioned(n) and n.has("clip_text_pooled_proj.")),
    FileKind("lumina-next", "a Lumina-Next checkpoint",
             lambda n: n.has("time_caption_embed.caption_embedder.") and not captioned(n)),
    FileKind("chroma-radiance", "a Chroma Radiance checkpoint", lambda n: n.has("nerf_")),
    FileKind(
        "svd", "a Stable Video Diffusion checkpoint, which makes films",
        lambda n: n.unet and n.contains(".time_stack.", ".temporal_transformer_blocks.")),
    FileKind(
        "upscaler", "a latent upscaler checkpoint (7 input channels)",
        lambda n: n.unet and n.input_channels == 7),
)
"""What is no model that is read, but may look like one."""

AUTOENCODER = FileKind(
    "vae", "an autoencoder (VAE) alone",
    lambda n: not n.denoiser and any(kind.shows(n.all) for kind in autoencoders()),
    advice="give it with vae= or --vae beside a model")
TEXT_ENCODER = FileKind(
    "text-encoder", "a text encoder alone",
    lambda n: not n.denoiser and n.has("text_encoders.", *(
        start for encoder in text_encoders().values() for start in encoder.alone)),
    advice="give it with text_encoders= or --text-encoder beside a model")


def kinds() -> list[FileKind]:
    """All kinds of files, in the order in which they are asked."""
    models = [replace(kind, family=family.name) for family in families().values()
              for kind in family.files]
    return [*OTHERS, *UNREAD, *models, AUTOENCODER, TEXT_ENCODER]


def detect(shapes: Shapes, components: Collection[str] = ()) -> FileKind | None:
    """The kind of a file with these tensor names and shapes, or None for one never seen.

    `components` are those of the folder that the file is in.

    >>> detect({"conv_first.weight": (64, 3, 3, 3)}).words
    'an ESRGAN upscaler'
    """
    names = Names(shapes, components)
    return next((kind for kind in kinds() if kind.shows(names)), None)


def listed(words: Collection[str]) -> str:
    """Things in a sentence.

    >>> listed(["SDXL", "FLUX.1", "Chroma"]), listed(["SDXL"])
    ('SDXL, FLUX.1 and Chroma', 'SDXL')
    """
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def require_supported(path: object, kind: FileKind | None, names: Shapes) -> FileKind:
    """`kind` itself when Smalti reads it.

    Raises `UnknownFamilyError` that says what the file is otherwise.
    """
    if kind is not None and kind.supported:
        return kind
    read = f"Smalti reads checkpoints of {listed([each.title for each in by_name()])}"
    if kind is not None:
        advice = kind.advice or "give such a checkpoint, or a diffusers folder of one"
        raise UnknownFamilyError(f"{path} is {kind.words}; {read}; {advice}")
    some = ", ".join(sorted(names)[:3])
    raise UnknownFamilyError(
        f"{path} holds {len(names)} tensors of no known model family (first names: {some}); {read}")
