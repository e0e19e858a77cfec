"""Keys of ERNIE-Image: files of its authors, of ComfyUI and diffusers and GGUF files have the same
names, which are those inside; the kernel that reads one pixel at a time is a matrix here.

Source: diffusers 0.42, `models/transformers/transformer_ernie_image.py`.
"""

from __future__ import annotations

from smalti.families.keys.stored import StoredRows, Table

ERNIE_IMAGE: Table = {
    "x_embedder.proj.weight": (StoredRows("x_embedder.proj.weight", flat=True),),
}
"""All files; names that it does not speak of stay as they are."""
