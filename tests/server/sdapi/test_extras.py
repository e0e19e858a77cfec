"""Pictures that are enlarged."""

from __future__ import annotations

import base64
import threading
from typing import Any

import pytest
import webuiapi
from PIL import Image
from served import SECONDS, Client, base64_of

from smalti.server.sdapi.extras import TURN

SCENE = Image.linear_gradient("L").resize((32, 16)).convert("RGB")


def test_extras_enlarge_pictures(api: webuiapi.WebUIApi, client: Client) -> None:
    one = api.extra_single_image(SCENE, upscaler_1="RealESRGAN_x4plus", upscaling_resize=2)
    assert one.image.size == (64, 32)
    fitted = api.extra_single_image(SCENE, resize_mode=1, upscaling_resize_w=40,
                                    upscaling_resize_h=40, upscaler_1="R-ESRGAN 4x+")
    assert fitted.image.size == (40, 40)
    two = api.extra_batch_images([SCENE, SCENE], upscaler_1="Lanczos", upscaling_resize=1.5)
    assert [each.size for each in two.images] == [(48, 24)] * 2
    assert api.extra_single_image(SCENE).image.size == SCENE.size
    scales = {each["name"]: each["scale"] for each in api.get_upscalers()}
    assert scales == {"None": 4, "Lanczos": 4, "Nearest": 4, "RealESRGAN_x4plus": 2}
    made = client.made(prompt="a", model="tiny", steps=1, seed=9)["pictures"][0]
    content = base64.b64encode(client.get(made["file"]).content).decode()
    job = client.made(upscaler="RealESRGAN_x4plus", image=content)
    assert job["pictures"][0]["seed"] == 9 and job["pictures"][0]["width"] == 32
    assert "Postprocess upscale by: 2" in job["pictures"][0]["text"]


@pytest.mark.parametrize(("fields", "said"), [
    ({"upscaler_1": "SwinIR 4x"}, "no esrgan is named 'SwinIR 4x'"),
    ({"gfpgan_visibility": 1}, "faces are not restored"), ({"image": ""}, "image is no picture"),
    ({"upscaler_2": "Lanczos", "extras_upscaler_2_visibility": 0.5}, "one upscaler"),
    ({"upscaling_resize": 99}, "upscaling_resize is 99"), ({"resize_mode": 3}, "resize_mode is 3"),
    ({"resize_mode": 1, "upscaling_resize_w": 10**6}, "upscaling_resize_w is 1000000"),
    ({"imageList": []}, "imageList is []"), ({"rembg": "u2net"}, "rembg is 'u2net'")])
def test_extras_that_cannot_be_are_refused(client: Client, fields: dict[str, Any], said: str
                                           ) -> None:
    answer = client.post("/sdapi/v1/extra-single-image", {"image": base64_of(SCENE), **fields})
    assert answer.status == 422 and said in answer.json["message"]


def test_a_picture_that_is_cancelled_while_it_waits_is_told(client: Client) -> None:
    client.post("/api/jobs/pause")
    answers: list[Any] = []
    begun = threading.Event()
    asking = threading.Thread(target=lambda: answers.append(client.post(
        "/sdapi/v1/extra-batch-images", {"upscaler_1": "RealESRGAN_x4plus", "imageList": [
            {"data": base64_of(SCENE), "name": "a"}]})))
    with client.site.queue.watching(lambda id: begun.set()):
        asking.start()
        assert begun.wait(SECONDS)
    for id in client.site.archive.order():
        client.ask("DELETE", f"/api/jobs/{id}")
    asking.join(SECONDS)
    client.post("/api/jobs/pause", {"paused": False})
    assert answers[0].status == 500 and "cancelled" in answers[0].json["message"]


def test_pictures_that_are_enlarged_hold_up_nobody_else(client: Client) -> None:
    fields = {"image": base64_of(SCENE), "upscaler_1": "Lanczos"}
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(
        client.post("/sdapi/v1/extra-single-image", fields).status)) for _ in range(50)]
    with TURN:
        for each in threads:
            each.start()
        assert client.get("/v1/models").status == 200  # answered by a thread of the same kind
        assert not found
    for each in threads:
        each.join(SECONDS)
    assert found == [200] * 50
