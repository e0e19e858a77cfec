"""How modules are loaded by commands."""

from __future__ import annotations

import gc

import pytest

from smalti.cli.interrupt import loading_modules


@pytest.fixture
def thawed():
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("collects", [True, False])
def test_what_is_loaded_is_not_looked_at_for_garbage(collects: bool) -> None:
    if not collects:
        gc.disable()
    before = gc.get_freeze_count()
    with pytest.raises(ImportError), loading_modules():
        assert not gc.isenabled()
        made: list[list] = [[] for _ in range(2000)]
        import smalti.nothing_of_this_name  # noqa: F401
    assert gc.isenabled() == collects and len(made) == 2000
    assert (gc.get_freeze_count() >= before + 2000) == collects
