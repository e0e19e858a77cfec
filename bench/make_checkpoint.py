"""Write a full-size Stable Diffusion 1.5 checkpoint with seeded random weights.

    python bench/make_checkpoint.py sd15.safetensors

Names, shapes and size (2.1 GB in f16) are those of the published file, the numbers are not: they
keep signals at a size of about one, so that errors are seen and nothing overflows. For measuring
time, memory and agreement with other libraries this is as good as the published weights.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from smalti.benchmark.weights import seeded
from smalti.checkpoint.expected import expected_tensors
from smalti.models import SD15


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    table = expected_tensors(SD15)
    save_file({name: seeded(name, shape, given.seed).astype(np.float16)
               for name, shape in table.items()}, given.output)
    count = sum(math.prod(shape) for shape in table.values())
    print(f"{given.output}: {len(table)} tensors, {count / 1e6:.0f} million numbers, seed "
          f"{given.seed}")


if __name__ == "__main__":
    main()
