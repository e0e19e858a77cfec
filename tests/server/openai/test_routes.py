"""OpenAI's API, driven by its own client, and what other clients of it rely on."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import io
import json
import threading
import urllib.parse
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
from PIL import Image
from served import HOST, SECONDS, Client, base64_of, image_of, opened, served
from starlette.requests import ClientDisconnect

from smalti.server.endpoint import EventStream

RED = Image.new("RGB", (16, 16), "red")
HOLED = Image.new("RGBA", (16, 16), (0, 0, 0, 255))
HOLED.paste((0, 0, 0, 0), (0, 0, 8, 16))
JSON = {"Content-Type": "application/json"}


def file_of(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def api(client: Client) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{HOST}:{client.port}/v1", api_key="any",
                         timeout=SECONDS)


def made(api: openai.OpenAI, **fields: Any) -> Any:
    return api.images.generate(**{"prompt": "a red apple", "model": "tiny", "size": "16x16",
                                  "extra_body": {"seed": 3, "steps": 2}, **fields})


def test_pictures_are_made(api: openai.OpenAI, client: Client) -> None:
    found = made(api, n=2)
    pictures = [image_of(each.b64_json) for each in found.data]
    assert [each.size for each in pictures] == [(16, 16)] * 2 and found.size == "16x16"
    assert (found.output_format, found.quality, found.background) == ("png", "medium", "opaque")
    assert found.usage.total_tokens == 0 and "Seed: 4" in pictures[1].info["parameters"]
    own = client.made(prompt="a red apple", model="tiny", seed=3, steps=2)["pictures"][0]
    with Image.open(io.BytesIO(client.get(own["file"]).content)) as same:
        assert same.tobytes() == pictures[0].tobytes()


@pytest.mark.parametrize("kind", ["png", "webp", "jpeg"])
def test_pictures_come_in_a_format_or_by_an_address(api: openai.OpenAI, client: Client, kind: str
                                                    ) -> None:
    found = made(api, output_format=kind, response_format="url")
    address = urllib.parse.urlsplit(found.data[0].url)
    assert address.netloc == f"{HOST}:{client.port}"
    answer = client.get(address.path)
    assert answer.headers["content-type"] == f"image/{kind}"
    with Image.open(io.BytesIO(answer.content)) as picture:
        assert picture.format == kind.upper()
    bytes_ = base64.b64decode(made(api, output_format=kind).data[0].b64_json)
    with Image.open(io.BytesIO(bytes_)) as picture:
        assert picture.format == kind.upper()
    id = address.path.rpartition("/")[2].partition(".")[0]
    assert client.ask("DELETE", f"/api/pictures/{id}").status == 200
    assert client.get(address.path).status == 404, "it is valid while the picture is there"


@pytest.mark.parametrize(("fields", "mode"), [
    ({}, "RGBA"), ({"background": "opaque"}, "RGB"),
    ({"output_format": "webp", "background": "opaque"}, "RGB"), ({"output_format": "jpeg"}, "RGB")])
def test_pictures_are_transparent_where_models_make_such(
        api: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, client: Client, fields: dict[str, str],
        mode: str) -> None:
    monkeypatch.setattr("smalti.server.gallery.Gallery.content",
                        lambda gallery, record: file_of(HOLED))
    answer = made(api, **fields)
    assert answer.background == ("transparent" if mode == "RGBA" else "opaque")
    address = urllib.parse.urlsplit(made(api, response_format="url", **fields).data[0].url)
    sent = client.get(f"{address.path}?{address.query}").content
    for content in (sent, base64.b64decode(answer.data[0].b64_json)):
        with Image.open(io.BytesIO(content)) as picture:
            assert picture.mode == mode
            assert mode == "RGBA" or min(picture.getpixel((3, 8))) > 240


def test_quality_is_a_number_of_steps(api: openai.OpenAI) -> None:
    for quality, steps, shown in (("low", 2, "low"), ("auto", 3, "medium"), ("hd", 4, "high")):
        found = made(api, quality=quality, extra_body={"seed": 3})
        assert f"Steps: {steps}," in image_of(found.data[0].b64_json).info["parameters"]
        assert found.quality == shown


@pytest.mark.parametrize("in_json", [False, True])
def test_what_a_mask_lets_through_is_made_anew(api: openai.OpenAI, client: Client, in_json: bool
                                               ) -> None:
    if in_json:
        answer = client.post("/v1/images/edits", {
            "prompt": "a", "model": "tiny", "mask_blur": 0, "seed": 3,
            "images": [{"image_url": f"data:image/png;base64,{base64_of(RED)}"}],
            "mask": {"image_url": f"data:image/png;base64,{base64_of(HOLED)}"}})
        text = answer.json["data"][0]["b64_json"]
    else:
        found = api.images.edit(image=[("a.png", file_of(RED))], mask=file_of(HOLED), prompt="a",
                                model="tiny", n=1, extra_body={"mask_blur": 0, "seed": 3})
        text = found.data[0].b64_json
    edited = image_of(text)
    assert edited.getpixel((15, 8)) == RED.getpixel((0, 0)) != edited.getpixel((2, 8))


@pytest.mark.parametrize("edits", [False, True])
def test_pictures_are_shown_while_they_are_made(api: openai.OpenAI, edits: bool) -> None:
    given: dict[str, Any] = {"prompt": "a", "model": "tiny", "stream": True, "partial_images": 2,
                             "extra_body": {"steps": 1000, "seed": 3}}
    made(api)  # of an unknown autoencoder the first picture tells what its latents mean
    if edits:
        events = [*api.images.edit(image=file_of(RED), **given)]
    else:
        events = [*api.images.generate(size="16x16", **given)]
    family = "image_edit" if edits else "image_generation"
    *partial, last = events
    assert last.type == f"{family}.completed" and last.size == "16x16"
    assert image_of(last.b64_json).size == (16, 16) and last.usage.total_tokens == 0
    assert 1 <= len(partial) <= 2
    for number, each in enumerate(partial):
        assert (each.type, each.partial_image_index) == (f"{family}.partial_image", number)
        assert image_of(each.b64_json).format == "PNG"


def test_what_goes_wrong_in_a_stream_is_told(api: openai.OpenAI) -> None:
    with pytest.raises(openai.APIError, match="17"):
        [*made(api, size="17x16", stream=True)]


def test_a_stream_that_is_left_cancels_its_picture(client: Client) -> None:
    begun, ended = threading.Event(), threading.Event()

    def watch(id: str) -> None:
        progress = client.site.queue.progress(id)
        if progress is not None and progress.step > 1:
            begun.set()
        if (job := client.site.queue.known(id)) and job.state == "cancelled":
            ended.set()

    connection = http.client.HTTPConnection(HOST, client.port)
    body = {"prompt": "a", "model": "tiny", "steps": 1000, "size": "128x128", "stream": True}
    with client.site.queue.watching(watch):
        connection.request("POST", "/v1/images/generations", json.dumps(body).encode(), JSON)
        assert begun.wait(SECONDS)
        connection.sock.close()
        connection.close()
        assert ended.wait(SECONDS)


def test_a_stream_whose_client_has_gone_before_it_begins_ends_too() -> None:
    ended = []

    async def said() -> AsyncGenerator[bytes, None]:
        yield b"never told"

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        raise OSError("the client has gone")

    stream = EventStream(said(), lambda: ended.append(True))
    with contextlib.suppress(OSError, ClientDisconnect):
        asyncio.run(stream({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send))
    assert ended == [True]


def test_models_are_listed(api: openai.OpenAI) -> None:
    assert [each.id for each in api.models.list()] == ["emoji-256.safetensors",
                                                       "small/tiny.safetensors"]
    assert api.models.retrieve("small/tiny.safetensors").object == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        api.models.retrieve("gpt-image-1")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(("fields", "kind", "param", "code"), [
    ({"model": "gpt-image-1"}, openai.NotFoundError, "model", "model_not_found"),
    ({"size": "huge"}, openai.BadRequestError, "size", "invalid_value"),
    ({"size": "9999x16"}, openai.BadRequestError, "size", "invalid_value"),
    ({"n": 11}, openai.BadRequestError, "n", "invalid_value"),
    ({"background": "transparent"}, openai.BadRequestError, "background", "invalid_value"),
    ({"output_format": "gif"}, openai.BadRequestError, "output_format", "invalid_value"),
    ({"output_compression": 50}, openai.BadRequestError, "output_compression", "invalid_value"),
    ({"style": "vivid"}, openai.BadRequestError, "style", "unknown_parameter"),
    ({"extra_body": {"mask": "AAAA"}}, openai.BadRequestError, "mask", "unknown_parameter"),
    ({"extra_body": {"stream": 1}}, openai.BadRequestError, "stream", "invalid_value"),
    ({"extra_body": {"prompt": None}}, openai.BadRequestError, "prompt",
     "missing_required_parameter"),
    ({"extra_body": {"steps": "many"}}, openai.BadRequestError, None, "invalid_value"),
    ({"size": "17x16"}, openai.BadRequestError, None, "InputError")])
def test_requests_that_cannot_be_are_refused_by_name(
        api: openai.OpenAI, fields: dict[str, Any], kind: type[openai.APIStatusError],
        param: str | None, code: str) -> None:
    with pytest.raises(kind) as caught:
        made(api, **fields)
    found = caught.value
    assert (found.param, found.code, found.type) == (param, code, "invalid_request_error")


@pytest.mark.parametrize(("fields", "said"), [
    ({"image": [file_of(RED), file_of(RED)]}, "2 pictures are given as image; this model reads 1"),
    ({"image": [file_of(RED)] * 11}, "image holds 11 pictures; expected at most 10"),
    ({"image": b"nothing"}, "image is no picture"),
    ({"mask": file_of(RED)}, "mask has no transparent pixels"),
    ({"extra_body": {"image": "twice"}}, "twice"),
    ({"extra_body": {"markup": "x"}}, "Unknown parameter: 'markup'")])
def test_edits_that_cannot_be_are_refused(api: openai.OpenAI, fields: dict[str, Any], said: str
                                          ) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        api.images.edit(**{"image": file_of(RED), "prompt": "a", "model": "tiny", **fields})


def test_what_is_wrong_elsewhere_is_said_in_the_same_words(client: Client, tmp_path: Any) -> None:
    for answer, status in (
            (client.get("/v1/images/none"), 404), (client.get("/v1/images/generations"), 405),
            (client.ask("POST", "/v1/images/generations", b"{", JSON), 400),
            (client.get("/v1/images/files/1.gif"), 404),
            (client.post("/v1/images/edits", {"prompt": "a"}), 400),
            (client.post("/v1/images/edits", {"prompt": "a", "images": [{"file_id": "x"}]}), 400),
            (client.post("/v1/images/edits", {"prompt": "a", "images": [
                {"image_url": "http://127.0.0.1/a.png"}]}), 400)):
        assert answer.status == status
        assert {*answer.json["error"]} == {"message", "type", "param", "code"}
        assert answer.headers["x-content-type-options"] == "nosniff"
    with served(opened(tmp_path, tmp_path), "a secret of this test") as closed:
        api = openai.OpenAI(base_url=f"http://{HOST}:{closed.port}/v1", api_key="wrong")
        with pytest.raises(openai.AuthenticationError) as caught:
            api.models.list()
        assert caught.value.code == "invalid_api_key"
        known = openai.OpenAI(base_url=api.base_url, api_key="a secret of this test")
        assert len(known.models.list().data) == 1


@pytest.mark.parametrize(("headers", "status"), [
    ({}, 415), ({"Authorization": "Basic YTpi"}, 415), ({"Authorization": "Bearer x"}, 400)])
def test_a_form_needs_what_no_foreign_page_can_send(client: Client, headers: dict[str, str],
                                                    status: int) -> None:
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = client.ask("POST", "/v1/images/edits", b"--x--\r\n", {**form, **headers})
    assert answer.status == status
    assert status != 415 or "a form with Authorization: Bearer" in answer.json["error"]["message"]
    other = client.ask("POST", "/v1/images/generations", b"--x--\r\n", {**form, **headers})
    assert other.status == 415


def test_what_a_list_does_not_take_is_refused(client: Client) -> None:
    answer = client.get("/v1/models?limit=1")
    assert answer.status == 400 and answer.json["error"]["param"] == "limit"
