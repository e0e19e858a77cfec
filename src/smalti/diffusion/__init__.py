"""From a prompt to latents: tokenizer, noise, samplers, guidance, and the pipeline of them all."""

from smalti.diffusion.edges import canny
from smalti.diffusion.t5_tokenizer import T5Tokenizer, read_tokenizer

__all__ = ["T5Tokenizer", "canny", "read_tokenizer"]
