"""Keys of Qwen-Image-2.1: inside, those of diffusers; ComfyUI's files and GGUF files have the same
names, but both layers that MLPs begin with in one matrix, the gates first.

Source: diffusers 0.42, `models/transformers/transformer_qwenimage21.py` and `loaders/
single_file_utils.py`.
"""

from __future__ import annotations

from smalti.families.keys.stored import StoredRows, Table

QWEN_IMAGE21: Table = {
    f"transformer_blocks.*.img_mlp.{name}.weight":
        (StoredRows("transformer_blocks.*.img_mlp.gate_up.weight", i, 2),)
    for i, name in enumerate(("gate_layer", "proj"))
}
"""All files; names that it does not speak of stay as they are."""
