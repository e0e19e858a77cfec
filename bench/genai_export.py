"""Writes the folder that OpenVINO GenAI reads of a Stable Diffusion 1.x checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from smalti.benchmark.peers import clip_tokenizer
from smalti.benchmark.pictures import euler_scheduler, peer_pipeline
from smalti.checkpoint import load
from smalti.diffusion import tokenizer

FORMS = ("halves", "weights", "bytes")
"""Weights in f16; of 8 bits; and besides products of bytes in the UNet."""
SAMPLES = 4
"""Inputs of the UNet by which ranges are found: noise at so many steps, with both halves of
guidance. What the ranges are does not change how long products take."""
SIDE = 64
"""Of these latents: pictures of 512 x 512."""
LIBRARIES = {
    "text_encoder": ("transformers", "CLIPTextModel"),
    "tokenizer": ("transformers", "CLIPTokenizer"),
    "unet": ("diffusers", "UNet2DConditionModel"),
    "vae": ("diffusers", "AutoencoderKL"),
    "scheduler": ("diffusers", "EulerDiscreteScheduler")}
"""What a pipeline's folder says of its parts."""


def export(path: Path, folder: Path, form: str) -> None:
    """Write the parts of a checkpoint in one of FORMS, and what describes them."""
    import openvino
    import torch

    checkpoint = load(path)
    made = peer_pipeline(checkpoint)
    text = torch.tensor([tokenizer.encode(prompt).ids for prompt in ("", "a red apple")])
    context = made.text(text).last_hidden_state.detach()
    torch.manual_seed(0)
    latents = torch.randn(2, made.config.denoiser.in_channels, SIDE, SIDE)
    parts = {
        "text_encoder": _converted(_only(made.text, "last_hidden_state"), {"input_ids": text},
                                   "last_hidden_state"),
        "unet": _converted(_only(made.unet, "sample"), {
            "sample": latents, "timestep": torch.tensor([981]), "encoder_hidden_states": context},
            "out_sample"),
        "vae_decoder": _converted(_decoder(made.vae), {"latent_sample": latents}, "sample")}
    if form == "bytes":
        scheduler = euler_scheduler(made.config, "karras", SAMPLES)
        parts["unet"] = _of_bytes(parts["unet"], [
            {"sample": latents.numpy(), "timestep": step.numpy()[None],
             "encoder_hidden_states": context.numpy()} for step in scheduler.timesteps])
    for name, model in parts.items():
        if form != "halves" and not (form == "bytes" and name == "unet"):
            model = _compressed(model)
        (folder / name).mkdir(parents=True, exist_ok=True)
        openvino.save_model(model, folder / name / "openvino_model.xml", compress_to_fp16=True)
    _write_tokenizer(folder / "tokenizer")
    _describe(folder, made)  # the last: where its index is, all is


def _only(module: Any, name: str) -> Any:
    """A module of one result: that which another has under a name."""
    import torch

    class Only(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *given: Any) -> Any:
            return getattr(self.inner(*given), name)

    return Only()


def _decoder(vae: Any) -> Any:
    """The half of an autoencoder that makes a picture of latents."""
    import torch

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = vae

        def forward(self, latents: Any) -> Any:
            return self.inner.decode(latents).sample

    return Decoder()


def _converted(module: Any, example: dict[str, Any], output: str) -> Any:
    """A module as a model of OpenVINO of any sizes, its inputs and its output with these names."""
    import openvino
    import torch

    with torch.inference_mode():
        model = openvino.convert_model(module.eval(), example_input=tuple(example.values()))
    for port, name in zip(model.inputs, example, strict=True):
        port.get_tensor().set_names({name})
    model.outputs[0].get_tensor().set_names({output})
    return model


def _of_bytes(model: Any, inputs: list[dict[str, np.ndarray]]) -> Any:
    import nncf

    return nncf.quantize(model, nncf.Dataset(inputs), subset_size=len(inputs),
                         model_type=nncf.ModelType.TRANSFORMER)


def _compressed(model: Any) -> Any:
    import nncf

    return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)


def _describe(folder: Path, made: Any) -> None:
    """What the parts are, as diffusers says it beside them."""
    made.unet.save_config(folder / "unet")
    made.vae.save_config(folder / "vae_decoder")
    made.text.config.to_json_file(folder / "text_encoder" / "config.json", use_diff=False)
    scheduler = euler_scheduler(made.config, "karras", SAMPLES)
    scheduler.register_to_config(use_karras_sigmas=False)  # which GenAI does not have
    scheduler.save_config(folder / "scheduler")
    (folder / "model_index.json").write_text(json.dumps(
        {"_class_name": "StableDiffusionPipeline", **LIBRARIES}, indent=1))


def _write_tokenizer(folder: Path) -> None:
    """CLIP's tokenizer as a model that OpenVINO computes."""
    import openvino
    from openvino_tokenizers import convert_tokenizer

    openvino.save_model(convert_tokenizer(clip_tokenizer()), folder / "openvino_tokenizer.xml")
