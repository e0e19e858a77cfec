"""What the configuration of an adapter says that its tensors do not: alpha.

PEFT has it in an `adapter_config.json` beside the tensors, diffusers in the metadata of the file.
Both are foreign text: what is not understood is left alone. Source: huggingface/peft,
`tuners/lora/config.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from smalti.dataclass import dataclass

METADATA, BESIDE = "lora_adapter_metadata", "adapter_config.json"
TEXT_BYTES_MAX = 1 << 20
"""Of the JSON that peft writes beside an adapter: a few kilobytes, one line for each layer."""


@dataclass(frozen=True)
class Alphas:
    """Settings by name, each for the layers whose names begin with a prefix."""

    tables: Mapping[str, Mapping[str, object]]

    @classmethod
    def of(cls, metadata: Mapping[str, str], path: Path) -> Alphas:
        """What the metadata of the file at `path` say, else a configuration beside it."""
        if stated := _table(metadata.get(METADATA, "")):
            tables: dict[str, dict[str, object]] = {}
            for key, value in stated.items():
                part, _, setting = key.rpartition(".")
                tables.setdefault(part and f"{part}.", {})[setting] = value
            return cls(tables)
        beside = path.with_name(BESIDE)
        if path.stem == "adapter_model" and beside.is_file() \
                and beside.stat().st_size <= TEXT_BYTES_MAX:
            return cls({"": _table(beside.read_text(encoding="utf-8", errors="replace"))})
        return cls({})

    def find(self, module: str) -> float | None:
        """The alpha of a layer, None where nothing is said.

        >>> stated = Alphas({"unet.": {"lora_alpha": 8, "alpha_pattern": {"to_k": 2}}})
        >>> stated.find("unet.mid.to_q"), stated.find("unet.mid.to_k"), stated.find("te.to_q")
        (8.0, 2.0, None)
        """
        for prefix, table in self.tables.items():
            if not module.startswith(prefix):
                continue
            alpha, rank = (_for_layer(table, pattern, setting, module) for pattern, setting in
                           (("alpha_pattern", "lora_alpha"), ("rank_pattern", "r")))
            if alpha is not None and table.get("use_rslora") is True:
                return alpha * math.sqrt(rank) if rank else None
            return alpha
        return None


def _for_layer(table: Mapping[str, object], pattern: str, setting: str,
               module: str) -> float | None:
    """A number of `table` for one layer: by the end of its name, else the one for all."""
    special = table.get(pattern)
    for end, value in (special.items() if isinstance(special, dict) else ()):
        if module == end or module.endswith(f".{end}"):
            return _number(value)
    return _number(table.get(setting))


def _number(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9:
        return float(value)
    return None


def _table(text: str) -> dict[str, object]:
    """The JSON object that `text` is; an empty one where it is none."""
    try:
        found = json.loads(text[:TEXT_BYTES_MAX])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
