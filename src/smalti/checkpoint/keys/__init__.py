"""Where the parameters of the transformer families lie in files, whatever those call them."""

from smalti.checkpoint.keys.flux import FLUX_DIFFUSERS, FLUX_ORIGINAL
from smalti.checkpoint.keys.stored import (
    Expression,
    Part,
    Table,
    assembled,
    expressions,
    shape_of,
)
from smalti.checkpoint.keys.t5 import T5_GGUF, T5_TRANSFORMERS

__all__ = [
    "FLUX_DIFFUSERS", "FLUX_ORIGINAL", "T5_GGUF", "T5_TRANSFORMERS", "Expression", "Part", "Table",
    "assembled", "expressions", "shape_of",
]
