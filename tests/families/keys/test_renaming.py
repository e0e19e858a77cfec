"""Names and shapes agree with diffusers and transformers, whatever the size of the model."""

import numpy as np
import pytest
from checkpoint.samples import TINY

from smalti.checkpoint import load
from smalti.families.expected import expected_tensors
from smalti.families.keys.renaming import internal_shape, is_ignored, unet_renaming
from smalti.families.prefixes import TEXT, UNET, VAE

LEVELS = {  # widths, res blocks, attention, of the UNet; widths of the autoencoder
    "two": ((32, 64), 1, (False, True), (32, 64)),
    "three": ((32, 64, 96), 1, (False, True, True), (32, 32, 64)),
    "four": ((32, 32, 64, 64), 2, (True, True, True, False), (32, 32, 64, 64)),
    "three blocks": ((32, 64), 3, (True, False), (32, 32)),
}


@pytest.mark.parametrize("name", ["model_ema.diffusion_modelout2bias", "alphas_cumprod", "betas"])
def test_ignored_names(name):
    assert is_ignored(name)


def test_no_weight_is_ignored():
    assert not any(map(is_ignored, expected_tensors(TINY)))


def test_names_outside_blocks_keep_their_leaf():
    assert unet_renaming([])("class_embedding.weight") == UNET + "class_embedding.weight"
    assert unet_renaming([])("strange") == UNET + "strange"


def diffusers_models(widths, blocks, attention, vae_widths):
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    down = ["CrossAttnDownBlock2D" if on else "DownBlock2D" for on in attention]
    up = ["CrossAttnUpBlock2D" if on else "UpBlock2D" for on in reversed(attention)]
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=widths,
        layers_per_block=blocks,
        down_block_types=down,
        up_block_types=up,
        cross_attention_dim=64,
        attention_head_dim=4,
        norm_num_groups=16,
    )
    vae = AutoencoderKL(
        block_out_channels=vae_widths,
        layers_per_block=blocks,
        down_block_types=["DownEncoderBlock2D"] * len(vae_widths),
        up_block_types=["UpDecoderBlock2D"] * len(vae_widths),
        norm_num_groups=16,
    )
    text = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=50,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            bos_token_id=48,
            eos_token_id=49,
        )
    )
    return {"unet": unet, "vae": vae, "text_encoder": text}


@pytest.mark.peers
@pytest.mark.parametrize("what", LEVELS)
def test_folders_that_diffusers_writes(tmp_path, what):
    from diffusers import DDIMScheduler

    models = diffusers_models(*LEVELS[what])
    for component, model in models.items():
        model.save_pretrained(tmp_path / component)
    DDIMScheduler(
        beta_start=0.001,
        beta_end=0.02,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
    ).save_pretrained(tmp_path / "scheduler")
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    checkpoint = load(tmp_path)
    config = checkpoint.config
    assert config.denoiser.block_channels == LEVELS[what][0]
    assert (config.denoiser.heads, config.denoiser.norm_groups) == (4, 16)
    assert (config.vae.norm_groups, config.texts["clip_l"].heads) == (16, 2)
    assert (config.prediction, config.beta_start) == ("v_prediction", 0.001)
    assert not checkpoint.report.ignored
    stored = sum(len(model.state_dict()) for model in models.values())
    assert len(checkpoint.names()) == stored


@pytest.mark.peers
@pytest.mark.parametrize("what", LEVELS)
def test_values_go_where_diffusers_takes_them_from(what):
    """diffusers' own conversion from single-file names, then our map back: the identity."""
    import torch
    from diffusers.loaders.single_file_utils import (
        convert_ldm_unet_checkpoint,
        convert_ldm_vae_checkpoint,
    )

    from smalti.families.keys.renaming import vae_renaming

    models = diffusers_models(*LEVELS[what])
    for component, prefix, renaming, convert in (
        ("unet", UNET, unet_renaming, convert_ldm_unet_checkpoint),
        ("vae", VAE, vae_renaming, convert_ldm_vae_checkpoint),
    ):
        stored = models[component].state_dict()
        rename = renaming(stored)
        inside = {}
        for name, value in stored.items():
            shape = internal_shape(rename(name), tuple(value.shape))
            inside[rename(name)] = torch.randn(shape)
        assert all(name.startswith(prefix) for name in inside)
        back = convert(dict(inside), dict(models[component].config))
        assert set(back) == set(stored)
        for name, value in back.items():
            ours = inside[rename(name)]
            np.testing.assert_array_equal(value.reshape(ours.shape).numpy(), ours.numpy(), name)


def test_text_names_start_with_their_prefix():
    assert sum(name.startswith(TEXT) for name in expected_tensors(TINY)) == 2 + 2 * 16 + 2
