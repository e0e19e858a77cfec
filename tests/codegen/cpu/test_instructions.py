"""The vocabulary of lowering is what is used, and every architecture gives all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import smalti
from smalti.codegen.cpu.instructions import JUMPS, VOCABULARY
from smalti.codegen.x86 import instructions as x86

SOURCE = Path(smalti.__file__).parent
EMITTED = re.compile(r'\.(?:op|result|widened)\(\s*"(\w+)"')
JUMPED = re.compile(r'\.jump\(\s*"(\w+)"')


@pytest.mark.parametrize("folder", ["codegen/cpu", "runtime/cpu"])
def test_lowering_says_nothing_else(folder: str) -> None:
    files = sorted((SOURCE / folder).glob("*.py"))
    assert files
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not set(EMITTED.findall(text)) - VOCABULARY.keys(), path
        assert not set(JUMPED.findall(text)) - JUMPS.keys(), path


@pytest.mark.parametrize("name", [
    name for name, row in VOCABULARY.items() if "by_lane" not in row.least])
def test_x86_uses_operands_as_the_vocabulary_says(name: str) -> None:
    assert x86.ALL[name].use == VOCABULARY[name].use


def test_x86_knows_the_conditions_of_jumps() -> None:
    assert x86.JUMPS.keys() == JUMPS.keys()
