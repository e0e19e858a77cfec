"""Public checks: every form of kernel on every target and driver of this machine."""

from __future__ import annotations

import re
from itertools import islice

import numpy as np
import pytest
from click.testing import CliRunner
from gpu_devices import adapter, vulkan  # noqa: F401
from webgpu_devices import webgpu  # noqa: F401

import smalti
from smalti.cli.main import root
from smalti.codegen.cpu.lower import FORMS as X86_FORMS
from smalti.codegen.gpu.lower import FORMS as GPU_FORMS
from smalti.compiler import check
from smalti.compiler.check import CheckReport, FormCheck, checked, error_of, kernels
from smalti.compiler.targets import TARGETS
from smalti.errors import InputError
from smalti.runtime.cpu.adapter import available_levels
from smalti.runtime.gpu.check import executor
from smalti.runtime.gpu.interface import Gpu


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name == available_levels()[-1] else pytest.mark.sweep)
    for name in available_levels()])
def test_every_form_on_each_feature_level(name: str) -> None:
    report = smalti.check_target(name)
    assert report.ok, report
    assert {check.form for check in report.checks} == set(X86_FORMS)
    assert {check.dtype for check in report.checks} == {"f32", "bf16"}


@pytest.mark.parametrize("name", [n for n, each in TARGETS.items() if each.beside_integers])
def test_bytes_are_among_what_is_checked_of_targets_that_multiply_them(name: str) -> None:
    target = TARGETS[name]
    firsts = [target.first(kernel, target.usual, "f32") for kernel in kernels(target, target.usual)
              if kernel.form == "contraction"]
    assert "quads" in {first.factors for first in firsts}


@pytest.mark.sweep  # on a driver they run always
@pytest.mark.parametrize("name", [name for name, each in TARGETS.items() if each.interpret])
def test_every_form_of_targets_of_gpus_in_numpy(name: str) -> None:
    report = smalti.check_target(name)
    assert report.ok, report
    assert {check.form for check in report.checks} == set(GPU_FORMS)
    assert {check.dtype for check in report.checks} == set(TARGETS[name].precisions)


@pytest.mark.parametrize("device", ["vulkan", "webgpu"])
def test_every_form_on_a_driver(device: str, request: pytest.FixtureRequest) -> None:
    gpu: Gpu = request.getfixturevalue(device)
    report = checked("driver", gpu.target, gpu.limits, executor(gpu))
    assert report.ok, report
    assert {check.form for check in report.checks} == set(GPU_FORMS)


@pytest.mark.sweep
def test_the_cpu_is_checked_at_all_of_its_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SAMPLES", dict(islice(check.SAMPLES.items(), 2)))  # few of them
    result = CliRunner().invoke(root, ["devices", "--check", "cpu"])
    assert result.exit_code == 0, result.output
    found = re.findall(r"^(\w+) on .*: all forms compute what they mean$", result.output, re.M)
    assert found == available_levels()
    line = r"^    contraction +f32 +\d+ kernels  off by \S+ of 1e-05  ok$"
    assert re.search(line, result.output, re.M)


@pytest.mark.parametrize("damage", [
    lambda array: array * np.float32(1.001), lambda array: np.roll(array, 1),
    lambda array: np.full_like(array, np.nan)], ids=["scaled", "moved", "not written"])
def test_a_kernel_that_computes_something_else_is_found(damage) -> None:
    target = TARGETS["spirv"]
    kernel = next(each for each in kernels(target, target.usual) if each.form == "depthwise")
    good = error_of(kernel, target, target.usual, target.interpret)

    def wrong(low, kernel, memory):
        found = target.interpret(low, kernel, memory)
        return {**found, "out": damage(found["out"])}

    assert good < 1e-6 < 1e-4 < error_of(kernel, target, target.usual, wrong)


def test_a_report_says_which_form_is_wrong() -> None:
    report = CheckReport("a device", (FormCheck("map", "f32", 3, 1e-7, 1e-5),
                                      FormCheck("pooling", "f16", 1, float("inf"), 2e-3)))
    assert not report.ok
    first, good, bad = str(report).splitlines()
    assert first == "a device: WRONG" and good.endswith("ok") and bad.endswith("WRONG")


def test_what_is_not_here_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="'sparc'; known: .*avx2"):
        smalti.check_target("sparc")
    with pytest.raises(InputError, match=r"\['avx2'\]; known: .*avx2"):
        smalti.check_target(["avx2"])
    with pytest.raises(InputError, match="'vulkan:99'"):
        smalti.check_device("vulkan:99")
