"""Targets are found by the names that their packages give."""

from __future__ import annotations

from importlib import import_module

import pytest

from smalti.compiler.targets import TARGETS, names, target
from smalti.errors import InputError


@pytest.mark.parametrize("folder", ["arm64", "spirv", "wgsl", "x86"])
def test_a_package_names_all_targets_that_it_has(folder: str) -> None:
    package = f"smalti.codegen.{folder}"
    found = import_module(f"{package}.target").TARGETS
    assert tuple(each.name for each in found) == import_module(package).NAMES
    assert [TARGETS[each.name] for each in found] == [*found]


def test_targets_are_had_by_name_and_by_alias() -> None:
    assert len(TARGETS) == len({*TARGETS}) == len([*TARGETS.values()])
    assert target("avx512").name == "avx512" and target("wgpu").name == "wgsl"
    assert {*TARGETS, "vulkan", "wgpu"} == {*names()}


@pytest.mark.parametrize("name", ["", "avx", None])
def test_an_unknown_one_is_refused_by_name(name: str | None) -> None:
    with pytest.raises(InputError, match=f"no target is named {name!r}; known: .*avx2, .*vulkan"):
        target(name)
