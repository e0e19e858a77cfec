"""What reads pictures in Qwen2.5-VL: sizes, windows, and what transformers computes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from native_regions import arrays_for, relative_error
from PIL import Image
from transformer_graphs import ALLOWED, check_program, gpu_error
from webgpu_devices import webgpu  # noqa: F401  a fixture

from smalti.diffusion.seeing import DEVIATION, SeenPicture, with_pictures
from smalti.errors import InputError
from smalti.families.keys import assembled
from smalti.families.keys.language import seeing_names
from smalti.graph import evaluate, verify
from smalti.models import (
    QWEN25_VISION,
    LanguageConfig,
    VisionConfig,
    language_graph,
    picture_angles,
    qwen_vision_graph,
)
from smalti.models.transformer_config import of_area

TINY = VisionConfig(hidden_size=32, mlp_size=48, blocks=2, heads=2, out_size=64, seeing_all=(1,))
WIDE = VisionConfig(hidden_size=160, mlp_size=128, blocks=2, heads=2, out_size=64, seeing_all=(1,))
"""With heads of the published width; so wide that its tokens are stored as halves."""
TEXTS = LanguageConfig(128, hidden_size=64, mlp_size=96, layers=2, heads=4, kv_heads=2, head_dim=16,
                       qkv_bias=True)
SECTIONS = (2, 3, 3)
SIZES = [(4, 6), (18, 10), (8, 16)]
"""Patches along the sides: less than a window, several of which some are cut, whole ones."""


def test_the_parameters_are_those_of_the_checkpoint() -> None:
    """390 tensors, one of them two matrices here, 676.6 million numbers."""
    graph = qwen_vision_graph(QWEN25_VISION, 1, 4, 4)
    verify(graph)
    assert len(graph.parameters) == 391
    assert sum(math.prod(value.shape) for value in graph.parameters.values()) == 676_550_144


def test_the_program_computes_it() -> None:
    check_program(qwen_vision_graph(TINY, 1, 10, 8))


@pytest.mark.sweep
@pytest.mark.parametrize(("driver", "precision"), [
    ("vulkan", "f16"), ("vulkan", "bf16"), ("webgpu", "f16")])
def test_gpus_compute_it_in_halves(request: pytest.FixtureRequest, driver: str,
                                   precision: str) -> None:
    graph = qwen_vision_graph(WIDE, 1, 10, 8)
    found = gpu_error(request.getfixturevalue(driver), graph, precision, *arrays_for(graph))
    assert found <= ALLOWED[precision]


def test_sides_that_squares_do_not_fill_are_refused() -> None:
    with pytest.raises(InputError, match=r"7 x 8 patches .* multiples of 2"):
        qwen_vision_graph(TINY, 1, 7, 8)


def test_angles_of_a_text_are_those_without_pictures() -> None:
    length = np.repeat(np.arange(5)[None, :, None], 3, axis=2)
    cos, sin = picture_angles(length, SECTIONS, TEXTS)
    graph = language_graph(TEXTS, 1, 5, taps=[2], final_norm=True, seeing=True)
    plain = language_graph(TEXTS, 1, 5, taps=[2], final_norm=True)
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal(value.shape, np.float32) / 8
               for name, value in plain.parameters.items()}
    tokens = np.array([[5, 7, 1, 2, 9]], np.int32)
    unseen = {"pictures": np.zeros((1, 5, 64), np.float32), "shown": np.zeros((1, 5), np.float32)}
    found = evaluate(graph, {"tokens": tokens, "cos": cos, "sin": sin, **unseen}, weights)
    expected = evaluate(plain, {"tokens": tokens}, weights)
    np.testing.assert_allclose(found["context"], expected["context"], rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match=r"sections of \(2, 3\) pairs do not make up a head of 16"):
        picture_angles(length[..., :2], (2, 3), TEXTS)


# ---------------------------------------------------------------------- beside transformers


def whole_model() -> Any:
    """Qwen2.5-VL with random weights."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=TEXTS.vocab_size, hidden_size=TEXTS.hidden_size,
            intermediate_size=TEXTS.mlp_size, num_hidden_layers=TEXTS.layers,
            num_attention_heads=TEXTS.heads, num_key_value_heads=TEXTS.kv_heads,
            rms_norm_eps=TEXTS.eps,
            rope_parameters={"rope_type": "default", "mrope_section": list(SECTIONS),
                             "rope_theta": TEXTS.rotary_base}),
        vision_config=dict(
            depth=TINY.blocks, hidden_size=TINY.hidden_size, num_heads=TINY.heads,
            intermediate_size=TINY.mlp_size, out_hidden_size=TINY.out_size,
            fullatt_block_indexes=list(TINY.seeing_all), window_size=TINY.window * TINY.patch),
        image_token_id=99, vision_start_token_id=97, vision_end_token_id=98))
    for name, tensor in model.named_parameters():
        torch.nn.init.normal_(tensor.data, float("norm" in name or "ln_q" in name), 0.1)
    return model.eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return whole_model()


def vision_weights(model: Any) -> dict[str, np.ndarray]:
    """Those of what reads pictures, whose first kernel is a matrix for each frame."""
    stored = {f"visual.{name}": tensor.numpy()
              for name, tensor in model.model.visual.state_dict().items()}
    return {f"text_encoders.qwen25.transformer.{name}": assembled(rule, stored.__getitem__)
            for name, rule in seeing_names(stored).items()}


def of_frames(patches: np.ndarray) -> Any:
    """Patches as transformers has them: of each channel two frames."""
    import torch

    count, side = len(patches), TINY.patch
    frames = patches.reshape(count, TINY.channels, 1, side, side).repeat(TINY.frames, axis=2)
    return torch.tensor(frames.reshape(count, -1))


@pytest.mark.peers
@pytest.mark.parametrize("size", SIZES)
def test_transformers_reads_a_picture_alike(model: Any, size: tuple[int, int]) -> None:
    import torch

    pixels = np.random.default_rng(1).standard_normal(
        (size[0] * size[1], TINY.patch_size), np.float32)
    found = evaluate(qwen_vision_graph(TINY, 1, *size), {"patches": pixels[None]},
                     vision_weights(model))["tokens"][0]
    with torch.no_grad():
        expected = model.model.visual(of_frames(pixels), torch.tensor([[1, *size]]))
    assert relative_error(found, expected.pooler_output.numpy()) < 1e-5


@pytest.mark.peers
@pytest.mark.parametrize("sizes", [[(2, 3)], [(3, 1), (1, 2)]])
def test_transformers_reads_a_text_with_pictures_alike(model: Any,
                                                       sizes: list[tuple[int, int]]) -> None:
    """Tokens of a picture stand at rows and columns, the text goes on behind the longer side."""
    import torch

    random = np.random.default_rng(1)
    seen = [SeenPicture(random.standard_normal((4 * rows * columns, TINY.patch_size), np.float32),
                        rows, columns) for rows, columns in sizes]
    ids = [5, 7]
    for picture in seen:
        ids += [97, *[99] * picture.tokens, 98]
    ids += [3, 1]
    with torch.no_grad():
        expected = model(
            input_ids=torch.tensor([ids]),
            pixel_values=torch.cat([of_frames(picture.patches) for picture in seen]),
            image_grid_thw=torch.tensor([picture.shape for picture in seen]),
            mm_token_type_ids=torch.tensor([[int(each == 99) for each in ids]]),
            output_hidden_states=True).hidden_states[-1].numpy()
    weights = {**vision_weights(model), **{
        "text_encoders.qwen3.transformer." + name: tensor.numpy()
        for name, tensor in model.model.language_model.state_dict().items()}}
    tokens = [evaluate(qwen_vision_graph(TINY, *picture.shape), {"patches": picture.patches[None]},
                       weights)["tokens"][0] for picture in seen]
    read = np.array([ids], np.int32)
    graph = language_graph(TEXTS, 1, len(ids), taps=[2], final_norm=True, seeing=True)
    found = evaluate(graph, {"tokens": read, **with_pictures(read, 99, seen, tokens, TEXTS)},
                     weights)
    assert relative_error(found["context"], expected) < 1e-5


@pytest.mark.peers
@pytest.mark.parametrize("size", [(224, 224), (448, 336), (300, 200), (131, 517)])
def test_transformers_makes_the_same_patches_of_a_picture(size: tuple[int, int]) -> None:
    """Where the picture is made smaller once more, its colours are rounded to those of a PNG."""
    from transformers import Qwen2VLImageProcessor

    y, x = np.mgrid[:size[1], :size[0]]
    colours = np.stack([x % 256, y % 256, (x * y) // 64 % 256], axis=-1).astype(np.uint8)
    picture = Image.fromarray(colours)
    near = picture.resize(of_area(224 * 224, *size), Image.Resampling.LANCZOS)
    wanted = Qwen2VLImageProcessor()(images=[near], return_tensors="np")
    found = SeenPicture.of(picture, 224 * 224, QWEN25_VISION)
    assert [*found.shape] == wanted["image_grid_thw"][0].tolist()
    frames = wanted["pixel_values"].reshape(-1, 3, 2, 14 * 14)
    error = np.abs(found.patches.reshape(-1, 3, 14 * 14) - frames[:, :, 0]) * DEVIATION[..., 0]
    assert error.max() < (1e-6 if near.size == (224, 224) else 1.01 / 255)
    assert np.mean(error > 1e-6) < 0.02
