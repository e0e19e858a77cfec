"""Every kind of change against its formula in numpy, on linear layers and convolutions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint.adapters.samples import Weights, merged, off, opened, random_arrays

from smalti.checkpoint.adapters import Adapted, WeightedAdapter
from smalti.errors import CheckpointError, InputError
from smalti.families.prefixes import UNET

ROWS, INPUTS, RANK = 24, 16, 4
SHAPES = {"linear": (ROWS, INPUTS), "conv1": (ROWS, INPUTS, 1, 1), "conv3": (ROWS, INPUTS, 3, 3)}
LAYERS = {"linear": "input_blocks.1.1.proj_in", "conv1": "input_blocks.1.1.proj_out",
          "conv3": "input_blocks.1.0.in_layers.2"}
MODULES = {"linear": "lora_unet_down_blocks_0_attentions_0_proj_in",
           "conv1": "lora_unet_down_blocks_0_attentions_0_proj_out",
           "conv3": "lora_unet_down_blocks_0_resnets_0_conv1"}
TOLERANCE = 1e-6


def factors(kind: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a kind of change for a weight."""
    rows, inputs, *taps = shape
    ones, side = (1,) * len(taps), int(np.prod(taps))
    return {
        "LoRA": {"lora_down.weight": (RANK, inputs, *taps), "lora_up.weight": (rows, RANK, *ones)},
        "LoCon with a core": {"lora_down.weight": (RANK, inputs, *ones),
                              "lora_mid.weight": (RANK, RANK, *taps),
                              "lora_up.weight": (rows, RANK, *ones)},
        "LoHa": {"hada_w1_a": (rows, RANK), "hada_w1_b": (RANK, inputs * side),
                 "hada_w2_a": (rows, RANK), "hada_w2_b": (RANK, inputs * side)},
        "LoHa with cores": {"hada_w1_a": (RANK, rows), "hada_w1_b": (RANK, inputs),
                            "hada_t1": (RANK, RANK, *taps),
                            "hada_w2_a": (RANK, rows), "hada_w2_b": (RANK, inputs),
                            "hada_t2": (RANK, RANK, *taps)},
        "LoKr of whole ones": {"lokr_w1": (4, 2), "lokr_w2": (rows // 4, inputs // 2, *taps)},
        "LoKr of factors": {"lokr_w1_a": (4, RANK - 1), "lokr_w1_b": (RANK - 1, 2),
                            "lokr_w2_a": (rows // 4, RANK),
                            "lokr_w2_b": (RANK, inputs // 2 * side)},
        "LoKr of factors and a whole one": {"lokr_w1_a": (4, RANK), "lokr_w1_b": (RANK, 2),
                                            "lokr_w2": (rows // 4, inputs // 2, *taps)},
        "LoKr with a core": {"lokr_w1": (4, 2), "lokr_w2_a": (RANK, rows // 4),
                             "lokr_w2_b": (RANK, inputs // 2), "lokr_t2": (RANK, RANK, *taps)},
        "difference": {"diff": shape},
        "weight": {"set_weight": shape},
    }[kind]


KINDS = ("LoRA", "LoHa", "LoKr of whole ones", "LoKr of factors",
         "LoKr of factors and a whole one", "difference", "weight")
CORES = ("LoCon with a core", "LoHa with cores", "LoKr with a core")
CASES = [(kind, layer) for kind in KINDS for layer in SHAPES] + [(kind, "conv3") for kind in CORES]
SCALES = ({}, {"alpha": 0.0}, {"alpha": 2.0}, {"scale": 3.0, "alpha": 2.0})
DECOMPOSED = [case for case in CASES if case[0] not in ("difference", "weight")]


def of_layer(layer: str, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{MODULES[layer]}.{role}": value for role, value in tensors.items()}


def model() -> Weights:
    shapes = {}
    for layer, shape in SHAPES.items():
        shapes[f"{UNET}{LAYERS[layer]}.weight"] = shape
        shapes[f"{UNET}{LAYERS[layer]}.bias"] = shape[:1]
    return Weights(random_arrays(shapes, 1))


def changed_weight(folder: Path, layer: str, tensors: dict[str, np.ndarray],
                   strength: float) -> tuple[np.ndarray, np.ndarray]:
    """The weight before and after, where all tensors are used."""
    base, name = model(), f"{UNET}{LAYERS[layer]}.weight"
    adapted = Adapted(base, [WeightedAdapter(opened(folder, of_layer(layer, tensors)), strength)])
    assert not adapted.fits[0].unused and adapted.fits[0].applied == len(tensors)
    assert adapted.changed == {name}
    return base.read(name), adapted.floats(name)


@pytest.mark.sampled
@pytest.mark.parametrize("scales", SCALES, ids=str)
@pytest.mark.parametrize(("kind", "layer"), CASES)
def test_a_change_is_that_of_its_formula(tmp_path: Path, kind: str, layer: str,
                                         scales: dict[str, float]) -> None:
    tensors = random_arrays(factors(kind, SHAPES[layer]))
    if "scale" not in scales or kind == "LoRA":
        tensors.update((role, np.array(value, np.float32)) for role, value in scales.items())
    before, after = changed_weight(tmp_path, layer, tensors, 0.7)
    assert off(after, merged(before, tensors, 0.7)) < TOLERANCE
    assert off(after, before) > 0.1


@pytest.mark.sampled
@pytest.mark.parametrize("of", ["rows", "rows in a row", "inputs"])
@pytest.mark.parametrize(("kind", "layer"), DECOMPOSED)
def test_directions_and_norms(tmp_path: Path, kind: str, layer: str, of: str) -> None:
    tensors = random_arrays(factors(kind, SHAPES[layer]))
    ones = (1,) * (len(SHAPES[layer]) - 2)
    shape = {"rows": (ROWS, 1, *ones), "rows in a row": (ROWS,), "inputs": (1, INPUTS, *ones)}[of]
    tensors["dora_scale"] = np.random.default_rng(2).uniform(1, 2, shape).astype(np.float32)
    before, after = changed_weight(tmp_path, layer, tensors, 0.7)
    assert off(after, merged(before, tensors, 0.7)) < TOLERANCE


def test_norms_of_peft_are_those_of_rows(tmp_path: Path) -> None:
    tensors = random_arrays(factors("LoRA", (16, 16)))
    norms = np.random.default_rng(2).uniform(1, 2, 16).astype(np.float32)
    name = f"{UNET}{LAYERS['linear']}.weight"
    base = Weights(random_arrays({name: (16, 16)}, 1))
    stem = "base_model.model.down_blocks.0.attentions.0.proj_in"
    adapter = opened(tmp_path, {f"{stem}.lora_A.default.weight": tensors["lora_down.weight"],
                                f"{stem}.lora_B.default.weight": tensors["lora_up.weight"],
                                f"{stem}.lora_magnitude_vector.default.weight": norms})
    after = Adapted(base, [WeightedAdapter(adapter)]).floats(name)
    expected = merged(base.read(name), {**tensors, "dora_scale": norms}, 1.0)
    assert off(after, expected) < TOLERANCE


def test_biases_and_norms_are_changed(tmp_path: Path) -> None:
    shapes = {f"{UNET}input_blocks.1.0.out_layers.0.weight": (8,),
              f"{UNET}input_blocks.1.0.out_layers.0.bias": (8,),
              f"{UNET}input_blocks.1.0.in_layers.2.weight": (8, 8, 3, 3),
              f"{UNET}input_blocks.1.0.in_layers.2.bias": (8,)}
    base, (scale, shift, conv, bias) = Weights(random_arrays(shapes, 1)), shapes
    tensors = random_arrays({"lora_unet_down_blocks_0_resnets_0_norm2.w_norm": (8,),
                             "lora_unet_down_blocks_0_resnets_0_norm2.b_norm": (8,),
                             "lora_unet_down_blocks_0_resnets_0_conv1.diff_b": (8,)})
    w_norm, b_norm, diff_b = tensors.values()
    adapted = Adapted(base, [WeightedAdapter(opened(tmp_path, tensors), 0.5)])
    assert adapted.fits[0].applied == 3
    np.testing.assert_allclose(adapted.floats(scale), base.arrays[scale] + w_norm / 2, 1e-6)
    np.testing.assert_allclose(adapted.floats(shift), base.arrays[shift] + b_norm / 2, 1e-6)
    np.testing.assert_allclose(adapted.floats(bias), base.arrays[bias] + diff_b / 2, 1e-6)
    assert adapted.floats(conv) is base.arrays[conv]


def test_biases_of_the_factors_change_the_bias_of_the_layer(tmp_path: Path) -> None:
    stem = "diffusion_model.input_blocks.1.1.proj_in"
    tensors = random_arrays({
        f"{stem}.lora_A.weight": (RANK, INPUTS), f"{stem}.lora_A.bias": (RANK,),
        f"{stem}.lora_B.weight": (ROWS, RANK), f"{stem}.lora_B.bias": (ROWS,), f"{stem}.alpha": ()})
    tensors[f"{stem}.alpha"] = np.array(8, np.float32)
    base, x = model(), np.random.default_rng(3).standard_normal(INPUTS)
    adapted = Adapted(base, [WeightedAdapter(opened(tmp_path, tensors), 0.5)])
    layer = f"{UNET}{LAYERS['linear']}"
    a, a_bias, b, b_bias, _ = tensors.values()
    expected = (base.arrays[f"{layer}.weight"] @ x + base.arrays[f"{layer}.bias"]
                + 0.5 * 8 / RANK * (b @ (a @ x + a_bias) + b_bias))
    found = adapted.floats(f"{layer}.weight") @ x + adapted.floats(f"{layer}.bias")
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# ---------------------------------------------------------------------- several at once


def test_changes_add_up_from_the_weight_of_the_file(tmp_path: Path) -> None:
    first = random_arrays(factors("LoRA", SHAPES["linear"]), 5)
    second = random_arrays(factors("LoHa", SHAPES["linear"]), 6)
    second["dora_scale"] = np.ones((ROWS, 1), np.float32)
    base, name = model(), f"{UNET}{LAYERS['linear']}.weight"
    adapters = [opened(tmp_path, of_layer("linear", tensors), f"{number}.safetensors")
                for number, tensors in enumerate((first, second))]
    weight = base.read(name)
    expected = (merged(weight, first, 0.3) - weight) + merged(weight, second, -1.5)
    for order in (1, -1):
        uses = [WeightedAdapter(adapters[0], 0.3), WeightedAdapter(adapters[1], -1.5)][::order]
        assert off(Adapted(base, uses).floats(name), expected) < TOLERANCE


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_sum_is_rounded_once_to_the_dtype_of_the_file(tmp_path: Path, dtype: str) -> None:
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    base, name = model(), f"{UNET}{LAYERS['linear']}.weight"
    base.arrays[name] = base.arrays[name].astype(kind)
    tensors = random_arrays(factors("LoRA", SHAPES["linear"]))
    adapter = opened(tmp_path, of_layer("linear", tensors))
    adapted = Adapted(base, [WeightedAdapter(adapter, 0.7)])
    exact = merged(base.arrays[name], tensors, 0.7)
    found = adapted.floats(name)
    assert found.dtype == kind
    step = np.spacing(np.abs(exact.astype(np.float32))) * 2.0 ** (13 if dtype == "float16" else 16)
    assert (np.abs(found.astype(np.float64) - exact) <= 0.51 * step).all()


@pytest.mark.parametrize("weight", [np.nan, np.inf])
def test_a_weight_that_is_no_number_is_refused(tmp_path: Path, weight: float) -> None:
    adapter = opened(tmp_path, of_layer("linear", random_arrays(factors("LoRA", (24, 16)))))
    with pytest.raises(InputError, match="expected a finite number"):
        WeightedAdapter(adapter, weight)
    with pytest.raises(InputError, match="expected a finite number"):
        WeightedAdapter(adapter, 1.0, weight)


def test_an_alpha_that_is_no_number_is_refused(tmp_path: Path) -> None:
    tensors = random_arrays(factors("LoRA", SHAPES["linear"]))
    tensors["alpha"] = np.array(np.nan, np.float32)
    adapted = Adapted(model(), [WeightedAdapter(opened(tmp_path, of_layer("linear", tensors)))])
    with pytest.raises(CheckpointError, match="alpha' is nan; expected a finite number"):
        adapted.floats(f"{UNET}{LAYERS['linear']}.weight")
