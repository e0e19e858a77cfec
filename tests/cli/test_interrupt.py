"""How modules are loaded by commands."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from smalti.cli.interrupt import loading_modules


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_not_collected_while_modules_load(collects: bool) -> None:
    before = gc.isenabled(), gc.get_freeze_count()
    try:
        gc.enable() if collects else gc.disable()
        with pytest.raises(ImportError), loading_modules():
            assert not gc.isenabled()
            import smalti.nothing_of_this_name  # noqa: F401
        assert gc.isenabled() == collects
    finally:
        gc.enable() if before[0] else gc.disable()
    assert gc.get_freeze_count() == before[1]  # this is no process of the command line


@pytest.mark.parametrize("collects", [True, False])
def test_a_command_does_not_look_at_its_modules_again(collects: bool) -> None:
    code = ("import gc\n"
            "from smalti.cli.interrupt import end_at_once, loading_modules\n"
            "end_at_once()\n"
            f"collects = {collects}\n"
            "gc.enable() if collects else gc.disable()\n"
            "with loading_modules(): import smalti.cli.main\n"
            "assert (gc.get_freeze_count() > 10_000) == collects == gc.isenabled()\n")
    subprocess.run([sys.executable, "-c", code], check=True)
