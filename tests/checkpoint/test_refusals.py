"""What cannot be used is refused by name: what it is, what is missing, and where that is found.

Files that are no models are in test_file_kind, settings of folders in test_uncomputed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_families as tiny
from tiny_adapters import write_adapter
from unread_files import UNREAD

from smalti.checkpoint import Checkpoint, load
from smalti.checkpoint.adapters import Adapted, AdapterFile, WeightedAdapter
from smalti.checkpoint.load import usual_files
from smalti.diffusion.fit import check_refiner
from smalti.errors import CheckpointError
from smalti.families import families, text_encoders

FAMILIES = {**tiny.WORDLESS, **tiny.WORDLESS_EDITS}
VAES = {**dict.fromkeys(("sd1", "sd2"), "vae-ft-mse-840000-ema-pruned"),
        **dict.fromkeys(("sdxl", "sdxl-refiner"), "sdxl_vae"), "sd3": "sd3_vae",
        **dict.fromkeys(("flux", "chroma", "z-image", "lumina2", "longcat-image", "ovis-image"),
                        "ae"),
        **dict.fromkeys(("flux2", "flux2-dev", "flux3", "ernie-image"), "flux2-vae"),
        **dict.fromkeys(("krea2", "anima", "qwen-image", *tiny.EDITS), "qwen_image_vae"),
        "qwen-image21": "qwen_image_2.1_vae_bf16"}
"""What the files of autoencoders are called."""
SWEPT = ("sd2", "sdxl-refiner", "chroma", "z-image", "flux2", "qwen-image", "qwen-image-edit",
         "qwen-image-edit-2509")
"""Families of which others with the same parts are tried by default."""
EACH = [pytest.param(family, marks=pytest.mark.sweep) if family in SWEPT else family
        for family in FAMILIES]

UNREAD_PARTS = {"autoencoder of films": "wan22-vae", "image encoder": "image-encoder",
                "UMT5": "umt5"}

Stored = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def stored() -> dict[str, Stored]:
    """The tensors of a whole file of each family."""
    return {name: tiny.single_file(config, tiny.random_weights(config))
            for name, config in FAMILIES.items()}


def vae_prefix(family: str) -> str:
    return "vae." if family in (*tiny.NEWER, *tiny.EDITS) else tiny.VAE


def write(folder: Path, tensors: Stored, name: str = "model") -> Path:
    return tiny.write(folder / f"{name}.safetensors", tensors)


def of(tensors: Stored, prefix: str) -> Stored:
    return {name: value for name, value in tensors.items() if name.startswith(prefix)}


MISSING = [pytest.param(family, text.encoder.name, marks=[pytest.mark.sweep] * (family in SWEPT))
           for family in FAMILIES for text in families()[family].texts if not text.optional]


@pytest.mark.parametrize(("family", "encoder"), MISSING)
def test_a_text_encoder_that_is_missing(tmp_path: Path, stored: dict[str, Stored], family: str,
                                        encoder: str) -> None:
    prefix = tiny.TEXT_PREFIXES[family][encoder]
    path = write(tmp_path, {name: value for name, value in stored[family].items()
                            if not name.startswith(prefix)}, family)
    title, file = text_encoders()[encoder].title, usual_files(families()[family])[encoder]
    with pytest.raises(CheckpointError, match="and incomplete: it lacks") as caught:
        load(path)
    for words in (title, f"--text-encoder {file}",
                  "models/text_encoders of ComfyUI, models/text_encoder of Forge"):
        assert words in str(caught.value)


@pytest.mark.parametrize("family", EACH)
def test_an_autoencoder_that_is_missing(tmp_path: Path, stored: dict[str, Stored], family: str
                                        ) -> None:
    path = write(tmp_path, {name: value for name, value in stored[family].items()
                            if not name.startswith(vae_prefix(family))}, family)
    with pytest.raises(CheckpointError, match="it lacks the autoencoder") as caught:
        load(path)
    assert f"--vae {VAES[family]}.safetensors" in str(caught.value)
    assert "usually where the model was published, and in models/vae of" in str(caught.value)


@pytest.mark.parametrize("family", EACH)
@pytest.mark.parametrize("layer", [
    "new_block.0.weight", pytest.param("pulid.to_q.weight", marks=pytest.mark.sweep)])
def test_a_layer_that_is_not_known(tmp_path: Path, stored: dict[str, Stored], family: str,
                                   layer: str) -> None:
    name = tiny.DENOISER + layer
    path = write(tmp_path, {**stored[family], name: np.ones((4, 4), np.float16)}, family)
    with pytest.raises(CheckpointError, match="has what Smalti does not compute") as caught:
        load(path)
    assert name in str(caught.value)


@pytest.mark.parametrize(("family", "encoder", "said"), [
    ("sd1", "t5xxl", "holds the text encoder T5-XXL, which a Stable Diffusion 1.x checkpoint does"),
    ("sdxl", "t5xxl", "it reads the text encoder CLIP-L and the text encoder OpenCLIP-bigG"),
    ("chroma", "clip_l", "holds the text encoder CLIP-L, which a Chroma checkpoint does not read"),
    ("chroma", "clip_g", "it reads the text encoder T5-XXL"),
    ("ovis-image", "clip_l", "holds the text encoder CLIP-L, which an Ovis-Image checkpoint does"),
    ("longcat-image", "qwen3", "it reads the text encoder Qwen2.5-VL"),
    ("lumina2", "qwen3", "holds the text encoder Qwen3, which a Lumina-Image 2 checkpoint does"),
    ("krea2", "gemma2", "it reads the text encoder Qwen3-VL"),
    ("qwen-image21", "qwen25", "it reads the text encoder Qwen3-VL"),
    ("anima", "t5xxl", "it reads the text encoder Qwen3"),
    ("flux2-dev", "qwen25", "it reads the text encoder Mistral Small"),
    ("flux2-dev", "ministral", "holds the text encoder Ministral 3, which a FLUX.2 dev checkpoint"),
    ("ernie-image", "mistral", "holds the text encoder Mistral Small, which an ERNIE-Image checkp"),
    ("qwen-image-edit-2511", "mistral", "holds the text encoder Mistral Small, which a Qwen")])
def test_a_text_encoder_that_the_model_does_not_read(
        tmp_path: Path, stored: dict[str, Stored], family: str, encoder: str, said: str) -> None:
    owner = next(name for name in ("flux", *FAMILIES) if encoder in tiny.TEXT_PREFIXES[name])
    prefix = tiny.TEXT_PREFIXES[owner][encoder]
    other = write(tmp_path, of(stored[owner], prefix), "other")
    with pytest.raises(CheckpointError) as caught:
        load(write(tmp_path, stored[family], family), [other])
    assert said in str(caught.value), str(caught.value)


@pytest.mark.parametrize(("family", "owner"), [
    ("lumina2", "anima"), ("krea2", "lumina2"), ("anima", "flux"), ("flux2-dev", "krea2"),
    ("qwen-image-edit-2511", "flux")])
def test_an_autoencoder_of_another_kind(tmp_path: Path, stored: dict[str, Stored], family: str,
                                        owner: str) -> None:
    other = write(tmp_path, of(stored[owner], "vae."), "other")
    with pytest.raises(CheckpointError, match="which models of .* do not read; give") as caught:
        load(write(tmp_path, stored[family], family), vae=other)
    assert f"such as {VAES[family]}.safetensors" in str(caught.value)


@pytest.mark.parametrize(("option", "given"), [
    ("vae", "text encoder"), ("vae", "adapter"), ("vae", "autoencoder of films"),
    ("text_encoders", "autoencoder"), ("text_encoders", "adapter"),
    ("text_encoders", "image encoder"), ("text_encoders", "UMT5")])
def test_a_file_that_is_another_part(tmp_path: Path, stored: dict[str, Stored], option: str,
                                     given: str) -> None:
    if given == "adapter":
        other = write_adapter(tmp_path / "other.safetensors", FAMILIES["sd1"])
    elif given in UNREAD_PARTS:
        shapes = UNREAD[UNREAD_PARTS[given]][0]
        other = write(tmp_path, {name: np.ones(shape, np.float16)
                                 for name, shape in shapes.items()}, "other")
    else:
        prefix = tiny.VAE if given == "autoencoder" else tiny.TEXT_PREFIXES["sd1"]["clip_l"]
        other = write(tmp_path, of(stored["sd1"], prefix), "other")
    wanted = "autoencoder" if option == "vae" else "text encoder"
    with pytest.raises(CheckpointError, match=f"other.safetensors holds no {wanted}"):
        load(write(tmp_path, stored["sd1"]),
             **{option: other if option == "vae" else [other]})


@pytest.mark.sweep
@pytest.mark.parametrize(("adapter", "family"), [
    ("sd1", "sdxl"), ("sdxl", "sd1"), ("flux", "sd3"), ("sd3", "flux"),
    ("sd1", "flux"), ("flux", "sdxl"), ("lumina2", "flux"), ("anima", "krea2"),
    ("krea2", "flux2-dev"), ("qwen-image", "lumina2"), ("flux2", "qwen-image-edit-2511")])
def test_an_adapter_for_another_family(tmp_path: Path, stored: dict[str, Stored], adapter: str,
                                       family: str) -> None:
    path = write_adapter(tmp_path / "adapter.safetensors", FAMILIES[adapter])
    model = load(write(tmp_path, stored[family], family))
    with pytest.raises(CheckpointError, match="adapter.safetensors .*(is an adapter for|changes)"):
        Adapted(model, [WeightedAdapter(AdapterFile.open(path))], model.report.path)


@pytest.mark.sweep
@pytest.mark.parametrize(("base", "refiner"), [
    ("sdxl", "flux"), ("sdxl", "sd1"), ("flux", "sdxl-refiner"), ("sd3", "flux")])
def test_a_refiner_of_other_latents(tmp_path: Path, stored: dict[str, Stored], base: str,
                                    refiner: str) -> None:
    def opened(family: str) -> Checkpoint:
        return load(write(tmp_path, stored[family], family))

    with pytest.raises(CheckpointError, match=f"{refiner}.safetensors cannot refine the pictures"):
        check_refiner(opened(base), opened(refiner))
