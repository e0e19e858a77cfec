"""The parts of a model that become functions of their own.

A scope such as `input_blocks.1.0.in_layers.2` is a path through the parts of a model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby

from smalti.dataclass import dataclass
from smalti.export.ggml.code import Local, Statement

FUNCTION_LINES_MAX = 40
"""Functions of more lines are divided along the parts of the model."""
FUNCTION_LINES_MIN = 6
"""Parts of the model with fewer lines become no function, but stand where they are used."""

Path = tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A part of the model: the statements from `start` to `end`, some of them in its own parts.

    All of them are below `path`.
    """

    path: Path
    start: int
    end: int
    items: tuple[int | Block, ...]


def path_of(scope: str) -> Path:
    """The parts that lead to `scope`; a number belongs to the name in front of it.

    >>> path_of("input_blocks.1.0.in_layers.2"), path_of("/conv1/Conv")
    (('input_blocks.1', '0', 'in_layers.2'), ('conv1', 'Conv'))
    """
    parts: list[str] = []
    for word in filter(None, re.split(r"[./]+", scope)):
        if word.isdigit() and parts and not parts[-1].rpartition(".")[2].isdigit():
            parts[-1] += f".{word}"
        else:
            parts.append(word)
    return tuple(parts)


class Outline:
    """How the statements of a model are divided, and what each part reads and gives."""

    def __init__(self, statements: Sequence[Statement], outputs: Sequence[Local]) -> None:
        self.statements, self.outputs = statements, set(outputs)
        self.paths = [path_of(statement.scope) for statement in statements]
        self.made = {statement.result: i for i, statement in enumerate(statements)}
        self.last_read: dict[Local, int] = {}
        for number, statement in enumerate(statements):
            for local in statement.reads():
                self.last_read[local] = number

    @cached_property
    def whole(self) -> Block:
        """All statements."""
        return self._block((), 0, len(self.statements))

    def _block(self, path: Path, start: int, end: int) -> Block:
        paths = self.paths[start:end]
        while paths and len({p[:len(path) + 1] for p in paths}) == 1 and len(paths[0]) > len(path):
            path = paths[0][:len(path) + 1]
        if end - start <= FUNCTION_LINES_MAX:
            return Block(path, start, end, tuple(range(start, end)))
        items: list[int | Block] = []
        depth = len(path)
        for part, run in groupby(range(start, end), lambda i: self.paths[i][depth:depth + 1]):
            numbers = list(run)
            if not part or len(numbers) < FUNCTION_LINES_MIN:
                items.extend(numbers)
            else:
                items.append(self._block((*path, *part), numbers[0], numbers[-1] + 1))
        return Block(path, start, end, tuple(items))

    def reads(self, block: Block) -> list[Local]:
        """What `block` reads that is made before it, in the order of first use."""
        found = {local: None for i in range(block.start, block.end)
                 for local in self.statements[i].reads() if self.made.get(local, -1) < block.start}
        return list(found)

    def gives(self, block: Block) -> list[Local]:
        """What `block` makes that is read behind it."""
        return [local for local in (s.result for s in self.statements[block.start:block.end])
                if local in self.outputs or self.last_read.get(local, -1) >= block.end]
