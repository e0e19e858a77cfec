"""Adapters: LoRA and its relatives, applied to the weights of a model while they are bound.

`AdapterFile.open(path)` says what a file changes; `Adapted` reads like the checkpoint that it
changes.
"""

from smalti.checkpoint.adapters.adapted import Adapted, WeightedAdapter, changed
from smalti.checkpoint.adapters.adapter import AdapterFile, Fit

__all__ = ["Adapted", "AdapterFile", "Fit", "WeightedAdapter", "changed"]
