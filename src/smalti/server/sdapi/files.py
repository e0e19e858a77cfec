"""Model files by what clients of the web UI call them: names, titles with hashes, whole paths.

Whatever is said is only compared with the files that were found in the folders that are served: no
path of a request is ever opened.
"""

from __future__ import annotations

import ntpath
import os
import re
from collections.abc import Sequence

from smalti.errors import InputError
from smalti.server.models import ModelFile, ModelFolders

HASHED = re.compile(r"(.+?) \[[0-9a-f]{8,64}\]", re.DOTALL)
"""A title as A1111 writes it: the name and the beginning of a hash."""
KINDS_IN_WORDS = {"model": "model", "lora": "LoRA", "vae": "VAE", "text-encoder": "text encoder",
                  "controlnet": "ControlNet", "esrgan": "upscaler"}


def found_file(folders: ModelFolders, given: object, *kinds: str) -> ModelFile:
    """The file of one of these kinds that is meant by a name, a title or a path.

    Raises InputError for one that is not in the folders that are served.
    """
    if not isinstance(given, str):
        raise InputError(f"a {_told(kinds)} is given as {given!r:.80}; expected its name")
    if os.path.isabs(given) or ntpath.isabs(given):
        return _placed(folders, given, kinds)
    hashed = HASHED.fullmatch(given)
    name = hashed[1] if hashed else given
    for kind in kinds[:-1]:
        try:
            return folders.named(name, kind)
        except InputError:
            continue
    return folders.named(name, kinds[-1])


def _placed(folders: ModelFolders, given: str, kinds: Sequence[str]) -> ModelFile:
    """The file that lies where a path says, as it is written."""
    wanted = os.path.normcase(os.path.abspath(given)) if "\0" not in given else given
    for look in (folders.recent, folders.all):  # what is not there yet may have come since
        for each in look():
            places = {os.path.abspath(each.path), os.path.realpath(each.path)}
            if each.kind in kinds and wanted in map(os.path.normcase, places):
                return each
    raise InputError(f"{given!r:.300} is no {_told(kinds)} in the folders that are served: "
                     f"{', '.join(map(str, folders.given)) or 'none'}; give one of these, by its "
                     f"path or its name")


def _told(kinds: Sequence[str]) -> str:
    return " or ".join(KINDS_IN_WORDS.get(kind, kind) for kind in kinds)
