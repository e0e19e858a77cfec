"""The records of all families: found, sound, and in an order in which each file meets its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_families as tiny

from smalti import families as package
from smalti.checkpoint.file_kind import detect, kinds
from smalti.checkpoint.layout import prefixes
from smalti.families import backbones, families, known, text_encoders
from smalti.families.names import Names
from smalti.families.record import ModelFamily

RECORDS = Path(package.__file__).parent / "records"


def test_every_module_of_records_has_one() -> None:
    modules = {path.stem.replace("_", "-") for path in RECORDS.glob("[a-z]*.py")}
    assert modules <= set(known()) and set(known()) - modules == {
        "sdxl-refiner", "flux2-dev", "qwen-image-edit-2509", "qwen-image-edit-2511"}
    assert set(families()) == set(known()) == {
        *tiny.FAMILIES, *tiny.EDITS, *(config.family for config in (
            tiny.FLUX2_DEV, tiny.FLUX3, tiny.ERNIE_IMAGE, tiny.LONGCAT_IMAGE, tiny.LUMINA2,
            tiny.OVIS_IMAGE, tiny.QWEN_IMAGE21))}


@pytest.mark.parametrize("family", known().values(), ids=lambda family: family.name)
def test_a_record_is_sound(family: ModelFamily) -> None:
    assert set(family.before) <= set(known())
    assert family.files and family.texts and family.published
    defaults = [family.defaults(denoiser, family.prediction) for denoiser in family.published]
    for each in defaults:
        low, high = each.areas
        assert 0 < low <= 1 <= high <= each.hires_area
        assert each.size % (8 * family.published[0].multiple) == 0 and each.steps > 0
    for text in family.texts:
        low, high = text.tokens(family.published[0])
        assert 0 < low <= high and text.encoder.name in text_encoders()
    assert {"unet", "transformer"} & set(family.backbone.parts(family.published[0]))


def test_names_and_prefixes_mean_one_thing() -> None:
    ids = [kind.id for kind in kinds()]
    assert len(ids) == len(set(ids))
    table = prefixes()
    assert len({prefix for prefix, _ in table}) == len(table)
    marks = [kind.mark for kind in backbones().values()]
    assert len(marks) == len(set(marks))


@pytest.mark.parametrize("name", tiny.WORDLESS)
def test_a_file_is_claimed_by_its_family_or_by_one_asked_later(name: str) -> None:
    """That is what `before` says: others may claim it, too, but are asked behind it."""
    stored = tiny.single_file(tiny.WORDLESS[name], tiny.random_weights(tiny.WORDLESS[name]))
    names = Names({tensor: value.shape for tensor, value in stored.items()})
    order = list(families())
    claimed = [other for other in order
               if any(kind.shows(names) for kind in families()[other].files)]
    assert claimed[0] == name == detect(names.all).family
    assert set(claimed[1:]) <= _later(name)


def _later(name: str) -> set[str]:
    """The families that are asked later because of what a record says, directly or not."""
    direct = set(known()[name].before)
    return direct.union(*map(_later, direct))
