"""ComfyUI's `extra_model_paths.yaml`: which folders of other programs hold what.

Sections of any name, each with an optional `base_path`, and keys that say what lies in folders:
one, or several in lines of their own. What the file may say is known from ComfyUI
(`utils/extra_config.py`, `folder_paths.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from smalti.errors import InputError
from smalti.settings import expanded

Warn = Callable[[str], None]
Folders = list[tuple[str, Path]]
"""Names of sections, and their folders."""

EXTRA = "extra_model_paths.yaml"
"""The name of the file in the folder of ComfyUI."""
BYTES_MAX = 1 << 20
"""Of such a file; the longest have a few kB."""
BASE, DEFAULT = "base_path", "is_default"
SEARCHED = frozenset((
    "checkpoints", "diffusion_models", "unet", "diffusers", "loras", "vae", "vae_approx",
    "text_encoders", "clip", "clip_vision", "style_models", "embeddings", "controlnet",
    "t2i_adapter", "model_patches", "upscale_models"))
"""Keys whose folders may hold what Smalti reads."""
NOT_READ = frozenset((
    "configs", "custom_nodes", "gligen", "hypernetworks", "photomaker", "classifiers",
    "audio_encoders", "latent_upscale_models"))
"""Keys of ComfyUI whose folders hold nothing that Smalti reads."""
WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
"""How a path begins that only Windows knows."""


def extra_folders(path: Path, warn: Warn) -> tuple[Folders, Folders]:
    """The folders that such a file names: those of sections with `is_default`, and the others.

    Keys that ComfyUI does not have are warned of. Raises InputError for what it could not read.
    """
    preferred: Folders = []
    others: Folders = []
    for section, said in _sections(path).items():
        if said is None:
            continue
        if not isinstance(said, dict):
            raise InputError(f"{path}: {section} is {said!r:.80}; expected {BASE} and keys such as "
                             f"checkpoints")
        default = said.get(DEFAULT, False)
        if not isinstance(default, bool):
            raise InputError(f"{path}: {DEFAULT} of {section} is {default!r:.80}; expected true "
                             f"or false")
        (preferred if default else others).extend(_section(path, section, said, warn))
    return preferred, others


def _sections(path: Path) -> Mapping[str, Any]:
    """What the file says."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    reader = YAML(typ="safe", pure=True)
    reader.version = "1.1"  # as ComfyUI reads it: yes is true
    try:
        if path.stat().st_size > BYTES_MAX:
            raise InputError(f"{path} has more than {BYTES_MAX} bytes; expected a file like "
                             f"ComfyUI's {EXTRA}")
        found = reader.load(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    except (YAMLError, RecursionError, ValueError) as error:
        said = " ".join(str(error).split())
        raise InputError(f"{path} is no YAML: {said:.300}; paths of Windows stand without quotes, "
                         f"or in single ones") from None
    if found is not None and not isinstance(found, dict):
        raise InputError(f"{path} is a {type(found).__name__}; expected sections, as in ComfyUI's "
                         f"{EXTRA}")
    return found or {}


def _section(path: Path, section: object, said: Mapping[Any, Any], warn: Warn) -> Folders:
    """The folders of a section, in its order."""
    base = said.get(BASE, "")
    if not isinstance(base, str):
        raise InputError(f"{path}: {BASE} of {section} is {base!r:.80}; expected a folder")
    start = os.path.join(path.absolute().parent, expanded(base.strip()))
    found: dict[Path, str] = {}
    for key, value in said.items():
        if key in (BASE, DEFAULT) or key in NOT_READ:
            continue
        if key not in SEARCHED:
            warn(f"{path}: {section} has the key {str(key)[:80]!r}, which is left out; those that "
                 f"are read are {', '.join(sorted(SEARCHED))}")
            continue
        if not isinstance(value, str):
            raise InputError(f"{path}: {key} of {section} is {value!r:.80}; expected a folder, or "
                             f"several in lines of their own after |")
        for line in filter(None, map(str.strip, value.splitlines())):
            folder = Path(os.path.normpath(os.path.join(start, expanded(line))))
            if folder.is_dir():
                found.setdefault(folder, str(section))
            elif os.name != "nt" and WINDOWS.match(expanded(base) or line):
                warn(f"{path}: {key} of {section} is {base}{line!s}, a path of Windows, which is "
                     f"none on this system")
            else:
                warn(f"{path}: {key} of {section} is {folder}, where there is no folder")
    return [(title, folder) for folder, title in found.items()]
