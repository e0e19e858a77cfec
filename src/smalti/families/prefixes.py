"""What the names of parameters begin with inside, of each part of a model."""

from __future__ import annotations

UNET = "model.diffusion_model."
"""Of the denoiser, whichever kind it is."""

VAE = "first_stage_model."
"""Of the autoencoder."""

TEXT = "cond_stage_model.transformer.text_model."
"""Of the text encoder CLIP-L."""
