"""ControlNet's extension: units in requests, and preprocessors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webuiapi
from PIL import Image, ImageOps
from served import Client, base64_of, image_of

from smalti.errors import InputError
from smalti.server.asked import opened
from smalti.server.models import ModelFolders
from smalti.server.sdapi.controlnet import control, split_scripts
from smalti.server.sdapi.detect import detected

SCENE = Image.linear_gradient("L").resize((32, 16)).convert("RGB")
SMALL = {"prompt": "a red apple", "width": 16, "height": 16, "steps": 2, "seed": 3,
         "sd_model_checkpoint": "tiny"}


def test_a_unit_says_what_a_controlnet_reads_and_when(equipped: Path) -> None:
    unit = webuiapi.ControlNetUnit(image=SCENE, model="edges/diffusion_pytorch_model [0123abcd]",
                                   module="invert", weight=0.7, guidance_start=0.2,
                                   resize_mode="Crop and Resize").to_dict()
    found = control(unit, ModelFolders([equipped]), (16, 16))
    with image_of(found.pop("picture")) as read:
        assert read.size == (16, 16)
        assert read.getpixel((0, 0))[0] > 240 > 15 > read.getpixel((0, 15))[0]  # the other way up
    assert found == {"model": "edges/diffusion_pytorch_model.safetensors", "strength": 0.7,
                     "start": 0.2, "end": 1.0}


@pytest.fixture
def filling(equipped: Path, tmp_path: Path) -> ModelFolders:
    """Folders with a ControlNet that fills parts of pictures, as its name says."""
    shutil.copytree(equipped / "models" / "ControlNet" / "edges", tmp_path / "sd15_inpaint")
    return ModelFolders([tmp_path])


def test_a_mask_says_what_a_controlnet_fills(filling: ModelFolders) -> None:
    """White in it is transparent in what the net reads, as is what is so in its image."""
    model = {"model": "sd15_inpaint/diffusion_pytorch_model", "resize_mode": 0}
    half = Image.new("L", (32, 16))
    half.paste(255, (16, 0, 32, 16))
    holed = SCENE.copy()
    holed.putalpha(ImageOps.invert(half))
    image, mask = base64_of(SCENE), base64_of(half)
    for unit in ({"image": image, "mask": mask}, {"image": {"image": image, "mask": mask}},
                 {"image": image, "mask_image": mask, "module": "inpaint"},
                 {"image": image, "mask": base64_of(half.resize((64, 8))), "resize_mode": 2},
                 {"image": base64_of(holed)}):
        found = control({**model, **unit}, filling, (32, 16), "AAAA", masked=True)
        with image_of(found["picture"]) as read:
            assert read.size == (32, 16) and read.getpixel((2, 8)) == (*SCENE.getpixel((2, 8)), 255)
            assert read.getpixel((30, 8))[3] == 0
    for unit in ({"image": image}, {"image": image, "mask": base64_of(Image.new("L", (8, 8)))}):
        with image_of(control({**model, **unit}, filling, (32, 16))["picture"]) as read:
            assert read.mode == "RGB"
    padded = control({**model, "image": image, "mask": mask, "resize_mode": 2}, filling, (32, 32))
    with image_of(padded["picture"]) as read:
        assert read.size == (32, 32) and read.getpixel((30, 1))[3] == 255


def test_a_net_that_fills_reads_what_img2img_changes_with_its_mask(filling: ModelFolders) -> None:
    model = {"model": "sd15_inpaint/diffusion_pytorch_model", "weight": 0.5}
    assert control(model, filling, (16, 16), base64_of(SCENE), masked=True) == {
        "model": "sd15_inpaint/diffusion_pytorch_model.safetensors", "strength": 0.5}
    assert "picture" in control(model, filling, (16, 16), base64_of(SCENE))
    asked = {"prompt": "a", "controls": [{"model": "sd15_inpaint/diffusion_pytorch_model"}]}
    with pytest.raises(InputError, match="is given without a picture, which stands for the one"):
        opened(asked, filling)
    with pytest.raises(InputError, match="picture of a ControlNet is None; expected a picture in"):
        opened({**asked, "controls": [{**asked["controls"][0], "picture": None}]}, filling)
    assert "picture" in control({**model, "module": "canny"}, filling, (16, 16),
                                base64_of(SCENE), masked=True)


@pytest.mark.sweep
def test_a_unit_of_controlnet_steers_the_picture_and_does_not_stay(
        api: webuiapi.WebUIApi, client: Client) -> None:
    net = api.controlnet_model_list()[0]
    unit = webuiapi.ControlNetUnit(image=SCENE, model=f"{net} [01234567]", module="canny",
                                   weight=2.0, guidance_end=0.9)
    plain = api.txt2img(prompt="a red apple", width=16, height=16, seed=3)
    steered = api.txt2img(prompt="a red apple", width=16, height=16, seed=3,
                          controlnet_units=[unit, unit])
    again = api.txt2img(prompt="a red apple", width=16, height=16, seed=3)
    assert steered.image.tobytes() != plain.image.tobytes() == again.image.tobytes()
    assert steered.info["infotexts"][0].count("Weight: 2") == 2
    unit.enabled = False
    off = api.txt2img(prompt="a red apple", width=16, height=16, seed=3, controlnet_units=[unit])
    assert off.image.tobytes() == plain.image.tobytes()
    forge = {**SMALL, "alwayson_scripts": {"controlnet": {"args": [
        {"image": {"image": base64_of(SCENE), "mask": None}, "model": net, "module": "None",
         "resize_mode": 2, "hr_option": "Both", "control_mode": "Balanced", "pixel_perfect": True,
         "batch_input_gallery": None, "input_mode": "simple", "save_detected_map": True}]}}}
    del forge["sd_model_checkpoint"]
    assert client.post("/sdapi/v1/txt2img", forge).status == 200
    first = {**forge, "init_images": [base64_of(SCENE)]}
    del first["alwayson_scripts"]["controlnet"]["args"][0]["image"]
    assert client.post("/sdapi/v1/img2img", first).status == 200, "it reads the init image"


@pytest.mark.parametrize(("unit", "said"), [
    ({"control_mode": "ControlNet is more important"}, "control_mode of a unit of ControlNet is"),
    ({"control_mode": 2}, "expected one of 0, Balanced"), ({"resize_mode": "a"}, "resize_mode"),
    ({"module": "openpose"}, "the module 'openpose' is not there; there are none, canny"),
    ({"model": "None"}, "has no model"), ({"model": "none such"}, "no controlnet is named"),
    ({"image": None}, "has no image"), ({"image": "AAAA"}, "is no picture"),
    ({"mask": "AAAA"}, "mask of a unit"), ({"mask": 7}, "the mask of a unit of ControlNet is 7"),
    ({"mask": base64_of(SCENE)}, "has a mask, and edges/.* fills no parts of pictures; leave the"),
    ({"mask": base64_of(SCENE), "mask_image": base64_of(SCENE)}, "has two masks"),
    ({"mask": base64_of(SCENE), "module": "canny"}, "a mask and the module canny; with a mask"),
    ({"image": {"image": "AAAA", "mask": "AAAA"}}, "mask of a unit"),
    ({"processor_res": 1e9}, "processor_res is 1000000000.0"),
    ({"threshold_a": True, "module": "canny"}, "threshold_a is True"),
    ({"union_control_type": "OpenPose"}, "union_control_type"), ({"ipadapter": 1}, "ipadapter of"),
    ({"hr_option": "Low res only"}, "hr_option")])
def test_units_that_cannot_be_are_refused_by_name(equipped: Path, unit: dict[str, Any], said: str
                                                  ) -> None:
    folders = ModelFolders([equipped])
    usual = {"model": "edges/diffusion_pytorch_model", "image": base64_of(SCENE)}
    with pytest.raises(InputError, match=said):
        control({**usual, **unit}, folders, (16, 16))


@pytest.mark.parametrize(("scripts", "said"), [
    ([1], "expected an object"), ({"ControlNet": {"args": ["canny"]}}, "a unit of ControlNet is"),
    ({"ControlNet": {"args": [{"model": "a"}] * 11}}, "11 units"),
    ({"reactor": {"args": ["AAAA"]}}, "the script 'reactor'")])
def test_scripts_that_cannot_be_are_refused(scripts: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        split_scripts(scripts)


def test_preprocessors_make_what_their_names_say(api: webuiapi.WebUIApi, client: Client) -> None:
    half = Image.new("RGB", (64, 64))
    half.paste((255, 255, 255), (32, 0, 64, 64))
    assert {"none", "canny"} <= {*api.controlnet_module_list()} and api.controlnet_version() == 2
    found = api.controlnet_detect([half], module="canny", processor_res=64).json
    edges = image_of(found["images"][0])
    columns = np.flatnonzero(np.asarray(edges).any(axis=(0, 2)))
    assert edges.size == (64, 64) and len(columns) == 1 and abs(columns[0] - 32) <= 1
    assert np.array_equal(np.asarray(detected(half, "invert")), 255 - np.asarray(half))
    assert {*np.unique(np.asarray(detected(SCENE, "threshold", 64, 100)))} == {0, 255}
    assert detected(half, "tile_resample", -1, 4).size == (16, 16)
    assert np.asarray(detected(half, "blur_gaussian", 64, 3)).std() < np.asarray(half).std()
    refused = client.post("/controlnet/detect", {"controlnet_module": "depth_midas",
                                                 "controlnet_input_images": [base64_of(half)]})
    assert refused.status == 422 and "there are none, canny" in refused.json["message"]
    assert client.post("/controlnet/detect", {}).status == 422
    with pytest.raises(InputError, match="cut it, or give a smaller"):
        detected(Image.new("RGB", (9000, 1)), "canny")
    types = client.get("/controlnet/control_types").json["control_types"]
    assert "canny" in types["All"]["module_list"]
