"""Names and shapes of all tensors that a configuration needs: the architecture as a table.

The names are those of the original latent-diffusion files (CompVis/stable-diffusion), which are
also the internal parameter names of Smalti's models. Convolution weights are (out, in, kh, kw),
linear weights (out, in).
"""

from __future__ import annotations

from collections.abc import Iterator

from smalti.models.config import ClipTextConfig, Sd1Config, UNetConfig, VaeConfig

UNET = "model.diffusion_model."
VAE = "first_stage_model."
TEXT = "cond_stage_model.transformer.text_model."

Shape = tuple[int, ...]
Entry = tuple[str, Shape]


def expected_tensors(config: Sd1Config) -> dict[str, Shape]:
    """Name -> shape of every tensor of an SD 1.x model.

    >>> from smalti.models.config import SD15
    >>> table = expected_tensors(SD15)
    >>> len(table), table["model.diffusion_model.input_blocks.0.0.weight"]
    (1130, (320, 4, 3, 3))
    """
    table: dict[str, Shape] = {}
    table.update(_unet(config.unet))
    table.update(_vae(config.vae))
    table.update(_text(config.text))
    return table


def _norm(name: str, width: int) -> Iterator[Entry]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Iterator[Entry]:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _conv(name: str, inputs: int, outputs: int, kernel: int) -> Iterator[Entry]:
    yield f"{name}.weight", (outputs, inputs, kernel, kernel)
    yield f"{name}.bias", (outputs,)


def _unet(config: UNetConfig) -> Iterator[Entry]:
    widths, blocks, time = config.block_channels, config.res_blocks, config.time_dim
    yield from _linear(f"{UNET}time_embed.0", widths[0], time)
    yield from _linear(f"{UNET}time_embed.2", time, time)
    yield from _conv(f"{UNET}input_blocks.0.0", config.in_channels, widths[0], 3)
    last = len(widths) - 1
    channels, index, skips = widths[0], 1, [widths[0]]
    for level, width in enumerate(widths):
        for _ in range(blocks):
            name = f"{UNET}input_blocks.{index}"
            yield from _unet_block(name, config, channels, width, level)
            channels, index = width, index + 1
            skips.append(channels)
        if level < last:
            yield from _conv(f"{UNET}input_blocks.{index}.0.op", channels, channels, 3)
            skips.append(channels)
            index += 1
    yield from _unet_residual(f"{UNET}middle_block.0", channels, channels, time)
    yield from _transformer(f"{UNET}middle_block.1", config, channels, config.middle_depth)
    yield from _unet_residual(f"{UNET}middle_block.2", channels, channels, time)
    index = 0
    for level, width in reversed(list(enumerate(widths))):
        for block in range(blocks + 1):
            name = f"{UNET}output_blocks.{index}"
            yield from _unet_block(name, config, channels + skips.pop(), width, level)
            channels, index = width, index + 1
            if level and block == blocks:
                place = 2 if config.attention[level] else 1
                yield from _conv(f"{name}.{place}.conv", channels, channels, 3)
    yield from _norm(f"{UNET}out.0", channels)
    yield from _conv(f"{UNET}out.2", channels, config.out_channels, 3)


def _unet_block(
    name: str, config: UNetConfig, inputs: int, outputs: int, level: int
) -> Iterator[Entry]:
    yield from _unet_residual(f"{name}.0", inputs, outputs, config.time_dim)
    if config.attention[level]:
        yield from _transformer(f"{name}.1", config, outputs, config.transformer_depth[level])


def _unet_residual(name: str, inputs: int, outputs: int, time: int) -> Iterator[Entry]:
    yield from _norm(f"{name}.in_layers.0", inputs)
    yield from _conv(f"{name}.in_layers.2", inputs, outputs, 3)
    yield from _linear(f"{name}.emb_layers.1", time, outputs)
    yield from _norm(f"{name}.out_layers.0", outputs)
    yield from _conv(f"{name}.out_layers.3", outputs, outputs, 3)
    if inputs != outputs:
        yield from _conv(f"{name}.skip_connection", inputs, outputs, 1)


def _transformer(name: str, config: UNetConfig, width: int, depth: int) -> Iterator[Entry]:
    """Spatial transformer: self-attention, cross-attention on the prompt, GEGLU of four widths."""
    yield from _norm(f"{name}.norm", width)
    for projection in ("proj_in", "proj_out"):
        if config.linear_projection:
            yield from _linear(f"{name}.{projection}", width, width)
        else:
            yield from _conv(f"{name}.{projection}", width, width, 1)
    for index in range(depth):
        block = f"{name}.transformer_blocks.{index}"
        for attention, context in (("attn1", width), ("attn2", config.context_dim)):
            yield from _linear(f"{block}.{attention}.to_q", width, width, bias=False)
            yield from _linear(f"{block}.{attention}.to_k", context, width, bias=False)
            yield from _linear(f"{block}.{attention}.to_v", context, width, bias=False)
            yield from _linear(f"{block}.{attention}.to_out.0", width, width)
        yield from _linear(f"{block}.ff.net.0.proj", width, 8 * width)
        yield from _linear(f"{block}.ff.net.2", 4 * width, width)
        for norm in ("norm1", "norm2", "norm3"):
            yield from _norm(f"{block}.{norm}", width)


def _vae(config: VaeConfig) -> Iterator[Entry]:
    widths, latent = config.block_channels, config.z_channels
    yield from _vae_encoder(config)
    yield from _conv(f"{VAE}quant_conv", 2 * latent, 2 * latent, 1)
    yield from _conv(f"{VAE}post_quant_conv", latent, latent, 1)
    decoder = f"{VAE}decoder"
    channels = widths[-1]
    yield from _conv(f"{decoder}.conv_in", latent, channels, 3)
    yield from _vae_middle(decoder, channels)
    for level, width in reversed(list(enumerate(widths))):
        for block in range(config.res_blocks + 1):
            yield from _vae_residual(f"{decoder}.up.{level}.block.{block}", channels, width)
            channels = width
        if level:
            yield from _conv(f"{decoder}.up.{level}.upsample.conv", channels, channels, 3)
    yield from _norm(f"{decoder}.norm_out", channels)
    yield from _conv(f"{decoder}.conv_out", channels, config.image_channels, 3)


def _vae_encoder(config: VaeConfig) -> Iterator[Entry]:
    encoder, channels = f"{VAE}encoder", config.channels
    yield from _conv(f"{encoder}.conv_in", config.image_channels, channels, 3)
    for level, width in enumerate(config.block_channels):
        for block in range(config.res_blocks):
            yield from _vae_residual(f"{encoder}.down.{level}.block.{block}", channels, width)
            channels = width
        if level < len(config.block_channels) - 1:
            yield from _conv(f"{encoder}.down.{level}.downsample.conv", channels, channels, 3)
    yield from _vae_middle(encoder, channels)
    yield from _norm(f"{encoder}.norm_out", channels)
    yield from _conv(f"{encoder}.conv_out", channels, 2 * config.z_channels, 3)


def _vae_middle(name: str, width: int) -> Iterator[Entry]:
    yield from _vae_residual(f"{name}.mid.block_1", width, width)
    yield from _norm(f"{name}.mid.attn_1.norm", width)
    for projection in ("q", "k", "v", "proj_out"):
        yield from _conv(f"{name}.mid.attn_1.{projection}", width, width, 1)
    yield from _vae_residual(f"{name}.mid.block_2", width, width)


def _vae_residual(name: str, inputs: int, outputs: int) -> Iterator[Entry]:
    yield from _norm(f"{name}.norm1", inputs)
    yield from _conv(f"{name}.conv1", inputs, outputs, 3)
    yield from _norm(f"{name}.norm2", outputs)
    yield from _conv(f"{name}.conv2", outputs, outputs, 3)
    if inputs != outputs:
        yield from _conv(f"{name}.nin_shortcut", inputs, outputs, 1)


def _text(config: ClipTextConfig) -> Iterator[Entry]:
    width = config.hidden_size
    yield f"{TEXT}embeddings.token_embedding.weight", (config.vocab_size, width)
    yield f"{TEXT}embeddings.position_embedding.weight", (config.positions, width)
    for layer in range(config.layers):
        name = f"{TEXT}encoder.layers.{layer}"
        yield from _norm(f"{name}.layer_norm1", width)
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _linear(f"{name}.self_attn.{projection}", width, width)
        yield from _norm(f"{name}.layer_norm2", width)
        yield from _linear(f"{name}.mlp.fc1", width, config.intermediate_size)
        yield from _linear(f"{name}.mlp.fc2", config.intermediate_size, width)
    yield from _norm(f"{TEXT}final_layer_norm", width)
