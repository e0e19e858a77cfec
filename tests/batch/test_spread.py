"""A batch over a cluster: every picture once, whatever ends meanwhile. The cluster is a fake one;
`tests/cluster/test_on_ray.py` has the same over Ray."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusters import FakeCluster
from hypothesis import given, settings
from hypothesis import strategies as some

from smalti.batch import spread
from smalti.batch.crew import made_by
from smalti.batch.folder import BatchFolder, BatchOutcome
from smalti.batch.records import BatchRecord, records
from smalti.batch.spread import ClusterCrew, PictureWorker, SpreadWork, _moved, pictures_of
from smalti.batch.table import BatchRow
from smalti.cluster.greeting import Greeting
from smalti.errors import InputError

USUAL: dict[str, Any] = dict(device="auto", precision="auto", threads=None)


class Makes:
    """Makes pictures that are the digests of their records, and of what they begin with, on a node
    with a CPU."""

    found = Greeting(("cpu",), "a CPU")

    def __init__(self, code: str, work: SpreadWork, device: str, threads: int | None,
                 place: str, keeper: object) -> None:
        self.device, self.threads = device, threads

    def look_for_work(self) -> Greeting:
        return self.found

    def make(self, record: BatchRecord, names: tuple[str, ...], *contents: bytes
             ) -> tuple[BatchOutcome, bytes]:
        if record.options["prompt"] == "bad":
            return BatchOutcome(record.digest, error="no such sampler"), b""
        return BatchOutcome(record.digest, .1, 9, 9), b"".join([record.digest.encode(), *contents])


class Refuses(Makes):
    def look_for_work(self) -> Greeting:
        raise InputError("it has no model")


class OneGpu(Makes):
    found = Greeting(("vulkan:0",), "a GPU")


class TwoGpus(Makes):
    found = Greeting(("vulkan:0", "vulkan:1"), "two GPUs")


class Apart(Makes):
    found = Greeting(("cpu",), "a CPU", apart=True)


class Broken(Makes):
    def make(self, record: BatchRecord, *rest: Any) -> tuple[BatchOutcome, bytes]:
        raise InputError("the model is damaged")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "POLL_SECONDS", 0.0)


def asked_for(count: int, prompt: str = "a") -> list[BatchRecord]:
    return records([BatchRow("t:1", {"prompt": prompt, "seed*": [*range(count)]})], Path(), "m", {},
                   {})


def over(cluster: FakeCluster, folder: Path, wanted: list[BatchRecord], told: list[str],
         make: Callable[..., Any] = Makes, **more: Any) -> list[BatchOutcome]:
    work = SpreadWork({"precision": "auto"}, "m", "auto", **more)
    crew = ClusterCrew(cluster, work, BatchFolder(folder), told.append, make)
    return [*made_by(crew, wanted)]


def check_whole(folder: Path, wanted: list[BatchRecord], found: list[BatchOutcome]) -> None:
    assert sorted(each.digest for each in found) == sorted(each.digest for each in wanted)
    assert not any(each.error for each in found)
    for record in wanted:
        assert (folder / record.file).read_bytes() == record.digest.encode()


def test_every_picture_is_made_once_and_two_wait_for_a_worker(tmp_path: Path) -> None:
    cluster, told, wanted = FakeCluster(), list[str](), asked_for(9)
    cluster.add("one")
    cluster.add("two", cores=4)
    check_whole(tmp_path, wanted, over(cluster, tmp_path, wanted, told))
    assert told == ["one: 1 workers on cpu, a CPU\n", "two: 1 workers on cpu, a CPU\n"]
    assert cluster.most <= 2 * 2 and all(worker.lost for worker in cluster.workers)


def test_the_last_records_wait_for_whoever_is_free(tmp_path: Path) -> None:
    most: list[tuple[int, int]] = []

    def event(cluster: FakeCluster, at: int) -> None:
        asked = cluster.asked("make")
        most.append((at, max(map(asked.count, asked), default=0)))

    cluster, wanted = FakeCluster(event=event), asked_for(2)
    cluster.add("one")
    cluster.add("two")
    check_whole(tmp_path, wanted, over(cluster, tmp_path, wanted, []))
    assert max(count for _, count in most) == 1
    most.clear()
    over(cluster, tmp_path / "more", asked_for(8), [])
    assert max(count for _, count in most) == 2


@given(some.data())
@settings(max_examples=8)
def test_nodes_that_come_and_go(tmp_path_factory: pytest.TempPathFactory, data: some.DataObject
                                ) -> None:
    """Whichever answer comes next. Two at most are lost, so that no record can be to blame for
    three."""
    folder, told, wanted = tmp_path_factory.mktemp("out"), list[str](), asked_for(12)
    losses = data.draw(some.lists(some.integers(0, 14), max_size=2, unique=True))
    comes = data.draw(some.sets(some.integers(0, 14)))

    def event(cluster: FakeCluster, at: int) -> None:
        if at in losses and cluster.here:
            cluster.lose(data.draw(some.sampled_from(sorted(cluster.here)), "lost"))
        if at in comes or not cluster.here:
            cluster.add(f"node {at}", data.draw(some.integers(1, 3)))

    cluster = FakeCluster(event=event, pick=lambda can: data.draw(some.sampled_from(can), "next"))
    cluster.add("first")
    check_whole(folder, wanted, over(cluster, folder, wanted, told,
                                     data.draw(some.sampled_from([Makes, Apart])),
                                     workers=data.draw(some.integers(1, 3))))


def test_a_record_that_kills_three_workers_is_an_error(tmp_path: Path) -> None:
    def event(cluster: FakeCluster, at: int) -> None:
        for worker in cluster.asked("make"):
            worker.lost = True

    cluster = FakeCluster(event=event)
    cluster.add("one")
    [made] = over(cluster, tmp_path, asked_for(1), told := [])
    assert "what makes it died 3 times (one: its node ended)" in made.error
    assert told.count("one lost a worker (its node ended); others make what it had\n") == 3


def test_a_record_that_fails_is_told(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.add("one")
    [made] = over(cluster, tmp_path, asked_for(1, "bad"), [])
    assert made.error == "no such sampler" and not [*tmp_path.glob("*.png")]


def test_a_node_that_cannot_is_left_out_by_name(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.add("one")
    with pytest.raises(InputError, match="no node of the cluster can make .*\n  one: it has no mo"):
        over(cluster, tmp_path, asked_for(1), [], make=Refuses)
    with pytest.raises(InputError, match="one: the model is damaged"):
        over(cluster, tmp_path, asked_for(1), [], make=Broken)


def test_a_cluster_without_nodes_is_waited_for_and_then_told(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "NODES_SECONDS", 0.0)
    with pytest.raises(InputError, match="no node left that gives out cores"):
        over(FakeCluster(), tmp_path, asked_for(1), [])


@pytest.mark.parametrize(("cores", "gpus", "make", "more", "expected"), [
    (8, 0, Makes, {}, [(8, 0, 8)]),
    (8, 0, Makes, dict(workers=3), [(2, 0, 2)] * 3),
    (2, 0, Makes, dict(workers=3), [(1, 0, 1)] * 2),
    (8, 0, Makes, dict(workers=2, threads=4), [(2, 0, 2)] * 2),
    (2, 0, Makes, dict(threads=8), [(2, 0, 8)]),
    (8, 2, TwoGpus, {}, [(1, 1, None)] * 2),
    (1, 1, TwoGpus, dict(threads=3), [(.5, .5, 3)] * 2)])
def test_workers_of_a_node(tmp_path: Path, cores: int, gpus: float, make: type[Makes],
                           more: dict[str, Any], expected: list[tuple[Any, ...]]) -> None:
    cluster = FakeCluster()
    cluster.add("one", cores, gpus)
    over(cluster, tmp_path, asked_for(9), [], make=make, **more)
    scouts = [each for each in cluster.workers if not each.cores]
    assert len(scouts) == bool(gpus)  # else the first worker is one
    workers = [each for each in cluster.workers if each.cores]
    assert [(each.cores, each.gpus, each.made.threads) for each in workers] == expected
    assert {each.made.device for each in workers} == set(make.found.devices)


def test_a_gpu_that_ray_does_not_know_takes_the_place_of_the_expected_cpu(tmp_path: Path) -> None:
    cluster, wanted = FakeCluster(), asked_for(3)
    cluster.add("one", cores=4)
    check_whole(tmp_path, wanted, over(cluster, tmp_path, wanted, told := [], make=OneGpu))
    assert told == ["one: 1 workers on vulkan:0, a GPU\n"]
    assert [(each.made.device, each.cores) for each in cluster.workers] == [("cpu", 4),
                                                                           ("vulkan:0", 1)]


def test_a_scout_that_is_lost_is_sent_again_and_then_its_node_is_left_out(tmp_path: Path) -> None:
    def event(cluster: FakeCluster, at: int) -> None:
        for worker in cluster.asked("look_for_work"):
            worker.lost |= at < losses

    for losses in (2, 3):
        cluster, wanted = FakeCluster(event=event), asked_for(3)
        cluster.add("one", cores=4)
        if losses == 2:
            check_whole(tmp_path, wanted, over(cluster, tmp_path, wanted, [], workers=2))
        else:
            with pytest.raises(InputError, match="one: its node ended"):
                over(cluster, tmp_path, wanted, [], workers=2)
        assert all(each.lost for each in cluster.workers)


def test_nodes_of_several_kinds_are_told(tmp_path: Path) -> None:
    class Kinds(Makes):
        kinds = iter("AB")

        def look_for_work(self) -> Greeting:
            return Greeting(("cpu",), next(self.kinds))

    cluster = FakeCluster()
    cluster.add("one")
    cluster.add("two")
    over(cluster, tmp_path, asked_for(3), told := [], make=Kinds)
    assert told[2].startswith("nodes are of several kinds: pictures of one kind may differ")


def test_pictures_that_records_begin_with_go_along(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(name.encode())
    model = tmp_path / "canny.safetensors"
    model.write_bytes(b"x")
    [record] = records([BatchRow("t:1", {
        "prompt": "a", "image": "a.png", "controls": [
            {"model": model.name, "image": "b.png"}, {"model": model.name, "image": "a.png"}]})],
        tmp_path, "m", {}, {})
    names = pictures_of(record)
    assert [Path(each).name for each in names] == ["a.png", "b.png"]
    [several] = records([BatchRow("t:1", {"prompt": "a", "image": ["b.png", "a.png"]})], tmp_path,
                        "m", {}, {})
    assert [Path(each).name for each in pictures_of(several)] == ["b.png", "a.png"]
    assert _moved(several.options, {each: "/x" for each in names})["image"] == ["/x", "/x"]
    cluster = FakeCluster()
    cluster.add("one")
    over(cluster, tmp_path / "out", [record], [])
    assert (tmp_path / "out" / record.file).read_bytes() == record.digest.encode() + b"a.pngb.png"

    seen: list[Any] = []

    class Reads:
        def __init__(self, loading: object, keep: object) -> None:
            pass

        def make(self, record: BatchRecord) -> BatchOutcome:
            seen.append([Path(record.options["image"]).read_bytes(),
                         *(Path(each["image"]).read_bytes() for each in record.options["controls"]),
                         record.options["controls"][0]["model"]])
            return BatchOutcome(record.digest)

    monkeypatch.setattr(spread, "Maker", Reads)
    monkeypatch.setattr(spread, "_loaded", lambda work, device: {})
    worker = PictureWorker(spread.cache.code_digest(), SpreadWork({}, "", "cpu"), "cpu", 1, "",
                           None)
    worker.make(record, names, b"A", b"B")
    assert seen == [[b"A", b"B", b"A", str(model)]]
    (tmp_path / "b.png").unlink()
    with pytest.raises(InputError, match="b.png cannot be read"):
        over(cluster, tmp_path / "again", [record], [])


def test_workers_of_nodes_with_another_compile_cache_share_it(tmp_path: Path) -> None:
    for make in (Makes, Apart):
        cluster, apart = FakeCluster(), make is Apart
        cluster.add("one", cores=2)
        over(cluster, tmp_path / make.__name__, asked_for(3), [], make, workers=2)
        shared = cluster.asked("share")  # what a worker is asked, and nobody waits for
        assert (shared == cluster.workers and len(shared) == 2) if apart else not shared

    def event(cluster: FakeCluster, at: int) -> None:
        if at == 2:
            cluster.workers[0].lost = True

    cluster = FakeCluster(event=event)
    cluster.add("one")
    over(cluster, tmp_path / "lost", asked_for(3), [], Apart)
    first, *later = (worker.arguments[-1] for worker in cluster.workers)
    assert first is None and later and None not in later  # one that comes later has it at once


def test_a_node_with_other_files_or_code_is_refused(model_path: Path) -> None:
    def look(code: str, work: SpreadWork, place: str = "") -> Greeting:
        return PictureWorker(code, work, "cpu", 1, place, None).look_for_work()

    work = SpreadWork.of({"path": model_path, **USUAL, "device": "cpu"}, 1, print)
    assert work.loading["path"] == str(model_path.absolute()) and work.loading["device"] == "cpu"
    code = spread.cache.code_digest()
    assert look(code, work) == replace(look(code, work, spread.shared_cache.place()), apart=True)
    assert look(code, work, spread.shared_cache.place()).devices == ("cpu",)
    for wrong, said in ((SpreadWork(work.loading, "other", "cpu"), "files of the model are others"),
                        (SpreadWork({**work.loading, "precision": "f99"}, "", "cpu"),
                         "cpu has no f99; it has")):
        with pytest.raises(InputError, match=said):
            look(code, wrong)
    with pytest.raises(InputError, match="its Smalti .* is of another code"):
        look("other", work)


@pytest.mark.sweep  # loads a model twice
def test_a_worker_makes_the_bytes_that_a_batch_here_writes(model_path: Path, tmp_path: Path
                                                           ) -> None:
    from smalti.batch.run import made, resolved
    from smalti.batch.worker import BatchWork
    from smalti.diffusion.load_options import LoadOptions

    wanted = records([BatchRow("t:1", {"prompt": "a", "steps": 1, "width": 64, "height": 64})],
                     Path(), "m", {}, {})
    loading, _ = resolved(LoadOptions(model_path, device="cpu", threads=1))
    BatchFolder(tmp_path / "here")
    [*made(wanted, BatchWork(tmp_path / "here", loading), 1, print)]
    cluster = FakeCluster()
    cluster.add("one")
    work = SpreadWork.of({"path": model_path, **USUAL, "device": "cpu"}, 1, print)
    crew = ClusterCrew(cluster, work, BatchFolder(tmp_path / "there"), print)
    try:
        [outcome] = made_by(crew, wanted)
    finally:
        spread.cache.own().others = None
    assert not outcome.error
    assert (tmp_path / "there" / wanted[0].file).read_bytes() == \
        (tmp_path / "here" / wanted[0].file).read_bytes()
