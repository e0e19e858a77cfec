"""From a prompt to latents: tokenizer, noise, samplers, guidance, and the pipeline of them all."""
