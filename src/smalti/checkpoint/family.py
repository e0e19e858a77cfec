"""Which model family a checkpoint belongs to, from the names and shapes of its tensors.

Names and shapes decide; what a file says about itself in its metadata is often wrong. The rules
stand in the order in which they are tried: adapters first, since they contain pieces of the names
of the models they adapt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from smalti.errors import UnknownFamilyError

Shapes = Mapping[str, tuple[int, ...]]

UNET_PREFIXES = ("model.diffusion_model.", "diffusion_model.", "model.")
LORA_MARKS = ("lora_down.", "lora_up.", "lora_A.", "lora_B.", "lora.down.", "lora.up.")
LORA_MARKS += ("_lora.down.", "_lora.up.", "lora_linear_layer.", "hada_w1", "lokr_w1", "oft_blocks")
CONTROLNET_MARKS = (
    "control_model.",
    "zero_convs.0.0.weight",
    "controlnet_cond_embedding.conv_in.weight",
    "controlnet_blocks.0.weight",
    "lora_controlnet",
    "input_hint_block.0.weight",
)
SD1_CONTEXT, SD2_CONTEXT = 768, 1024
EMBEDDING_WIDTHS = (768, 1024, 1280, 4096)


@dataclass(frozen=True)
class Family:
    """A kind of model file: short name, the words to use in a sentence, and what to do with it.

    `model` is the family of the model that its denoiser makes, "" for a file without one. `advice`
    says how a file that is no model of its own is used.
    """

    id: str
    words: str
    model: str = ""
    advice: str = ""

    @property
    def supported(self) -> bool:
        """Whether `load` takes such a file."""
        return bool(self.model)

RuleTest = Callable[["_Names"], bool]


class _Names:
    """The names of a file, as the rules ask about them; UNet prefixes are taken off."""

    def __init__(self, shapes: Shapes) -> None:
        self.all = shapes
        self.bare = {_strip(name): shape for name, shape in shapes.items()}

    def has(self, *starts: str) -> bool:
        """Whether a name (with or without UNet prefix) starts with one of `starts`."""
        return any(name.startswith(starts) for table in (self.bare, self.all) for name in table)

    def contains(self, *parts: str) -> bool:
        """Whether any name contains one of `parts`."""
        return any(part in name for name in self.all for part in parts)

    def size(self, name: str, axis: int) -> int:
        """Length of an axis of a tensor, or 0 where there is no such tensor or axis."""
        shape = self.bare.get(name, self.all.get(name, ()))
        return shape[axis] if len(shape) > axis else 0

    @property
    def unet(self) -> bool:
        """A UNet, in latent-diffusion or diffusers naming."""
        return "input_blocks.0.0.weight" in self.bare or self.has("input_blocks.", "down_blocks.0.")

    @property
    def vae(self) -> bool:
        """An autoencoder, with whatever prefix."""
        return self.contains("decoder.conv_in.weight", "decoder.mid")

    @property
    def text(self) -> bool:
        """A text encoder, with whatever prefix."""
        return self.has("cond_stage_model.", "conditioner.", "text_model.", "text_encoders.")

    @property
    def transformer(self) -> bool:
        """A diffusion transformer of any family."""
        return self.has("double_blocks.", "joint_blocks.", "transformer_blocks.")

    @property
    def context(self) -> int:
        """Width of the prompt embedding that the UNet attends to, or 0."""
        widths = [shape[1] for name, shape in self.all.items() if _is_context(name, shape)]
        return max(widths, default=0)

    @property
    def linear(self) -> bool:
        """Whether pixels enter the transformers of a UNet through a linear layer."""
        return any(name.endswith(".proj_in.weight") and len(shape) == 2
                   for name, shape in self.all.items())

    @property
    def input_channels(self) -> int:
        """Input channels of the UNet's first convolution, or 0."""
        return self.size("input_blocks.0.0.weight", 1) or self.size("conv_in.weight", 1)


def _strip(name: str) -> str:
    for prefix in UNET_PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _is_context(name: str, shape: tuple[int, ...]) -> bool:
    return name.endswith("attn2.to_k.weight") and len(shape) == 2


def _embedding(names: _Names) -> bool:
    if names.has("string_to_param", "emb_params", "clip_l", "clip_g"):
        return not names.unet and not names.transformer
    shapes = list(names.all.values())
    small = all(len(s) in (1, 2) and s[-1] in EMBEDDING_WIDTHS for s in shapes)
    return 0 < len(shapes) <= 2 and small and not names.contains(".weight", ".bias")


def _flux_words(guided: str, plain: str) -> tuple[tuple[Family, RuleTest], ...]:
    def flux(names: _Names) -> bool:
        return names.has("double_blocks.0.img_attn.") or names.has("single_transformer_blocks.")

    def guidance(names: _Names) -> bool:
        return names.has("guidance_in.") or names.has("time_text_embed.guidance_embedder.")

    return (
        (Family("flux-dev", guided, "flux"), lambda names: flux(names) and guidance(names)),
        (Family("flux-schnell", plain, "flux"), flux),
    )


READ = "Smalti reads Stable Diffusion 1.x, 2.x, SDXL, 3.x, FLUX.1 and Chroma"

RULES: tuple[tuple[Family, RuleTest], ...] = (
    (
        Family("lora", "a LoRA, an addition to a checkpoint",
               advice="use it with one: smalti generate --lora FILE"),
        lambda n: n.contains(*LORA_MARKS) and not n.has("input_blocks.0.0.weight"),
    ),
    (
        Family("controlnet", "a ControlNet",
               advice="use it with one: smalti generate --control FILE PICTURE"),
        lambda n: n.has(*CONTROLNET_MARKS),
    ),
    (
        Family("t2i-adapter", "a T2I-Adapter"),
        lambda n: n.has("adapter.body.", "body.0.block2.weight"),
    ),
    (
        Family("embedding", "a textual-inversion embedding",
               advice="use it with a model: smalti generate --embedding FILE"),
        _embedding,
    ),
    (
        Family("esrgan", "an ESRGAN upscaler", advice="enlarge pictures with it: smalti upscale"),
        lambda n: n.has("conv_first.weight", "1.sub.0.", "RRDB_trunk.0.") or (
            n.size("body.0.weight", 3) == 3 and n.size("body.1.weight", 0) > 0),
    ),
    (
        Family("taesd", "a TAESD preview decoder",
               advice="use it with one: smalti generate --preview FILE"),
        lambda n: n.has("taesd_decoder.", "decoder.layers.1.", "3.conv.0.weight"),
    ),
    (
        Family("sd3", "a Stable Diffusion 3 checkpoint", "sd3"),
        lambda n: n.has("joint_blocks.0.", "pos_embed.pos_embed"),
    ),
    (
        Family("flux2", "a FLUX.2 checkpoint"),
        lambda n: n.has("double_stream_modulation_img.", "single_stream_modulation."),
    ),
    (Family("chroma-radiance", "a Chroma Radiance checkpoint"), lambda n: n.has("nerf_")),
    (
        Family("chroma", "a Chroma checkpoint", "chroma"),
        lambda n: n.has("distilled_guidance_layer."),
    ),
    *_flux_words("a FLUX.1 dev checkpoint", "a FLUX.1 schnell checkpoint"),
    (
        Family("vae", "an autoencoder (VAE) alone",
               advice="give it with vae= or --vae beside a model"),
        lambda n: n.vae and not n.unet and not n.transformer,
    ),
    (
        Family("sdxl-refiner", "an SDXL refiner checkpoint", "sdxl-refiner"),
        lambda n: n.unet and (2560 in (n.size("label_emb.0.0.weight", 1), _added(n))
                              or n.has("conditioner.embedders.0.model.")),
    ),
    (
        Family("sdxl", "an SDXL base checkpoint", "sdxl"),
        lambda n: n.unet and (n.has("conditioner.embedders.", "label_emb.0.") or _added(n) > 0),
    ),
    (
        Family("svd", "a Stable Video Diffusion checkpoint, which makes films"),
        lambda n: n.unet and n.contains(".time_stack.", ".temporal_transformer_blocks."),
    ),
    (
        Family("upscaler", "a latent upscaler checkpoint (7 input channels)"),
        lambda n: n.unet and n.input_channels == 7,
    ),
    (
        Family("sd2", "a Stable Diffusion 2.x checkpoint", "sd2"),
        lambda n: n.unet and (n.has("cond_stage_model.model.") or n.context == SD2_CONTEXT
                              or n.linear and n.context != SD1_CONTEXT
                              and not n.has("cond_stage_model.")),
    ),
    (
        Family("sd1-inpaint", "a Stable Diffusion 1.x inpainting checkpoint (9 input channels)",
               "sd1"),
        lambda n: n.unet and n.input_channels == 9,
    ),
    (
        Family("sd1-pix2pix", "an InstructPix2Pix checkpoint (8 input channels)", "sd1"),
        lambda n: n.unet and n.input_channels == 8,
    ),
    (
        Family("sd1", "a Stable Diffusion 1.x checkpoint", "sd1"),
        lambda n: n.unet and (n.vae or n.text),
    ),
    (
        Family("unet", "a UNet of Stable Diffusion 1.x alone, without text encoder and autoencoder",
               "sd1"),
        lambda n: n.unet,
    ),
    (
        Family("text-encoder", "a text encoder alone",
               advice="give it with text_encoders= or --text-encoder beside a model"),
        lambda n: n.text or n.has("encoder.block.0.layer.0.SelfAttention", "embeddings.",
                                  "enc.blk.0.", "transformer.resblocks.0."),
    ),
)


def _added(names: _Names) -> int:
    """Width of the extra conditioning of diffusers-named SDXL UNets, or 0."""
    return names.size("add_embedding.linear_1.weight", 1)


def detect(shapes: Shapes) -> Family | None:
    """The family of a file with these tensor names and shapes, or None for one never seen.

    >>> detect({"conv_first.weight": (64, 3, 3, 3)}).words
    'an ESRGAN upscaler'
    """
    names = _Names(shapes)
    return next((family for family, test in RULES if test(names)), None)


def require_supported(path: object, family: Family | None, names: Shapes) -> Family:
    """`family` itself when Smalti reads it.

    Raises `UnknownFamilyError` that says what the file is otherwise.
    """
    if family is not None and family.supported:
        return family
    if family is not None:
        advice = family.advice or "give such a checkpoint, or a diffusers folder of one"
        raise UnknownFamilyError(f"{path} is {family.words}; {READ} checkpoints; {advice}")
    some = ", ".join(sorted(names)[:3])
    raise UnknownFamilyError(
        f"{path} holds {len(names)} tensors of no known model family (first names: {some});"
        f" {READ} checkpoints"
    )
