"""Write full-size checkpoints with seeded random weights, as they are published.

    python bench/make_checkpoint.py sd15.safetensors
    python bench/make_checkpoint.py FOLDER --family sdxl          # or another: several files
    python bench/make_checkpoint.py FOLDER --family qwen-image --blocks Q4_K

Names, shapes and sizes (in f16 or bf16) are those of published files, the numbers are not: they
keep signals at a size of about one, so that errors are seen and nothing overflows. For measuring
time, memory and agreement with other libraries this is as good as the published weights.

With `--blocks` the denoiser and the text encoders are GGUF files of that format. Its search for
scales takes some 5 minutes a billion numbers, so there tensors of one shape share their numbers,
and large ones repeat their first REPEATED: good for time and memory, not for agreement.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

import ml_dtypes
import numpy as np

from smalti.benchmark.weights import seeded
from smalti.checkpoint.blocks import FORMATS
from smalti.checkpoint.convert import NAME_BYTES_MAX
from smalti.checkpoint.gguf import GgufTensor, write_gguf
from smalti.checkpoint.quantise import ENCODERS, quantise
from smalti.families.expected import expected_tensors
from smalti.models import (
    CLIP_L,
    FLUX_SCHNELL,
    FLUX_VAE,
    OPENCLIP_G,
    QWEN25_7B,
    QWEN_IMAGE,
    SD15,
    SDXL_UNET,
    SDXL_VAE,
    T5_XXL,
    WAN_VAE,
)
from smalti.models.config import ModelConfig
from smalti.models.language_config import QWEN3_4B
from smalti.models.transformer_config import Z_IMAGE

CLIP_L_PREFIX = "cond_stage_model.transformer."
CLIP_G_PREFIX = "text_encoders.clip_g.transformer."
T5_PREFIX = "text_encoders.t5xxl.transformer."
QWEN3_PREFIX = "text_encoders.qwen3.transformer."
QWEN25_PREFIX = "text_encoders.qwen25.transformer."
UNET, VAE = "model.diffusion_model.", "first_stage_model."
ONE_FILE = {"model": {"": ""}}
FAMILIES: dict[str, tuple[ModelConfig, dict[str, dict[str, str]]]] = {
    "sd1": (SD15, ONE_FILE),
    "sdxl": (ModelConfig("sdxl", {"clip_l": CLIP_L, "clip_g": OPENCLIP_G}, SDXL_UNET,
                         SDXL_VAE),
             {"model": {UNET: UNET, VAE: VAE}, "clip_l": {CLIP_L_PREFIX: ""},
              "clip_g": {CLIP_G_PREFIX: ""}}),
    "flux-schnell": (ModelConfig("flux", {"clip_l": CLIP_L, "t5xxl": T5_XXL}, FLUX_SCHNELL,
                                 FLUX_VAE, "flow"),
                     {"model": {UNET: ""}, "vae": {VAE: ""}, "clip_l": {CLIP_L_PREFIX: ""},
                      "t5xxl": {T5_PREFIX: ""}}),
    "z-image-turbo": (ModelConfig("z-image", {"qwen3": QWEN3_4B}, Z_IMAGE, FLUX_VAE, "flow"),
                      {"model": {UNET: ""}, "vae": {VAE: ""}, "qwen3": {QWEN3_PREFIX: ""}}),
    "qwen-image": (ModelConfig("qwen-image", {"qwen25": QWEN25_7B}, QWEN_IMAGE, WAN_VAE, "flow"),
                   {"model": {UNET: ""}, "vae": {VAE: ""}, "qwen25": {QWEN25_PREFIX: "model."}}),
}
"""Of each family its configuration, and its files: what names begin with inside, and there."""
HALVES = {"F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
"""What numbers may be stored as, by the names of files."""
PUBLISHED_AS = {"z-image-turbo": "BF16", "qwen-image": "BF16"}
"""Families that are not published in f16."""
REPEATED = 1 << 22
"""Numbers of a tensor in blocks before it repeats them: 8 rows of the widest weight here, at least.
"""


@cache
def blocks(format: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """The bytes of a matrix [rows, columns] in blocks of a format of `FORMATS`."""
    rows = max(1, REPEATED // shape[-1])
    values = seeded(f"{format} {shape}", (min(rows, shape[0]), shape[-1]), seed)
    one = quantise(format, values).reshape(len(values), -1)
    return np.resize(one, (shape[0], one.shape[1])).reshape(-1)


def write_blocks(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], seed: int,
                 format: str) -> int:
    """Write a GGUF file whose matrices are in blocks, all else in f32; as `write` otherwise."""
    written = []
    for stored, (name, shape) in tensors.items():
        if len(shape) == 2 and shape[-1] % FORMATS[format].elements == 0:
            written.append(GgufTensor(stored, shape, format, partial(blocks, format, shape, seed)))
        else:
            written.append(GgufTensor(stored, shape, "f32", partial(seeded, name, shape, seed)))
    with open(path, "wb") as file:
        write_gguf(file, {"general.architecture": "none"}, written, NAME_BYTES_MAX)
    return path.stat().st_size


def write(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], seed: int,
          dtype: str = "F16") -> int:
    """Write a safetensors file tensor by tensor; stored name -> name for the numbers, and shape.
    Gives the bytes of the numbers."""
    header, end = {}, 0
    for stored, (_, shape) in tensors.items():
        size = 2 * int(np.prod(shape))
        header[stored] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors.values():
            file.write(seeded(name, shape, seed).astype(HALVES[dtype]).tobytes())
    return end


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--family", choices=FAMILIES, default="sd1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", choices=sorted(ENCODERS),
                        help="block format of ggml for all but the autoencoder")
    given = parser.parse_args()
    config, files = FAMILIES[given.family]
    table = expected_tensors(config)
    for title, prefixes in files.items():
        stored = {new + name.removeprefix(old): (name, shape) for name, shape in table.items()
                  for old, new in prefixes.items() if name.startswith(old)}
        path = given.output
        if len(files) > 1:
            path.mkdir(parents=True, exist_ok=True)
            path = path / f"{title}.safetensors"
        if given.blocks and title != "vae":
            path = path.with_suffix(".gguf")
            size = write_blocks(path, stored, given.seed, given.blocks)
        else:
            size = write(path, stored, given.seed, PUBLISHED_AS.get(given.family, "F16"))
        print(f"{path}: {len(stored)} tensors, {size / 1e9:.1f} GB, seed {given.seed}")


if __name__ == "__main__":
    main()
