"""Operators that are computed on arrays between stages: what the node tests leave out."""

from __future__ import annotations

import io

import numpy as np
import pytest
from onnx import helper, parser
from PIL import Image

import smalti
from smalti.errors import InputError


def counted(x: np.ndarray, **fields: object) -> np.ndarray:
    """Counts of 1, 3, (1, 2) and (2, 3), at the places 0, 2, 3 and 1."""
    proto = parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
        m (int64[n] x) => (float[k] y) { y = TfIdfVectorizer(x) }""")
    fields = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0,
              "ngram_counts": [0, 2], "ngram_indexes": [0, 2, 3, 1],
              "pool_int64s": [1, 3, 1, 2, 2, 3], **fields}
    for name, value in fields.items():
        proto.graph.node[0].attribute.append(helper.make_attribute(name, value))
    program = smalti.compile(proto, shapes={"x": x.shape}, threads=1)
    return program.run({"x": x})["y"]


def test_entries_of_a_pool_are_counted() -> None:
    x = np.array([1, 2, 3, 1, 2])
    assert counted(x).tolist() == [2, 1, 1, 2]
    assert counted(x, min_gram_length=2).tolist() == [0, 1, 0, 2]
    assert counted(x, max_skip_count=1 << 60).tolist() == [2, 1, 1, 3]  # 1 . . . 2, too
    weights = {"weights": [10.0, 20.0, 30.0, 40.0]}
    assert counted(x, mode="IDF", **weights).tolist() == [10, 40, 20, 30]
    assert counted(x, mode="TFIDF", **weights).tolist() == [20, 40, 20, 60]


@pytest.mark.parametrize("fields", [
    {"ngram_indexes": [0, 2, 3]}, {"ngram_indexes": [0, 2, 3, 1 << 40]}, {"mode": "TFI"},
    {"ngram_indexes": [0, 2, 3, -1]}])
def test_a_pool_that_does_not_fit_is_refused(fields: dict) -> None:
    with pytest.raises(InputError, match="entries with"):
        counted(np.array([1, 2]), **fields)


def pixels_of(data: bytes, order: str) -> np.ndarray:
    proto = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]>
        m (uint8[n] file) => (uint8[h, w, c] y) {{
            y = ImageDecoder<pixel_format: string = "{order}">(file)
        }}""")
    file = np.frombuffer(data, np.uint8)
    return smalti.compile(proto, shapes={"file": file.shape}, threads=1).run({"file": file})["y"]


def test_pictures_are_decoded() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    assert np.array_equal(pixels_of(file.getvalue(), "RGB"), pixels)
    assert np.array_equal(pixels_of(file.getvalue(), "BGR"), pixels[..., ::-1])
    assert pixels_of(file.getvalue(), "Grayscale").shape == (2, 4, 1)
    assert pixels_of(file.getvalue()[:40], "RGB").shape == (0, 0, 3)
    assert pixels_of(b"no picture", "Grayscale").shape == (0, 0, 1)
