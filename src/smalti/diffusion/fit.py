"""Whether parts of a model, tokenizers, and the size and words of a picture fit together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smalti.checkpoint import Checkpoint
from smalti.checkpoint.taught_words import TaughtWords
from smalti.diffusion.prompt import parse
from smalti.diffusion.purpose import untaken
from smalti.diffusion.tokenizer import POSITIONS, VOCABULARY
from smalti.errors import CheckpointError, first_of
from smalti.families import family_of
from smalti.families.record import Agreement
from smalti.models.config import ClipTextConfig, ModelConfig
from smalti.models.language_config import ReduxConfig

HIRES_SIDE_MIN = 512
"""Side of the default picture from which on a second pass at a larger size serves. Models that were
trained on smaller ones make textures of shapes there, as the one that ships with Smalti does: its
apple of 256 pixels is a square with patches at 512, with and without a first pass."""


def check_parts(opened: Checkpoint) -> None:
    """Raise CheckpointError when the parts of a model do not fit together, or the tokenizers."""
    for what, found, other, expected in disagreements(opened.config):
        raise CheckpointError(f"{opened.report.path}: {found} {what}, but {expected} {other}; text "
                              f"to image needs a model in which they agree")


def disagreements(config: ModelConfig) -> Iterator[Agreement]:
    """Numbers of the parts of a model, and of its tokenizers, that would have to be equal."""
    return (each for each in (*_texts(config), *_denoiser(config)) if each[1] != each[3])


def check_refiner(base: Checkpoint, refiner: Checkpoint) -> None:
    """Raise CheckpointError for a refiner that does not read the latents of the model."""
    ours, theirs = ((config.vae.z_channels, config.vae.downscale, config.vae.scaling_factor,
                     config.vae.shift_factor, config.vae.latents_mean,
                     config.vae.latents_std, config.prediction == "flow",
                     config.denoiser.in_channels)
                    for config in (base.config, refiner.config))
    if ours != theirs:
        raise CheckpointError(f"{refiner.report.path} cannot refine the pictures of "
                              f"{base.report.path}: its latents are others; give a model of the "
                              f"same kind, such as the SDXL refiner for an SDXL model")


def size_warnings(config: ModelConfig, width: int, height: int,
                  larger: tuple[int, int] | None = None) -> Iterator[str]:
    """What is to be said of a picture of this size, and of a second pass of a `larger` one, in
    which the model's pictures do not hold together.

    >>> from smalti.models.config import SD15
    >>> list(size_warnings(SD15, 512, 768)), len(list(size_warnings(SD15, 1024, 1024)))
    ([], 1)
    """
    usual = f"{config.default_width}x{config.default_height}"
    defaults = family_of(config).defaults(config.denoiser, config.prediction)
    low, high = defaults.areas
    area = config.default_width * config.default_height
    share = width * height / area
    if not low <= share <= high:
        yield (f"this model was made for pictures of {usual}; one of {width}x{height} has "
               f"{share:.2g} times their area, at which "
               + ("things repeat or fall apart" if share > high else "little can be recognised")
               + f": ask for about {usual} (--size {usual})"
               + (", and enlarge it with a network (smalti upscale)" if share > high else ""))
    if larger is not None:
        most = defaults.hires_area if min(config.default_width, config.default_height) >= \
            HIRES_SIDE_MIN else high
        share = larger[0] * larger[1] / area
        if share > most and width * height < larger[0] * larger[1]:
            yield (f"this model was made for pictures of {usual}; a second pass of "
                   f"{larger[0]}x{larger[1]} has {share:.2g} times their area, at which it makes "
                   f"others of what the first has made: enlarge the picture with a network instead "
                   f"(smalti upscale)")


def weight_warnings(config: ModelConfig, prompts: Iterable[str], steps: int) -> Iterator[str]:
    """What is to be said of weights in prompts, where no text encoder of a model reads them."""
    if "emphasis" in untaken(config) and any(
            weight != 1 for prompt in prompts for part in parse(prompt, steps).parts
            for span in part.spans for chunk in span.chunks for weight in chunk.weights):
        yield ("this model reads prompts without weights, so that (word:1.3) counts as word: say "
               "what matters in other words, or twice")


def word_warnings(taught: TaughtWords | None, prompt: str, steps: int,
                  embeddings: Iterable[str] = (), changed: bool = False) -> Iterator[str]:
    """What is to be said of a prompt with words that a model was not taught, where it has a list of
    those that it was. `embeddings` are words that files have taught it, and a model that is
    `changed` by adapters may know others.

    >>> taught = TaughtWords("a.words.txt", (("red apple", "apple"), ("cat",)), ("a", "on"))
    >>> print(*word_warnings(taught, "a (cat:1.2) on a road", steps=20))
    this model was not taught "road", and does not draw it; known words: red apple, cat (all 3 \
are in a.words.txt)
    """
    if taught is None or changed:
        return
    parts = parse(prompt, steps).parts
    said = " ".join(dict.fromkeys(span.text for part in parts for span in part.spans))
    own = {name.lower() for name in embeddings}
    unknown = [word for word in taught.unknown(said) if word.lower() not in own]
    if unknown:
        quoted = first_of(f'"{word}"' for word in unknown)
        yield (f"this model was not taught {quoted}, and does not draw "
               f"{'it' if len(unknown) == 1 else 'them'}; known words: "
               f"{', '.join(taught.examples())} (all {taught.count} are in {taught.path})")


def _texts(config: ModelConfig) -> Iterator[Agreement]:
    """What the tokenizers ask of the text encoders."""
    for name, text in config.texts.items():
        encoder = family_of(config).text(name).encoder
        if isinstance(text, ClipTextConfig):
            yield "tokens of the text encoder", text.vocab_size, "of CLIP's vocabulary", VOCABULARY
            yield "positions of the text encoder", text.positions, "of CLIP's prompts", POSITIONS
        elif not isinstance(text, ReduxConfig):
            yield ("tokens of the text encoder", text.vocab_size, "at least of its tokenizer's",
                   max(text.vocab_size, encoder.tokens))


def _denoiser(config: ModelConfig) -> Iterator[Agreement]:
    """What the denoiser asks of the text encoders and of the autoencoder."""
    denoiser = config.denoiser
    yield from family_of(config).agreements(config)
    yield (f"channels out of the {denoiser.title}", denoiser.out_channels,
           "of the autoencoder's latents", config.vae.z_channels)
