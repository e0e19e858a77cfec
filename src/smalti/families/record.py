"""What is known of a model family: one frozen record, made of the records of its networks.

A `ModelFamily` says which files are of it, which text encoders it reads and how, which kind of
denoiser and autoencoder it has, what its denoiser is told of a prompt, and the defaults that
nothing in a file states. Everything in it is data, or a function of names, shapes, configurations
and arrays: no record opens a file, compiles or runs anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.dataclass import dataclass
from smalti.families.distilled import DISTILLED, DISTILLED_FLOW, Recommended, words
from smalti.families.flow_shift import Shift, flux_shift
from smalti.families.hints import Hints, TextHints
from smalti.families.keys import Table
from smalti.families.names import FileKind, Shapes
from smalti.families.spelling import Layers, SpelledLayers, own_spelling
from smalti.graph import Graph
from smalti.models.config import SD_VAE, ModelConfig, Prediction, TextConfig, VaeConfig
from smalti.models.denoiser_config import DenoiserConfig

Floats = npt.NDArray[np.float32]

Renaming = Callable[[str], str]
"""Name of a tensor as stored, below the prefix of its part -> name of the parameter, also below."""

Layout = Table | Renaming
"""How the names in a file become those of parameters."""

Read = Callable[[str], np.ndarray]
"""Name of a parameter -> its values."""

Agreement = tuple[str, int, str, int]
"""Two numbers that must be equal: (what the first is, the number, what the other is, its number).
"""


STEADY = ("context", "vector", "pooled", "guidance", "mask")
"""Inputs of a denoiser that stay the same for all steps of a picture."""


VISION = "vision"
"""The part of a text encoder that makes its tokens of pictures."""


CONDITIONER = "conditioner"
"""The part that a `Conditioner` tells of."""


@dataclass(frozen=True)
class ModelPart:
    """A network of a model that is compiled on its own.

    `title` are the words for it, `graph` its graph for a shape, `smallest` the smallest such shape,
    and `held` the inputs that stay the same for all steps of a picture. What is `wide` may have
    activations beyond what f16 holds.
    """

    title: str
    graph: Callable[..., Graph]
    smallest: tuple[int, ...]
    held: tuple[str, ...] = ()
    wide: bool = False


# ---------------------------------------------------------------------- networks


@dataclass(frozen=True)
class TextEncoder:
    """A text encoder, whichever families read it.

    name          what it is called in `ModelConfig.texts`
    title, file   the words for it, and what its file is usually called
    width         of its tokens in published models
    inside        what its parameters begin with
    prefixes      what its tensors begin with in files that hold several parts
    alone         what names in a file of it alone may begin with
    tokenizer     "clip" (chunks of 77 tokens, each with a weight), or one that reads the plain
                  text: "t5", "qwen3", "qwen2", "tekken", "gemma"; "" for what makes tokens of
                  pictures alone
    tokens        the numbers of tokens that its tokenizer gives are below this one
    wide          whether its states may be beyond what f16 holds, as those of T5 and of language
                  models are: the first token of Qwen's and the widest of T5's layers overflow
    padding       the token that fills up a chunk behind the end of a prompt; None for more ends
    config        (file for messages, shapes, what is stated, how a family reads it) -> its
                  hyperparameters
    shows         (names, shapes) below its prefix -> whether they are those of this encoder
    layout        names below its prefix -> how they become parameters; None for names of none of
                  its code bases
    graph         (hyperparameters, how a family reads it) -> the graph for a shape
    seeing        (hyperparameters) -> the graph of what reads pictures; None where that is not
                  computed
    spelled       its layers as trainers of adapters spell them
    architecture  what GGUF files of it state as theirs, where their names are those of another
    known         a regular expression of all names below its prefix that its published models have,
                  whether they are read or not: a file with others is refused. None: all are taken
    """

    name: str
    title: str
    file: str
    width: int
    inside: str
    prefixes: tuple[str, ...]
    alone: tuple[str, ...]
    tokenizer: str
    config: Callable[[object, Shapes, TextHints, Text], TextConfig]
    shows: Callable[[Iterable[str], Shapes], bool]
    layout: Callable[[Iterable[str]], Layout | None]
    graph: Callable[[Any, Text], Callable[..., Graph]]
    seeing: Callable[[Any], Callable[..., Graph]] | None = None
    spelled: Callable[[Layers], SpelledLayers] = own_spelling
    tokens: int = 0
    wide: bool = False
    padding: int | None = None
    known: str | None = None
    architecture: str = ""

    @property
    def chunked(self) -> bool:
        """Whether it reads chunks of weighted tokens, among which may be vectors of embeddings."""
        return self.tokenizer == "clip"

    @property
    def of_pictures(self) -> bool:
        """Whether it makes tokens of pictures, and reads no text."""
        return not self.tokenizer


def all_tokens(low: int, high: int) -> Callable[[Any], tuple[int, int]]:
    """These numbers of tokens, at least and at most, whatever the denoiser."""
    return lambda denoiser: (low, high)


@dataclass(frozen=True)
class Seen:
    """How a text encoder sees pictures, before the prompt.

    area          pixels of each picture there, about
    mark          what stands for a picture, with {} where its number stands, from 1
    token         the text of one of its tokens, within the mark, which is repeated for all of them
    """

    area: int
    mark: str
    token: str = "<|image_pad|>"


@dataclass(frozen=True)
class Text:
    """How a family reads one of its text encoders.

    layer         the hidden state that is read, from the end: 1 is behind the last layer
    taps          the hidden states that are read instead, of a language model: behind how many
                  layers each is, channels side by side where there are several
    final_norm    whether the norm behind the last layer is computed of that state
    pooled        whether the state of the end token is read, too, and `projected`, whether it is
                  multiplied by a projection
    pooled_alone  whether the denoiser reads nothing else of it, so that tokens have no weights
    optional      whether the model runs without the encoder
    tokens        (denoiser) -> the tokens of a plain text, at least and at most
    round_to      longer texts are filled up to a multiple of so many tokens; 0: to the most
    masked        whether tokens that fill up are hidden from others; where their states are read,
                  too, those of a language model are as if they saw the text alone
    file          what the file of the encoder is usually called, where it is another than that of
                  most models that read it
    windowed      whether the denoiser sees a text with all that fills it up to a multiple of
                  `round_to` tokens, and nothing behind, where others are longer
    filled_at     the place at which all tokens that fill up stand; None: behind the text
    filled_first  whether a text is filled up in front of it, by tokens that see nothing
    left_out      what is taken out of a prompt
    only_valid    whether states of tokens that fill up are zeros, and a mask says which those are
    template      the text as the encoder reads it, with {} where the prompt stands
    mark          what a prompt contains that brings a beginning of its own: it has none of the
                  template; "" for nothing
    plain_negative  whether negative prompts have none of it, either
    ended         whether what stands behind the prompt there is read also where a long one is cut
                  off: a token of its own begins it
    dropped       states at the beginning, those of the template, that the denoiser does not see
    seen          how pictures are read with the prompt; None: they are not
    pieces        (a prompt) -> the parts of it that become tokens each for itself; None: it is one
    blank         what is read of a prompt without anything in it
    """

    encoder: TextEncoder
    layer: int = 1
    taps: tuple[int, ...] = ()
    final_norm: bool = False
    pooled: bool = False
    projected: bool = False
    pooled_alone: bool = False
    optional: bool = False
    tokens: Callable[[Any], tuple[int, int]] = all_tokens(77, 77)
    round_to: int = 0
    masked: bool = False
    windowed: bool = False
    filled_at: int | None = None
    filled_first: bool = False
    left_out: str = ""
    only_valid: bool = False
    file: str = ""
    template: str = "{}"
    mark: str = ""
    plain_negative: bool = False
    ended: bool = False
    dropped: int = 0
    seen: Seen | None = None
    pieces: Callable[[str], Sequence[str]] | None = None
    blank: str = ""


@dataclass(frozen=True)
class Backbone:
    """A kind of denoiser; families that share one differ in its hyperparameters.

    name          what adapters for it are told by
    models        the models that have it, for messages
    part          "transformer" or "unet"
    stack         what diffusers calls its blocks, where it has but one name for all of them
    config        (file for messages, shapes, what is stated) -> its hyperparameters
    parts         (hyperparameters) -> the parts that it is computed in, by name
    layout        names below its prefix -> how they become parameters
    mark          what begins the name of one of its parameters, and of no other kind
    first         its first layer: one that reads more channels is for another purpose
    adapted       a regular expression that finds one of its layers in the names of an adapter
    alike         another kind of denoiser whose layers adapters call as its own
    shaped        a regular expression of layers that the other one has, too -> what they read and
                  what they give, as a proportion that is another one there
    precise       one that finds the tensors in files which stay precise when others become 8-bit
                  floats or blocks: first and last layers, and what all blocks are modulated by
    spelled       its layers as trainers of adapters spell them
    """

    name: str
    models: tuple[str, ...]
    config: Callable[[object, Shapes, Hints], DenoiserConfig]
    parts: Callable[[Any], Mapping[str, ModelPart]]
    layout: Callable[[Iterable[str]], Layout]
    mark: str
    first: str
    adapted: str
    precise: str
    part: str = "transformer"
    stack: str = "transformer_blocks"
    alike: str = ""
    shaped: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    spelled: Callable[[Layers], SpelledLayers] = own_spelling


@dataclass(frozen=True)
class Autoencoder:
    """A kind of autoencoder.

    title         the words for it
    marks         what occurs in the names of its tensors, with whatever prefix
    without       what occurs in none of them, but in those of another kind that has such marks, too
    config        (file for messages, shapes, what is stated, what the family knows) -> its
                  hyperparameters
    parts         (hyperparameters) -> the parts "vae" and "vae_encoder"
    layout        names below its prefix -> how they become parameters
    """

    title: str
    marks: tuple[str, ...]
    config: Callable[[object, Shapes, Hints, VaeConfig], VaeConfig]
    parts: Callable[[Any], Mapping[str, ModelPart]]
    layout: Callable[[Iterable[str]], Layout]
    without: tuple[str, ...] = ()

    def shows(self, names: Iterable[str]) -> bool:
        """Whether these are names of its tensors, and not of another kind."""
        found = list(names)
        return (any(mark in name for name in found for mark in self.marks)
                and not any(mark in name for name in found for mark in self.without))


# ---------------------------------------------------------------------- what a denoiser is told


@dataclass(frozen=True)
class Encoded:
    """What a text encoder gives: context [readings, tokens, width], pooled [readings, width], and a
    mask [readings, tokens] that is 1 where a token counts; the last two where the model has them.
    """

    context: np.ndarray
    pooled: Any = None
    mask: Any = None


@dataclass(frozen=True)
class Circumstances:
    """What a denoiser may be told of a picture beside its prompt: the size in pixels, the strength
    of guidance for a model that was distilled from guided ones, and which readings are those of the
    negative prompt."""

    height: int
    width: int
    guidance: float | None
    negative: Sequence[bool]


Joining = Callable[[ModelConfig, Mapping[str, Encoded], Circumstances], dict[str, Floats]]
"""(model, what each text encoder gave by its name, the picture) -> the denoiser's inputs of these
names, one row for each reading."""


@dataclass(frozen=True)
class Conditioner:
    """What is made, once for each prompt, of that which `join` gives: by the part "conditioner",
    whose weights are among those of the denoiser.

    tokenizer     whose tokens of the plain prompt it reads besides, as `tokens` and `tokens_mask`
                  (see `TextEncoder.tokenizer`); "" for none
    most          of these tokens, and `round_to`, a multiple of which they are filled up to
    kept          what the denoiser, too, reads of that which `join` gives
    """

    tokenizer: str = ""
    most: int = 512
    round_to: int = 32
    kept: tuple[str, ...] = ()


# ---------------------------------------------------------------------- the family


@dataclass(frozen=True)
class Defaults:
    """What a picture is made with where nothing is asked for and no file states it.

    `size` is the side in pixels. `flow_shift` moves the noise levels of models that predict a flow,
    None for one that follows from the size of the picture, and `flow_terminal` is the level that a
    schedule is stretched to end with, 0 for none. Pictures hold together whose areas, as
    shares of that of the default size, are between the two `areas`; in larger ones things repeat.
    A second pass, which goes on from an enlarged picture, may have `hires_area`. What a model is
    told that was distilled from guided ones is `distilled_guidance`.
    """

    size: int = 512
    steps: int = 20
    guidance: float = 7.0
    sampler: str = "euler_a"
    noise: str = "karras"
    flow_shift: float | None = 1.0
    flow_terminal: float = 0.0
    areas: tuple[float, float] = (0.5, 2.0)
    hires_area: float = 4.0
    distilled_guidance: float = 3.5


def always(defaults: Defaults) -> Callable[[Any, Prediction], Defaults]:
    """The same defaults for all models of a family."""
    return lambda denoiser, prediction: defaults


@dataclass(frozen=True)
class ModelFamily:
    """A model family.

    name          what it is called in `ModelConfig.family`
    title         the models of it, in words
    files         the kinds of files that it comes in, in the order in which they are asked
    before        families whose files look like this one's, too, and are asked later
    named         a regular expression of what the name of a model says, in small letters, whose
                  tensors are those of this family -> the family that it is of instead
    texts         its text encoders, in the order in which folders have them
    backbone      the kind of denoiser
    join          what the denoiser is told of a prompt
    conditioner   what is made of that before the denoiser reads it; None: it is read as it is
    agreements    (model) -> what must agree for the denoiser to read what `join` gives
    autoencoder   the kind of autoencoder; `vae` is the one that its models were trained with, and
                  `vae_file` what the file of it is usually called
    prediction    what the denoiser predicts; `predicts` sees it in the weights where they differ
    defaults      (denoiser, prediction) -> what a picture is made with
    distilled     word in the name of a model that was distilled to few steps -> what is recommended
                  (see `recommended`); None: as for other models of this prediction
    published     the denoisers of its published models
    aligned       ten noise levels that suit its models (see `align_your_steps`)
    shift_by_size (width, height in pixels, steps) -> the shift of the noise levels of a flow model
                  whose defaults, or whose file, leave it to the size of the picture
    """

    name: str
    title: str
    files: tuple[FileKind, ...]
    texts: tuple[Text, ...]
    backbone: Backbone
    join: Joining
    agreements: Callable[[ModelConfig], Iterable[Agreement]]
    autoencoder: Autoencoder
    vae: VaeConfig = SD_VAE
    vae_file: str = "ae.safetensors"
    prediction: Prediction = "epsilon"
    predicts: Callable[[Shapes, Read], Prediction | None] | None = None
    defaults: Callable[[Any, Prediction], Defaults] = always(Defaults())
    distilled: Recommended | None = None
    published: tuple[DenoiserConfig, ...] = ()
    before: tuple[str, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    aligned: tuple[float, ...] = ()
    shift_by_size: Shift = flux_shift
    conditioner: Conditioner | None = None

    def text(self, name: str) -> Text:
        """How the family reads the text encoder of this name."""
        return next(each for each in self.texts if each.encoder.name == name)

    def told_by(self, *names: str) -> str | None:
        """The family with the same tensors that the names of a model tell; None for none."""
        said = words(*names)
        return next((name for pattern, name in self.named.items() if re.search(pattern, said)),
                    None)

    @property
    def recommended(self) -> Recommended:
        """Word in the name of a model -> what is recommended where its file states nothing."""
        if self.distilled is not None:
            return self.distilled
        return DISTILLED_FLOW if self.prediction == "flow" else DISTILLED
