"""Adds the sampler of docs/pipeline.md, as it is told there, and makes a picture with it.

    python tests/material/added_sampler.py

It is a program of its own, because the names of samplers are gathered once, as they are imported.
"""

from __future__ import annotations

import math

import numpy as np
from worked_example import added, pieces

WHERE = "pipeline.md", "### Adding a sampler"


def error(sampler, steps: int) -> float:
    """How far off a sampler is for pictures that are normally distributed: there the denoised one
    is x / (1 + sigma^2), and x goes as sqrt(1 + sigma^2)."""
    from smalti.diffusion.samplers import walk

    sigmas, x = np.geomspace(10, 0.1, steps + 1), np.full((1, 1), math.sqrt(101), np.float32)

    class Normal(walk.Denoise):
        def __call__(self, x, sigma):
            return x / np.float32(1 + sigma**2)

    *_, last = sampler.function(Normal.__new__(Normal), x, sigmas, None, None)
    return abs(float(last.x[0, 0]) - math.sqrt(1.01))


def main() -> None:
    """Add the sampler, compare it with Euler's, make a picture."""
    added(*WHERE)
    import smalti
    from smalti.diffusion.samplers import find_sampler

    found = find_sampler("Ralston")
    assert found.name == "ralston"
    assert error(found, 32) < error(find_sampler("euler"), 64) / 4
    result = smalti.Pipeline.load(threads=1)("a red apple", steps=2, sampler="ralston")
    assert "Sampler: Ralston" in result.texts[0], result.texts[0]
    print(len(pieces(*WHERE)), "file")


if __name__ == "__main__":
    main()
