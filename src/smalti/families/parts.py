"""The parts that a whole model is made of, each a graph for a shape.

What a checkpoint must hold, what is compiled and what is explained all come from this one table.
"""

from __future__ import annotations

from smalti.families.record import VISION, ModelPart
from smalti.families.registry import family_of
from smalti.models.config import ModelConfig

TEXTS = ("text", "text_2", "text_3")
"""What the text encoders of a model are called as parts, in the order of `config.texts`."""


def parts(config: ModelConfig) -> dict[str, ModelPart]:
    """The parts of a model by name; a shape is

        vision                 (batch, height, width) of pictures in patches, of text encoders that
                               read them
        text, text_2, text_3   of CLIP (batch, skip), where the state that is `skip`-th from the end
                               is read, or (batch, skip, True) with rows of tokens for their
                               numbers; of T5 (batch, tokens); of what makes tokens of
                               pictures (batch,)
        unet, transformer      (batch, height, width, tokens), sizes of the latent; then `control`
                               of its graph where it reads what ControlNets give, else False, and
                               of a UNet the directions in which the picture can be repeated (see
                               `tileable`) and the step of `downsampled`, or of a transformer "",
                               whether blocks can be left out,
                               the sizes of latents that it reads besides, and how many pictures
                               and tokens of each stand in the prompt with a bias of their own
        conditioner            (batch, tokens of the text encoder), then those of another tokenizer,
                               of families that have one
        modulation             (batch,), of FLUX.1 and Chroma
        vae                    (height, width), of the latent, and the same directions
        vae_encoder            (height, width), in pixels

    >>> from smalti.models.config import SD15
    >>> list(parts(SD15)), parts(SD15)["vae"].graph(8, 8).outputs["image"].shape
    (['text', 'unet', 'vae', 'vae_encoder'], (1, 3, 64, 64))
    """
    family, found = family_of(config), {}
    for part, (name, text) in zip(TEXTS, config.texts.items(), strict=False):
        title = "the text encoder" if len(config.texts) == 1 else f"the text encoder {name}"
        use = family.text(name)
        if use.seen is not None and use.encoder.seeing is not None:
            found[VISION] = ModelPart("what reads pictures", use.encoder.seeing(text), (1, 2, 2),
                                      wide=True)
        smallest = (1,) if use.encoder.of_pictures else (1, 1)
        if use.encoder.of_pictures:
            title = use.encoder.title
        found[part] = ModelPart(title, use.encoder.graph(text, use), smallest,
                                wide=use.encoder.wide)
    return {**found, **family.backbone.parts(config.denoiser),
            **family.autoencoder.parts(config.vae)}
