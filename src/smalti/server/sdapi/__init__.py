"""The API of AUTOMATIC1111's and Forge's web UI, and the part of it that Easy Diffusion speaks.

What its clients send and read is known from AUTOMATIC1111/stable-diffusion-webui,
lllyasviel/stable-diffusion-webui-forge (`modules/api`, `extensions-builtin/sd_forge_controlnet`),
easydiffusion/sdkit (`src/server.cpp`) and easydiffusion/easydiffusion (`backends/webui_common.py`);
the client `webuiapi` drives it in tests.
"""
