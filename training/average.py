#!/usr/bin/env python3
"""The mean of two finished files of the same sizes and words, such as the ends of two turns of
training: mean weights are often better than either's (model soups, arXiv:2203.05482).

    average.py LATER.safetensors EARLIER.safetensors --share 0.35 --out mean/emoji-256.safetensors
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from layout import read_file
from marks import same_marks
from safetensors import safe_open
from safetensors.torch import save_file


def averaged(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor],
             share: float) -> dict[str, torch.Tensor]:
    """The tensors of the first file, with this share of the second's. Raises `SystemExit` where the
    files differ in names or shapes."""
    differ = sorted(name for name in first.keys() | second.keys()
                    if name not in first or name not in second
                    or first[name].shape != second[name].shape)
    if differ:
        raise SystemExit(f"the files differ in {len(differ)} tensors, such as {differ[0]}: only "
                         f"those of one model can be averaged")
    return {name: torch.lerp(tensor.float(), second[name].float(), share).to(tensor.dtype)
            if tensor.is_floating_point() else tensor for name, tensor in first.items()}


def main() -> None:
    """Average the files that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, help="its description and words are kept")
    parser.add_argument("second", type=Path)
    parser.add_argument("--share", type=float, default=0.5, help="of the second, 0 to 1")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not 0 <= options.share <= 1:
        raise SystemExit(f"--share {options.share}: expected 0 to 1")
    (first, config), (second, other) = (read_file(path) for path in (options.first,
                                                                     options.second))
    alike = [{name: value for name, value in each.items() if name != "train"}
             for each in (config, other)]
    if alike[0] != alike[1]:
        raise SystemExit("the files describe different models in arch_config: only ends of turns "
                         "of one model can be averaged")
    if not same_marks(config["train"].get("marks", {}), other["train"].get("marks", {})):
        raise SystemExit("the files have different marks of latents: only ends of turns with the "
                         "same ones can be averaged")
    config["train"] = dict(config["train"], mean_with=other["train"], share=options.share)
    with safe_open(options.first, "pt") as file:
        metadata = file.metadata()
    mean = averaged(first, second, options.share)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    part = options.out.with_suffix(".part")  # the file may be one of the two that are read
    save_file(mean, part, metadata={**metadata, "arch_config": json.dumps(config)})
    part.replace(options.out)
    options.out.with_suffix(".json").write_text(json.dumps(config, indent=1) + "\n")
    words = options.first.with_suffix(".words.txt")
    if words.exists() and options.out != options.first:
        shutil.copyfile(words, options.out.with_suffix(".words.txt"))
    print(options.out)


if __name__ == "__main__":
    main()
