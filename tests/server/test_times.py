"""Where the time of a picture went: stages as they were timed, kernels as far as they are known."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from served import Client

from smalti.server.times import JOBS_KEPT, JobTimes

APPLE: dict[str, Any] = {"prompt": "a red apple", "model": "tiny", "steps": 3}


def test_stages_are_all_of_the_time_and_have_their_kernels(client: Client) -> None:
    job = client.made(**APPLE)
    stages = client.get(f"/api/jobs/{job['id']}/times").json["stages"]
    found = {each["name"]: each for each in stages}
    assert {"text encoder", "denoise", "decode"} <= found.keys()
    assert sum(each["share"] for each in stages) == pytest.approx(1)
    whole = job["ended"] - job["started"]
    assert sum(each["seconds"] for each in stages) == pytest.approx(whole, abs=0.05)
    denoise = found["denoise"]
    assert denoise["seconds"] == job["timings"]["denoise"] and denoise["expected"] > 0
    assert 0 < len(denoise["kernels"]) <= 10
    longest = denoise["kernels"][0]
    assert longest["runs"] == 3 and longest["expected"] > 0 and longest["limit"]
    assert 0 < longest["seconds"] < denoise["seconds"]
    names = [each["name"] for each in denoise["kernels"]]
    assert len({*names}) == len(names)
    took = [each["seconds"] for each in denoise["kernels"]]
    assert took == sorted(took, reverse=True)
    assert client.get(f"/api/jobs/{job['id']}/times").json == {"stages": stages}


def test_times_are_those_of_the_job_and_not_of_a_later_one(client: Client) -> None:
    first = client.made(**APPLE)
    client.made(**{**APPLE, "steps": 9})
    stages = client.get(f"/api/jobs/{first['id']}/times").json["stages"]
    assert {each["runs"] for stage in stages if stage["name"] == "denoise"
            for each in stage["kernels"]} == {3}


def test_programs_of_a_job_are_explained(client: Client) -> None:
    job = client.made(**APPLE)
    programs = client.get(f"/api/jobs/{job['id']}/explain").json["programs"]
    assert {each["part"] for each in programs} >= {"text", "unet", "vae"}
    unet = next(each for each in programs if each["part"] == "unet")
    assert unet["stage"] == "denoise" and "longest" in unet["text"]
    whole = client.get(f"/api/jobs/{job['id']}/explain?all=true").json["programs"]
    assert sum(len(each["text"]) for each in whole) > sum(len(each["text"]) for each in programs)
    client.site.times._kept[job["id"]].clear()  # what was told once is told again at once
    assert client.get(f"/api/jobs/{job['id']}/explain").json["programs"] == programs
    refused = client.get(f"/api/jobs/{job['id']}/explain?all=1")
    assert refused.status == 422 and "all is '1'" in refused.json["message"]


def test_stages_are_known_when_kernels_are_not(client: Client) -> None:
    job = client.made(**APPLE)
    client.site.times._kept.clear()
    stages = client.get(f"/api/jobs/{job['id']}/times").json["stages"]
    assert stages and all((each["kernels"], each["expected"]) == ([], None) for each in stages)


def test_no_program_is_kept_in_memory_for_them(client: Client) -> None:
    job = client.made(**APPLE)
    (worker,) = client.site.workers
    kept = client.site.times._kept[job["id"]]
    programs = [each.runs.program for _, each in kept]
    assert all(each() is not None for each in programs)
    worker._pipelines.clear()
    worker._residents = None
    gc.collect()
    assert all(each() is None for each in programs)
    stages = client.get(f"/api/jobs/{job['id']}/times").json["stages"]
    assert all(each["kernels"] == [] for each in stages)


def test_only_the_last_jobs_are_kept() -> None:
    times = JobTimes()
    for number in range(JOBS_KEPT + 3):
        times._explained[str(number), False] = []
        times.keep(str(number), {})
    assert len(times._kept) == len(times._explained) == JOBS_KEPT and "0" not in times._kept


def test_times_are_of_jobs_that_are_done(client: Client) -> None:
    client.post("/api/jobs/pause")
    job = client.post("/api/jobs", APPLE).json["id"]
    answer = client.get(f"/api/jobs/{job}/times")
    assert answer.status == 409 and "is queued; times are those of one" in answer.json["message"]
    client.ask("DELETE", f"/api/jobs/{job}")
    client.post("/api/jobs/pause", {"paused": False})
    assert client.get("/api/jobs/none/times").status == 404
