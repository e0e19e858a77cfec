"""AUTOMATIC1111's API, driven by a client of it that people use, and what clients rely on besides.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import threading
from dataclasses import replace
from typing import Any

import pytest
import webuiapi
from PIL import Image
from served import HOST, LONG, SECONDS, Client

from smalti.errors import InputError
from smalti.server.models import ModelFile, ModelFolders
from smalti.server.sdapi.fields import translated

RED = Image.new("RGB", (16, 16), "red")
HALF = Image.new("L", (16, 16))
HALF.paste(255, (0, 0, 8, 16))


@pytest.fixture
def api(client: Client) -> webuiapi.WebUIApi:
    """The client, with the tiny model chosen."""
    found = webuiapi.WebUIApi(host=HOST, port=client.port, sampler="Euler a", steps=2)
    found.util_set_model("small/tiny.safetensors")
    return found


def made(api: webuiapi.WebUIApi, **fields: Any) -> Any:
    return api.txt2img(**{"prompt": "a red apple", "width": 16, "height": 16, "seed": 3,
                          "alwayson_scripts": {}, **fields})


def test_txt2img_gives_pictures_with_their_settings(api: webuiapi.WebUIApi, client: Client) -> None:
    result = made(api, batch_size=2, n_iter=2, negative_prompt="blurry", cfg_scale=3)
    assert len(result.images) == 4 and result.info["all_seeds"] == [3, 4, 5, 6]
    assert result.info["sampler_name"] == "Euler a" and result.info["steps"] == 2
    for image, text in zip(result.images, result.info["infotexts"], strict=True):
        assert image.size == (16, 16) and image.info["parameters"] == text
    own = client.made(prompt="a red apple", negative_prompt="blurry", model="tiny", steps=2, seed=3,
                      guidance_scale=3, width=16, height=16, sampler="euler_a", rng="cuda")
    with Image.open(io.BytesIO(client.get(own["pictures"][0]["file"]).content)) as picture:
        assert picture.tobytes() == result.image.tobytes()
    assert api.png_info(result.image).info == result.info["infotexts"][0]


def test_hires_and_variations_are_made(api: webuiapi.WebUIApi) -> None:
    larger = made(api, enable_hr=True, hr_scale=2, denoising_strength=0.5, steps=2)
    assert larger.image.size == (32, 32) and "Hires upscale: 2" in larger.info["infotexts"][0]
    varied = made(api, subseed=5, subseed_strength=0.4)
    assert "Variation seed: 5" in varied.info["infotexts"][0]


def test_img2img_changes_what_is_masked(api: webuiapi.WebUIApi) -> None:
    fields = {"images": [RED], "prompt": "a", "width": 16, "height": 16, "seed": 3,
              "denoising_strength": 0.9, "mask_image": HALF, "mask_blur": 0,
              "inpaint_full_res": False, "alwayson_scripts": {}}
    left, right = (api.img2img(**fields, inpainting_mask_invert=invert).image
                   for invert in (0, 1))
    assert left.getpixel((15, 8)) == RED.getpixel((0, 0)) == right.getpixel((0, 8))
    assert left.getpixel((0, 8)) != RED.getpixel((0, 0)) != right.getpixel((15, 8))
    result = api.img2img(**fields)
    assert result.parameters["init_images"] is None and result.parameters["mask"] is None


def test_lists_are_those_that_clients_choose_from(api: webuiapi.WebUIApi) -> None:
    assert {"Euler a", "DPM++ 2M"} <= {*api.util_get_sampler_names()}
    assert {"automatic", "karras"} <= {*api.util_get_scheduler_names()}
    names = [name.partition(" [")[0] for name in api.util_get_model_names()]
    assert names == ["emoji-256.safetensors", "small/tiny.safetensors"]
    assert [each["name"] for each in api.get_loras()] == ["style"]


def test_options_are_read_back_and_decide_the_model(api: webuiapi.WebUIApi, client: Client) -> None:
    options = api.get_options()
    assert options["sd_model_checkpoint"].startswith("small/tiny.safetensors")
    api.set_options({**options, "show_progress_every_n_steps": 3, "randn_source": "CPU"})
    assert api.get_options()["show_progress_every_n_steps"] == 3
    assert "RNG: CPU" in made(api).info["infotexts"][0]
    api.set_options({"randn_source": "NV"})
    override = {"override_settings": {"sd_model_checkpoint": "emoji-256"}}
    job = made(api, **override, width=64, height=64, steps=1)
    assert job.info["sd_model_name"] == "emoji-256"
    answer = client.post("/sdapi/v1/options", {"sd_model_checkpoint": "none"})
    assert answer.status == 422 and "no model is named 'none'" in answer.json["errors"]


def test_progress_and_interrupt_work_while_a_picture_is_made(api: webuiapi.WebUIApi,
                                                              client: Client) -> None:
    idle = api.get_progress()
    assert (idle["progress"], idle["state"]["job_count"]) == (0.0, 0)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(client.post("/sdapi/v1/txt2img", {
        "prompt": "a", "force_task_id": "mine", **LONG})))
    begun = threading.Event()
    with client.site.queue.watching(lambda id: begun.set() if (
            known := client.site.queue.progress(id)) and known.step > 1 else None):
        thread.start()
        assert begun.wait(SECONDS)
    running = api.get_progress()
    assert 0 < running["progress"] < 1 and running["state"]["sampling_steps"] == 1000
    task = client.post("/internal/progress", {"id_task": "mine"}).json
    assert task["active"] and not task["completed"] and task["progress"] > 0
    assert api.interrupt() == {}
    thread.join(SECONDS)
    assert (results[0].status, results[0].json["images"]) == (200, [])
    assert client.post("/internal/progress", {"id_task": "mine"}).json["completed"]
    assert not client.post("/internal/progress", {"id_task": "other"}).json["completed"]


def test_a_client_that_goes_away_cancels_its_picture(client: Client) -> None:
    ended, seen = threading.Event(), []

    def watch(id: str) -> None:
        progress = client.site.queue.progress(id)
        if progress is not None and progress.step >= 2 and not seen:
            seen.append(id)
            connection.sock.close()
        if seen and id == seen[0] and client.site.queue.job(id).state == "cancelled":
            ended.set()

    connection = http.client.HTTPConnection(HOST, client.port)
    body = json.dumps({"prompt": "a", **LONG,
                       "override_settings": {"sd_model_checkpoint": "tiny"}}).encode()
    with client.site.queue.watching(watch):
        connection.request("POST", "/sdapi/v1/txt2img", body, {"Content-Type": "application/json"})
        assert ended.wait(SECONDS)


@pytest.mark.parametrize(("path", "fields", "status", "said"), [
    ("txt2img", {"sampler_name": "DPM fastest"}, 422, "Sampler not found: 'DPM fastest'"),
    ("txt2img", {"scheduler": 3}, 422, "scheduler is 3"),
    ("txt2img", {"alwayson_scripts": {"ADetailer": {"args": [True]}}}, 422, "script 'ADetailer'"),
    ("txt2img", {"script_name": "xyz plot"}, 422, "script_name is 'xyz plot'"),
    ("txt2img", {"styles": ["oil"]}, 422, "styles holds 'oil'; known: none"),
    ("txt2img", {"restore_faces": True}, 422, "restore_faces is True"),
    ("txt2img", {"refiner_checkpoint": "x"}, 422, "no model is named 'x'"),
    ("txt2img", {"enable_hr": True, "hr_resize_x": 99}, 422, "hr_resize_x and hr_resize_y are 99"),
    ("txt2img", {"enable_hr": True, "hr_resize_x": 32, "hr_resize_y": 48, "width": 16,
                 "height": 16}, 422, "expected the same proportions"),
    ("txt2img", {"enable_hr": True, "hr_sampler_name": "Heun"}, 422, "both passes have the same"),
    ("txt2img", {"enable_hr": True, "hr_prompt": "b", "prompt": "a"}, 422, "hr_prompt is 'b'"),
    ("txt2img", {"lora_paths": ["/etc/passwd"], "lora_alphas": [1]}, 422, "passwd' is no LoRA"),
    ("txt2img", {"lora_paths": ["style"]}, 422, "a number for each"),
    ("txt2img", {"ref_images": ["AAAA"]}, 422, "ref_images is for models that read pictures"),
    ("txt2img", {"image_cfg_scale": 2}, 422, "image_guidance is for models that edit pictures"),
    ("txt2img", {"infotext": "a\nSteps: 3"}, 422, "infotext is"),
    ("options", {"forge_additional_modules": ["C:\\windows\\ae.safetensors"]}, 422,
     "is no VAE or text encoder in the folders"),
    ("options", {"forge_additional_modules": ["../ae"]}, 422, "no text-encoder is named '../ae'"),
    ("interrogate", {"image": "AAAA"}, 422, "interrogate"), ("segment", {}, 422, "segment"),
    ("txt2img", {"enable_hr": True, "hr_upscaler": "4x"}, 422, "no esrgan is named '4x'"),
    ("txt2img", {"batch_size": 9, "n_iter": 9}, 422, "batch_size times n_iter is 81"),
    ("txt2img", {"batch_size": 0.5}, 422, "batch_size is 0.5"),
    ("txt2img", {"override_settings": {"randn_source": "TPU"}}, 422, "randn_source is 'TPU'"),
    ("txt2img", {"override_settings": {"eta_noise_seed_delta": 31337}}, 422, "eta_noise_seed_d"),
    ("txt2img", {"override_settings": {"emphasis": "None"}}, 422, "the option emphasis is 'None'"),
    ("txt2img", {"width": 17}, 422, "17"),
    ("img2img", {}, 404, "Init image not found"),
    ("img2img", {"init_images": ["http://127.0.0.1/x.png"]}, 422, "addresses and paths"),
    ("img2img", {"init_images": ["", ""]}, 422, "several pictures"),
    ("img2img", {"init_images": ["AAAA"], "resize_mode": 2}, 422, "resize_mode is 2"),
    ("png-info", {"image": "AAAA"}, 422, "image is no picture"),
    ("options", {"samples_format": "gif"}, 422, "samples_format is 'gif'; expected one of png"),
    ("options", {"jpeg_quality": 101}, 422, "jpeg_quality is 101; expected a whole number from 1"),
    ("txt2img", {"override_settings": {"samples_format": "avif"}}, 422, "samples_format is 'avif'"),
    ("txt2img", {"override_settings": {"jpeg_quality": 10 ** 30}}, 422, "jpeg_quality is 1000"),
    ("txt2img", {"eta": 0.5}, 422, "eta is 0.5"),
    ("options", {"eta_noise_seed_delta": 31337}, 422, "eta_noise_seed_delta is 31337"),
    ("options", {"randn_source": []}, 422, "randn_source is []; expected one of CPU"),
    ("options", {"emphasis": "None"}, 422, "the option emphasis is 'None'"),
    ("options", {"CLIP_stop_at_last_layers": 13}, 422,
     "the option CLIP_stop_at_last_layers is 13; expected a whole number from 1 to 12"),
    ("options", {"sd_vae": "gone", "mine": 1}, 422, "no vae is named 'gone'"),
    ("options", {"x": "y" * 100_001}, 422, "more than 100000 characters"),
])
def test_what_is_not_understood_is_refused_by_name(
        client: Client, path: str, fields: dict[str, Any], status: int, said: str) -> None:
    answer = client.post(f"/sdapi/v1/{path}", {
        **fields, **({"steps": 1} if path.endswith("2img") else {})})
    assert answer.status == status and said in answer.json["message"]
    assert {"error", "detail", "body", "errors", "message"} <= answer.json.keys()


def test_what_says_nothing_changes_nothing() -> None:
    idle = {"eta": 1.0, "s_churn": 0, "s_noise": 1, "restore_faces": False, "styles": [],
            "firstphase_width": 0, "script_name": None, "alwayson_scripts": {
                "ADetailer": {"args": [False]}}, "subseed": -1, "hr_scale": 2,
            "denoising_strength": 0.7, "seed_resize_from_h": -1, "comments": {}}
    plain = {"prompt": "a", "steps": 20.0, "width": None, "batch_size": 1.0, "n_iter": 1.0}
    assert translated({**plain, **idle}, {}, ModelFolders()) == translated(
        plain, {}, ModelFolders()) == {
        "prompt": "a", "steps": 20, "seed": -1, "batch_size": 1, "rng": "cuda"}


def test_what_is_under_a_mask_is_filled_where_nothing_else_is_said() -> None:
    def text(picture: Image.Image) -> str:
        stream = io.BytesIO()
        picture.save(stream, "PNG")
        return base64.b64encode(stream.getvalue()).decode()

    holed, mask = Image.new("RGB", (16, 16), "red"), Image.new("L", (16, 16))
    holed.paste((0, 0, 255), (4, 4, 12, 12))
    mask.paste(255, (4, 4, 12, 12))
    for said, under in (({}, (255, 0, 0)), ({"inpainting_fill": 1}, (0, 0, 255))):
        found = translated({"prompt": "a", "init_images": [text(holed)], "mask": text(mask),
                            **said}, {}, ModelFolders())
        with Image.open(io.BytesIO(base64.b64decode(found["image"]))) as begun:
            assert begun.convert("RGB").getpixel((8, 8)) == under


def test_options_of_a_picture_are_options_of_ours() -> None:
    plain = {"emphasis": "No norm", "eta_noise_seed_delta": 0, "show_progress_grid": True}
    assert translated({}, plain, ModelFolders())["emphasis"] == "no norm"


@pytest.mark.parametrize(("sampler", "scheduler", "noise"), [
    ("DPM++ 2M Karras", "Automatic", None), ("DPM++ 2M Karras", None, None),
    ("DPM++ 2M Karras", "exponential", "exponential"), ("DPM++ 2M", "automatic", "automatic")])
def test_an_old_label_of_a_sampler_says_the_schedule(sampler: str, scheduler: str | None,
                                                     noise: str | None) -> None:
    found = translated({"sampler_name": sampler, "scheduler": scheduler}, {}, ModelFolders())
    assert (found["sampler"], found.get("noise")) == (sampler, noise)


def test_a_picture_that_is_cut_to_size_keeps_its_sides_in_proportion() -> None:
    wide = io.BytesIO()
    Image.linear_gradient("L").resize((32, 16)).convert("RGB").save(wide, "PNG")
    text = base64.b64encode(wide.getvalue()).decode()
    found = translated({"prompt": "a", "init_images": [text], "resize_mode": 1, "width": 16,
                        "height": 16}, {}, ModelFolders())
    with Image.open(io.BytesIO(base64.b64decode(found["image"]))) as cut:
        assert cut.size == (16, 16)


class OneModel(ModelFolders):
    """The model that ships, with something else known of it."""

    def __init__(self, **known: Any) -> None:
        super().__init__()
        self.only = replace(super().all()[0], **known)

    def all(self) -> list[ModelFile]:
        return [self.only]

    recent = all


def test_pictures_for_edits_are_those_that_a_model_reads() -> None:
    reads = OneModel(purpose="reference")
    found = translated({"prompt": "a", "ref_images": ["AAAA"]}, {}, reads)
    assert found["image"] == "AAAA" and "strength" not in found
    with pytest.raises(InputError, match="expected a list of pictures, .* reads up to 1"):
        translated({"ref_images": ["AAAA", "BBBB"]}, {}, reads)
    several = OneModel(purpose="reference", pictures=3)
    assert translated({"ref_images": ["AAAA", "BBBB"]}, {}, several)["image"] == ["AAAA", "BBBB"]
    with pytest.raises(InputError, match="without init_images"):
        translated({"ref_images": ["AAAA"], "init_images": ["AAAA"]}, {}, reads)
    assert translated({"image_cfg_scale": 2.0}, {}, reads)["image_guidance"] == 2.0


def test_what_clients_say_to_all_models_is_left_out_for_those_without_clip() -> None:
    settings = {"CLIP_stop_at_last_layers": 2, "emphasis": "No norm"}
    assert translated({}, settings, ModelFolders())["clip_skip"] == 2
    without = OneModel(untaken=("clip_skip", "emphasis"))
    assert not {"clip_skip", "emphasis"} & translated({}, settings, without).keys()
    assert translated({"clip_skip": 2}, settings, without)["clip_skip"] == 2  # refused by name


def test_a_refiner_is_a_model_by_its_name() -> None:
    name = ModelFolders().all()[0].name
    said = {"refiner_checkpoint": name, "refiner_switch_at": 0.7}
    found = translated(said, {}, ModelFolders())
    assert (found["refiner"], found["refiner_switch"]) == (name, 0.7)
    for idle in ({"refiner_checkpoint": "None"}, {**said, "refiner_switch_at": 1}, {}):
        assert "refiner" not in translated(idle, {}, ModelFolders())
