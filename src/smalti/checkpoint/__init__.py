"""Model files: formats, families, names and configurations.

`load(path)` opens a checkpoint, `open_companion(path)` a network beside one (ControlNet, upscaler,
TAESD), `inspect(path)` says what a file is, `open_tensors(path)` gives the tensors of any. Nothing
here runs code from a file, and nothing is read before its header has been checked.
"""

from smalti.checkpoint.companion import Companion, open_companion
from smalti.checkpoint.container import open_tensors
from smalti.checkpoint.load import Checkpoint, inspect, load
from smalti.checkpoint.report import Report

__all__ = ["Checkpoint", "Companion", "Report", "inspect", "load", "open_companion",
           "open_tensors"]
