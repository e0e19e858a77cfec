"""Qwen-Image-Edit, and its versions 2509 and 2511, which change pictures (Qwen team 2025,
arXiv:2508.02324). Their tensors are those of Qwen-Image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from smalti.families import language
from smalti.families.joining import contexts_fit
from smalti.families.names import FileKind, Names
from smalti.families.record import (
    Agreement,
    Defaults,
    ModelFamily,
    Seen,
    all_tokens,
    always,
)
from smalti.families.records.qwen_image import (
    CLEAN,
    PROMPT_TOKENS,
    QWEN_IMAGE,
    ROUND,
    qwen_image_config,
)
from smalti.models.config import ModelConfig
from smalti.models.language_config import LanguageConfig
from smalti.models.transformer_config import QWEN_IMAGE as PUBLISHED
from smalti.models.transformer_config import READ_AREA

EDIT_SYSTEM = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture,"
    " objects, background), then explain how the user's text instruction should alter or modify the"
    " image. Generate a new image that meets the user's requirements while maintaining consistency "
    "with the original input where appropriate.<|im_end|>\n")
"""What the text encoder of Edit is told before a picture and a prompt."""
EDIT_TEMPLATE = EDIT_SYSTEM + language.CHATML
EDIT_TOKENS = 64
"""Of it that stand before the picture."""
PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
SEEN = Seen(READ_AREA, PICTURE)
"""How the first Edit has its text encoder see the picture: in the size of the denoiser."""
SEEN_2509 = Seen(384 * 384, f"Picture {{}}: {PICTURE}")
"""And the others, which read several, and number them."""
PICTURES = 3
"""That 2509 and 2511 were made for, at most."""


def _agreements(config: ModelConfig) -> Iterator[Agreement]:
    """The denoiser reads the text encoder's states, which reads pictures as wide as texts."""
    yield from contexts_fit(config)
    (text,) = config.texts.values()
    if isinstance(text, LanguageConfig) and text.vision is not None:
        yield ("channels of what reads pictures", text.vision.out_size, "of the text encoder",
               text.hidden_size)


def _edit(name: str, title: str, shows: Callable[[Names], bool], seen: Seen, references: int,
          steps: int, clean: bool = False) -> ModelFamily:
    """The record of one that changes pictures: its tensors are those of Qwen-Image, and its name
    tells it, or a mark that `shows` it. Of a prompt `PROMPT_TOKENS` are read beside pictures."""
    (text,), config = QWEN_IMAGE.texts, partial(
        qwen_image_config, references=references, clean=clean)
    return replace(
        QWEN_IMAGE,
        name=name,
        title=title,
        files=(FileKind(name, f"a {title} checkpoint, which changes pictures", shows),),
        before=("qwen-image",),
        named={},
        texts=(replace(text, template=EDIT_TEMPLATE, dropped=EDIT_TOKENS, seen=seen,
                       left_out=seen.token,
                       tokens=all_tokens(EDIT_TOKENS + ROUND, EDIT_TOKENS + PROMPT_TOKENS)),),
        backbone=replace(QWEN_IMAGE.backbone, config=config),
        agreements=_agreements,
        defaults=always(Defaults(size=1024, steps=steps, guidance=4.0, sampler="euler",
                                 noise="trailing", flow_shift=None, flow_terminal=0.02)),
        published=(replace(PUBLISHED, references=references, clean=clean),),
    )


QWEN_IMAGE_EDIT = _edit("qwen-image-edit", "Qwen-Image-Edit", lambda names: False, SEEN, 1, 50)
QWEN_IMAGE_EDIT_2509 = _edit("qwen-image-edit-2509", "Qwen-Image-Edit-2509", lambda names: False,
                             SEEN_2509, PICTURES, 40)
QWEN_IMAGE_EDIT_2511 = _edit("qwen-image-edit-2511", "Qwen-Image-Edit-2511",
                             lambda names: names.has(CLEAN), SEEN_2509, PICTURES, 40, clean=True)
