"""The layers that train faster on processor cores compute what PyTorch's do."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.peers

CLOSE = 3e-5
"""The largest difference over the largest value: Winograd's method in float32 has 1e-5."""


def results(layer: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """What a layer gives, and the gradients of its input and parameters for a given one."""
    import torch

    x = x.clone().requires_grad_()
    y = layer(x)
    given = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(y)
    y.backward(given)
    return [y.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())]


def assert_close(fast: list[torch.Tensor], exact: list[torch.Tensor]) -> None:
    for found, wanted in zip(fast, exact, strict=True):
        assert found.shape == wanted.shape
        assert (found - wanted).abs().max() <= CLOSE * wanted.abs().max()


@pytest.mark.parametrize(("before", "after", "height", "width"), [
    (16, 32, 8, 12), (48, 16, 4, 4), (32, 32, 6, 2), (16, 16, 5, 4)])
def test_convolutions_are_those_of_the_definition(before: int, after: int, height: int,
                                                  width: int) -> None:
    import torch
    from kernels import Convolution, Point

    x = torch.randn(3, before, height, width, generator=torch.Generator().manual_seed(1))
    for side, kind, bias in ((3, Convolution, True), (3, Convolution, False), (1, Point, True)):
        torch.manual_seed(2)
        plain = torch.nn.Conv2d(before, after, side, padding=side // 2, bias=bias)
        assert kind.takes(plain)
        assert_close(results(kind(copy.deepcopy(plain)), x),
                     results(copy.deepcopy(plain).double(), x.double()))


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize(("channels", "groups"), [(32, 32), (48, 8), (10, 1)])
def test_group_norms_are_those_of_the_definition(channels: int, groups: int, silu: bool) -> None:
    import torch
    from kernels import Norm

    torch.manual_seed(2)
    plain = torch.nn.GroupNorm(groups, channels)
    torch.nn.init.normal_(plain.weight)
    torch.nn.init.normal_(plain.bias)
    x = 2 * torch.randn(3, channels, 5, 4) + 1
    after = torch.nn.SiLU() if silu else torch.nn.Identity()
    assert_close(results(Norm(copy.deepcopy(plain), silu), x),
                 results(torch.nn.Sequential(plain, after).double(), x.double()))


def test_gates_are_those_of_the_definition() -> None:
    import torch
    from diffusers.models.activations import GEGLU
    from kernels import Gated

    torch.manual_seed(2)
    plain, x = GEGLU(16, 24), 3 * torch.randn(2, 5, 16)
    assert_close(results(Gated(copy.deepcopy(plain)), x),
                 results(copy.deepcopy(plain).double(), x.double()))


@pytest.mark.parametrize(("queries", "words", "size"), [(7, 77, 16), (16, 16, 24), (1, 1, 8)])
def test_attention_is_that_of_the_definition(queries: int, words: int, size: int) -> None:
    import torch
    from diffusers.models.attention_processor import Attention as Layer
    from kernels import Attention

    torch.manual_seed(2)
    plain = Layer(32, 24, heads=2, dim_head=size)
    context = 2 * torch.randn(3, words, 24)
    fast = copy.deepcopy(plain)
    fast.set_processor(Attention())

    class Called(torch.nn.Module):
        def __init__(self, layer: Layer) -> None:
            super().__init__()
            self.layer, self.words = layer, torch.nn.Parameter(context.clone())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, encoder_hidden_states=self.words)

    x = 2 * torch.randn(3, queries, 32)
    exact, found = results(Called(plain).double(), x.double()), results(Called(fast), x)
    largest = max(float(each.abs().max()) for each in exact)
    assert_close(found[:1], exact[:1])
    assert all((a - b).abs().max() <= CLOSE * largest for a, b in zip(found, exact, strict=True))


def test_a_denoiser_keeps_its_names_and_says_the_same() -> None:
    import torch
    from kernels import Convolution, Gated, Norm, Point, quicken
    from models import make_unet
    from presets import PRESETS

    torch.manual_seed(2)
    preset = PRESETS["smoke"]
    plain = make_unet(preset)
    fast = copy.deepcopy(plain)
    assert quicken(fast)
    assert {type(layer) for layer in fast.modules()} >= {Convolution, Gated, Norm, Point}
    assert [name for name, _ in fast.named_parameters()] == [
        name for name, _ in plain.named_parameters()]
    x, words = torch.randn(2, 4, 8, 8), torch.randn(2, 77, preset["text"]["width"])

    def called(unet: torch.nn.Module) -> torch.nn.Module:
        class Called(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.unet = unet

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                given = words.to(x.dtype)
                return self.unet(x, torch.tensor([10, 700]), encoder_hidden_states=given).sample

        return Called()

    exact, found = results(called(plain.double()), x.double()), results(called(fast), x)
    largest = max(float(each.abs().max()) for each in exact[2:])  # of all gradients
    assert_close(found[:1], exact[:1])
    assert all((a - b).abs().max() < 10 * CLOSE * largest
               for a, b in zip(found[2:], exact[2:], strict=True))


def test_a_denoiser_in_bfloat16_keeps_its_convolutions_and_says_nearly_the_same() -> None:
    import torch
    from kernels import Convolution, Gated, Norm, Point, quicken
    from models import make_unet
    from presets import PRESETS

    torch.manual_seed(3)
    preset = PRESETS["smoke"]
    plain = make_unet(preset).eval()
    fast = copy.deepcopy(plain)
    assert quicken(fast, convolutions=False)
    kinds = {type(layer) for layer in fast.modules()}
    assert kinds >= {Gated, Norm, Point} and Convolution not in kinds
    x, words = torch.randn(2, 4, 8, 8), torch.randn(2, 77, preset["text"]["width"])
    exact = plain(x, torch.tensor([10, 700]), encoder_hidden_states=words).sample
    with torch.autocast("cpu", torch.bfloat16):
        found = fast(x, torch.tensor([10, 700]), encoder_hidden_states=words).sample
    assert found.dtype == torch.bfloat16
    assert 0 < (found.float() - exact).abs().max() < 0.05 * exact.abs().max()
    found.float().square().mean().backward()
    exact.square().mean().backward()
    assert all(each.grad.dtype == torch.float32 for each in fast.parameters())
    norms = [torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
             for model in (fast, plain)]
    assert torch.allclose(*norms, rtol=0.1)


def test_moments_of_a_state_are_read_in_the_order_of_their_parameters() -> None:
    import torch
    from models import reorder

    start = torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(5))

    def stepped(weight: torch.Tensor, state: dict | None = None) -> torch.optim.AdamW:
        optimiser = torch.optim.AdamW([weight], 0.1, fused=True)
        if state:
            optimiser.load_state_dict(copy.deepcopy(state))
            reorder(optimiser)
        weight.grad = torch.empty_like(weight).copy_(start.square())
        optimiser.step()
        return optimiser

    first = start.clone().requires_grad_()
    state = stepped(first).state_dict()
    other = first.detach().permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1).requires_grad_()
    assert other.stride() != first.stride()
    stepped(other, state)
    stepped(first, state)
    assert torch.allclose(first, other, rtol=1e-6)


def test_the_mean_of_every_few_steps_is_that_of_a_parameter_that_stays() -> None:
    import torch
    from models import RunningMean

    layer = torch.nn.Linear(1, 1, bias=False)
    mean = RunningMean([layer], 0.9)
    layer.weight.data.fill_(float(mean.values[0]) + 1.0)
    before = mean.values[0].clone()
    for _ in range(mean.EACH):
        mean.step()
    decay = min(0.9, (1 + mean.EACH) / (10 + mean.EACH)) ** mean.EACH
    assert torch.allclose(mean.values[0] - before, torch.tensor(1 - decay))


def test_gradients_are_made_smaller_only_where_they_are_too_large() -> None:
    import torch
    from stage_denoiser import clip

    for size in (0.5, 30.0):
        gradients = [torch.tensor([3.0, 0.0]) * size, torch.tensor([[4.0]]) * size]
        clip(gradients, 5.0)
        wanted = min(1.0, size)
        assert torch.allclose(gradients[0], torch.tensor([3.0, 0.0]) * wanted)
        assert torch.allclose(gradients[1], torch.tensor([[4.0]]) * wanted)


def test_an_autoencoder_keeps_its_names_and_gives_the_same() -> None:
    import torch
    from kernels import Convolution, Norm, Point, quicken_autoencoder
    from models import make_vae
    from presets import PRESETS

    torch.manual_seed(4)
    plain = make_vae(PRESETS["smoke"]).eval()
    fast = copy.deepcopy(plain)
    assert quicken_autoencoder(fast)
    assert {type(layer) for layer in fast.modules()} >= {Convolution, Norm, Point}
    assert [name for name, _ in fast.named_parameters()] == [
        name for name, _ in plain.named_parameters()]
    image = torch.rand(2, 3, 32, 32)

    class There(torch.nn.Module):
        """There and back, without noise in between."""

        def __init__(self, vae: torch.nn.Module) -> None:
            super().__init__()
            self.vae = vae

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.vae.decode(self.vae.encode(x).latent_dist.mean).sample

    exact, found = results(There(plain.double()), image.double()), results(There(fast), image)
    largest = max(float(each.abs().max()) for each in exact[2:])  # of all gradients
    assert_close(found[:1], exact[:1])
    assert all((a - b).abs().max() < 10 * CLOSE * largest
               for a, b in zip(found[2:], exact[2:], strict=True))
