#!/usr/bin/env python3
"""Pack rendered sets into one file: WebP bytes and indices, with concepts.json beside it.

    pack_data.py PX QUALITY STYLE,STYLE,... OUT.npz [MEGABYTES]

Run in the folder that holds `npm/` and `data/` (see README.md). Of more than so many megabytes, the
short list is packed first, then what the autoencoder is measured by, then others.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
from pictures import held_out
from PIL import Image
from shortlist import SHORT_LIST, read_list

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


def in_order(concepts: list[dict], styles: list[str]) -> list[tuple[str, int]]:
    """Styles and numbers of concepts: those of the short list, those held out, others; all styles
    of a concept together, because `Pictures.free_pictures` compares them."""
    known = {entry.label for entry in read_list(SHORT_LIST)}

    def rank(index: int) -> int:
        label = concepts[index]["label"]
        return 0 if label in known else 1 if held_out(label) else 2

    pairs = [(style, index) for style in styles for index, concept in enumerate(concepts)
             if style in concept["files"]]
    return sorted(pairs, key=lambda pair: (rank(pair[1]), pair[1]))


def main() -> None:
    """Pack the styles, as far as there is room."""
    px, quality, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[4])
    styles, most = sys.argv[3].split(","), float([*sys.argv, "inf"][5]) * 1e6
    concepts = json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))
    blobs, offsets, packed = [], [0], []
    for style, index in in_order(concepts, styles):
        files = concepts[index]["files"]
        path = (FLUENT_3D / files[style] if style == "fluent3d"
                else DATA / "png" / style / f"{concepts[index]['key']}.png")
        square = framed(path) if path.exists() else None
        if square is None:
            print("missing or empty:", path)
            continue
        file = io.BytesIO()
        resized(square, px).save(file, "WEBP", quality=quality, alpha_quality=95, method=4)
        if offsets[-1] + file.tell() > most:
            break
        blobs.append(file.getvalue())
        offsets.append(offsets[-1] + len(blobs[-1]))
        packed.append((styles.index(style), index))
    print(len(blobs), "pictures,", offsets[-1], "bytes")
    np.savez(out, blob=np.frombuffer(b"".join(blobs), np.uint8),
             off=np.array(offsets, np.int64),
             style=np.array([style for style, _ in packed], np.int16),
             concept=np.array([index for _, index in packed], np.int32), px=px,
             styles=np.array(styles))
    kept = [{field: concept[field] for field in FIELDS} for concept in concepts]
    out.with_name("concepts.json").write_text(
        json.dumps(kept, ensure_ascii=False, indent=0), encoding="utf-8")


if __name__ == "__main__":
    main()
