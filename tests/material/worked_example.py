"""The worked examples of the documentation: what they put into which file, and a process that does
it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def pieces(document: str, heading: str) -> dict[str, str]:
    """What the section of a document puts into each file, by the name of its module."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8").split(f"{heading}\n")[1]
    text = re.split(r"^#{1,3} (?=[A-Z])", text, flags=re.MULTILINE)[0]
    blocks = re.findall(r"```python\n# src/(\S+)\.py\n(.*?)```", text, flags=re.DOTALL)
    return {path.replace("/", "."): code for path, code in blocks}


def added(document: str, heading: str, folder: Path | None = None) -> None:
    """Put each piece at the end of its module: now where that is imported already, else when it is.
    Those in new folders of a package are written to `folder`, which its packages then find them in.
    """
    waiting = pieces(document, heading)
    new: set[Path | None] = set()
    for name in list(waiting):
        package, inner, module = name.rsplit(".", 2)
        made = folder / package / inner if folder else None
        if made not in new and find_spec(f"{package}.{inner}") is not None:
            continue
        new.add(made)
        made.mkdir(parents=True, exist_ok=True)
        (made / "__init__.py").touch()
        (made / f"{module}.py").write_text(waiting.pop(name), encoding="utf-8")
        import_module(package).__path__.append(str(made.parent))
    for name in waiting.keys() & sys.modules.keys():
        exec(compile(waiting.pop(name), name, "exec"), vars(sys.modules[name]))

    def get_code(self: SourceFileLoader, name: str) -> object:
        if name not in waiting:
            return usual(self, name)
        return compile(f"{self.get_source(name)}\n\n{waiting[name]}", self.path, "exec")

    usual, SourceFileLoader.get_code = SourceFileLoader.get_code, get_code


def printed(program: str) -> str:
    """What a program of this folder prints, in a process of its own; tables are read at import."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "material")])
    done = subprocess.run([sys.executable, str(ROOT / "tests" / "material" / program)], text=True,
                          capture_output=True, check=False,
                          env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    return done.stdout
