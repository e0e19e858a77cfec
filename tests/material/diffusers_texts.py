"""What reads texts in tiny pipelines of diffusers: our tokenizers behind the interfaces of theirs,
and text encoders of transformers with random weights."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import tiny_families as tiny
from tiny_gemma import TREE as GEMMA_TREE
from tiny_tekken import SPECIAL as TEKKEN_SPECIAL
from tiny_tekken import TEKKEN

from smalti.benchmark import peers
from smalti.diffusion import byte_bpe, tekken
from smalti.diffusion.t5_tokenizer import shipped
from smalti.diffusion.tokenizer import encode
from smalti.families.language import CHATML, CHATML_ANSWER
from smalti.models.config import ClipTextConfig
from smalti.models.language_config import LanguageConfig
from smalti.models.transformer_config import T5Config

PAD, PAD_NUMBER = "<|image_pad|>", 151_655
"""What stands for a part of a picture in a text of Qwen2.5-VL."""
TEKKEN_PADDING = TEKKEN_SPECIAL.index("<pad>")


class Tokenizer:
    """Our tokenizers behind the interface of transformers; CLIP's fills up with `padding`."""

    model_max_length = 77
    added_tokens_encoder: dict[str, int] = {}

    def __init__(self, padding: int | None) -> None:
        self.padding = padding

    def __call__(self, prompts: str | list[str], max_length: int | None = None, **_: Any) -> Any:
        import torch
        from transformers import BatchEncoding

        length = max_length or self.model_max_length
        texts = [prompts] if isinstance(prompts, str) else prompts
        rows, masks = [], []
        for text in texts:
            tokens = (encode(text, length) if self.padding is not None
                      else shipped().encode(text, length))
            count = tokens.count + (2 if self.padding is not None else 1)
            ids = np.array(tokens.ids)
            if self.padding is not None:
                ids[count:] = self.padding
            rows.append(ids)
            masks.append(np.arange(length) < count)
        return BatchEncoding({"input_ids": torch.tensor(np.array(rows), dtype=torch.long),
                              "attention_mask": torch.tensor(np.array(masks), dtype=torch.long)})

    def tokenize(self, text: str) -> list[str]:
        """Words, among which are no learned ones."""
        return text.split()

    def batch_decode(self, ids: Any) -> list[str]:
        """What was cut; the tests cut nothing."""
        return [""] * len(ids)


class ChatTokenizer(Tokenizer):
    """That of Qwen3, with its template for a message."""

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, prompts: str | list[str], max_length: int = 512, **_: Any) -> Any:
        import torch
        from transformers import BatchEncoding

        texts = [prompts] if isinstance(prompts, str) else prompts
        read = [byte_bpe.qwen3().encode(text, max_length) for text in texts]
        masks = [np.arange(max_length) < tokens.count for tokens in read]
        return BatchEncoding({"input_ids": torch.tensor([tokens.ids for tokens in read]),
                              "attention_mask": torch.tensor(np.array(masks), dtype=torch.long)})

    def apply_chat_template(self, messages: list[dict[str, str]], enable_thinking: bool = True,
                            **_: Any) -> str:
        """A message before an answer."""
        template = CHATML if enable_thinking else CHATML_ANSWER
        return template.format(messages[0]["content"])


class PaddedTokenizer(ChatTokenizer):
    """That of Krea 2's pipeline, which fills up a prompt, and puts more behind it."""

    def __call__(self, prompts: list[str], max_length: int = 0, **more: Any) -> Any:
        longest = max(len(byte_bpe.qwen3().tokenize(text)) for text in prompts)
        return super().__call__(prompts, max_length or longest, **more)


class WindowTokenizer(ChatTokenizer):
    """The processor of FLUX.3's pipeline, whose tokenizer is asked twice: for the length of a text,
    and for one that is filled up."""

    def tokenizer(self, text: str, max_length: int, padding: str = "", **more: Any) -> Any:
        """As that of Qwen3."""
        own = min(len(byte_bpe.qwen3().tokenize(text)), max_length)
        return self([text], max_length if padding else own, **more)


class WordTokenizer(ChatTokenizer):
    """That of Qwen2.5, which fills up to the longest text."""

    def __call__(self, prompts: list[str], max_length: int = 1024, **more: Any) -> Any:
        longest = max(len(byte_bpe.qwen2().tokenize(text)) for text in prompts)
        return super().__call__(prompts, min(longest, max_length), **more)


class PieceTokenizer(Tokenizer):
    """That of Qwen2.5, which LongCat-Image's pipeline asks for pieces of a prompt."""

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, text: str, **_: Any) -> Any:
        return {"input_ids": byte_bpe.qwen2().tokenize(text)}

    def pad(self, given: dict[str, list[list[int]]], max_length: int, **_: Any) -> Any:
        """Rows of as many numbers, and which of these are not filling."""
        import torch
        from transformers import BatchEncoding

        rows, padding = given["input_ids"], byte_bpe.qwen2().vocabulary.padding
        full = [row + [padding] * (max_length - len(row)) for row in rows]
        masks = [[1] * len(row) + [0] * (max_length - len(row)) for row in rows]
        return BatchEncoding({"input_ids": torch.tensor(full),
                              "attention_mask": torch.tensor(masks)})


class PictureProcessor(Tokenizer):
    """That of Qwen2.5-VL: pictures as patches, and texts with a token for each square of them."""

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, text: list[str], images: Any, **_: Any) -> Any:
        from transformers import Qwen2VLImageProcessor

        found = Qwen2VLImageProcessor()(images=images, return_tensors="pt")
        full = []
        for each in text:
            for grid in found["image_grid_thw"]:
                each = each.replace(PAD, "\0" * (int(grid.prod()) // 4), 1)
            full.append(each.replace("\0", PAD))
        read = WordTokenizer()(full, max_length=4096)
        read.update(found)
        return read


class TextProcessor(ChatTokenizer):
    """That of Qwen3-VL, of texts alone, which are filled up in front."""

    @property
    def tokenizer(self) -> Any:
        return self

    def encode(self, text: str) -> list[int]:
        return byte_bpe.qwen3().tokenize(text)

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> list[list[int]]:
        """What the model is told, as token numbers."""
        (message,) = messages
        return [self.encode(f"<|im_start|>{message['role']}\n{message['content'][0]['text']}"
                            "<|im_end|>\n")]

    def __call__(self, text: list[str], **_: Any) -> Any:
        import torch
        from transformers import BatchEncoding

        rows = [self.encode(each) for each in text]
        longest = max(map(len, rows))
        padding = byte_bpe.qwen3().vocabulary.padding
        return BatchEncoding({
            "input_ids": torch.tensor([[padding] * (longest - len(row)) + row for row in rows]),
            "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row)
                                            for row in rows])})


class MistralTokenizer(Tokenizer):
    """A small one of Mistral's kind, with its template for a conversation."""

    def __init__(self) -> None:
        super().__init__(None)

    def apply_chat_template(self, messages: list[Any], max_length: int = 512, **_: Any) -> Any:
        """What is said to the model, filled up in front."""
        import torch
        from transformers import BatchEncoding

        texts = [f"<s>[SYSTEM_PROMPT]{system['content'][0]['text']}[/SYSTEM_PROMPT]"
                 f"[INST]{user['content'][0]['text']}[/INST]" for system, user in messages]
        found = [tekken.vocabulary(TEKKEN).tokenize(text)[:max_length] for text in texts]
        rows = [[TEKKEN_PADDING] * (max_length - len(ids)) + ids for ids in found]
        masks = [[0] * (max_length - len(ids)) + [1] * len(ids) for ids in found]
        return BatchEncoding({"input_ids": torch.tensor(rows),
                              "attention_mask": torch.tensor(masks)})


class BeginningTokenizer(Tokenizer):
    """The same, of plain texts, before which a token of its own stands."""

    bos_token_id = TEKKEN_SPECIAL.index("<s>")

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, text: str, **_: Any) -> Any:
        return {"input_ids": [self.bos_token_id, *tekken.vocabulary(TEKKEN).tokenize(text)]}


def gemma_tokenizer() -> Any:
    """A small one of Gemma's kind, as transformers reads it, which folders have."""
    from tokenizers import Tokenizer as Theirs
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Theirs.from_str(json.dumps(GEMMA_TREE)), bos_token="<bos>",
        eos_token="<eos>", pad_token="<pad>", unk_token="<unk>", padding_side="right")


def gemma(sizes: dict[str, Any], turns: dict[str, Any], config: LanguageConfig) -> Any:
    """Gemma 2, whose factors of norms start as zeros."""
    from transformers import Gemma2Config, Gemma2Model

    return Gemma2Model(Gemma2Config(
        **sizes, head_dim=config.head_dim, rope_parameters=turns,
        query_pre_attn_scalar=config.query_size, attn_logit_softcapping=config.softcap,
        sliding_window=config.window))


def language_model(config: LanguageConfig) -> Any:
    """A module of transformers; it starts with norms of one, which are made others."""
    import torch
    from transformers import MistralConfig, MistralModel, Qwen3Config, Qwen3Model

    sizes = dict(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size,
        intermediate_size=config.mlp_size, num_hidden_layers=config.layers,
        num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
        rms_norm_eps=config.eps)
    turns = {"rope_type": "default", "rope_theta": config.rotary_base}
    if config.qkv_bias:
        module = qwen25_vl(config, sizes, turns)
    elif config.sandwiched:
        module = gemma(sizes, turns, config)
    elif config.stretched > 1:
        module = ministral(sizes, config)
    elif config.rotary_base == tiny.QWEN3_VL.rotary_base:
        module = qwen3_vl(sizes, turns, config.head_dim, speaking=config != tiny.QWEN3_VL)
    else:
        kind, about = ((Qwen3Model, Qwen3Config) if config.qk_norm else
                       (MistralModel, MistralConfig))
        module = kind(about(**sizes, head_dim=config.head_dim, rope_parameters=turns))
    for name, tensor in module.named_parameters():
        torch.nn.init.normal_(tensor.data, float("norm" in name or "ln_q" in name), 0.2)
    return module


def ministral(sizes: dict[str, Any], config: LanguageConfig) -> Any:
    """Ministral 3 with what reads pictures; its configuration has the turns of published ones."""
    from transformers import Ministral3Config, Mistral3Config, Mistral3Model

    text = Ministral3Config(**sizes, head_dim=config.head_dim)
    vision = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                  image_size=28, patch_size=14)
    return Mistral3Model(Mistral3Config(
        text_config=text.to_dict(), vision_config={"model_type": "pixtral", **vision}))


def qwen25_vl(config: LanguageConfig, sizes: dict[str, Any], turns: dict[str, Any]) -> Any:
    """Qwen2.5-VL, whose heads share its width, and of which the second block sees all patches."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    section = list(replace(config, head_dim=config.hidden_size // config.heads).sections)
    seen = config.vision or tiny.VISION
    vision = dict(depth=seen.blocks, hidden_size=seen.hidden_size, num_heads=seen.heads,
                  intermediate_size=seen.mlp_size, out_hidden_size=config.hidden_size,
                  fullatt_block_indexes=[1], window_size=seen.window * seen.patch)
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(
        text_config={**sizes, "rope_parameters": {**turns, "mrope_section": section}},
        vision_config=vision))


def qwen3_vl(sizes: dict[str, Any], turns: dict[str, Any], head_dim: int,
             speaking: bool) -> Any:
    """Qwen3-VL, with the words that it would say or without, as Krea 2's folder has it."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLModel

    section = [head_dim // 2 - 2 * (head_dim // 8), head_dim // 8, head_dim // 8]
    vision = dict(depth=1, hidden_size=32, num_heads=2, intermediate_size=48,
                  out_hidden_size=sizes["hidden_size"], deepstack_visual_indexes=[0])
    kind = Qwen3VLForConditionalGeneration if speaking else Qwen3VLModel
    return kind(Qwen3VLConfig(
        text_config={**sizes, "head_dim": head_dim, "rope_parameters": {
            **turns, "mrope_section": section, "mrope_interleaved": True}},
        vision_config=vision))


def text_encoder(config: ClipTextConfig | T5Config | LanguageConfig) -> Any:
    """A module of transformers."""
    if isinstance(config, LanguageConfig):
        return language_model(config)
    if isinstance(config, ClipTextConfig):
        return peers.clip_text_module(config)
    from transformers import T5Config as Theirs
    from transformers import T5EncoderModel

    return T5EncoderModel(Theirs(
        vocab_size=config.vocab_size, d_model=config.hidden_size, d_kv=config.head_dim,
        d_ff=config.mlp_size, num_layers=config.layers, num_heads=config.heads,
        feed_forward_proj="gated-gelu", dropout_rate=0.0))
