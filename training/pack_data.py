#!/usr/bin/env python3
"""Pack rendered sets into one file: WebP bytes and indices, with concepts.json beside it.

    pack_data.py PX QUALITY STYLE,STYLE,... OUT.npz

Run in the folder that holds `npm/` and `data/` (see README.md).
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

DATA, FLUENT_3D = Path("data"), Path("npm/lobehub-fluent-emoji-3d-1.1.0/assets")
MARGIN = 0.90  # the content's share of the side; every set gets the same frame
FIELDS = ("hex", "emoji", "label", "tags", "shortcodes", "group", "subgroup", "gender_variant")


def framed(path: Path) -> Image.Image | None:
    """A picture cut to its content and put in the middle of a clear square."""
    image = Image.open(path).convert("RGBA")
    box = image.getchannel("A").getbbox()
    if not box:
        return None
    image = image.crop(box)
    width, height = image.size
    side = round(max(width, height) / MARGIN)
    square = Image.new("RGBA", (side, side), (255, 255, 255, 0))
    square.paste(image, ((side - width) // 2, (side - height) // 2))
    return square


def resized(image: Image.Image, px: int) -> Image.Image:
    """A picture in another size; premultiplied, so that edges do not take up hidden colours."""
    pixels = np.asarray(image).astype(np.float32)
    pixels[..., :3] *= pixels[..., 3:] / 255
    channels = [Image.fromarray(np.ascontiguousarray(pixels[..., index]))
                .resize((px, px), Image.LANCZOS) for index in range(4)]
    pixels = np.stack([np.asarray(channel) for channel in channels], -1)
    alpha = np.clip(pixels[..., 3:], 0, 255)
    colour = np.where(alpha > 1, pixels[..., :3] * 255 / np.maximum(alpha, 1), 255)
    whole = np.concatenate([colour, alpha], -1)
    return Image.fromarray(np.clip(whole + 0.5, 0, 255).astype(np.uint8), "RGBA")


def main() -> None:
    """Pack the styles in the order given."""
    px, quality, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[4])
    styles = sys.argv[3].split(",")
    concepts = json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))
    blobs, offsets, style_of, concept_of = [], [0], [], []
    for style in styles:
        for index, concept in enumerate(concepts):
            if style not in concept["files"]:
                continue
            path = (FLUENT_3D / concept["files"][style] if style == "fluent3d"
                    else DATA / "png" / style / f"{concept['key']}.png")
            square = framed(path) if path.exists() else None
            if square is None:
                print("missing or empty:", path)
                continue
            file = io.BytesIO()
            resized(square, px).save(file, "WEBP", quality=quality, alpha_quality=95, method=4)
            blobs.append(file.getvalue())
            offsets.append(offsets[-1] + len(blobs[-1]))
            style_of.append(style)
            concept_of.append(index)
        print(style, len(blobs), "pictures so far,", offsets[-1], "bytes")
    np.savez(out, blob=np.frombuffer(b"".join(blobs), np.uint8),
             off=np.array(offsets, np.int64),
             style=np.array([styles.index(style) for style in style_of], np.int16),
             concept=np.array(concept_of, np.int32), px=px, styles=np.array(styles))
    kept = [{field: concept[field] for field in FIELDS} for concept in concepts]
    out.with_name("concepts.json").write_text(
        json.dumps(kept, ensure_ascii=False, indent=0), encoding="utf-8")


if __name__ == "__main__":
    main()
