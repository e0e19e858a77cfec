"""Model families: one record each, which says everything about it beside its graphs and weights.

The records are found, not listed: every `ModelFamily` in a module of `families/records/` is known.
To add one, see docs/families.md. Nothing here opens a file, compiles or runs anything.

>>> sorted(families())[:2]
['anima', 'chroma']
>>> families()["flux"].texts[1].encoder.title
'the text encoder T5-XXL'
"""

from smalti.families.record import ModelFamily, ModelPart, Text, TextEncoder
from smalti.families.registry import (
    autoencoders,
    backbones,
    by_name,
    families,
    family_of,
    known,
    registered,
    text_encoders,
)

__all__ = ["ModelFamily", "ModelPart", "Text", "TextEncoder", "autoencoders", "backbones",
           "by_name", "families", "family_of", "known", "registered", "text_encoders"]
