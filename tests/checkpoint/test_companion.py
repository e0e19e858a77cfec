"""ControlNets, upscalers and TAESD in files: every layout, what they are, what does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from click.testing import CliRunner
from peers_models import TINY_UNET
from transformer_peers import (
    TINY_FLUX,
    TINY_MMDIT,
    TINY_QWEN_IMAGE,
    TINY_Z_IMAGE,
    filled,
    flux_controlnet_module,
    qwen_image_controlnet_module,
    sd3_controlnet_module,
    z_image_controlnet_module,
)

from smalti.checkpoint import inspect
from smalti.checkpoint.companion import Companion, open_companion
from smalti.cli.main import root
from smalti.errors import CheckpointError
from smalti.graph import Graph
from smalti.models import (
    ControlNetConfig,
    FluxControlNetConfig,
    MMDiTControlNetConfig,
    QwenImageControlNetConfig,
    RrdbConfig,
    SrvggConfig,
    TaesdConfig,
    ZImageControlNetConfig,
    controlnet_graph,
    flux_controlnet_graph,
    qwen_image_controlnet_graph,
    sd3_controlnet_graph,
    taesd_decoder_graph,
    taesd_encoder_graph,
    upscaler_graph,
    z_image_controlnet_graph,
)

Arrays = dict[str, np.ndarray]

UNET = replace(TINY_UNET, block_channels=(32, 64), norm_groups=32, depth_in_middle=1)
SDXL = replace(UNET, block_channels=(64, 64, 128), head_dim=64, attention=(False, True, True),
               transformer_depth=(0, 1, 2), depth_in_middle=2, linear_projection=True,
               vector_dim=40, heads=8, res_blocks=1)
SD1 = replace(UNET, context_dim=768, heads=8)
CONTROLNETS = {
    "SD 1": ControlNetConfig(SD1),
    "other hint": ControlNetConfig(SD1, hint_channels=(8, 12), image_channels=4),
    "SDXL": ControlNetConfig(SDXL),
    "SDXL, no attention": ControlNetConfig(replace(
        SDXL, attention=(False,) * 3, transformer_depth=(0,) * 3, depth_in_middle=0,
        context_dim=48)),
    "union": ControlNetConfig(SDXL, types=6, type_sinusoids=16, type_layers=2),
}
TAESD = TaesdConfig(z_channels=16, channels=8, decoder_blocks=(3, 2, 1), encoder_blocks=(1, 2, 3))
RRDB = RrdbConfig(channels=8, growth=4, blocks=2)


def weights_of(*graphs: Graph, dtype: type = np.float16) -> Arrays:
    random = np.random.default_rng(1)
    return {name: random.standard_normal(value.shape).astype(dtype)
            for graph in graphs for name, value in graph.parameters.items()}


def controlnet_weights(config: ControlNetConfig) -> Arrays:
    side = 2 ** (len(config.unet.block_channels) - 1)
    return weights_of(controlnet_graph(config, 1, side, side))


def write(path: Path, arrays: Arrays) -> Path:
    safetensors.numpy.save_file(arrays, path)
    return path


def check(opened: Companion, expected: Arrays) -> None:
    assert set(opened.names()) == set(expected)
    for name, array in expected.items():
        assert name in opened and opened.shape(name) == array.shape and opened.dtype(name) == "F16"
        np.testing.assert_array_equal(opened.floats(name), array)
        opened.drop(name)


@pytest.mark.parametrize("prefix", ["control_model.", ""])
@pytest.mark.parametrize("name", CONTROLNETS)
def test_controlnets_under_their_own_names(name: str, prefix: str, tmp_path: Path) -> None:
    config, weights = CONTROLNETS[name], controlnet_weights(CONTROLNETS[name])
    stored = {prefix + key.removeprefix("control_model."): array for key, array in weights.items()}
    if prefix:  # some files hold the whole model besides
        stored["model.diffusion_model.out.2.bias"] = np.zeros(4, np.float32)
    opened = open_companion(write(tmp_path / "control.safetensors", stored))
    check(opened, weights)
    known = config.unet
    if name == "SDXL, no attention":  # the width of a context that nothing reads
        known = replace(known, context_dim=opened.config.unet.context_dim)
    assert opened.config == replace(config, unet=replace(
        known, out_channels=known.in_channels, head_dim=None if "SD 1" in name or "other" in name
        else known.head_dim))


TINY_FLUX_CONTROL = FluxControlNetConfig(
    **{**vars(TINY_FLUX), "double_blocks": 2, "single_blocks": 1, "axes": (4, 14, 14)})
TINY_SD3_CONTROL = MMDiTControlNetConfig(
    **{**vars(TINY_MMDIT), "hidden_size": 128, "out_channels": 16}, hint_channels=5)
TINY_QWEN_CONTROL = QwenImageControlNetConfig(
    **{**vars(TINY_QWEN_IMAGE), "axes": (4, 14, 14)}, hint_channels=4)
TINY_Z_CONTROL = ZImageControlNetConfig(
    **{**vars(TINY_Z_IMAGE), "blocks": 1, "vector_size": 64}, hint_channels=4)
TRANSFORMERS = {
    "InstantX": TINY_FLUX_CONTROL,
    "union": replace(TINY_FLUX_CONTROL, modes=5, guidance=False),
    "XLabs": replace(TINY_FLUX_CONTROL, single_blocks=0, hint_channels=(16, 16, 16, 16)),
    "SD 3": TINY_SD3_CONTROL,
    "SD 3.5 medium": replace(TINY_SD3_CONTROL, qk_norm=True, dual_blocks=1),
    "SD 3.5 large": replace(TINY_SD3_CONTROL, joint=False),
    "Qwen-Image": TINY_QWEN_CONTROL,
    "Qwen-Image, inpaint": replace(TINY_QWEN_CONTROL, hint_channels=5, blocks=1),
    "Z-Image 1.0": TINY_Z_CONTROL,
    "Z-Image 2.0": replace(TINY_Z_CONTROL, refining="layers", refiners=0, hint_channels=9,
                           refiner_places=(0,)),
    "Z-Image 2.1": replace(TINY_Z_CONTROL, refining="steering", hint_channels=33,
                           refiner_places=(0,)),
}
OF_CONFIG = {FluxControlNetConfig: (flux_controlnet_graph, flux_controlnet_module),
             MMDiTControlNetConfig: (sd3_controlnet_graph, sd3_controlnet_module),
             QwenImageControlNetConfig: (qwen_image_controlnet_graph, qwen_image_controlnet_module),
             ZImageControlNetConfig: (
                 lambda config, *shape: z_image_controlnet_graph(config, TINY_Z_IMAGE, *shape),
                 lambda config: z_image_controlnet_module(config, [0]))}
"""Class of a configuration -> the graph that it is of, and the module of diffusers."""


def transformer_weights(config: object) -> Arrays:
    build, _ = OF_CONFIG[type(config)]
    return {name: array for name, array in weights_of(build(config, 1, 4, 4, 1)).items()
            if name.startswith("control_model.")}


def shown(found: object, known: object) -> None:
    """What files show is as known; the rest is no one's business."""
    unseen = {"out_channels"}
    if isinstance(known, ZImageControlNetConfig):  # of the model, and of folders
        unseen |= {"in_channels", "context_dim", "time_size", "places", "refiner_places"}
    if not getattr(known, "joint", True):
        unseen |= {"positions", "in_channels", "context_dim"}
    for name in vars(known).keys() - unseen:
        assert getattr(found, name) == getattr(known, name), name


@pytest.mark.parametrize("name, renamed", [
    ("XLabs", {"controlnet_x_embedder": "pos_embed_input"}),
    ("SD 3.5 large", {}),
    ("SD 3.5 large", {"t_embedder.mlp.0": "time_text_embed.timestep_embedder.linear_1",
                      "t_embedder.mlp.2": "time_text_embed.timestep_embedder.linear_2",
                      "y_embedder.mlp.0": "time_text_embed.text_embedder.linear_1",
                      "y_embedder.mlp.2": "time_text_embed.text_embedder.linear_2"}),
    ("Qwen-Image", {}), ("Qwen-Image, inpaint", {}),
    ("Z-Image 1.0", {}), ("Z-Image 2.0", {}), ("Z-Image 2.1", {}),
])
def test_controlnets_of_transformers_as_published(name: str, renamed: dict[str, str],
                                                  tmp_path: Path) -> None:
    weights, stored = transformer_weights(TRANSFORMERS[name]), {}
    for key, array in weights.items():
        path, _, leaf = key.removeprefix("control_model.").rpartition(".")
        stored[f"{renamed.get(path, path)}.{leaf}"] = array
    if name.startswith("SD 3.5"):
        stored["control_type"] = np.array([len(renamed) and 2], np.float32)
    opened = open_companion(write(tmp_path / "canny.safetensors", stored))
    check(opened, weights)
    shown(opened.config, TRANSFORMERS[name])


def divided(weights: Arrays) -> Arrays:
    """Weights of a ControlNet of Z-Image as its authors store them."""
    names = {"attention.out.": "attention.to_out.0.", "attention.q_norm.": "attention.norm_q.",
             "attention.k_norm.": "attention.norm_k."}
    stored = {}
    for key, array in weights.items():
        name = key.removeprefix("control_model.")
        if ".qkv." in name:
            stored |= {name.replace("qkv", f"to_{part}"): np.ascontiguousarray(rows)
                       for part, rows in zip("qkv", np.split(array, 3), strict=True)}
            continue
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        stored[name] = array
    return stored


@pytest.mark.parametrize("name", [name for name in TRANSFORMERS if name.startswith("Z-Image")])
def test_controlnets_of_z_image_in_files_of_their_authors(name: str, tmp_path: Path) -> None:
    weights = transformer_weights(TRANSFORMERS[name])
    opened = open_companion(write(tmp_path / "control.safetensors", divided(weights)))
    check(opened, weights)
    shown(opened.config, TRANSFORMERS[name])
    assert (opened.config.places, opened.config.refiner_places) == ((), ())


def test_refiners_of_zeros_are_not_read(tmp_path: Path) -> None:
    """Files of 2.0 hold what it was trained without; a folder says what it does."""
    weights = divided(transformer_weights(TRANSFORMERS["Z-Image 2.1"]))
    weights["control_noise_refiner.0.before_proj.weight"][:] = 0
    path = write(tmp_path / "diffusion_pytorch_model.safetensors", weights)
    opened = open_companion(path)
    check(opened, {key: array for key, array in transformer_weights(
        TRANSFORMERS["Z-Image 2.1"]).items() if "noise_refiner" not in key})
    assert (opened.config.refining, opened.config.refiners) == ("layers", 0)
    stated = {"add_control_noise_refiner": "control_noise_refiner", "control_layers_places": [0]}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    opened = open_companion(path)
    assert (opened.config.refining, opened.config.places) == ("steering", (0,))
    for wrong in ([0, 5], "0", [-1], [0.5]):
        (tmp_path / "config.json").write_text(json.dumps({"control_layers_places": wrong}))
        with pytest.raises(CheckpointError, match="states control_layers_places as"):
            open_companion(path)


@pytest.mark.parametrize("kind, file, canny", [
    (1, "control.safetensors", True), (2, "canny.safetensors", False),
    (None, "sd35_Canny.safetensors", True), (None, "depth.safetensors", False)])
def test_the_one_for_edges_is_told_by_number_or_name(kind: int | None, file: str, canny: bool,
                                                     tmp_path: Path) -> None:
    stored = {key.removeprefix("control_model."): array
              for key, array in transformer_weights(TRANSFORMERS["SD 3.5 large"]).items()}
    if kind is not None:
        stored["control_type"] = np.full(1, kind, np.float32)
    assert open_companion(write(tmp_path / file, stored)).config.canny is canny


@pytest.mark.peers
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_controlnets_of_transformers_in_folders_of_diffusers(name: str, tmp_path: Path) -> None:
    config = TRANSFORMERS[name]
    _, build = OF_CONFIG[type(config)]
    filled(build(config)).half().save_pretrained(tmp_path)
    opened = open_companion(tmp_path)
    assert set(opened.names()) == set(transformer_weights(config))
    shown(opened.config, config)


def test_a_controlnet_of_flux_that_lacks_a_projection_is_refused(tmp_path: Path) -> None:
    weights = transformer_weights(TRANSFORMERS["XLabs"])
    stored = {key.removeprefix("control_model.").replace("controlnet_x_embedder",
                                                         "pos_embed_input"): array
              for key, array in weights.items() if "1.txt_attn.qkv.bias" not in key}
    with pytest.raises(CheckpointError,
                       match=r"(?s)FluxControlNet, but 1 of its tensors.*qkv\.bias"):
        open_companion(write(tmp_path / "control.safetensors", stored))


def test_the_mean_over_all_pixels_is_told_by_name_or_caller(tmp_path: Path) -> None:
    weights = controlnet_weights(CONTROLNETS["SD 1"])
    path = write(tmp_path / "control_v11e_sd15_Shuffle.safetensors", weights)
    assert open_companion(path).config.pooled
    assert not open_companion(path, pooled=False).config.pooled
    assert open_companion(write(tmp_path / "a.safetensors", weights), pooled=True).config.pooled


@pytest.mark.peers
@pytest.mark.parametrize("name", CONTROLNETS)
def test_controlnets_in_folders_of_diffusers(name: str, tmp_path: Path) -> None:
    from smalti.benchmark import peers

    config = CONTROLNETS[name]
    config = replace(config, unet=replace(config.unet, norm_groups=16), pooled=name == "SDXL")
    peer = peers.peer_controlnet(config)
    peer.module.half().save_pretrained(tmp_path)
    opened = open_companion(tmp_path)
    check(opened, {key: array.astype(np.float16) for key, array in peer.weights.items()})
    found, known = opened.config.unet, config.unet
    assert opened.config.pooled == config.pooled and found.norm_groups == 16
    assert [found.heads_at(width) for width in known.block_channels[1:]] == [
        known.heads_at(width) for width in known.block_channels[1:]]


@pytest.mark.parametrize("config", [RRDB, replace(RRDB, unshuffle=2), SrvggConfig(8, 3, 2)],
                         ids=str)
def test_upscalers(config: RrdbConfig | SrvggConfig, tmp_path: Path) -> None:
    side = getattr(config, "unshuffle", 1)
    weights = weights_of(upscaler_graph(config, 1, side, side))
    opened = open_companion(write(tmp_path / "4x.safetensors", weights))
    assert opened.config == config
    check(opened, weights)


@pytest.mark.parametrize("halves", ["decoder", "encoder", "decoder encoder"])
def test_tiny_autoencoders(halves: str, tmp_path: Path) -> None:
    graphs = {"decoder": taesd_decoder_graph(TAESD, 1, 1, 1),
              "encoder": taesd_encoder_graph(TAESD, 1, 4, 4)}
    weights = weights_of(*(graphs[half] for half in halves.split()))
    layouts: list[Callable[[str], str]] = [lambda name: name.removeprefix("taesd.")]
    if " " not in halves:
        layouts.append(lambda name: name.removeprefix(f"taesd.{halves}."))
    for number, layout in enumerate(layouts):
        stored = {layout(name): array for name, array in weights.items()}
        opened = open_companion(write(tmp_path / f"{number}.safetensors", stored))
        check(opened, weights)
        read = ("decoder_blocks", "encoder_blocks") if " " in halves else (f"{halves}_blocks",)
        for field in ("z_channels", "channels", *read):
            assert getattr(opened.config, field) == getattr(TAESD, field)


def changed(weights: Arrays, **new: np.ndarray | None) -> Arrays:
    merged = {**weights, **new}
    return {name: array for name, array in merged.items() if array is not None}


ESRGAN = weights_of(upscaler_graph(RRDB, 1, 1, 1))
CONTROL = controlnet_weights(CONTROLNETS["SD 1"])
ONE = np.zeros(1, np.float16)


@pytest.mark.parametrize(("arrays", "words"), [
    ({"a": ONE}, "is no ControlNet, TAESD or upscaler that is known: .*; it holds a$"),
    ({letter: ONE for letter in "cbad"}, "it holds a, b, c, and 1 more$"),
    ({"lora_unet_mid_block.lora_down.weight": ONE, "lora_unet_mid_block.lora_up.weight": ONE},
     "x.safetensors is .*LoRA.*; expected a ControlNet, an upscaler"),
    (changed(ESRGAN, **{"conv_hr.bias": None}), r"Rrdb, but 1 .*\n  conv_hr.bias is missing, expe"),
    (changed(ESRGAN, **{"conv_hr.bias": ONE}), r"conv_hr.bias is \(1,\), expected \(8,\)"),
    (changed(ESRGAN, **{"conv_1x1.bias": ONE}), r"conv_1x1.bias is \(1,\), expected no such"),
    (changed(ESRGAN, **{"conv_hr.bias": np.zeros(8, np.int8)}), "integers .* conv_hr.bias"),
    (changed(CONTROL, **{"control_model.zero_convs.1.0.bias": ONE}), "ControlNet, but 1 of its"),
    (changed(CONTROL, **{"control_model.input_hint_block.2.weight": ONE}), "reads its picture"),
    (changed(CONTROL, **{"control_model.input_blocks.0.0.weight": None}), "levels of this"),
    (controlnet_weights(ControlNetConfig(replace(SD1, context_dim=1024))),
     "32 channels cannot be split into heads of 64"),
    ({name: array for name, array in CONTROL.items() if ".input_blocks.1" not in name},
     "36 of its tensors do not fit"),
    (changed(CONTROL, lora_controlnet=ONE), "a Control-LoRA"),
    ({"controlnet_blocks.0.y_rms.weight": ONE, "img_in.weight": ONE}, "blockwise ControlNet"),
    (changed(CONTROL, difference=ONE), "stored as the difference to a model"),
    ({"adapter.body.0.in_conv.weight": ONE, "adapter.conv_in.weight": ONE}, "a T2I-Adapter"),
    ({"taesd.decoder.1.weight": ONE, "taesd.decoder.3.conv.0.weight": ONE}, "neither half"),
])
def test_what_does_not_fit_is_named(arrays: Arrays, words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=words):
        open_companion(write(tmp_path / "x.safetensors", arrays))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"norm_num_groups": 8}))
    with pytest.raises(CheckpointError, match="holds no diffusion_pytorch_model.safetensors"):
        open_companion(tmp_path)


def test_a_name_that_a_network_does_not_have(tmp_path: Path) -> None:
    opened = open_companion(write(tmp_path / "x.safetensors", ESRGAN))
    with pytest.raises(CheckpointError, match="holds no tensor 'nothing'"):
        opened.floats("nothing")


# ---------------------------------------------------------------------- smalti inspect


def told(path: Path) -> dict[str, str]:
    result = CliRunner().invoke(root, ["inspect", str(path)])
    assert result.exit_code == 0, result.output
    return {line[:12].strip(): line[12:] for line in result.stdout.splitlines()}


@pytest.mark.parametrize(("config", "family"), [
    (CONTROLNETS["SD 1"], "a ControlNet for Stable Diffusion 1.x"),
    (ControlNetConfig(replace(SDXL, context_dim=2048)), "a ControlNet for SDXL"),
    (CONTROLNETS["union"], "a union of ControlNets for a UNet that reads prompts of width 48")])
def test_inspect_tells_of_controlnets(config: ControlNetConfig, family: str,
                                      tmp_path: Path) -> None:
    weights = controlnet_weights(config)
    lines = told(write(tmp_path / "shuffle.safetensors", weights))
    assert lines["family"] == family and lines["use"].endswith("--control FILE PICTURE")
    assert "of which it hands on the mean" in lines["details"]
    assert ("6 kinds of pictures" in lines["details"]) == (config.types > 0)
    size = sum(array.size for array in weights.values())
    assert lines["parameters"] == f"{size / 1e6:.1f} M"
    assert lines["precision"] == f"F16 ({len(weights)} tensors)"


def test_a_name_tells_that_a_controlnet_fills_parts_of_pictures(tmp_path: Path) -> None:
    """Of a file, or of the folder of a file that is called as all are."""
    weights = controlnet_weights(CONTROLNETS["SD 1"])
    folder = tmp_path / "control_v11p_sd15_inpaint"
    folder.mkdir()
    for path in (tmp_path / "control_Inpaint.safetensors",
                 folder / "diffusion_pytorch_model.safetensors"):
        lines = told(write(path, weights))
        assert lines["family"] == (
            "a ControlNet for Stable Diffusion 1.x, which fills parts of pictures")
    assert not open_companion(write(folder / "other.safetensors", weights)).config.fills


@pytest.mark.parametrize(("name", "family", "details"), [
    ("Qwen-Image", "a ControlNet for Qwen-Image", "2 blocks of 64"),
    ("Qwen-Image, inpaint", "a ControlNet for Qwen-Image, which fills parts of pictures",
     "1 blocks of 64"),
    ("Z-Image 1.0", "a union of ControlNets for Z-Image", "1 blocks of 64, as of 1.0"),
    ("Z-Image 2.1", "a union of ControlNets for Z-Image, which also fills parts of pictures",
     "1 blocks of 64, as of 2.1")])
def test_inspect_tells_of_controlnets_of_transformers(name: str, family: str, details: str,
                                                      tmp_path: Path) -> None:
    stored = {key.removeprefix("control_model."): array
              for key, array in transformer_weights(TRANSFORMERS[name]).items()}
    lines = told(write(tmp_path / "control.safetensors", stored))
    assert (lines["family"], lines["details"]) == (family, details)
    assert lines["use"].endswith("--control FILE PICTURE")


@pytest.mark.parametrize(("config", "family", "details"), [
    (RrdbConfig(8, 4, 2), "an ESRGAN upscaler, x4", "2 blocks of 8 channels"),
    (RrdbConfig(8, 4, 1, unshuffle=2), "an ESRGAN upscaler, x2", "1 blocks of 8 channels"),
    (SrvggConfig(8, 3, 2), "a compact Real-ESRGAN upscaler, x2", "3 convolutions of 8 channels")])
def test_inspect_tells_of_upscalers(config: RrdbConfig | SrvggConfig, family: str, details: str,
                   tmp_path: Path) -> None:
    side = getattr(config, "unshuffle", 1)
    weights = weights_of(upscaler_graph(config, 1, side, side))
    lines = told(write(tmp_path / "4x.safetensors", weights))
    assert (lines["family"], lines["details"]) == (family, details)
    assert lines["use"] == "smalti upscale PICTURE --model FILE"


def test_inspect_tells_of_tiny_autoencoders(tmp_path: Path) -> None:
    weights = weights_of(taesd_decoder_graph(TAESD, 1, 1, 1))
    stored = {name.removeprefix("taesd.decoder."): array for name, array in weights.items()}
    lines = told(write(tmp_path / "taesd.safetensors", stored))
    assert lines["family"] == "a tiny autoencoder (TAESD) for latents of 16 channels"
    assert lines["halves"] == "decoder" and lines["use"].endswith("--preview FILE")


def test_inspect_tells_of_folders_of_one_network(tmp_path: Path) -> None:
    write(tmp_path / "diffusion_pytorch_model.safetensors", CONTROL)
    (tmp_path / "config.json").write_text(json.dumps({"global_pool_conditions": False}))
    assert told(tmp_path)["family"] == "a ControlNet for Stable Diffusion 1.x"


def test_spellings_of_esrgan_are_one_family(tmp_path: Path) -> None:
    for number, name in enumerate(("model.1.sub.0.RDB1.conv1.0.weight",
                                   "RRDB_trunk.0.RDB1.conv1.weight")):
        path = write(tmp_path / f"{number}.safetensors", {name: ONE})
        assert inspect(path).kind.id == "esrgan"
