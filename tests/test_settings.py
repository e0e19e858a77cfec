"""The environment: what is taken, and what is refused with the name of the variable."""

from __future__ import annotations

import pytest

import smalti
from smalti import settings
from smalti.errors import InputError


@pytest.mark.parametrize(("text", "expected"), [("1", 1), ("007", 7), ("256", 256)])
def test_threads(monkeypatch: pytest.MonkeyPatch, text: str, expected: int) -> None:
    monkeypatch.setenv("SMALTI_THREADS", text)
    assert settings.threads() == expected


@pytest.mark.parametrize("text", ["0", "257", "-1", "1.5", "two", "²", "9" * 5000])
def test_threads_that_are_no_number_from_1_to_256(
        monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SMALTI_THREADS", text)
    with pytest.raises(InputError, match="SMALTI_THREADS"):
        settings.threads()


def test_an_empty_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("SMALTI_THREADS", "SMALTI_DEVICE", "SMALTI_TARGET", "SMALTI_CACHE", "SMALTI_SHOW",
             "SMALTI_DOCTOR", "SMALTI_MODELS", "HF_HUB_OFFLINE", "CIVITAI_API_TOKEN")

    def read() -> list[object]:
        return [settings.threads(), settings.device(), settings.target(), settings.cache_folder(),
                settings.show("graph"), settings.doctor(), settings.models_folder(),
                settings.offline(), settings.civitai_token()]

    for name in names:
        monkeypatch.delenv(name, raising=False)
    unset = read()
    for name in names:
        monkeypatch.setenv(name, "")
    assert read() == unset


@pytest.mark.parametrize(("text", "expected"), [("on", True), ("off", False)])
def test_gpus_are_checked_unless_that_is_switched_off(
        monkeypatch: pytest.MonkeyPatch, text: str, expected: bool) -> None:
    monkeypatch.setenv("SMALTI_DOCTOR", text)
    assert settings.doctor() is expected


def test_anything_else_than_on_and_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_DOCTOR", "0")
    with pytest.raises(InputError, match="SMALTI_DOCTOR is '0'; expected on or off"):
        settings.doctor()


@pytest.mark.parametrize("count", [0, -1, 257, 1.5, "2"])
def test_a_graph_is_compiled_for_threads_that_there_can_be(count: object) -> None:
    graph = smalti.Graph("twice")
    x = graph.input("x", (2, 3))
    graph.output("y", x + x)
    with pytest.raises(InputError, match="from 1 to 256"):
        smalti.compile(graph, threads=count)
