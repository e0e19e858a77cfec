"""`smalti sdkit`, as Easy Diffusion starts it, and the process that it makes."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from served import SECONDS

from smalti.cli import main
from smalti.cli.main import root
from smalti.cli.sdkit import OUTPUT
from smalti.cli.serve import OUTPUT as SERVED

FLAGS = ["--log-level", "debug", "--diffusion-fa", "--chroma-disable-dit-mask", "--offload-to-cpu",
         "--vae-tiling", "--vae-tile-size", "512x512"]
"""What Easy Diffusion gives besides folders, port and its own number."""
FOLDERS = ("ckpt-dir", "vae-dir", "hypernetwork-dir", "gfpgan-models-path",
           "realesrgan-models-path", "lora-dir", "codeformer-models-path", "embeddings-dir",
           "controlnet-dir", "text-encoder-dir")


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return answer.read()


@pytest.mark.sweep
def test_it_makes_pictures_for_easy_diffusion_and_ends_with_it(
        environment: dict[str, str], model_path: Path, tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    places = [word for name in FOLDERS for word in (f"--{name}", str(tmp_path / name))]
    (tmp_path / "ckpt-dir" / "mine").mkdir(parents=True)
    (tmp_path / "ckpt-dir" / "mine" / "tiny.safetensors").symlink_to(model_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "smalti", "sdkit", *places, "--port", "0", "--parent-pid",
         str(parent.pid), *FLAGS, "--device", "cpu", "--threads", "1"],
        stdout=subprocess.PIPE, env=environment, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        needless, address = process.stdout.readline(), process.stdout.readline().split()[2]
        assert "--hypernetwork-dir, --gfpgan-models-path" in needless and "vae-tile" in needless
        assert ask(f"{address}/v1/internal/ping") == b"OK"
        ask(f"{address}/v1/sdapi/v1/options", {"sd_model_checkpoint": "mine/tiny.safetensors"})
        answer = json.loads(ask(f"{address}/v1/sdapi/v1/txt2img", {"prompt": "a", "steps": 1}))
        assert len(answer["images"]) == 1
        assert not [*tmp_path.rglob("*.png")], "Easy Diffusion keeps the pictures"
        parent.communicate(b"\n")
        assert process.wait(SECONDS) == 0
    finally:
        parent.kill()
        process.kill()
        process.wait()


@pytest.mark.parametrize(("flags", "code"), [
    (["--no-such-flag"], 1), (["--port", "many"], 1), (["--vae-tile-size"], 1), (["--help"], 0)])
def test_what_is_no_flag_shows_the_usage(flags: list[str], code: int) -> None:
    done = CliRunner().invoke(root, ["sdkit", *flags])
    assert done.exit_code == code and "Usage" in done.output and "--ckpt-dir" in done.output


@pytest.mark.parametrize("name", ["/a/backends/sdkit3/sdkit", "SDKIT.exe"])
def test_a_program_that_is_called_so_is_this_command(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.setattr(main, "prepare_streams", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 0 and "Usage: smalti sdkit" in capsys.readouterr().out


def test_its_folder_is_not_that_of_the_server_for_people() -> None:
    """What waits in it is cancelled at each start."""
    assert OUTPUT != SERVED
