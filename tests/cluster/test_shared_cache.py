"""What one worker compiled, the others have; what is damaged on the way, nobody takes."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest
from clusters import FakeCluster, FakeWorker

from smalti.cluster import shared_cache
from smalti.cluster.shared_cache import Keeper, KeptElsewhere, place, share
from smalti.runtime import cache as module
from smalti.runtime.cache import Cache


@pytest.fixture
def keeper(tmp_path: Path) -> FakeWorker:
    return FakeCluster().begin_here(Keeper, (tmp_path / "keeper",))


def worker(folder: Path, keeper: FakeWorker) -> Cache:
    found = Cache(folder)
    found.others = KeptElsewhere(keeper)
    return found


def test_what_one_has_made_another_gets(tmp_path: Path, keeper: FakeWorker) -> None:
    one, two = (worker(tmp_path / name, keeper) for name in ("one", "two"))
    assert two.get("key") is None
    one.put("key", b"code")
    assert two.get("key") == b"code"
    keeper.lost = True
    assert two.get("key") == b"code"  # it is here now


def test_what_is_not_whole_is_taken_by_nobody(tmp_path: Path, keeper: FakeWorker) -> None:
    one = Cache(tmp_path / "one")
    one.put("key", b"code")
    name = one.path("key").name
    entry = one.entry(name)
    assert entry is not None
    kept = Keeper(tmp_path / "other")
    for wrong in (entry[:-1], entry + b"x", entry[:-1] + b"E", b"", b"x" * len(entry)):
        assert not kept.merge(name, wrong)
    for other in ("../" + name, name.replace("a", "b").replace("1", "2"), "x.entry", "a" * 64):
        assert not kept.merge(other, entry) and kept.entry(other) is None
    assert kept.entry(name) is None
    assert kept.merge(name, entry) and kept.entry(name) == entry

    class Liar(Keeper):
        def entry(self, name: str) -> bytes:
            return entry[:-1] + b"E"

    two = worker(tmp_path / "two", FakeWorker("here", Liar, (tmp_path / "liar",)))
    assert two.get("key") is None and not two.path("key").exists()


def test_an_entry_that_is_there_stays(tmp_path: Path) -> None:
    one, two = Cache(tmp_path / "one"), Cache(tmp_path / "two")
    one.put("key", b"one")
    two.put("key", b"two")
    name = one.path("key").name
    other = two.entry(name)
    assert other is not None and one.merge(name, other) and one.get("key") == b"one"


def test_without_the_keeper_a_worker_goes_on(tmp_path: Path, keeper: FakeWorker,
                                             caplog: pytest.LogCaptureFixture) -> None:
    one = worker(tmp_path / "one", keeper)
    keeper.lost = True
    with caplog.at_level(logging.WARNING):
        one.put("key", b"code")
        assert one.get("other") is None and one.get("key") == b"code"
    [said] = caplog.records
    assert "does not answer (Lost(why='its node ended')): this worker goes on" in said.message


def test_the_cache_of_this_process_is_the_one_that_asks(
        tmp_path: Path, keeper: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / "mine"))
    share(keeper)
    module.put("key", b"code")
    assert Cache(tmp_path / "keeper" / "programs").get("key") == b"code"


def test_a_folder_has_one_place_and_two_have_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                 ) -> None:
    found = []
    for name in ("one", "one/../one", "two"):
        monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / name))
        found.append(place())
    assert found[0] == found[1] != found[2] and all(found)
    monkeypatch.setattr(shared_cache, "BOOT", tmp_path / "none")  # as on other systems than Linux
    assert socket.gethostname() in place()
    (tmp_path / "file").touch()
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path / "file"))
    assert place() == ""
