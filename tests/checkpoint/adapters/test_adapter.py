"""What an adapter file is, which models it fits, and what is said of the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from checkpoint.adapters.samples import Weights, merged, off, opened, random_arrays
from safetensors.numpy import save_file

from smalti.checkpoint.adapters import Adapted, AdapterFile, WeightedAdapter, changed
from smalti.errors import CheckpointError, UnknownFamilyError
from smalti.families.prefixes import TEXT, UNET

KEY = f"{UNET}input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"
QUERY = f"{UNET}input_blocks.1.1.transformer_blocks.0.attn2.to_q.weight"
MLP = f"{TEXT}encoder.layers.0.mlp.fc1.weight"
SD1 = {KEY: (32, 768), QUERY: (32, 32), MLP: (64, 32),
       f"{UNET}input_blocks.0.0.weight": (8, 4, 3, 3)}
STEM = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to"
TEXT_STEM = "lora_te_text_model_encoder_layers_0_mlp_fc1"


def pair(module: str, rows: int, inputs: int, rank: int = 4) -> dict[str, np.ndarray]:
    return random_arrays({f"{module}.lora_down.weight": (rank, inputs),
                          f"{module}.lora_up.weight": (rows, rank)})


WHOLE = {**pair(f"{STEM}_k", 32, 768), **pair(f"{STEM}_q", 32, 32), **pair(TEXT_STEM, 64, 32)}


@pytest.mark.parametrize(("tensors", "words"), [
    (pair(f"{STEM}_k", 32, 768), "Stable Diffusion 1.x"),
    (pair(f"{STEM}_v", 32, 1024), "Stable Diffusion 2.x"),
    (pair("unet.down_blocks.1.attentions.0.transformer_blocks.0.attn2.processor.to_k", 8, 2048),
     "SDXL"),
    (random_arrays({f"{STEM}_k.lokr_w1": (4, 16), f"{STEM}_k.lokr_w2": (8, 48)}),
     "Stable Diffusion 1.x"),
    (random_arrays({f"{STEM}_k.hada_w1_a": (4, 2), f"{STEM}_k.hada_w1_b": (2, 1280),
                    f"{STEM}_k.hada_w2_a": (4, 2), f"{STEM}_k.hada_w2_b": (2, 1280)}),
     "the SDXL refiner"),
    (pair("lora_unet_input_blocks_4_1_proj_in", 8, 8),
     "a UNet (Stable Diffusion 1.x, 2.x or SDXL)"),
    ({**pair("lora_unet_input_blocks_4_1_proj_in", 8, 8),
      **pair("lora_te2_text_model_encoder_layers_0_mlp_fc1", 8, 8)}, "SDXL"),
    (pair("lora_unet_middle_block_1_transformer_blocks_9_attn1_to_q", 8, 8), "SDXL"),
    (pair("transformer.single_transformer_blocks.0.attn.to_q", 8, 8),
     "Flux.1, Chroma, LongCat-Image, FLUX.3 or Ovis-Image"),
    (pair("lora_unet_joint_blocks_0_x_block_attn_qkv", 24, 8), "Stable Diffusion 3"),
    (pair("transformer.transformer_blocks.0.attn.to_q", 8, 8),
     "Anima, FLUX.2, Krea 2, Ovis-Image, Qwen-Image-2.1, Qwen-Image, Stable Diffusion 3, "
     "Flux.1, Chroma or LongCat-Image"),
    (pair(TEXT_STEM, 8, 8), "a text encoder alone"),
])
def test_its_models_are_seen_from_names_and_widths(tmp_path: Path, tensors, words: str) -> None:
    assert opened(tmp_path, tensors).kind.words == words


@pytest.mark.parametrize(("tensors", "there"), [
    (pair(f"{STEM}_k", 32, 2048), "is an adapter for SDXL, and tiny.safetensors is Stable Diffusion"
                                  " 1.x"),
    (pair("lora_unet_double_blocks_0_img_attn_qkv", 24, 8),
     "is an adapter for Flux.1, Chroma, LongCat-Image, FLUX.2 or Ovis-Image, and tiny.safetens"),
    (pair(f"{STEM}_q", 64, 64), "changes nothing in tiny.safetensors: applied 0 of 2 tensors; not "
                                "used: .*for a weight of 64 x 64 numbers, the model's has 32 x 32"),
    (pair("lora_unet_mid_block_attentions_0_proj_in", 8, 8), "the model has no such layer"),
    ({**WHOLE, **pair("lora_unet_conv_in", 8, 8)}, "makes the model read 8 channels, "
                                                   "tiny.safetensors reads 4"),
])
def test_one_for_another_model_is_refused(tmp_path: Path, tensors, there: str) -> None:
    base = Weights(random_arrays(SD1))
    with pytest.raises(CheckpointError, match=there):
        Adapted(base, [WeightedAdapter(opened(tmp_path, tensors))], "tiny.safetensors")


def test_tensors_that_are_not_used_are_counted_and_named(tmp_path: Path) -> None:
    tensors = {**WHOLE, "lora_unet_mid_block_attentions_0_proj_in.alpha": np.ones(1, np.float32),
               f"{STEM}_q.hada_w1_a": np.ones((2, 2), np.float32),
               "nothing_at_all": np.ones(1, np.float32),
               f"{STEM}_q.diff_b": np.ones(32, np.float32),
               f"{STEM}_out.oft_blocks": np.ones((2, 2, 2), np.float32)}
    fit = Adapted(Weights(random_arrays(SD1)), [WeightedAdapter(opened(tmp_path, tensors))]).fits[0]
    assert (fit.applied, fit.total) == (6, 11)
    assert dict(fit.unused) == {
        "nothing_at_all": "no kind of change that Smalti knows",
        f"{STEM}_q.hada_w1_a": "the layer is changed in another way, too",
        f"{STEM}_q.diff_b": "the layer has no bias",
        "lora_unet_mid_block_attentions_0_proj_in.alpha": "the model has no such layer",
        f"{STEM}_out.oft_blocks": "the model has no such layer"}
    assert str(fit).startswith("applied 6 of 11 tensors; not used: nothing_at_all (no kind")
    assert str(fit).endswith("; and 2 more")


def test_of_several_changes_to_a_weight_one_counts(tmp_path: Path) -> None:
    base = Weights(random_arrays(SD1))
    for roles, counts in ((("lora", "set_weight"), "lora"), (("diff", "set_weight"), "diff")):
        tensors = {f"{STEM}_q.set_weight": np.ones((32, 32), np.float32)}
        if "diff" in roles:
            tensors[f"{STEM}_q.diff"] = np.full((32, 32), 2, np.float32)
        else:
            tensors |= pair(f"{STEM}_q", 32, 32)
        adapted = Adapted(base, [WeightedAdapter(opened(tmp_path, tensors, counts))])
        assert dict(adapted.fits[0].unused) == {
            f"{STEM}_q.set_weight": "the layer is changed in another way, too"}
        own = {role.removeprefix(f"{STEM}_q."): value for role, value in tensors.items()
               if "set_weight" not in role}
        assert counts in next(iter(own))
        assert off(adapted.floats(QUERY), merged(base.read(QUERY), own, 1.0)) < 1e-6


@pytest.mark.parametrize(("changes", "why"), [
    ({f"{STEM}_q.lora_up.weight": None}, "up is missing"),
    ({f"{STEM}_q.lora_up.weight": (32, 5)}, r"factors of shapes \(32, 5\) and \(4, 32\)"),
    ({f"{STEM}_q.lora_down.weight": (32,)}, r"factors of shapes \(32, 4\) and \(32,\)"),
    ({f"{STEM}_q.alpha": (2,)}, r"alpha of shape \(2,\), expected one number"),
    ({f"{STEM}_q.dora_scale": (7, 1)}, r"norms of shape \(7, 1\) for a weight of 32 rows of 32"),
    ({f"{STEM}_q.lora_mid.weight": (4, 5, 3, 3)}, "factors of shapes"),
    ({f"{STEM}_q.reshape_weight": (2,)}, "it gives the layer another shape"),
    ({f"{STEM}_q.lora_up.weight": None, f"{STEM}_q.lora_down.weight": None,
      f"{STEM}_q.oft_blocks": (4, 8, 8)}, "a kind of change that Smalti does not know"),
    ({f"{STEM}_q.lora_up.weight": None, f"{STEM}_q.lora_down.weight": None,
      f"{STEM}_q.lokr_w1": (4, 4), f"{STEM}_q.lokr_w2_a": (8, 2), f"{STEM}_q.lokr_w2_b": (3, 8)},
     "factors of shapes"),
])
def test_layers_that_make_no_sense_are_not_used(tmp_path: Path, changes, why: str) -> None:
    tensors = dict(WHOLE)
    for name, shape in changes.items():
        tensors.pop(name, None)
        if shape is not None:
            tensors[name] = np.ones(shape, np.float32)
    adapted = Adapted(Weights(random_arrays(SD1)), [WeightedAdapter(opened(tmp_path, tensors))])
    reasons = {reason for name, reason in adapted.fits[0].unused if name.startswith(f"{STEM}_q")}
    assert len(reasons) == 1 and re.search(why, *reasons)
    assert adapted.changed == {KEY, MLP}


def test_a_file_of_something_else_is_no_adapter(tmp_path: Path) -> None:
    save_file(random_arrays({f"{UNET}out.2.weight": (4, 4, 3)}), tmp_path / "model.safetensors")
    with pytest.raises(UnknownFamilyError, match="is no adapter: of its 1 tensors none is a"):
        AdapterFile.open(tmp_path / "model.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(CheckpointError, match="has only 9 bytes"):
        AdapterFile.open(tmp_path / "broken.safetensors")


def test_it_says_its_forms_and_ranks(tmp_path: Path) -> None:
    adapter = opened(tmp_path, {**WHOLE, f"{STEM}_q.dora_scale": np.ones((32, 1), np.float32)})
    assert adapter.forms == {"LoRA": 2, "DoRA of LoRA": 1}
    assert adapter.ranks == {4: 3}


# ---------------------------------------------------------------------- strengths


def test_text_encoders_have_a_strength_of_their_own(tmp_path: Path) -> None:
    base, adapter = Weights(random_arrays(SD1)), opened(tmp_path, WHOLE)
    for weight, text_weight, used in ((0.5, None, 0.5), (0.5, 2.0, 2.0), (0.5, 0.0, 0.0)):
        adapted = Adapted(base, [WeightedAdapter(adapter, weight, text_weight)])
        for name, module, strength in ((KEY, f"{STEM}_k", weight), (MLP, TEXT_STEM, used)):
            tensors = {key.removeprefix(f"{module}."): value for key, value in WHOLE.items()
                       if key.startswith(f"{module}.")}
            expected = merged(base.read(name), tensors, strength)
            assert off(adapted.floats(name), expected) < 1e-6


def test_only_what_differs_is_to_be_bound_again(tmp_path: Path) -> None:
    base = Weights(random_arrays(SD1))
    adapter = opened(tmp_path, WHOLE)
    other = opened(tmp_path, pair(f"{STEM}_q", 32, 32), "other.safetensors")
    none, half, text_off = (Adapted(base, uses) for uses in (
        [], [WeightedAdapter(adapter, 0.5)], [WeightedAdapter(adapter, 0.5, 0.0)]))
    both = Adapted(base, [WeightedAdapter(adapter, 0.5), WeightedAdapter(other, 1.0)])
    assert changed(none, half) == {KEY, QUERY, MLP} == changed(half, none)
    assert changed(half, text_off) == {MLP} and changed(half, both) == {QUERY}
    assert not changed(half, Adapted(base, [WeightedAdapter(adapter, 0.5)]))
    assert not Adapted(base, [WeightedAdapter(adapter, 0.0)]).changed
    assert none.floats(KEY) is base.arrays[KEY]


# ---------------------------------------------------------------------- alpha, said elsewhere


def test_alpha_stands_in_the_metadata_of_diffusers(tmp_path: Path) -> None:
    module = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_q"
    tensors = random_arrays({f"unet.{module}.lora_A.weight": (4, 32),
                             f"unet.{module}.lora_B.weight": (32, 4)})
    base = Weights(random_arrays(SD1))
    a, b = tensors.values()
    for number, (metadata, scale) in enumerate((
            ({"unet.lora_alpha": 8, "unet.r": 4}, 2.0),
            ({"unet.lora_alpha": 8, "unet.alpha_pattern": {"attn2.to_q": 2}}, 0.5),
            ({"unet.lora_alpha": 8, "unet.r": 4, "unet.use_rslora": True}, 4.0),
            ({"text_encoder.lora_alpha": 8}, 1.0), ({"unet.lora_alpha": "x"}, 1.0))):
        path = tmp_path / f"{number}.safetensors"  # Windows replaces no file that is open
        save_file(tensors, path, {"lora_adapter_metadata": json.dumps(metadata)})
        use = WeightedAdapter(AdapterFile.open(path))
        found = Adapted(base, [use]).floats(QUERY)
        assert off(found, base.read(QUERY) + scale * (b @ a)) < 1e-6


def test_alpha_stands_beside_the_file_of_peft(tmp_path: Path) -> None:
    module = "base_model.model.down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_q"
    tensors = random_arrays({f"{module}.lora_A.weight": (4, 32),
                             f"{module}.lora_B.weight": (32, 4)})
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    base, (a, b) = Weights(random_arrays(SD1)), tensors.values()
    for text, scale in (('{"lora_alpha": 16, "r": 4}', 4.0), ("[1, 2]", 1.0), ('{"lora_al', 1.0)):
        (tmp_path / "adapter_config.json").write_text(text)
        adapter = AdapterFile.open(tmp_path / "adapter_model.safetensors")
        found = Adapted(base, [WeightedAdapter(adapter)]).floats(QUERY)
        assert off(found, base.read(QUERY) + scale * (b @ a)) < 1e-6
