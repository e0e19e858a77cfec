"""Over Ray itself, on two nodes of this computer: whatever ends, every picture once, and the bytes
of a batch that is made here. `pip install 'smalti[ray]'`; without it there is one line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cli.test_commands import run
from cluster_workers import Counts, HeldWorker
from clusters import need_ray

from smalti.batch.crew import made_by
from smalti.batch.folder import BatchFolder
from smalti.batch.records import records
from smalti.batch.run import made, resolved
from smalti.batch.spread import ClusterCrew, SpreadWork
from smalti.batch.table import BatchRow
from smalti.batch.worker import BatchWork
from smalti.cluster.interface import ClusterWorker, Declined, Lost, Told
from smalti.cluster.on_ray import RayWorker, joined, joined_ahead
from smalti.diffusion.load_options import LoadOptions
from smalti.errors import InputError

pytestmark = pytest.mark.sweep
STORE_BYTES = 100 << 20
SECONDS = 120
"""That an answer may take on a computer that is busy with others."""


@pytest.fixture(autouse=True, scope="module")
def ray_there() -> None:
    """Left out where there is no Ray; a run that does not ask for these tests says nothing."""
    need_ray()


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head and a second node, each with a core."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(["src", "tests/material"]))
        patch.setenv("SMALTI_CACHE", str(tmp_path_factory.mktemp("cache")))
        cluster = Cluster(initialize_head=True, head_node_args={
            "num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE_BYTES})
        second(cluster)
        yield cluster
        cluster.shutdown()


def second(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)


def until_lost(worker: ClusterWorker) -> None:
    """What ends a worker does not wait for its end: it may still answer."""
    end = time.monotonic() + SECONDS
    while isinstance(worker.asked("pid", seconds=SECONDS), Told):
        assert time.monotonic() < end


@pytest.fixture
def only_here(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that no node has."""
    module: Any = ModuleType("only_here")
    module.Counts = type("Counts", (Counts,), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_what_is_asked_is_told_refused_raised_or_lost(two_nodes: Any, only_here: Any) -> None:
    cluster = joined(two_nodes.address)
    try:
        nodes = cluster.nodes()
        assert [node.cores for node in nodes] == [1, 1] and len({node.id for node in nodes}) == 2
        one = cluster.begin(nodes[0], 1, Counts, ())
        two = cluster.begin(nodes[1], 1, Counts, ())
        answers = [each.asked("pid", seconds=SECONDS) for each in (one, two)]
        first, other = (answer.value for answer in answers if isinstance(answer, Told))
        assert first != other != os.getpid()
        ticket = cluster.ask(one, "refuse", cluster.share(b"x" * 1000))
        assert cluster.ready([ticket], SECONDS) == [(ticket, Declined("1000 bytes are too many"))]
        with pytest.raises(ZeroDivisionError):
            one.asked("fail", seconds=SECONDS)
        os.kill(first, signal.SIGKILL)
        until_lost(one)
        cluster.end(two)
        until_lost(two)
        lacks = cluster.begin(nodes[1], 1, only_here.Counts, ())
        told = lacks.asked("pid", seconds=SECONDS)
        assert isinstance(told, Declined) and "No module named 'only_here'" in told.why
        large = cluster.begin(nodes[0], 5, Counts, ())
        assert isinstance(large.asked("pid", seconds=SECONDS), Lost)
        workers = [cluster.begin(nodes[1], 1, Counts, ()) for _ in range(2)]
        tickets = {cluster.ask(each, "pid") for each in workers}  # one fits, and one waits
        [(ticket, answer)] = cluster.ready([*tickets], SECONDS)
        assert isinstance(answer, Told) and cluster.ready([*tickets - {ticket}], .1) == []
    finally:
        cluster.close()


def test_what_is_begun_ahead_becomes_the_first_worker(two_nodes: Any, only_here: Any) -> None:
    with joined_ahead(two_nodes.address, "cluster_workers", float) as asked:
        cluster = asked()
        one, two = cluster.nodes()
        ahead = [actor for _, actor in cluster._ahead.values()]
        workers = [cluster.begin(one, 1, Counts, ()), cluster.begin(two, 0, Counts, ())]
        assert [worker.actor in ahead for worker in workers] == [True, False] and len(ahead) == 2
        for worker in workers:
            assert isinstance(worker.asked("pid", seconds=SECONDS), Told)
        until_lost(RayWorker(ahead[1]))  # which took the core of the other node
        cluster.end(workers[0])
        cluster.begin_ahead("cluster_workers", float)
        told = cluster.begin(one, 1, only_here.Counts, ()).asked("pid", seconds=SECONDS)
        assert isinstance(told, Declined) and "code is absent that it needs" in told.why
    with joined_ahead("127.0.0.1:1", "cluster_workers", float) as asked, \
            pytest.raises(InputError, match="no cluster of Ray answers at 127.0.0.1:1"):
        asked()


def test_a_node_that_is_killed_twice_costs_no_picture(two_nodes: Any, model_path: Path,
                                                      tmp_path: Path) -> None:
    wanted = records([BatchRow("t:1", {"prompt": "a", "steps": 1, "seed*": [*range(24)]})], Path(),
                     "m", {}, {})
    loading, _ = resolved(LoadOptions(model_path, device="cpu", threads=1))
    here, there = BatchFolder(tmp_path / "here"), BatchFolder(tmp_path / "there")
    [*made(wanted, BatchWork(here.path, loading), 1, print)]
    work = SpreadWork.of({"path": model_path, "device": "cpu", "precision": "auto",
                          "threads": None}, 1, print)
    told: list[str] = []
    hold, kills = tmp_path / "hold", 0
    hold.touch()

    def tell(line: str) -> None:
        """Go on when both nodes have workers, those that came for others included, or never will.
        """
        told.append(line)
        if "left out" in line or sum("workers on cpu" in each for each in told) >= 2 + kills:
            hold.unlink(missing_ok=True)

    cluster = joined(two_nodes.address)
    try:
        crew = ClusterCrew(cluster, work, there, tell, partial(HeldWorker, hold))
        outcomes = []
        for outcome in made_by(crew, wanted):
            outcomes.append(outcome)
            if kills < 2 and len(outcomes) >= 6 * (kills + 1) and not hold.exists():
                hold.touch()  # each worker has what it cannot end
                two_nodes.remove_node(next(iter(two_nodes.worker_nodes)), allow_graceful=False)
                kills += 1
                second(two_nodes)
    finally:
        cluster.close()
    assert not [*filter(None, (each.error for each in outcomes))], told
    assert kills == 2, told  # whether they had records just then, is chance
    assert sorted(each.digest for each in outcomes) == sorted(each.digest for each in wanted)
    assert {path.name: path.read_bytes() for path in there.path.glob("*.png")} == \
        {path.name: path.read_bytes() for path in here.path.glob("*.png")}


def test_two_computers_of_a_kind_tune_and_judge(two_nodes: Any, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMALTI_CACHE", str(tmp_path))
    told = run("tune", "tiny_cnn", "--ray", two_nodes.address, "--threads", "1", "--budget", "4",
               "--export", tmp_path / "all.jsonl")
    assert told.exit_code == 0, told.output
    # Ray may tell of a node of another test before it
    assert re.search(r"^tiny_cnn on 2 computers of .*, threads 1, f32, latency, code \w+: \d+ "
                     r"schedules tried, \d+ of \d+ that one found faster are so on all",
                     told.stdout, re.MULTILINE)


GOES = """
from cluster_workers import Counts
from ray.cluster_utils import Cluster
from smalti.cluster import on_ray
from smalti.cluster.interface import Told
from smalti.errors import InputError

cluster = Cluster(initialize_head=True, head_node_args={
    "num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 << 20})
joined = on_ray.joined(cluster.address)
[node] = joined.nodes()
worker = joined.begin(node, 1, Counts, ())
assert isinstance(worker.asked("pid", seconds=120), Told)
[head] = cluster.head_node.all_processes["gcs_server"]
head.process.kill()
head.process.wait()
on_ray.HEAD_SECONDS = 1.0
try:
    joined.nodes()
except InputError as error:
    print(error)
joined.end(worker)
joined.close()
print("ENDED")
"""


def test_a_head_that_is_killed_is_told(tmp_path: Path) -> None:
    """In a process of its own, since Ray ends those whose head is gone."""
    told = subprocess.run(
        [sys.executable, "-c", GOES], capture_output=True, text=True, timeout=2 * SECONDS,
        check=False, env={**os.environ, "SMALTI_CACHE": str(tmp_path),
                          "PYTHONPATH": os.pathsep.join(["src", "tests/material"])})
    assert told.stdout.splitlines()[-2:] == [
        "the cluster of Ray does not answer any more, its head is gone, or the way to it; begin it "
        "anew, and give the same command again", "ENDED"], told.stderr[-2000:]


@pytest.mark.parametrize(("address", "said"), [
    ("ray://somewhere:10001", "expected auto, or HOST:PORT"), ("nowhere", "expected auto, or HOST"),
    ("127.0.0.1:1", "no cluster of Ray answers at 127.0.0.1:1 .*begin one with `ray start --head`"),
    ("127.0.0.1:99999", "no cluster of Ray answers at 127.0.0.1:99999")])
def test_where_no_cluster_is(address: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        joined(address)


def test_without_ray_there_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="Ray is not installed: pip install 'smalti.ray.'"):
        joined("auto")


def test_a_token_that_is_not_here_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuses(**given: Any) -> None:
        raise ray.exceptions.AuthenticationError("no authentication token was found")

    monkeypatch.setattr(ray, "init", refuses)
    with pytest.raises(InputError, match="at auto asks for its token.* copy ~/.ray/auth_token"):
        joined("auto")
