"""k-diffusion's samplers, without the packages that only training needs.

Its `sampling` module imports `append_dims` from `utils`, and `utils` what reads and shows pictures;
so that function is taken from there alone.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def k_diffusion_sampling() -> ModuleType:
    """The module `k_diffusion.sampling`."""
    spec = importlib.util.find_spec("k_diffusion")
    folder = Path(spec.origin).parent
    package = ModuleType("k_diffusion")
    package.__path__ = [str(folder)]
    tree = ast.parse((folder / "utils.py").read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if getattr(node, "name", "") == "append_dims"]
    package.utils = ModuleType("k_diffusion.utils")
    exec(compile(tree, "k_diffusion/utils.py", "exec"), vars(package.utils))
    sys.modules["k_diffusion"], sys.modules["k_diffusion.utils"] = package, package.utils
    return importlib.import_module("k_diffusion.sampling")
