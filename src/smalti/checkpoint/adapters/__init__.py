"""Adapters: LoRA and its relatives, applied to the weights of a model while they are bound.

`Adapter.open(path)` says what a file changes; `Adapted` reads like the checkpoint that it changes.
"""

from smalti.checkpoint.adapters.adapted import Adapted, Use, changed
from smalti.checkpoint.adapters.adapter import Adapter, Fit

__all__ = ["Adapted", "Adapter", "Fit", "Use", "changed"]
