"""Prompts that change from step to step: [before:after:0.5] and [one|other].

The grammar is that of AUTOMATIC1111/stable-diffusion-webui ("prompt editing", "alternating words").
What stands in square brackets without being of these forms stays as it is, and so do brackets that
are not closed; they have a meaning for attention (`smalti.diffusion.prompt`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from itertools import groupby
from typing import NamedTuple

from smalti.dataclass import dataclass

DEPTH_MAX = 50  # brackets within brackets; more are text

_PIECE = re.compile(r"\\.|[()\[\]:|]|[^\\()\[\]:|]+|\\", re.DOTALL)
_WHEN = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+))\s*")
_CLOSING = {")": "(", "]": "["}


class Scheduled(NamedTuple):
    """A text that holds from step `start`, counted from 0, to before step `stop`."""

    start: int
    stop: int
    text: str


@dataclass(frozen=True)
class _Change:
    """[before:after:when]: `after` holds from step `when` on, counted from 0."""

    before: Sequence[_Node]
    after: Sequence[_Node]
    when: int

    def at(self, step: int) -> str:
        return _text(self.after if step >= self.when else self.before, step)


@dataclass(frozen=True)
class _Turns:
    """[one|other|...]: one after the other."""

    options: Sequence[Sequence[_Node]]

    def at(self, step: int) -> str:
        return _text(self.options[step % len(self.options)], step)


_Node = str | _Change | _Turns


@dataclass
class _Open:
    """A bracket that is not closed yet: what stands in it, in sections with signs between."""

    sign: str
    sections: list[list[_Node]] = field(default_factory=lambda: [[]])
    between: list[str] = field(default_factory=list)

    def literal(self, closing: str = "") -> list[_Node]:
        """All of it as it was written."""
        nodes: list[_Node] = [self.sign]
        for section, sign in zip(self.sections, [*self.between, closing], strict=True):
            nodes += [*section, sign]
        return nodes

    def closed(self, closing: str, steps: int) -> list[_Node]:
        """What it means, now that it is closed."""
        if self.sign == "[" and self.between and set(self.between) == {"|"}:
            return [_Turns(self.sections)]
        if self.sign == "[" and self.between.count(":") in (1, 2):
            *said, last = self._without_bars()
            number = last[0] if len(last) == 1 and isinstance(last[0], str) else ""
            match = _WHEN.fullmatch(number)
            if match:
                when = float(match[1]) * (steps if "." in match[1] else 1)
                before = said[0] if len(said) == 2 else []
                return [_Change(before, said[-1], int(min(when, steps)))]
        return self.literal(closing)

    def _without_bars(self) -> list[list[_Node]]:
        """The sections between colons; bars among them are text."""
        sections = [list(self.sections[0])]
        for sign, section in zip(self.between, self.sections[1:], strict=True):
            if sign == ":":
                sections.append(list(section))
            else:
                sections[-1] += [sign, *section]
        return sections


def scheduled(text: str, steps: int) -> list[Scheduled]:
    """The texts of a prompt over a run of so many steps, in order.

    A number with a point is a share of the steps, one without is a number of steps.

    >>> [tuple(part) for part in scheduled("a [red:blue:0.5] cat", 10)]
    [(0, 5, 'a red cat'), (5, 10, 'a blue cat')]
    >>> [part.text for part in scheduled("[cow|horse]", 3)]
    ['cow', 'horse', 'cow']
    """
    nodes = _parsed(text, steps)
    steady = [node for node in nodes if isinstance(node, str)]
    if len(steady) == len(nodes):
        return [Scheduled(0, steps, "".join(steady))]
    texts = ((_text(nodes, step), step) for step in range(steps))
    result = []
    for said, group in groupby(texts, key=lambda item: item[0]):
        numbers = [step for _, step in group]
        result.append(Scheduled(numbers[0], numbers[-1] + 1, said))
    return result


def _text(nodes: Sequence[_Node], step: int) -> str:
    return "".join(node if isinstance(node, str) else node.at(step) for node in nodes)


def _parsed(text: str, steps: int) -> list[_Node]:
    stack = [_Open("")]
    for piece in _PIECE.findall(text):
        top = stack[-1]
        if piece in ("(", "[") and len(stack) <= DEPTH_MAX:
            stack.append(_Open(piece))
        elif piece in _CLOSING and top.sign == _CLOSING[piece]:
            stack.pop()
            stack[-1].sections[-1] += top.closed(piece, steps)
        elif piece in (":", "|"):
            top.between.append(piece)
            top.sections.append([])
        else:
            top.sections[-1].append(piece)
    while len(stack) > 1:
        top = stack.pop()
        stack[-1].sections[-1] += top.literal()
    return stack[0].literal()
