"""Measure `smalti serve`: one table with what is asked of it.

    python bench/serve.py [--only start,polling,...] [--quick] [--minutes 20] [--json FILE]

Rows: start, polling, overhead, cancel, jobs, fuzz, attacks, install. The model is the one that
ships, on the CPU. `--quick` asks each of them less often. Needs Linux; fuzz needs `schemathesis`,
attacks `pytest`.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import operator
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from footprint import ROOT, install_row
from PIL import Image
from report import finish
from served import Server, polling, serving

from smalti import cores
from smalti.benchmark.table import Row

PING_SECONDS_MAX, PAGE_SECONDS_MAX = 0.7, 1.0
PAGE_BYTES_MAX = 300_000
ANSWER_SECONDS_MAX = 0.05
SLOWER_MAX = 0.02
OVERHEAD_SECONDS_MAX, OVERHEAD_MAX = 0.02, 0.02
CANCEL_SECONDS_MAX = 0.1
"""Beyond one step."""
GROWTH_MAX, FUZZ_GROWTH_MAX = 0.05, 0.1
"""Requests that are made up ask for pictures of more and more sizes, whose programs are kept."""
SETTLED = 50
"""Jobs after which the memory of a process is what it stays."""
CLIENTS, EVERY_SECONDS = 100, 0.5
"""Clients that poll, each as often as Easy Diffusion does."""
FUZZ_SECONDS_MAX = 10.0
"""For any answer; what takes longer hangs."""
CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,"
          "response_schema_conformance")
PICTURE: dict[str, Any] = {"prompt": "a red apple", "seed": 1}
STEPS, WATCHED_STEPS = 40, 300
"""Of a picture that takes as long as one usually does, and of one long enough to be asked for."""


@dataclass(frozen=True)
class Plan:
    """How often everything is tried."""

    starts: int = 7
    rounds: int = 7
    cancels: int = 10
    jobs: int = 1000
    cancelled: int = 20
    kills: int = 5
    minutes: float = 20.0


QUICK = Plan(starts=3, rounds=3, cancels=3, jobs=160, cancelled=6, kills=2, minutes=0.5)


def start_rows(plan: Plan, folder: Path) -> list[Row]:
    """From nothing to the first answer, and to a page that can be used: all of its files are
    loaded, and it has heard of the queue."""
    answers, pages, wholes, loaded = [], [], [], {}
    for turn in range(plan.starts + 1):  # the first one reads files that the system has not kept
        with serving(folder / f"start-{turn}") as server:
            loaded = server.page()
            server.hello()
            pages.append(time.perf_counter() - server.began)
            for path in ("/api/options", "/api/models", "/api/devices"):
                server.get(path)
            wholes.append(time.perf_counter() - server.began)
            answers.append(server.seconds)
    weight = sum(loaded.values())
    return [Row.at_most("start to the first ping", PING_SECONDS_MAX,
                        statistics.median(answers[1:]), " s", f"first ever {answers[0]:.2f}"),
            Row.at_most("start to a page that can be used", PAGE_SECONDS_MAX,
                        statistics.median(pages[1:]), " s", f"first ever {pages[0]:.2f}; with all "
                        f"options, models and devices {statistics.median(wholes[1:]):.2f}"),
            Row.at_most("the page before it can be used", PAGE_BYTES_MAX / 1e3, weight / 1e3,
                        " kB", f"{len(loaded)} files")]


def share(values: list[float], part: float) -> float:
    """The value that this part of all is at most."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def polling_rows(plan: Plan, folder: Path) -> list[Row]:
    """Answers while a picture is made, and the picture while 100 clients ask, by turns.

    One core is left to the answers and the clients, which run on this computer, too.
    """
    threads = str(max(1, len(cores.usable()) - 1))
    alone, watched = [], []
    answers: dict[str, list[float]] = {"ping": [], "progress": []}
    with serving(folder / "polling", "--device", "cpu", "--threads", threads) as server:
        server.ended(server.submit(**PICTURE, steps=WATCHED_STEPS))

        def seconds(id: str) -> float:
            job = server.ended(id)
            return float(job["ended"] - job["started"])

        for _ in range(plan.rounds):
            alone.append(seconds(server.submit(**PICTURE, steps=WATCHED_STEPS)))
            server.ask("POST", "/api/jobs/pause", {"paused": True})
            id = server.submit(**PICTURE, steps=WATCHED_STEPS)
            with polling(server.port, CLIENTS, EVERY_SECONDS,
                         ("/internal/ping", f"/api/jobs/{id}")) as found:
                server.ask("POST", "/api/jobs/pause", {"paused": False})
                watched.append(seconds(id))
            for name, times in zip(answers, found.values(), strict=True):
                answers[name] += times
    rows = [Row.at_most(f"{name} while a picture is made, {CLIENTS} clients, p99",
                        ANSWER_SECONDS_MAX * 1e3, share(times, 0.99) * 1e3, " ms",
                        f"p50 {share(times, 0.5) * 1e3:.1f}, {len(times)} answers")
            for name, times in answers.items()]
    slower = statistics.median(watched) / statistics.median(alone) - 1
    return [*rows, Row.at_most(
        f"the picture while {CLIENTS} clients ask, slower by", SLOWER_MAX * 100, slower * 100, " %",
        f"{statistics.median(alone):.2f} s alone; at best {min(alone):.2f} s, and "
        f"{min(watched):.2f} s with them")]


def overhead_rows(plan: Plan, folder: Path) -> list[Row]:
    """A picture by the Python call and through the API, by turns: in one request, as A1111's
    clients ask for it, and as a job that is watched until it ends.

    All make the same picture and write it to a PNG file with its settings. What else a client of
    the API does counts, too: it connects anew for each request, reads the answers and has the
    content of the file at the end. What is told is the middle of the differences of pairs.
    """
    from smalti.diffusion.pipeline import Pipeline

    pipe = Pipeline.load(device="cpu")
    wanted, expected = {**PICTURE, "steps": STEPS}, folder / "called.png"
    with serving(folder / "overhead", "--device", "cpu") as server:

        def call() -> bytes:
            pipe(**wanted).save(expected)
            return b""

        def one_request() -> bytes:
            _, answer = server.ask("POST", "/sdapi/v1/txt2img", {
                **wanted, "override_settings": {"randn_source": "CPU"}})
            return base64.b64decode(json.loads(answer)["images"][0])

        def watched_job() -> bytes:
            job = server.ended(server.submit(**wanted))
            return server.ask("GET", job["pictures"][0]["file"])[1]

        ways = {"in one request": one_request, "as a job with events": watched_job}
        seconds: dict[str, list[float]] = {name: [] for name in ("", *ways)}
        for turn in range(plan.rounds * 3 + 1):  # the first one compiles, and loads
            for name, run in {"": call, **ways}.items():
                began = time.perf_counter()
                content = run()
                seconds[name] += [time.perf_counter() - began] * (turn > 0)
                assert not content or _pixels(io.BytesIO(content)) == _pixels(expected)
    rows, called = [], seconds.pop("")
    for name, times in seconds.items():
        more = statistics.median(map(operator.sub, times, called))
        rows += [Row.at_most(f"a picture {name}, longer by", OVERHEAD_SECONDS_MAX * 1e3,
                             more * 1e3, " ms", f"of {statistics.median(called):.2f} s; at best "
                             f"{(min(times) - min(called)) * 1e3:.0f} ms of {min(called):.2f} s"),
                 Row.at_most("... as a part of the picture", OVERHEAD_MAX * 100,
                             more / statistics.median(called) * 100, " %")]
    return rows


def _pixels(file: IO[bytes] | Path) -> bytes:
    with Image.open(file) as picture:
        return picture.tobytes()


def cancel_rows(plan: Plan, folder: Path) -> list[Row]:
    """From the request to the end of the job, beyond what a step takes."""
    beyond = []
    rng = random.Random(0)
    with serving(folder / "cancel", "--device", "cpu") as server:
        server.ended(server.submit(**PICTURE, steps=2))
        for _ in range(plan.cancels):
            id = server.submit(**PICTURE, steps=1000)
            step, began, done = 0.0, 0.0, 0
            for job in server.events(id):
                now = (job["progress"] or {}).get("step", 0)
                if now and not done:
                    began, done = time.perf_counter(), now
                elif now >= done + 20 and done:
                    step = (time.perf_counter() - began) / (now - done)
                    break
            time.sleep(step * rng.random())
            began = time.perf_counter()
            server.ask("DELETE", f"/api/jobs/{id}")
            state = server.ended(id)["state"]
            assert state == "cancelled", state
            beyond.append(time.perf_counter() - began - step)
    return [Row.at_most("cancel to idle, beyond one step, worst", CANCEL_SECONDS_MAX * 1e3,
                        max(beyond) * 1e3, " ms", f"median {statistics.median(beyond) * 1e3:.0f}, "
                        f"{plan.cancels} times")]


def job_rows(plan: Plan, folder: Path) -> list[Row]:
    """Many jobs, some of which are cancelled, in processes that are killed: what became of them."""
    rng, output = random.Random(1), folder / "jobs"
    server = Server(output, "--device", "cpu")
    server.ask("POST", "/api/jobs/pause", {"paused": True})
    ids = [server.submit(**{**PICTURE, "seed": seed}, steps=2) for seed in range(plan.jobs)]
    server.ask("POST", "/api/jobs/pause", {"paused": False})
    # killed in the first half, so that the last process makes enough to see its memory grow
    kills = sorted(rng.sample(range(plan.jobs // 20, plan.jobs // 2), plan.kills))
    cancels = sorted(rng.sample(range(plan.jobs), plan.cancelled))
    settled: tuple[int, int] | None = None
    first = 0
    try:
        while (ended := _ended(server, plan.jobs)) < plan.jobs:
            while cancels and ended >= cancels[0]:
                cancels.pop(0)
                left = server.get("/api/jobs?limit=1000")["jobs"][:plan.jobs - ended]
                server.ask("DELETE", f"/api/jobs/{rng.choice(left)['id']}")
            if kills and ended >= kills[0]:
                kills.pop(0)
                time.sleep(rng.random() * 0.3)  # at any moment of a job
                server.kill()
                server = Server(output, "--device", "cpu")
                first = _ended(server, plan.jobs)
            elif settled is None and not kills and ended >= first + SETTLED:
                settled = server.resident(), ended
            time.sleep(0.05)
        resident = server.resident()
        jobs = server.get("/api/jobs?limit=1000")["jobs"]
        pictures = server.get("/api/pictures?limit=1000")["pictures"]
    finally:
        server.stop()
    return [_accounts(ids, jobs, pictures, output, plan),
            _growth(settled, resident, plan.jobs)]


def _ended(server: Server, jobs: int) -> int:
    """How many jobs neither wait nor run."""
    return jobs - sum(len(server.get(f"/api/jobs?state={state}&limit=1000")["jobs"])
                      for state in ("queued", "running"))


def _accounts(ids: list[str], jobs: list[dict[str, Any]], pictures: list[dict[str, Any]],
              output: Path, plan: Plan) -> Row:
    """Whether each job ended once, with the picture that it should have, and no other file."""
    wrong = len(ids) - len({job["id"] for job in jobs} & set(ids)) + (len(jobs) - len(ids))
    states = {state: [job for job in jobs if job["state"] == state]
              for state in ("done", "cancelled", "failed")}
    wrong += len(jobs) - sum(map(len, states.values()))
    made = sorted(picture["job"] for picture in pictures)
    wrong += made != sorted(job["id"] for job in states["done"])
    wrong += sum(not job["error"] for job in states["failed"])
    files = [*output.rglob("*.png")]
    wrong += abs(len(files) - len(pictures)) + len([*output.rglob("*.part")])
    for file in files:
        with Image.open(io.BytesIO(file.read_bytes())) as picture:
            picture.load()
    said = ", ".join(f"{len(found)} {state}" for state, found in states.items())
    return Row(f"{plan.jobs} jobs, {plan.cancelled} cancels, {plan.kills} kill -9",
               "each ends once, no half file", f"{said}; {wrong} wrong", wrong == 0)


def _growth(settled: tuple[int, int] | None, resident: int, jobs: int) -> Row:
    if settled is None:
        raise SystemExit("too few jobs to see whether memory grows")
    before, at = settled
    return Row.at_most(f"memory of the last process, after job {SETTLED} and at its end, more by",
                       GROWTH_MAX * 100, (resident / before - 1) * 100, " %",
                       f"{before / 1e6:.0f} to {resident / 1e6:.0f} MB in {jobs - at} jobs")


def fuzz_rows(plan: Plan, folder: Path) -> list[Row]:
    """Requests made of the OpenAPI document, valid ones and others, by schemathesis."""
    tool = shutil.which("schemathesis") or shutil.which(
        "schemathesis", path=os.path.dirname(sys.executable))
    if tool is None:
        raise SystemExit("schemathesis is not installed: pip install schemathesis, or leave out "
                         "the row with --only")
    texts, resident, alive = [], [], True
    with serving(folder / "fuzz", "--device", "cpu", "--threads", "1") as server:
        server.submit(**PICTURE, steps=1)
        for half in range(2):
            done = subprocess.run(
                [tool, "--no-color", "run", f"http://127.0.0.1:{server.port}/api/openapi.json",
                 "--seed", str(half), "--max-time", str(round(plan.minutes * 30)),
                 "--max-examples", "100000", "--checks", CHECKS,
                 "--max-response-time", str(FUZZ_SECONDS_MAX),
                 "--request-timeout", str(FUZZ_SECONDS_MAX), "--exclude-path-regex", "events$",
                 "--continue-on-failure", "--no-shrink", "--generation-database", "none",
                 "--suppress-health-check", "all"], capture_output=True, text=True, cwd=folder)
            texts.append(done.stdout + done.stderr)
            alive = alive and done.returncode == 0 and server.get("/internal/ping") == {}
            resident.append(server.resident())
    requests = sum(int(each) for text in texts for each in re.findall(r"(\d+) generated", text))
    faults = sum(int(each) for text in texts for each in re.findall(r"(\d+) found", text))
    if not alive:
        Path("fuzz.txt").write_text("\n".join(texts))
    return [Row(f"fuzz of the schema, {plan.minutes:g} minutes", "no fault, no hang",
                f"{faults} faults in {requests} requests" + ("" if alive else "; see fuzz.txt"),
                alive),
            Row.at_most("memory after half of it and at its end, more by", FUZZ_GROWTH_MAX * 100,
                        (resident[1] / resident[0] - 1) * 100, " %",
                        f"{resident[0] / 1e6:.0f} to {resident[1] / 1e6:.0f} MB")]


def attack_rows(plan: Plan, folder: Path) -> list[Row]:
    """The attacks of tests/material/attacks.py, each of which has a second."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
         "tests/server/test_attacks.py"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "ATTACK_SECONDS": "1"})
    last = done.stdout.strip().rpartition("\n")[2].strip("= ")
    return [Row("attacks, each answered within 1 s", "none works", last, done.returncode == 0)]


def install_rows(plan: Plan, folder: Path) -> list[Row]:
    """The whole install."""
    return [install_row()]


ROWS = {"start": start_rows, "polling": polling_rows, "overhead": overhead_rows,
        "cancel": cancel_rows, "jobs": job_rows, "fuzz": fuzz_rows, "attacks": attack_rows,
        "install": install_rows}


def main() -> int:
    """The exit code: 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(ROWS), help="rows, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a tenth of the time")
    parser.add_argument("--minutes", type=float, default=None, help="of fuzz; default: 20")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    given = parser.parse_args()
    plan = QUICK if given.quick else Plan()
    if given.minutes is not None:
        plan = Plan(**{**vars(plan), "minutes": given.minutes})
    names = given.only.split(",")
    for name in names:
        if name not in ROWS:
            parser.error(f"no row is named {name!r}; expected some of {', '.join(ROWS)}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            found = ROWS[name](plan, Path(folder))
            for row in found:
                print(f"{row.what}: {row.measured}", file=sys.stderr, flush=True)
            rows += found
    print(f"load of the machine {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return finish(rows, given.json)


if __name__ == "__main__":
    raise SystemExit(main())
