"""The words that a small model was taught, from a text file beside it.

Large models have seen nearly every word. One that was trained on a few hundred things cannot draw
others, and a person who asks for them is told so. The file has the name of the model's file and
`.words.txt` in place of its suffix. Each line is one thing that the model draws: its names, the
most usual first. A line that begins with `around:` has words that may stand beside them, and `#`
begins a comment:

    # what emoji-256 was taught
    around: a, an, on, white, background
    red apple, apple
    hot dog, hotdog
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from smalti.dataclass import dataclass
from smalti.errors import CheckpointError

AROUND = "around:"
SUFFIX = ".words.txt"
WORD = re.compile(r"(?!\d+\b)[^\W_]+(?:['-][^\W_]+)*")
"""Letters and digits of any script, with apostrophes and hyphens between them; no numbers."""
RELATIONS = frozenset(
    "and at by for from in into of off on or out over the to under up with".split())
"""Words that name nothing to draw."""
SHOWN = 12
"""Names in a message: two lines of a terminal."""


@dataclass(frozen=True)
class TaughtWords:
    """What a model was taught: the `names` of each thing, and words `around` them.

    >>> taught = TaughtWords("a.words.txt", (("red apple", "apple"), ("cat",)), ("a", "on"))
    >>> taught.unknown("a red cat on the Eiffel tower, tower")
    ['Eiffel', 'tower']
    >>> print(taught)
    2 things, by 3 names (all in a.words.txt): red apple, cat
    """

    path: str
    things: tuple[tuple[str, ...], ...]
    around: tuple[str, ...] = ()

    @classmethod
    def beside(cls, model: str | Path) -> TaughtWords | None:
        """The words of the model in a file; None where no list of words lies beside it.

        Raises CheckpointError for a list that is no UTF-8 text, or names nothing.
        """
        path = Path(model).with_suffix(SUFFIX)
        if not path.is_file():
            return None
        try:
            lines = [line.partition("#")[0].strip()
                     for line in path.read_text(encoding="utf-8").splitlines()]
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path} is to list the words that a model knows, as UTF-8 text, "
                                  f"and is none: {error}") from None
        things = tuple(_listed(line) for line in lines if line and not line.startswith(AROUND))
        if not any(things):
            raise CheckpointError(f"{path} is to list the words that a model knows, a thing a line,"
                                  f" and names none; take it away if nothing is known")
        around = [word for line in lines if line.startswith(AROUND)
                  for word in _listed(line.removeprefix(AROUND))]
        return cls(str(path), things, tuple(around))

    def unknown(self, prompt: str) -> list[str]:
        """The words of a text that are in no name and not around one, each once, as written; but
        those of `RELATIONS`."""
        known = {word.lower() for name in self._names() for word in WORD.findall(name)}
        found = {word.lower(): word for word in reversed(WORD.findall(prompt))
                 if word.lower() not in known | RELATIONS}
        return list(reversed(found.values()))

    def examples(self, most: int = SHOWN) -> list[str]:
        """The most usual names of so many things, from all over the list."""
        step = max(1, len(self.things) // most)
        return [names[0] for names in self.things[::step]][:most]

    def _names(self) -> Iterable[str]:
        yield from self.around
        for names in self.things:
            yield from names

    @property
    def count(self) -> int:
        """How many names there are, over all things."""
        return sum(map(len, self.things))

    def __str__(self) -> str:
        return (f"{len(self.things)} things, by {self.count} names (all in {self.path}): "
                f"{', '.join(self.examples())}")


def _listed(line: str) -> tuple[str, ...]:
    return tuple(name for name in map(str.strip, line.split(",")) if name)
