"""Model files: formats, families, names and configurations.

`load(path)` opens a checkpoint, `inspect(path)` says what a file is. Nothing here runs code from a
file, and nothing is read before its header has been checked.
"""

from smalti.checkpoint.load import Checkpoint, inspect, load
from smalti.checkpoint.report import Report

__all__ = ["Checkpoint", "Report", "inspect", "load"]
