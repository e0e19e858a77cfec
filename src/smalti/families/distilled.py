"""Models that were distilled to few steps: words in their names, and what their authors recommend.

The tensors of such models tell nothing of it. A record has a table of its own where its models
differ from these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

Recommended = Mapping[str, Mapping[str, float | str]]
"""Word in the name of a model -> values of `Hints` that hold where the file states none."""

DISTILLED: Recommended = {
    "turbo": {"steps": 4, "guidance": 1.0, "sampler": "euler_a", "noise": "trailing"},
    "lightning": {"steps": 4, "guidance": 1.0, "sampler": "euler", "noise": "sgm_uniform"},
    "hyper": {"steps": 8, "guidance": 1.0, "sampler": "euler", "noise": "trailing"},
    "lcm": {"steps": 6, "guidance": 1.5, "sampler": "lcm", "noise": "lcm"},
}
"""Of Stable Diffusion and SDXL: ADD (Sauer et al. 2023), SDXL-Lightning (Lin et al. 2024), Hyper-SD
(Ren et al. 2024), latent consistency models (Luo et al. 2023)."""

DISTILLED_FLOW: Recommended = {
    word: {name: values[name] for name in ("steps", "guidance")}
    for word, values in DISTILLED.items()}
"""Of models that predict a flow, whose sampler and noise levels stay those of their family."""


def distilled(recommended: Iterable[str], *names: str) -> str | None:
    """The word, of those that have recommendations, that stands in one of a model's names.

    >>> distilled(DISTILLED, "sd_xl_turbo_1.0_fp16"), distilled(DISTILLED, "hyperrealism")
    ('turbo', None)
    """
    pattern = rf"(?<![a-z])({'|'.join(recommended)})(?![a-z])"
    found = re.search(pattern, " ".join(names), re.IGNORECASE) if recommended else None
    return found[1].lower() if found else None
