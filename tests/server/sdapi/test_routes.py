"""Lists, styles, options and formats of the web UI's API, and Easy Diffusion's dialect of it."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import webuiapi
from PIL import Image
from served import SECONDS, Client, base64_of, image_of, opened, served

from smalti.errors import InputError
from smalti.server.archive import FAILED, JobRecord
from smalti.server.models import ModelFolders
from smalti.server.sdapi.files import found_file
from smalti.server.sdapi.webui import KEPT
from smalti.server.told import is_refused

SCENE = Image.linear_gradient("L").resize((32, 16)).convert("RGB")
SMALL = {"prompt": "a red apple", "width": 16, "height": 16, "steps": 2, "seed": 3,
         "sd_model_checkpoint": "tiny"}


def test_what_programs_list_is_there(api: webuiapi.WebUIApi, client: Client) -> None:
    assert api.has_controlnet and not api.has_adetailer
    assert [each["name"] for each in api.get_prompt_styles()] == ["oil", "photo"]
    assert api.get_latent_upscale_modes() == [{"name": "Latent"}]
    assert api.get_realesrgan_models()[0]["name"] == "RealESRGAN_x4plus"
    assert api.get_hypernetworks() == api.get_face_restorers() == []
    assert [each["model_name"] for each in api.get_sd_vae()] == ["own.vae.safetensors"]
    assert api.get_memory()["ram"]["total"] > 0 and api.get_cmd_flags()["api"]
    assert api.get_embeddings() == {"loaded": {}, "skipped": {}}
    for path in ("sd-modules", "extensions", "script-info"):
        assert client.get(f"/sdapi/v1/{path}").status == 200
    assert client.get("/internal/pending-tasks").json == {"size": 0, "tasks": []}
    for path in ("refresh-checkpoints", "refresh-loras", "unload-checkpoint", "reload-checkpoint",
                 "skip"):
        assert client.ask("POST", f"/sdapi/v1/{path}").status == 200


def test_styles_are_added_to_prompts(client: Client) -> None:
    answer = client.post("/sdapi/v1/txt2img", {
        **SMALL, "sd_model_checkpoint": None, "styles": ["oil", "photo"], "send_images": False})
    info = json.loads(answer.json["info"])
    assert answer.json["images"] == [] and info["negative_prompt"] == "blurry"
    assert info["prompt"] == "a photo of a red apple, oil on canvas"


@pytest.mark.parametrize("kind", ["jpeg", "webp", "png"])
def test_pictures_come_in_the_format_that_is_set(client: Client, kind: str) -> None:
    answer = client.post("/sdapi/v1/txt2img", {
        "prompt": "a", "steps": 1, "override_settings": {"samples_format": kind}})
    image = image_of(answer.json["images"][0])
    assert image.format == kind.upper()
    text = client.post("/sdapi/v1/png-info", {"image": answer.json["images"][0]}).json["info"]
    assert text == json.loads(answer.json["info"])["infotexts"][0]


def test_a_model_is_found_by_title_name_or_path(equipped: Path) -> None:
    folders = ModelFolders([equipped])
    place = equipped / "models" / "Stable-diffusion" / "small" / "tiny.safetensors"
    for name in ("tiny", "small/tiny.safetensors [0123456789]", "small\\tiny.safetensors",
                 str(place)):
        assert found_file(folders, name, "model").path == place
    for name in (str(place.parent / ".." / ".." / "x.safetensors"), "C:\\x.safetensors", "/\0",
                 str(Path(__file__)), 3):
        with pytest.raises(InputError):
            found_file(folders, name, "model")


def test_titles_have_hashes_as_soon_as_they_are_known(client: Client, equipped: Path) -> None:
    place = equipped / "models" / "Stable-diffusion" / "small" / "tiny.safetensors"
    digits = hashlib.sha256(place.read_bytes()).hexdigest()
    until = time.monotonic() + SECONDS
    while (found := client.get("/sdapi/v1/sd-models").json[1])["hash"] is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert found["sha256"] == digits and found["title"] == f"{found['filename']} [{digits[:10]}]"
    assert client.post("/sdapi/v1/options", {"sd_model_checkpoint": found["title"]}).status == 200
    assert client.get("/sdapi/v1/options").json["sd_model_checkpoint"] == found["title"]


def test_easy_diffusion_makes_a_picture(client: Client, equipped: Path) -> None:
    """What `backends/webui_common.py` of Easy Diffusion does, in its order."""
    def post(path: str, body: Any = None) -> Any:
        return client.post(f"/v1{path}", body)

    assert client.get("/v1/internal/ping").content == b"OK"
    usual = {"show_progress_every_n_steps": 3, "show_progress_grid": True,
             "live_previews_enable": False, "forge_additional_modules": []}
    assert post("/sdapi/v1/options", usual).status == 200
    options = client.get("/v1/sdapi/v1/options").json
    assert usual.items() <= options.items()
    assert post("/sdapi/v1/options", {"sd_model_checkpoint": "small/tiny.safetensors",
                                      "forge_additional_modules": []}).status == 200
    lora = str(equipped / "models" / "Lora" / "style.safetensors")
    asked = {"force_task_id": "one", "prompt": "a red apple", "negative_prompt": "", "steps": 2,
             "sampler_name": "Euler a", "scheduler": "simple", "seed": 42, "cfg_scale": 7.5,
             "distilled_cfg_scale": 3.5, "batch_size": 1, "width": 16, "height": 16,
             "lora_paths": [lora], "lora_alphas": [0.5]}
    assert post("/internal/progress", {"id_task": "one"}).status == 404
    answer = post("/sdapi/v1/txt2img", asked)
    assert answer.status == 200 and len(answer.json["images"]) == 1
    assert "style" in json.loads(answer.json["info"])["infotexts"][0]
    done = post("/internal/progress", {"id_task": "one", "live_preview": False,
                                       "id_live_preview": -1}).json
    assert done["completed"] and {"progress", "live_preview", "id_live_preview"} <= done.keys()
    assert done["progress"] is None  # else it takes that for a step, and stops what runs by then
    masked = {**asked, "force_task_id": "two", "init_images": [base64_of(SCENE)],
              "denoising_strength": 0.5, "mask": base64_of(SCENE), "include_init_images": True,
              "inpainting_fill": 0, "initial_noise_multiplier": 1, "inpaint_full_res": 0,
              "inpaint_full_res_padding": 32, "resize_mode": 1, "mask_blur": 4}
    answer = post("/sdapi/v1/img2img", masked)
    assert answer.status == 200 and answer.json["parameters"]["init_images"]
    assert client.get("/v1/sdapi/v1/models").json["checkpoint"][1:] == ["small/tiny.safetensors"]
    upscaled = post("/sdapi/v1/extra-batch-images", {
        "upscaler_1": "R-ESRGAN 4x+", "upscaling_resize": 4,
        "imageList": [{"data": base64_of(SCENE), "name": "a"}]})
    assert image_of(upscaled.json["images"][0]).size == (128, 64)
    upscaled = post("/sdapi/v1/extra-batch-images", {
        "upscaler_1": "lanczos", "upscaling_resize": 2,
        "imageList": [{"data": base64_of(SCENE), "name": "a"}]})
    assert image_of(upscaled.json["images"][0]).size == (2 * SCENE.width, 2 * SCENE.height)


@pytest.mark.parametrize("by_path", [False, True])
def test_parts_of_a_model_are_given_by_name_or_path(client: Client, equipped: Path, by_path: bool
                                                    ) -> None:
    place = equipped / "models" / "VAE" / "own.vae.safetensors"
    given = [str(place) if by_path else "own.vae.safetensors"]
    assert client.post("/sdapi/v1/options", {"forge_additional_modules": given}).status == 200
    assert client.get("/sdapi/v1/options").json["forge_additional_modules"] == given
    answer = client.post("/sdapi/v1/txt2img", {"prompt": "a", "steps": 1})
    assert json.loads(answer.json["info"])["sd_vae_name"] == "own.vae.safetensors"
    client.post("/sdapi/v1/options", {"forge_additional_modules": []})


@pytest.mark.parametrize("fields", [{"sampler_name": "none"}, {"width": 17},
                                    {"lora_paths": ["/etc/passwd"], "lora_alphas": [1.0]}])
def test_a_task_of_easy_diffusion_that_fails_completes(client: Client, fields: dict[str, Any]
                                                       ) -> None:
    name = f"task of {fields}"
    answer = client.post("/v1/sdapi/v1/txt2img", {"prompt": "a", "steps": 1, "force_task_id": name,
                                                  **fields})
    assert answer.status == 500 and answer.json["message"]
    assert client.post("/v1/internal/progress", {"id_task": name}).json["completed"]
    assert client.post("/v1/internal/progress", {}).status == 400


def test_options_are_kept_when_the_server_starts_again(tmp_path: Path, equipped: Path) -> None:
    with served(opened(tmp_path, equipped)) as first:
        first.post("/sdapi/v1/options", {"sd_model_checkpoint": "tiny", "mine": {"a": [1]}})
    with served(opened(tmp_path, equipped)) as second:
        options = second.get("/sdapi/v1/options").json
        assert options["mine"] == {"a": [1]}
        assert options["sd_model_checkpoint"].startswith("small/tiny.safetensors")


def test_options_that_cannot_be_any_more_are_left_out_and_named(
        tmp_path: Path, equipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file has gone since, or an earlier Smalti kept what it did not look at."""
    site = opened(tmp_path, equipped)
    site.archive.keep(KEPT, json.dumps({
        "sd_model_checkpoint": "tiny", "sd_vae": "gone.vae.safetensors", "mine": 1,
        "eta_noise_seed_delta": 31337}))
    with served(site) as found:
        answer = found.post("/sdapi/v1/txt2img", {"prompt": "a", "steps": 1})
        assert answer.status == 200
        info = json.loads(answer.json["info"])
        vae, delta = info["warnings"]
        assert vae.startswith("the option sd_vae is ignored: no vae is named 'gone.vae.safe")
        assert delta.startswith("the option eta_noise_seed_delta is ignored: ")
        assert info["sd_model_name"] == "tiny" and info["sd_vae_name"] is None
        options = found.get("/sdapi/v1/options").json
        assert (options["sd_vae"], options["mine"]) == ("Automatic", 1)
        assert "eta_noise_seed_delta" not in options
        # programs send back all that they have read
        assert found.post("/sdapi/v1/options", {**options, "eta_noise_seed_delta": 0}).status == 200
        answer = found.post("/sdapi/v1/txt2img", {"prompt": "a", "steps": 1})
        assert json.loads(answer.json["info"])["warnings"] == []
    assert capsys.readouterr().err.count("sd_vae is ignored") == 1


def test_models_are_unloaded_and_loaded_again(client: Client) -> None:
    asked = {"prompt": "a", "model": "tiny", "steps": 1}
    before = client.made(**asked)["pictures"][0]
    assert client.site.workers[0].unload() is None
    after = client.made(**asked)["pictures"][0]
    assert client.get(before["file"]).content == client.get(after["file"]).content


@pytest.mark.parametrize(("given", "said"), [
    ("iVBO", "expected a list of one picture"), ({"0": "iVBO"}, "expected a list of one picture"),
    ([1, 2], "init_images holds several pictures")])
def test_init_images_that_are_not_one_are_refused(client: Client, given: object, said: str) -> None:
    answer = client.post("/sdapi/v1/img2img", {"prompt": "a", "init_images": given})
    assert answer.status == 422 and said in answer.json["detail"]


@pytest.mark.parametrize(("name", "refused"), [
    ("UnknownOptionError", True), ("CheckpointError", True), ("OutputError", False),
    ("NumericsError", False), ("Defect", False), (None, False)])
def test_what_is_wrong_with_a_request_is_told_apart_from_what_went_wrong(
        name: str | None, refused: bool) -> None:
    assert is_refused(JobRecord("a", FAILED, 1.0, {}, None, 0.0, error=name)) is refused
