"""Where the parameters of models lie in files, whatever those call them."""

from smalti.families.keys.anima import ANIMA_DIFFUSERS
from smalti.families.keys.clip import CLIP_OPENCLIP
from smalti.families.keys.ernie_image import ERNIE_IMAGE
from smalti.families.keys.flux import (
    CHROMA_DIFFUSERS,
    CHROMA_ORIGINAL,
    FLUX_CONTROLNET_DIFFUSERS,
    FLUX_CONTROLNET_ORIGINAL,
    FLUX_DIFFUSERS,
    FLUX_ORIGINAL,
    LONGCAT_DIFFUSERS,
    OVIS_DIFFUSERS,
    ovis_original,
)
from smalti.families.keys.flux2 import FLUX2_DIFFUSERS
from smalti.families.keys.flux3 import FLUX3_DIFFUSERS
from smalti.families.keys.krea2 import KREA2_DIFFUSERS
from smalti.families.keys.lumina2 import LUMINA2_DIFFUSERS
from smalti.families.keys.qwen_image21 import QWEN_IMAGE21
from smalti.families.keys.sd3 import (
    SD3_CONTROLNET_DIFFUSERS,
    SD3_ORIGINAL,
    sd3_diffusers,
    sd35_controlnet,
)
from smalti.families.keys.stored import (
    Expression,
    StoredRows,
    Table,
    assembled,
    expressions,
    shape_of,
)
from smalti.families.keys.t5 import T5_GGUF, T5_TRANSFORMERS
from smalti.families.keys.z_image import Z_IMAGE_CONTROLNET_DIFFUSERS, Z_IMAGE_DIFFUSERS

__all__ = [
    "ANIMA_DIFFUSERS", "CHROMA_DIFFUSERS", "CHROMA_ORIGINAL", "CLIP_OPENCLIP", "ERNIE_IMAGE",
    "FLUX2_DIFFUSERS", "FLUX3_DIFFUSERS", "FLUX_CONTROLNET_DIFFUSERS", "FLUX_CONTROLNET_ORIGINAL",
    "FLUX_DIFFUSERS", "FLUX_ORIGINAL", "KREA2_DIFFUSERS", "LONGCAT_DIFFUSERS", "LUMINA2_DIFFUSERS",
    "OVIS_DIFFUSERS", "QWEN_IMAGE21", "SD3_CONTROLNET_DIFFUSERS", "SD3_ORIGINAL", "T5_GGUF",
    "T5_TRANSFORMERS",
    "Z_IMAGE_CONTROLNET_DIFFUSERS", "Z_IMAGE_DIFFUSERS", "Expression", "StoredRows", "Table",
    "assembled", "expressions", "ovis_original", "sd35_controlnet", "sd3_diffusers", "shape_of",
]
