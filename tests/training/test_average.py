"""The mean of two finished files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers


def written(path: Path, value: float, step: int, width: int = 2) -> Path:
    """A file of one weight and one number that is none, with a description."""
    import torch
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True)
    save_file({"weight": torch.full((width,), value).half(), "positions": torch.arange(3)}, path,
              metadata={"arch_config": json.dumps(dict(train=dict(step=step)))})
    return path


def test_it_lies_between_the_files_and_says_what_it_is_of(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from average import main
    from layout import read_file

    later, earlier = written(tmp_path / "b" / "m.safetensors", 2.0, 7), written(
        tmp_path / "a" / "m.safetensors", 4.0, 5)
    later.with_suffix(".words.txt").write_text("cat\n")
    out = tmp_path / "mean" / "m.safetensors"
    monkeypatch.setattr("sys.argv", ["average.py", str(later), str(earlier), "--share", "0.25",
                                     "--out", str(out)])
    main()
    tensors, config = read_file(out)
    assert tensors["weight"].tolist() == [2.5, 2.5] and tensors["weight"].dtype == torch.half
    assert tensors["positions"].tolist() == [0, 1, 2]
    assert config["train"] == dict(step=7, mean_with=dict(step=5), share=0.25)
    assert json.loads(out.with_suffix(".json").read_text()) == config
    assert out.with_suffix(".words.txt").read_text() == "cat\n"


@pytest.mark.parametrize(("share", "width", "told"), [
    ("1.5", 2, "--share 1.5: expected 0 to 1"), ("0.5", 3, "differ in 1 tensors, such as weight")])
def test_tensors_that_differ_have_no_mean(share: str, width: int, told: str, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    from average import main

    files = [written(tmp_path / "a" / "m.safetensors", 1.0, 1),
             written(tmp_path / "b" / "m.safetensors", 2.0, 2, width)]
    monkeypatch.setattr("sys.argv", ["average.py", *map(str, files), "--share", share, "--out",
                                     str(tmp_path / "m.safetensors")])
    with pytest.raises(SystemExit, match=told):
        main()
    assert not (tmp_path / "m.safetensors").exists()


def test_files_of_other_models_or_of_none_are_refused(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from average import main
    from safetensors.torch import save_file

    first = written(tmp_path / "a" / "m.safetensors", 1.0, 1)
    other, plain = (tmp_path / name for name in ("other.safetensors", "plain.safetensors"))
    save_file({"weight": torch.zeros(2).half(), "positions": torch.arange(3)}, other,
              metadata={"arch_config": json.dumps(dict(train={}, prediction_type="epsilon"))})
    save_file({"weight": torch.zeros(2)}, plain)
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50))
    out = tmp_path / "m.safetensors"
    marked = tmp_path / "marked.safetensors"
    save_file({"weight": torch.zeros(2).half(), "positions": torch.arange(3)}, marked,
              metadata={"arch_config": json.dumps(dict(train=dict(marks=dict(pixel=[1.0]))))})
    for second, told in ((other, "different models in arch_config"), (plain, "no arch_config"),
                         (marked, "different marks of latents"),
                         (tmp_path / "absent.safetensors", "no such file"),
                         (picture, "no safetensors file")):
        monkeypatch.setattr("sys.argv", ["average.py", str(first), str(second), "--out", str(out)])
        with pytest.raises(SystemExit, match=told):
            main()
    assert not out.exists() and not out.with_suffix(".part").exists()
