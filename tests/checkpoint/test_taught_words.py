"""Lists of the words that a small model was taught."""

from __future__ import annotations

from pathlib import Path

import pytest

from smalti.checkpoint.taught_words import TaughtWords
from smalti.diffusion.pipeline import SHIPPED_MODEL
from smalti.errors import CheckpointError
from smalti.server.guide import DRAWS


def written(folder: Path, text: bytes) -> Path:
    (folder / "tiny.words.txt").write_bytes(text)
    return folder / "tiny.safetensors"


def test_a_list_is_read(tmp_path: Path) -> None:
    model = written(tmp_path, "# list\naround: a, 3d\ncrème brûlée, dessert # sweet\n\nhot dog\n"
                    .encode())
    taught = TaughtWords.beside(model)
    assert taught is not None
    assert taught.things == (("crème brûlée", "dessert"), ("hot dog",))
    assert taught.unknown("A 3D Crème brûlée-like HOT pot, 2 of 3") == ["brûlée-like", "pot"]
    assert TaughtWords.beside(tmp_path / "other.safetensors") is None


@pytest.mark.parametrize("text, problem", [(b"\xff\xfe", "UTF-8"), (b"", "names none"),
                                           (b"around: a, an\n# cat\n", "names none")])
def test_a_list_that_names_nothing_is_refused(tmp_path: Path, text: bytes, problem: str) -> None:
    with pytest.raises(CheckpointError, match=f"tiny.words.txt .*{problem}"):
        TaughtWords.beside(written(tmp_path, text))


def test_the_model_that_ships_says_what_it_draws() -> None:
    taught = TaughtWords.beside(SHIPPED_MODEL)
    assert taught is not None and len(taught.things) == 202
    assert not taught.unknown("a photo of a cute blue car, glossy 3d on a white background")
    assert taught.unknown("the Eiffel tower at sunrise") == ["Eiffel", "tower", "sunrise"]
    assert not set(DRAWS) - {name for names in taught.things for name in names}
