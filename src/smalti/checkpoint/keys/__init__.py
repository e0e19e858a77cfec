"""Where the parameters of models lie in files, whatever those call them."""

from smalti.checkpoint.keys.controlnet import controlnet_config
from smalti.checkpoint.keys.flux import (
    CHROMA_DIFFUSERS,
    CHROMA_ORIGINAL,
    FLUX_CONTROLNET_DIFFUSERS,
    FLUX_CONTROLNET_ORIGINAL,
    FLUX_DIFFUSERS,
    FLUX_ORIGINAL,
)
from smalti.checkpoint.keys.sd3 import (
    SD3_CONTROLNET_DIFFUSERS,
    SD3_ORIGINAL,
    sd3_diffusers,
    sd35_controlnet,
)
from smalti.checkpoint.keys.stored import (
    Expression,
    Part,
    Table,
    assembled,
    expressions,
    shape_of,
)
from smalti.checkpoint.keys.t5 import T5_GGUF, T5_TRANSFORMERS
from smalti.checkpoint.keys.taesd import taesd_config, taesd_renaming
from smalti.checkpoint.keys.upscalers import upscaler_config, upscaler_renaming

__all__ = [
    "CHROMA_DIFFUSERS", "CHROMA_ORIGINAL", "FLUX_CONTROLNET_DIFFUSERS", "FLUX_CONTROLNET_ORIGINAL",
    "FLUX_DIFFUSERS", "FLUX_ORIGINAL", "SD3_CONTROLNET_DIFFUSERS", "SD3_ORIGINAL", "T5_GGUF",
    "T5_TRANSFORMERS", "Expression", "Part", "Table", "assembled", "controlnet_config",
    "expressions", "sd35_controlnet", "sd3_diffusers", "shape_of", "taesd_config",
    "taesd_renaming", "upscaler_config", "upscaler_renaming",
]
