"""The native API: what each endpoint does, over HTTP."""

from __future__ import annotations

import base64
import http.client
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from served import HOST, SECONDS, Client

from smalti.server.archive import ENDED, Archive
from smalti.server.native import ENDPOINTS

APPLE: dict[str, Any] = {"prompt": "a red apple", "model": "tiny", "steps": 2}


def test_a_disk_that_is_full_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: Archive, job: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Archive, "add", refuses)
    answer = client.post("/api/jobs", {"prompt": "a", "model": "tiny"})
    assert answer.status == 507 and "disk is full" in answer.json["message"]


def test_a_picture_is_made_and_found_in_the_gallery(client: Client) -> None:
    job = client.made(**APPLE, seed=5)
    assert (job["state"], job["error"], job["progress"]) == ("done", None, None)
    (picture,) = job["pictures"]
    answer = client.get(picture["file"])
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.content)) as image:
        assert image.size == (16, 16) and image.info["parameters"] == picture["text"]
    found = client.get("/api/pictures?search=RED%20apple&limit=1").json["pictures"]
    assert found == [picture] == [client.get(f"/api/pictures/{picture['id']}").json]
    assert client.get("/api/pictures?search=pear").json == {"pictures": []}


def test_the_settings_of_a_picture_make_it_again(client: Client) -> None:
    first = client.made(**APPLE, guidance_time=[0, 0.8], apg=True)["pictures"][0]
    content = client.get(first["file"]).content
    told = client.post("/api/metadata", {"picture": base64.b64encode(content).decode()}).json
    assert told["model"] == "tiny" and not told["unknown"] and not told["missing"]
    second = client.made(**told["options"], model="tiny")["pictures"][0]
    assert client.get(second["file"]).content == content


def test_a_refiner_takes_over_the_last_steps(client: Client) -> None:
    job = client.made(**APPLE, refiner="tiny", refiner_switch=0.5)
    assert "Refiner switch at: 0.5, " in job["pictures"][0]["text"]
    content = client.get(job["pictures"][0]["file"]).content
    told = client.post("/api/metadata", {"picture": base64.b64encode(content).decode()}).json
    assert told["files"] == {"refiner": "tiny"} and told["missing"] == {
        "refiner": "the refiner tiny"}


def test_devices_tell_what_models_are_loaded_with(client: Client) -> None:
    told = client.get("/api/devices").json
    assert told["loading"] == {"precision": "auto", "threads": 1, "memory": None,
                               "gpu_memory": None}
    assert "f32" in told["devices"][0]["precisions"]


def test_the_queue_is_ordered_paused_and_cancelled(client: Client) -> None:
    assert client.post("/api/jobs/pause").json == {"paused": True}
    ids = [client.post("/api/jobs", APPLE).json["id"] for _ in range(3)]
    assert client.post(f"/api/jobs/{ids[2]}/move", {"place": 1}).json["place"] == 1
    listed = client.get("/api/jobs?state=queued").json
    assert listed["paused"] and [each["id"] for each in listed["jobs"]] == [ids[2], *ids[:2]]
    cancelled = client.ask("DELETE", f"/api/jobs/{ids[0]}").json
    assert cancelled["state"] == "cancelled" and cancelled["place"] is None
    again = client.post(f"/api/jobs/{ids[0]}/retry").json["id"]
    client.post("/api/jobs/pause", {"paused": False})
    for id in (ids[1], ids[2], again):
        assert client.site.queue.wait(id, SECONDS).state == "done"
    assert client.post(f"/api/jobs/{ids[1]}/retry").status == 409
    assert client.ask("DELETE", f"/api/jobs/{ids[1]}").status == 409


def test_events_tell_how_a_job_goes_on_until_it_has_ended(client: Client) -> None:
    id = client.post("/api/jobs", {**APPLE, "steps": 20}).json["id"]
    connection = http.client.HTTPConnection(HOST, client.port, timeout=SECONDS)
    connection.request("GET", f"/api/jobs/{id}/events")
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in answer.read().decode().split("\n")
              if line.startswith("data: ")]
    connection.close()
    assert {each["id"] for each in events} == {id}
    assert [each["state"] for each in events if each["state"] in ENDED] == ["done"]
    steps = [each["progress"]["step"] for each in events if each["progress"]]
    assert steps == sorted(steps) and events[-1]["pictures"]


def test_parts_of_a_device_may_be_named_in_any_way(client: Client) -> None:
    job = client.post("/api/jobs", {**APPLE, "device": "text=cpu,denoiser=cpu"}).json
    assert job["device"] == "cpu" and client.site.queue.wait(job["id"], SECONDS).state == "done"


def test_what_is_there_is_told(client: Client) -> None:
    names = [each["name"] for each in client.get("/api/models").json["models"]]
    assert names[0] == "emoji-256.safetensors" and "small/tiny.safetensors" in names
    devices = client.get("/api/devices").json
    assert devices["working"] == ["cpu"] and devices["devices"][0]["id"] == "cpu"
    options = client.get("/api/options").json
    assert options["properties"]["steps"]["maximum"] == 1000
    assert client.get("/internal/ping").json == {}


def test_the_description_has_every_endpoint_and_resolves(client: Client) -> None:
    document = client.get("/api/openapi.json").json
    for each in ENDPOINTS:
        assert each.method.lower() in document["paths"][each.path]
    text = json.dumps(document)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]


@pytest.mark.parametrize(("method", "path", "body", "status", "said"), [
    ("POST", "/api/jobs", {"prompt": 3}, 422, "expected text"),
    ("POST", "/api/jobs", {**APPLE, "device": "vulkan:9"}, 422, "this server works on cpu"),
    ("POST", "/api/jobs", {**APPLE, "device": "text=wgpu:9"}, 422, "this server works on cpu"),
    ("POST", "/api/jobs", [1], 422, "expected an object"),
    ("POST", "/api/jobs/none/move", {"place": 1}, 404, "no job 'none'"),
    ("POST", "/api/jobs/none/move", {"place": 0}, 422, "place is 0"),
    ("POST", "/api/jobs/none/move", {"place": 1, "to": 3}, 422, "no option to"),
    ("POST", "/api/jobs/pause", {"paused": 1}, 422, "expected true or false"),
    ("POST", "/api/jobs/none/retry", {}, 404, "no job"),
    ("DELETE", "/api/jobs/none", None, 404, "no job"),
    ("GET", "/api/jobs/none", None, 404, "no job"),
    ("GET", "/api/jobs/none/events", None, 404, "no job"),
    ("GET", "/api/jobs?state=lost", None, 422, "state is 'lost'; known: queued"),
    ("GET", "/api/jobs?limit=-1", None, 422, "limit is '-1'"),
    ("GET", "/api/jobs?limit=1001", None, 422, "from 1 to 1000"),
    ("GET", "/api/jobs?stat=done", None, 422, "did you mean state"),
    ("GET", "/api/events?x=1", None, 422, "no option x"),
    ("GET", "/api/pictures/9999", None, 404, "no picture 9999"),
    ("GET", "/api/pictures/99999999999999999999", None, 422, "the id of a picture"),
    ("GET", "/api/pictures?search=" + "+".join("a" * 30), None, 422, "at most 20"),
    ("POST", "/api/metadata", {}, 422, "expected a picture in base64"),
    ("POST", "/api/metadata", {"picture": "http://x/a.png"}, 422, "addresses and paths"),
    ("PUT", "/api/jobs", {}, 405, "PUT is nothing that /api/jobs does"),
    ("GET", "/none", None, 404, "nothing at /none"),
])
def test_errors_say_what_is_wrong(client: Client, method: str, path: str, body: Any, status: int,
                                  said: str) -> None:
    sent = None if body is None else json.dumps(body).encode()
    answer = client.ask(method, path, sent, {"Content-Type": "application/json"})
    assert answer.status == status and said in answer.json["message"]
    assert answer.json["detail"] == answer.json["errors"] == answer.json["message"]


def test_a_picture_whose_file_is_gone_is_told(client: Client) -> None:
    picture = client.made(**APPLE)["pictures"][0]
    record = client.site.archive.picture(picture["id"])
    assert record is not None
    path = client.site.gallery.root / record.path
    path.unlink()
    path.symlink_to(Path(__file__))
    assert client.get(picture["file"]).status == 404, "a link that leads out of the folder"
    path.unlink()
    assert "is gone" in client.get(picture["file"]).json["message"]
