"""Where the parameters of the transformer families lie in files, whatever those call them."""

from smalti.checkpoint.keys.flux import (
    CHROMA_DIFFUSERS,
    CHROMA_ORIGINAL,
    FLUX_DIFFUSERS,
    FLUX_ORIGINAL,
)
from smalti.checkpoint.keys.sd3 import SD3_ORIGINAL, sd3_diffusers
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
    "CHROMA_DIFFUSERS", "CHROMA_ORIGINAL", "FLUX_DIFFUSERS", "FLUX_ORIGINAL", "SD3_ORIGINAL",
    "T5_GGUF", "T5_TRANSFORMERS", "Expression", "Part", "Table", "assembled", "expressions",
    "sd3_diffusers", "shape_of",
]
