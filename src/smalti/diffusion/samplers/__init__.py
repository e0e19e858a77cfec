"""Samplers: how latents walk from noise to a picture.

One module a family of methods; `walk` has what they share and the signature. Adding a sampler is
one function and one record below it.
"""

from __future__ import annotations

from smalti.diffusion.noise import NOISES
from smalti.diffusion.samplers import (
    consistency,
    dpm_solver,
    euler,
    multistep,
    runge_kutta,
    stochastic,
    unipc,
)
from smalti.diffusion.samplers.walk import Sampler, SamplerStep, initial_latents
from smalti.diffusion.spelling import Spelled

__all__ = ["SAMPLERS", "Sampler", "SamplerStep", "find_sampler", "initial_latents", "split_label"]

SAMPLERS = Spelled(
    "sampler",
    (
        *euler.SAMPLERS,
        *runge_kutta.SAMPLERS,
        *dpm_solver.SAMPLERS,
        *stochastic.SAMPLERS,
        *multistep.SAMPLERS,
        *unipc.SAMPLERS,
        *consistency.SAMPLERS,
    ),
)


def find_sampler(name: str) -> Sampler:
    """The sampler of a name, in the spelling of A1111, ComfyUI, k-diffusion or
    stable-diffusion.cpp.

    Raises `InputError` that lists the known names.

    >>> find_sampler("Euler a").name, find_sampler("sample_dpmpp_2m").name
    ('euler_a', 'dpm++_2m')
    """
    return SAMPLERS.find(name)


def split_label(label: str) -> tuple[str, str | None]:
    """Sampler and noise schedule of a label in which A1111 once had both; else the label and None.

    >>> split_label("DPM++ 2M Karras"), split_label("Euler a")
    (('DPM++ 2M', 'Karras'), ('Euler a', None))
    """
    sampler, _, schedule = label.strip().rpartition(" ")
    if label not in SAMPLERS and sampler in SAMPLERS and schedule in NOISES:
        return sampler, schedule
    return label, None
