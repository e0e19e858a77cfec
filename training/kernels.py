"""Layers that train faster on processor cores than PyTorch's: 3x3 convolutions by Winograd's
method, 1x1 ones as matrix products, group norm and SiLU in one go, gates, attention.

`quicken` puts them in the place of a UNet's layers, `quicken_autoencoder` of an autoencoder's,
`quicken_convolutions` the first ones into any model. They have the same parameters under the same
names; what they compute differs by rounding. They compute in float32: a model that otherwise
computes in bfloat16 (autocast) keeps PyTorch's 3x3 convolutions, which are faster so.
`kernels.cpp` is compiled when it is first needed.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

SOURCE = Path(__file__).with_name("kernels.cpp")
LINE = 16
"""Channels that the kernels take at a time."""
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math",
         "-ffinite-math-only", "-fno-signed-zeros", "-fassociative-math", "-ffp-contract=fast")


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None on a computer without a C++ compiler."""
    compiler = next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "kernels.so"
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(path)], check=True)
        return ctypes.CDLL(str(path))


def call(name: str, *values: Tensor | int | float) -> None:
    """Call a kernel: tensors by their addresses."""
    given = [ctypes.c_void_p(value.data_ptr()) if isinstance(value, Tensor)
             else ctypes.c_float(value) if isinstance(value, float) else ctypes.c_long(value)
             for value in values]
    getattr(library(), f"smalti_{name}")(*given)


def pixels_of(image: Tensor) -> Tensor:
    """An image [n, c, h, w] as [n, h, w, c], contiguous."""
    return image.permute(0, 2, 3, 1).contiguous()


class _Convolution(torch.autograd.Function):
    """3x3, stride 1, a margin of one pixel; weight [3, 3, before, after]."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, out: int) -> Tensor:
        n, h, w, before = x.shape
        after, planes, tiles = weight.shape[-1], (out + 2) ** 2, n * (h // out) * (w // out)
        v, u = x.new_empty(planes, tiles, before), x.new_empty(planes, before, after)
        call("tiles_in", out, x, v, n, h, w, before)
        call("filters", out, weight, u, before * after)
        y = x.new_empty(n, h, w, after)
        call("tiles_out", out, torch.bmm(v, u), bias, y, n, h, w, after)
        ctx.save_for_backward(v, u)
        ctx.out, ctx.shape = out, x.shape
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        (v, u), out, (n, h, w, before) = ctx.saved_tensors, ctx.out, ctx.shape
        dy, after = dy.contiguous(), u.shape[-1]
        dm, dbias = v.new_empty(*v.shape[:2], after), v.new_empty(after)
        call("tiles_out_back", out, dy, dm, dbias, n, h, w, after)
        dx, dweight = v.new_empty(ctx.shape), v.new_empty(3, 3, before, after)
        call("filters_back", out, torch.bmm(v.transpose(1, 2), dm), dweight, before * after)
        call("tiles_in_back", out, torch.bmm(dm, u.transpose(1, 2)), dx, n, h, w, before)
        return dx, dweight, dbias, None


class Convolution(nn.Module):
    """A 3x3 convolution; its weight lies in memory as [3, 3, before, after]."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.weight.data = self.weight.data.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)

    @staticmethod
    def takes(layer: nn.Module) -> bool:
        """Whether a layer is one that this does."""
        return (type(layer) is nn.Conv2d and layer.groups == 1
                and layer.kernel_size == (3, 3) and layer.stride == (1, 1)
                and layer.padding == (1, 1) and layer.dilation == (1, 1)
                and layer.in_channels % LINE == layer.out_channels % LINE == 0)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        if height % 2 or width % 2:
            return nn.functional.conv2d(x, self.weight, self.bias, padding=1)
        large = height % 4 == width % 4 == 0 and height * width > 16  # few tiles: filters cost more
        weight, out = self.weight.permute(2, 3, 1, 0).contiguous(), 4 if large else 2
        bias = weight.new_zeros(weight.shape[-1]) if self.bias is None else self.bias
        return _Convolution.apply(pixels_of(x), weight, bias, out).permute(0, 3, 1, 2)


class Point(nn.Module):
    """A 1x1 convolution, as a product of matrices."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    @staticmethod
    def takes(layer: nn.Module) -> bool:
        """Whether a layer is one that this does."""
        return (type(layer) is nn.Conv2d and layer.kernel_size == layer.stride == (1, 1)
                and layer.padding == (0, 0) and layer.groups == 1)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight[:, :, 0, 0]
        return nn.functional.linear(pixels_of(x), weight, self.bias).permute(0, 3, 1, 2)


class _Norm(torch.autograd.Function):
    """Group norm of [n, h, w, c], and SiLU."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float,
                silu: bool) -> Tensor:
        n, pixels, c = len(x), x.shape[1] * x.shape[2], x.shape[3]
        ctx.sizes = n, pixels, c, groups, epsilon, int(silu)
        y, mean, inverse = torch.empty_like(x), x.new_empty(n, groups), x.new_empty(n, groups)
        call("norm", x, weight, bias, y, mean, inverse, *ctx.sizes)
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, inverse = ctx.saved_tensors
        dx, dweight, dbias = (torch.empty_like(each) for each in (x, weight, bias))
        call("norm_back", x, weight, bias, mean, inverse, dy.contiguous(), dx, dweight, dbias,
             *ctx.sizes)
        return dx, dweight, dbias, None, None, None


class Norm(nn.Module):
    """A group norm, with SiLU after it where `silu` says so."""

    def __init__(self, layer: nn.GroupNorm, silu: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.silu = layer.weight, layer.bias, silu
        self.groups, self.epsilon = layer.num_groups, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        return _Norm.apply(pixels_of(x.float()), self.weight, self.bias, self.groups, self.epsilon,
                           self.silu).permute(0, 3, 1, 2)


class _Gated(torch.autograd.Function):
    """The first half of the last axis times the GELU of the second."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        width = x.shape[-1] // 2
        y = x.new_empty(*x.shape[:-1], width)
        call("gated", x, y, y.numel() // width, width)
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        dx, width = torch.empty_like(x), dy.shape[-1]
        call("gated_back", x, dy.contiguous(), dx, dy.numel() // width, width)
        return dx


class Gated(nn.Module):
    """The linear layer and gate of a transformer's block."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.proj = layer.proj

    def forward(self, x: Tensor) -> Tensor:
        return _Gated.apply(self.proj(x).float().contiguous())


class _Attention(torch.autograd.Function):
    """Attention with rows of q, [n, queries, heads * d], to those of k and v."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
        ctx.sizes = len(q), heads, q.shape[1], k.shape[1]
        ctx.save_for_backward(q, k, v)
        o = torch.empty_like(q)
        call("attend", q.shape[2] // heads, q, k, v, o, *ctx.sizes)
        return o

    @staticmethod
    def backward(ctx, given: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        found = [torch.empty_like(each) for each in (q, k, v)]
        call("attend_back", q.shape[2] // ctx.sizes[1], q, k, v, given.contiguous(), *found,
             *ctx.sizes)
        return *found, None


class Attention:
    """What a UNet's layers of attention are done by."""

    HEAD_SIZES = (8, 16, 24, 32)

    def __call__(self, layer: nn.Module, x: Tensor, encoder_hidden_states: Tensor | None = None,
                 attention_mask: Tensor | None = None, **_: object) -> Tensor:
        if attention_mask is not None:
            raise ValueError("attention with a mask is not trained")
        words = x if encoder_hidden_states is None else encoder_hidden_states
        q, k, v = (of(given).float()
                   for of, given in ((layer.to_q, x), (layer.to_k, words), (layer.to_v, words)))
        return layer.to_out[0](_Attention.apply(q, k, v, layer.heads))


class LinearOfSilu(nn.Module):
    """A linear layer of what SiLU makes of its input."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(nn.functional.silu(x), self.weight, self.bias)


def quicken_convolutions(model: nn.Module) -> bool:
    """Put `Convolution` in the place of every layer of a model that it takes; False where there is
    no compiler."""
    if library() is None:
        return False
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if Convolution.takes(child):
                setattr(module, name, Convolution(child))
    return True


def quicken(unet: nn.Module, convolutions: bool = True) -> bool:
    """Put these layers into a UNet of diffusers, with or without the 3x3 convolutions; False where
    there is no compiler for them."""
    from diffusers.models.activations import GEGLU
    from diffusers.models.attention_processor import Attention as Layer

    if library() is None:
        return False
    _quicken_blocks(unet, [unet])
    if convolutions:
        quicken_convolutions(unet)
    for module in list(unet.modules()):
        if isinstance(module, Layer) and module.inner_dim // module.heads in Attention.HEAD_SIZES:
            module.set_processor(Attention())
        for name, child in list(module.named_children()):
            if isinstance(child, nn.GroupNorm):
                setattr(module, name, Norm(child, silu=False))
            elif isinstance(child, GEGLU):
                setattr(module, name, Gated(child))
            elif Point.takes(child):
                setattr(module, name, Point(child))
    return True


def quicken_autoencoder(vae: nn.Module, convolutions: bool = True) -> bool:
    """Put these layers into an autoencoder of diffusers, with or without the 3x3 convolutions;
    False where there is no compiler for them. The attention in its middle stays PyTorch's: it has
    one head as wide as the layer."""
    if library() is None:
        return False
    _quicken_blocks(vae, [vae.encoder, vae.decoder])
    if convolutions:
        quicken_convolutions(vae)
    for module in list(vae.modules()):
        for name, child in list(module.named_children()):
            if Point.takes(child):
                setattr(module, name, Point(child))
    return True


def _quicken_blocks(model: nn.Module, ends: list[nn.Module]) -> None:
    """Put norms with SiLU into a model's residual blocks, and in front of the last layer of the
    parts `ends`."""
    from diffusers.models.resnet import ResnetBlock2D

    for block in [each for each in model.modules() if isinstance(each, ResnetBlock2D)]:
        block.norm1, block.norm2 = Norm(block.norm1, silu=True), Norm(block.norm2, silu=True)
        if block.time_emb_proj is not None:
            block.time_emb_proj = LinearOfSilu(block.time_emb_proj)
        block.nonlinearity = nn.Identity()
    for end in ends:
        end.conv_norm_out, end.conv_act = Norm(end.conv_norm_out, silu=True), nn.Identity()
