"""The transformer families, evaluated by the interpreter, against diffusers and transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from transformer_peers import (
    TINY_ANIMA,
    TINY_CHROMA,
    TINY_FLUX,
    TINY_FLUX2,
    TINY_KREA2,
    TINY_LUMINA2,
    TINY_MMDIT,
    TINY_T5,
    TINY_Z_IMAGE,
    anima_module,
    anima_text_module,
    chroma_module,
    filled,
    flux2_module,
    flux_module,
    image_ids,
    krea2_module,
    lumina2_module,
    mmdit_module,
    packed,
    t5_module,
    weights_of,
    z_image_module,
)

from smalti.benchmark.agreement import relative_error
from smalti.families.keys import (
    ANIMA_DIFFUSERS,
    CHROMA_DIFFUSERS,
    FLUX2_DIFFUSERS,
    FLUX_DIFFUSERS,
    KREA2_DIFFUSERS,
    LUMINA2_DIFFUSERS,
    T5_TRANSFORMERS,
    Z_IMAGE_DIFFUSERS,
    expressions,
    sd3_diffusers,
    shape_of,
)
from smalti.graph import Graph, evaluate
from smalti.models import (
    ANIMA,
    CHROMA,
    FLUX2_DEV,
    FLUX2_KLEIN_4B,
    FLUX2_KLEIN_9B,
    FLUX_DEV,
    FLUX_SCHNELL,
    KREA2,
    LUMINA2,
    SD3_MEDIUM,
    SD35_LARGE,
    SD35_MEDIUM,
    T5_XXL,
    Z_IMAGE,
    anima_graph,
    anima_text_graph,
    chroma_graph,
    chroma_modulation_graph,
    flux2_graph,
    flux_graph,
    krea2_graph,
    krea2_text_graph,
    mmdit_graph,
    t5_graph,
    z_image_graph,
)
from smalti.models.flux import PREFIX as DENOISER
from smalti.models.t5 import PREFIX as T5
from smalti.models.t5 import position_buckets

pytestmark = pytest.mark.peers

ERROR_MAX = 1e-5
DENOISER_ERROR_MAX = 1e-4
"""Time and guidance are angles of thousands of radians, of which f32 keeps four digits."""


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def result(graph: Graph, weights: Mapping[str, np.ndarray], **inputs: np.ndarray) -> np.ndarray:
    """The only output; each parameter of the graph is in the checkpoint, with its shape."""
    shapes = {name: array.shape for name, array in weights.items()}
    assert all(shapes[name] == value.shape for name, value in graph.parameters.items())
    (found,) = evaluate(graph, inputs, weights).values()
    return found


# ---------------------------------------------------------------------- T5


@pytest.mark.parametrize("length", [3, 150])
@pytest.mark.parametrize("masked", [False, True])
def test_t5(length: int, masked: bool) -> None:
    import torch

    module = filled(t5_module(TINY_T5))
    weights = weights_of(module, T5_TRANSFORMERS, T5, {"encoder.embed_tokens.weight"})
    ids = np.random.default_rng(1).integers(0, TINY_T5.vocab_size, (2, length), np.int32)
    mask = (np.arange(length) < np.array([[length], [length - 2]])).astype(np.float32)
    more = {"mask": mask} if masked else {}
    found = result(t5_graph(TINY_T5, 2, length, masked), weights, tokens=ids, **more)
    with torch.no_grad():
        expected = module(torch.tensor(ids.astype(np.int64)),
                          attention_mask=torch.tensor(mask) if masked else None)
    assert relative_error(found, expected.last_hidden_state.numpy()) <= ERROR_MAX


def test_position_buckets() -> None:
    import torch
    from transformers.models.t5.modeling_t5 import T5Attention

    places = torch.arange(300)
    for buckets, distance_max in ((32, 128), (16, 20)):
        expected = T5Attention._relative_position_bucket(
            places[None] - places[:, None], num_buckets=buckets, max_distance=distance_max)
        assert (position_buckets(300, buckets, distance_max) == expected.numpy()).all()


# ---------------------------------------------------------------------- Flux


FLUX = {
    "dev": TINY_FLUX,
    "schnell": replace(TINY_FLUX, guidance=False),
    "Fill": replace(TINY_FLUX, in_channels=24, out_channels=4),
    "one of each, three heads": replace(TINY_FLUX, hidden_size=72, heads=3, mlp_size=288,
                                        double_blocks=1, single_blocks=1, axes=(8, 8, 8)),
}


@pytest.mark.parametrize("name", FLUX)
def test_flux(name: str) -> None:
    import torch
    from diffusers import FluxPipeline

    config, height, width, length = FLUX[name], 6, 8, 5
    module = filled(flux_module(config))
    weights = weights_of(module, FLUX_DIFFUSERS, DENOISER)
    latent = normal(1, 2, config.in_channels, height, width)
    context, pooled = normal(2, 2, length, config.context_dim), normal(3, 2, config.pooled_dim)
    timesteps = np.array([1000, 250.5], np.float32)
    guidance = {"guidance": np.array([3.5, 1], np.float32)} if config.guidance else {}
    found = result(flux_graph(config, 2, height, width, length), weights, latent=latent,
                   timesteps=timesteps, context=context, pooled=pooled, **guidance)
    with torch.no_grad():
        tokens = module(
            packed(torch.tensor(latent)), torch.tensor(context), torch.tensor(pooled),
            torch.tensor(timesteps) / 1000, image_ids(height, width), torch.zeros(length, 3),
            torch.tensor(guidance["guidance"]) if guidance else None, return_dict=False)[0]
    expected = FluxPipeline._unpack_latents(tokens, 8 * height, 8 * width, 8).numpy()
    assert relative_error(found, expected) <= DENOISER_ERROR_MAX


# ---------------------------------------------------------------------- Chroma


@pytest.mark.parametrize("masked", [False, True])
def test_chroma(masked: bool) -> None:
    import torch
    from diffusers import FluxPipeline

    config, height, width, length = TINY_CHROMA, 6, 8, 5
    module = filled(chroma_module(config))
    weights = weights_of(module, CHROMA_DIFFUSERS, DENOISER)
    latent = normal(1, 2, config.in_channels, height, width)
    context = normal(2, 2, length, config.context_dim)
    timesteps = np.array([1000, 250.5], np.float32)
    seen = np.arange(length) < np.array([[5], [3]])
    modulation = result(chroma_modulation_graph(config, 2), weights, timesteps=timesteps)
    more = {"mask": seen.astype(np.float32)} if masked else {}
    found = result(chroma_graph(config, 2, height, width, length, masked=masked), weights,
                   latent=latent, context=context, modulation=modulation, **more)
    tokens = packed(torch.tensor(latent))
    everything = torch.cat([torch.tensor(seen), torch.ones(tokens.shape[:2], dtype=bool)], dim=1)
    with torch.no_grad():
        tokens = module(
            tokens, torch.tensor(context), torch.tensor(timesteps) / 1000,
            image_ids(height, width), torch.zeros(length, 3),
            attention_mask=everything if masked else None, return_dict=False)[0]
    expected = FluxPipeline._unpack_latents(tokens, 8 * height, 8 * width, 8).numpy()
    assert relative_error(found, expected) <= DENOISER_ERROR_MAX


# ---------------------------------------------------------------------- SD 3


MMDIT = {
    "SD 3 medium": TINY_MMDIT,
    "SD 3.5 medium": replace(TINY_MMDIT, qk_norm=True, dual_blocks=2),
    "SD 3.5 large": replace(TINY_MMDIT, qk_norm=True, blocks=2, hidden_size=48, heads=3),
}


@pytest.mark.parametrize("height, width", [(6, 10), (16, 2)])
@pytest.mark.parametrize("name", MMDIT)
def test_mmdit(name: str, height: int, width: int) -> None:
    import torch

    config, length = MMDIT[name], 5
    module = filled(mmdit_module(config))
    weights = weights_of(module, sd3_diffusers(config.blocks), DENOISER)
    latent = normal(1, 2, config.in_channels, height, width)
    context, pooled = normal(2, 2, length, config.context_dim), normal(3, 2, config.pooled_dim)
    timesteps = np.array([1000, 250.5], np.float32)
    tensors = [torch.tensor(array) for array in (latent, context, pooled, timesteps)]
    for skip in ((), (1,)):
        if 1 in skip and config.blocks == 2:
            continue
        keep = np.ones((2, config.blocks), np.float32)
        keep[:, list(skip)] = 0
        found = result(mmdit_graph(config, 2, height, width, length, gated=True), weights,
                       latent=latent, timesteps=timesteps, context=context, pooled=pooled,
                       keep=keep)
        with torch.no_grad():
            expected = module(*tensors, skip_layers=list(skip), return_dict=False)[0].numpy()
        assert relative_error(found, expected) <= DENOISER_ERROR_MAX


# ---------------------------------------------------------------------- FLUX.2


FLUX2 = {
    "klein": TINY_FLUX2,
    "dev, three heads": replace(TINY_FLUX2, hidden_size=96, heads=3, mlp_size=288, double_blocks=1,
                                single_blocks=1, guidance=True),
}


@pytest.mark.parametrize(("name", "referenced"), [
    *((name, ()) for name in FLUX2), ("klein", ((3, 5), (4, 2)))])
def test_flux2(name: str, referenced: tuple[tuple[int, int], ...]) -> None:
    """Also with other pictures as tokens behind those of the latent."""
    import torch
    from diffusers import Flux2Pipeline

    config, height, width, length = FLUX2[name], 3, 5, 7
    module = filled(flux2_module(config))
    weights = weights_of(module, FLUX2_DIFFUSERS, DENOISER)
    latent = normal(1, 2, config.in_channels, height, width)
    others = [normal(3 + k, 2, config.in_channels, *size) for k, size in enumerate(referenced)]
    context = normal(2, 2, length, config.context_dim)
    timesteps = np.array([1000, 250.5], np.float32)
    guidance = {"guidance": np.array([4, 1], np.float32)} if config.guidance else {}
    found = result(flux2_graph(config, 2, height, width, length, referenced=referenced), weights,
                   latent=latent, timesteps=timesteps, context=context, **guidance,
                   **{f"reference.{k}": each for k, each in enumerate(others)})
    image, *shown = (torch.tensor(each) for each in (latent, *others))
    ids = [Flux2Pipeline._prepare_latent_ids(image)[0]]
    if shown:
        ids.append(Flux2Pipeline._prepare_image_ids([each[:1] for each in shown])[0])
    with torch.no_grad():
        tokens = module(
            torch.cat([each.flatten(2) for each in (image, *shown)], dim=2).transpose(1, 2),
            torch.tensor(context), torch.tensor(timesteps) / 1000, torch.cat(ids),
            Flux2Pipeline._prepare_text_ids(torch.tensor(context))[0],
            torch.tensor(guidance["guidance"]) if guidance else None, return_dict=False)[0]
    expected = tokens[:, :height * width].transpose(1, 2).reshape(image.shape).numpy()
    assert relative_error(found, expected) <= DENOISER_ERROR_MAX


# ---------------------------------------------------------------------- Z-Image


Z_IMAGES = {
    "Z-Image": TINY_Z_IMAGE,
    "three heads of 16": replace(TINY_Z_IMAGE, hidden_size=48, heads=3, mlp_size=128, blocks=1,
                                 refiners=2, vector_size=48, axes=(4, 6, 6)),
}


@pytest.mark.parametrize("counts", [(7,), (1, 40), (64, 33, 70)])
def test_lumina2(counts: tuple[int, ...]) -> None:
    """Texts of a batch have lengths of their own, behind which nothing is seen."""
    import torch

    config, height, width, length = TINY_LUMINA2, 12, 16, max(counts)
    module = filled(lumina2_module(config))
    weights = weights_of(module, LUMINA2_DIFFUSERS, DENOISER)
    latent = normal(1, len(counts), config.in_channels, height, width)
    mask = (np.arange(length) < np.array(counts)[:, None]).astype(np.float32)
    context = normal(2, len(counts), length, config.context_dim)
    timesteps = np.linspace(1000, 250.5, len(counts)).astype(np.float32)
    found = result(z_image_graph(config, len(counts), height, width, length), weights,
                   latent=latent, timesteps=timesteps, context=context, mask=mask)
    with torch.no_grad():
        (expected,) = module(*map(torch.tensor, (latent, 1 - timesteps / 1000, context, mask > 0)),
                             return_dict=False)
    assert relative_error(found, -expected.numpy()) <= DENOISER_ERROR_MAX


@pytest.mark.parametrize("counts", [(7,), (7, 40), (64, 33, 70)])
@pytest.mark.parametrize("name", Z_IMAGES)
def test_z_image(name: str, counts: tuple[int, ...]) -> None:
    """Texts of a batch have lengths of their own; 48 tokens of the image are filled up."""
    import torch

    config, height, width, length = Z_IMAGES[name], 12, 16, max(counts)
    module = filled(z_image_module(config))
    weights = weights_of(module, Z_IMAGE_DIFFUSERS, DENOISER)
    latent = normal(1, len(counts), config.in_channels, height, width)
    mask = (np.arange(length) < np.array(counts)[:, None]).astype(np.float32)
    context = normal(2, len(counts), length, config.context_dim) * mask[:, :, None]
    timesteps = np.linspace(1000, 250.5, len(counts)).astype(np.float32)
    found = result(z_image_graph(config, len(counts), height, width, length), weights,
                   latent=latent, timesteps=timesteps, context=context, mask=mask)
    with torch.no_grad():
        rows = module([torch.tensor(row)[:, None] for row in latent],
                      torch.tensor(1 - timesteps / 1000),
                      [torch.tensor(row[:count]) for row, count in zip(context, counts)],
                      return_dict=False)[0]
    expected = -np.stack([row.numpy()[:, 0] for row in rows])
    assert relative_error(found, expected) <= DENOISER_ERROR_MAX


# ---------------------------------------------------------------------- Anima


@pytest.mark.parametrize("batch", [1, 2])
def test_anima(batch: int) -> None:
    import torch

    config, height, width = TINY_ANIMA, 8, 12
    module = filled(anima_module(config))
    weights = weights_of(module, ANIMA_DIFFUSERS, DENOISER)
    latent = normal(1, batch, config.in_channels, height, width)
    context = normal(2, batch, 9, config.text_dim)
    timesteps = np.linspace(1000, 250.5, batch).astype(np.float32)
    found = result(anima_graph(config, batch, height, width, 9), weights, latent=latent,
                   timesteps=timesteps, context=context)
    with torch.no_grad():
        expected = module(torch.tensor(latent)[:, :, None], torch.tensor(timesteps / 1000),
                          torch.tensor(context), padding_mask=torch.zeros(1, 1, 64, 96),
                          return_dict=False)[0].numpy()[:, :, 0]
    assert relative_error(found, expected) <= DENOISER_ERROR_MAX


@pytest.mark.parametrize("counts", [[(5, 6)], [(5, 3), (2, 6)], [(5, 6), (0, 1)]])
def test_the_text_of_anima(counts: list[tuple[int, int]]) -> None:
    """Texts of a batch have numbers of tokens of their own, in both vocabularies; an empty one has
    none in that of the language model."""
    import torch

    config = TINY_ANIMA
    module = filled(anima_text_module(config))
    weights = {f"{DENOISER}.llm_adapter.{name}": tensor.numpy()
               for name, tensor in module.state_dict().items()}
    length, tokens = (max(each) for each in zip(*counts))
    mask, tokens_mask = ((np.arange(most) < np.array([[each[i]] for each in counts]))
                         .astype(np.float32) for i, most in enumerate((length, tokens)))
    context = normal(1, len(counts), length, config.context_dim) * mask[:, :, None]
    ids = np.arange(len(counts) * tokens, dtype=np.int32).reshape(-1, tokens) * 7 % 64
    found = result(anima_text_graph(config, len(counts), length, tokens), weights, context=context,
                   mask=mask, tokens=ids, tokens_mask=tokens_mask)
    with torch.no_grad():
        expected = module(torch.tensor(context), torch.tensor(ids), torch.tensor(tokens_mask),
                          torch.tensor(mask)).numpy()
    assert found.shape == (len(counts), 512, config.text_dim)
    assert relative_error(found, expected) <= ERROR_MAX


# ---------------------------------------------------------------------- Krea 2


@pytest.mark.parametrize("counts", [[7], [7, 3]])
def test_krea2(counts: list[int]) -> None:
    """Both graphs, one behind the other; texts of a batch have lengths of their own."""
    import torch

    config, height, width, length, batch = TINY_KREA2, 8, 12, max(counts), len(counts)
    module = filled(krea2_module(config))
    weights = weights_of(module, KREA2_DIFFUSERS, DENOISER)
    weights = {name: value.reshape(-1) if name.endswith(".mod.lin") else value
               for name, value in weights.items()}
    latent = normal(1, batch, config.in_channels, height, width)
    context = normal(2, batch, length, config.context_dim)
    mask = (np.arange(length) < np.array(counts)[:, None]).astype(np.float32)
    timesteps = np.linspace(1000, 250.5, batch).astype(np.float32)
    read = result(krea2_text_graph(config, batch, length), weights, context=context, mask=mask)
    found = result(krea2_graph(config, batch, height, width, length), weights, latent=latent,
                   timesteps=timesteps, context=read, mask=mask)
    places = torch.zeros(length + 24, 3)
    places[length:, 1:] = torch.cartesian_prod(torch.arange(4), torch.arange(6))
    with torch.no_grad():
        expected = module(
            packed(torch.tensor(latent)),
            torch.tensor(context).reshape(batch, length, config.taps, -1),
            torch.tensor(timesteps / 1000), places, torch.tensor(mask).bool(),
            return_dict=False)[0]
    tokens = packed(torch.tensor(found)).numpy()
    assert relative_error(tokens, expected.numpy()) <= DENOISER_ERROR_MAX


# ---------------------------------------------------------------------- full size, no numbers


@pytest.mark.parametrize("config", [SD3_MEDIUM, SD35_MEDIUM, SD35_LARGE])
def test_full_size_mmdit(config: object) -> None:
    import torch

    with torch.device("meta"):
        module = mmdit_module(replace(config, positions=4))  # only sinusoids are slow
    graph = mmdit_graph(replace(config, positions=4), 1, 8, 8, 4)
    assert_same_shapes(module, sd3_diffusers(config.blocks), graph, prefix=DENOISER)


@pytest.mark.parametrize("config", [FLUX_DEV, FLUX_SCHNELL, replace(FLUX_DEV, in_channels=96)])
def test_full_size_flux(config: object) -> None:
    import torch

    with torch.device("meta"):
        module = flux_module(config)
    assert_same_shapes(module, FLUX_DIFFUSERS, flux_graph(config, 1, 8, 8, 4), prefix=DENOISER)


def test_full_size_chroma() -> None:
    import torch

    with torch.device("meta"):
        module = chroma_module(CHROMA)
    graphs = chroma_graph(CHROMA, 1, 8, 8, 4), chroma_modulation_graph(CHROMA)
    assert_same_shapes(module, CHROMA_DIFFUSERS, *graphs, prefix=DENOISER)


@pytest.mark.parametrize("config", [FLUX2_KLEIN_4B, FLUX2_KLEIN_9B, FLUX2_DEV])
def test_full_size_flux2(config: object) -> None:
    import torch

    with torch.device("meta"):
        module = flux2_module(config)
    assert_same_shapes(module, FLUX2_DIFFUSERS, flux2_graph(config, 1, 4, 4, 4), prefix=DENOISER)


def test_full_size_z_image() -> None:
    import torch

    with torch.device("meta"):
        module = z_image_module(Z_IMAGE)
    assert_same_shapes(module, Z_IMAGE_DIFFUSERS, z_image_graph(Z_IMAGE, 1, 8, 8, 4),
                       prefix=DENOISER)


def test_full_size_lumina2() -> None:
    import torch

    with torch.device("meta"):
        module = lumina2_module(LUMINA2)
    assert_same_shapes(module, LUMINA2_DIFFUSERS, z_image_graph(LUMINA2, 1, 8, 8, 4),
                       prefix=DENOISER)


def test_full_size_anima() -> None:
    import torch

    with torch.device("meta"):
        module, text = anima_module(ANIMA), anima_text_module(ANIMA)
    assert_same_shapes(module, ANIMA_DIFFUSERS, anima_graph(ANIMA, 1, 8, 8, 4), prefix=DENOISER)
    graph = anima_text_graph(ANIMA, 1, 1, 1)
    assert {f"{DENOISER}.llm_adapter.{name}": tuple(tensor.shape)
            for name, tensor in text.state_dict().items()} == {
                name: value.shape for name, value in graph.parameters.items()}


def test_full_size_krea2() -> None:
    import torch

    with torch.device("meta"):
        module = krea2_module(KREA2)
    table = {name: rule for name, rule in KREA2_DIFFUSERS.items() if not name.endswith("mod.lin")}
    stored = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    graphs = krea2_graph(KREA2, 1, 8, 8, 4), krea2_text_graph(KREA2, 1, 4)
    found, tables = expressions(stored, table)
    assert all(name.endswith("scale_shift_table") for name in tables)
    assert {f"{DENOISER}.{name}": shape_of(parts, stored.__getitem__)
            for name, parts in found.items()} == {
        name: value.shape for graph in graphs for name, value in graph.parameters.items()
        if not name.endswith(".mod.lin")}


def test_full_size_t5() -> None:
    import torch

    with torch.device("meta"):
        module = t5_module(T5_XXL)
    assert_same_shapes(module, T5_TRANSFORMERS, t5_graph(T5_XXL, 1, 4), prefix=T5)


def assert_same_shapes(module: object, table: Mapping, *graphs: Graph, prefix: str) -> None:
    """The parameters of the graphs are those of the module, by the table."""
    stored = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found, _ = expressions(stored, table)
    shapes = {f"{prefix}.{name}": shape_of(parts, stored.__getitem__)
              for name, parts in found.items()}
    assert shapes == {name: value.shape for graph in graphs
                      for name, value in graph.parameters.items()}
