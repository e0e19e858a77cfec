"""Functions of C++: one for each part of an outline, with names for its variables."""

from __future__ import annotations

from collections.abc import Sequence

from smalti.export.ggml.code import Local, Weight
from smalti.export.ggml.names import comment, identifier, literal, unique
from smalti.export.ggml.outline import Block, Outline, Path

WIDTH_MAX = 96
"""Width of lines of code before they are indented: 100 with one step of indentation."""
INDENT = "    "


class Functions:
    """Writes the functions of an outline, parts before what they are parts of."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.texts: list[str] = []
        self._names: set[str] = set()

    def body(self, block: Block, given: dict[Local, str]) -> tuple[list[str], dict[Local, str]]:
        """The lines of `block`, in which the variables of `given` exist; the names at its end."""
        scope = _Scope(self, block, given)
        lines = [line for item in block.items for line in scope.lines(item)]
        head = ["ggml_context * ctx = g.ctx;"] if any("ctx" in line for line in lines) else []
        for name, prefix in sorted(scope.prefixes.items()):
            head.append(f"const Weights {name} = g.weights({literal(prefix) if prefix else ''});")
        return [*head, *lines], scope.names

    def define(self, block: Block, given: dict[Local, str]) -> str:
        """Write the function of `block`, whose arguments are called as in `given`; its name."""
        depth = len(self.outline.whole.path)
        name = unique(identifier("_".join(block.path[depth:])), self._names)
        self._names.add(name)
        arguments = {local: given[local] for local in self.outline.reads(block)}
        given_back = self.outline.gives(block)
        lines, names = self.body(block, dict(arguments))
        kinds = ", ".join(["ggml_tensor *"] * len(given_back))
        results = ", ".join(names[local] for local in given_back)
        if len(given_back) != 1:
            kinds, results = f"std::tuple<{kinds}>", f"{{{results}}}"
        listed = ", ".join(["const Graph & g", *(f"ggml_tensor * {v}" for v in arguments.values())])
        head = f"static {kinds} {name}({listed}) {{"
        self.texts.append("\n".join([
            f"// {comment('.'.join(block.path))}", *wrapped(head),
            *(f"{INDENT}{line}" for line in [*lines, f"return {results};"]), "}"]))
        return name


class _Scope:
    """The variables of one function, line after line."""

    def __init__(self, functions: Functions, block: Block, given: dict[Local, str]) -> None:
        self.functions, self.outline, self.block = functions, functions.outline, block
        self.names = given
        self.kept = set(self.outline.gives(block))
        self.holders = {name: local for local, name in given.items()}
        weights = [piece.name for item in block.items if isinstance(item, int)
                   for piece in self.outline.statements[item].code if isinstance(piece, Weight)]
        self.prefix = _shared_prefix([name for name in weights if "." in name])
        self.prefixes: dict[str, str] = {}
        """What is read by each name for weights."""

    def lines(self, item: int | Block) -> list[str]:
        """What computes `item`: a statement, or the call of a part's function."""
        if isinstance(item, Block):
            return self._call(item)
        statement = self.outline.statements[item]
        code = "".join(self._text(piece) for piece in statement.code)
        name, again = self._named(statement.result, self._wanted(item), item)
        kind = "" if again else "ggml_tensor * "
        shape = ", ".join(map(str, statement.shape))
        return wrapped(f"{kind}{name} = {code};", f"  // [{shape}]")

    def _call(self, block: Block) -> list[str]:
        function = self.functions.define(block, self.names)
        arguments = ", ".join(["g", *(self.names[v] for v in self.outline.reads(block))])
        given = self.outline.gives(block)
        last = block.end - 1
        if len(given) == 1:
            name, again = self._named(given[0], self._called(block.path), last)
            kind = name if again else f"ggml_tensor * {name}"
        else:
            for local in given:
                self._named(local, self._wanted(self.outline.made[local]), None)
            kind = f"auto [{', '.join(self.names[local] for local in given)}]"
        return wrapped(f"{kind} = blocks::{function}({arguments});")

    def _wanted(self, number: int) -> str:
        """What the result of statement `number` would be called here."""
        path = self.outline.paths[number]
        if len(path) > len(self.block.path):
            return self._called(path)
        return identifier(self.outline.statements[number].result.hint)

    def _called(self, path: Path) -> str:
        """`path` from here on; from the top where that would be a number only."""
        words = "_".join(path[len(self.block.path):])
        if words.isdigit():
            words = "_".join(path[len(self.outline.whole.path):])
        return identifier(words)

    def _named(self, local: Local, wanted: str, number: int | None) -> tuple[str, bool]:
        """The name of `local`, made by statement `number`, and whether the variable is there
        already: one whose value is read for the last time is used again."""
        holder = self.holders.get(wanted)
        again = (holder is not None and number is not None and holder not in self.kept
                 and self.outline.last_read.get(holder, -1) <= number)
        if holder is not None and not again:
            wanted = unique(identifier(f"{wanted}_{local.hint}"), self.holders)
        self.names[local], self.holders[wanted] = wanted, local
        return wanted, again

    def _text(self, piece: str | Local | Weight) -> str:
        if isinstance(piece, Local):
            return self.names[piece]
        if isinstance(piece, Weight):
            return self._weight(piece.name)
        return piece

    def _weight(self, name: str) -> str:
        """What reads a weight: `w` below the shared prefix, `all` what is elsewhere."""
        if self.prefix and not name.startswith(f"{self.prefix}."):
            self.prefixes["all"] = ""
            return f"all({literal(name)})"
        self.prefixes["w"] = self.prefix
        return f"w({literal(name[len(self.prefix) + 1 if self.prefix else 0:])})"


def _shared_prefix(names: Sequence[str]) -> str:
    """The words that all `names` begin with, without their last.

    >>> _shared_prefix(["a.b.c.weight", "a.b.d.weight"]), _shared_prefix(["weight"])
    ('a.b', '')
    """
    words = [name.split(".")[:-1] for name in names] or [[]]
    shared = 0
    while all(len(w) > shared and w[shared] == words[0][shared] for w in words):
        shared += 1
    return ".".join(words[0][:shared])


def wrapped(line: str, note: str = "") -> list[str]:
    """`line` and the comment behind it, broken where it is too wide: after commas, not in braces.

    >>> wrapped("f(a, b);", "  // [2]")
    ['f(a, b);  // [2]']
    """
    if len(line) + len(note) <= WIDTH_MAX:
        return [line + note]
    for depth_max in (1, 100):
        lines = [""]
        for piece in [*_parts(line, depth_max)[:-1], _parts(line, depth_max)[-1] + note]:
            if lines[-1].strip() and len(lines[-1]) + 1 + len(piece) > WIDTH_MAX:
                lines.append(INDENT)
            lines[-1] += piece if not lines[-1].strip() else f" {piece}"
        if max(map(len, lines)) <= WIDTH_MAX:
            break
    return lines


def _parts(line: str, depth_max: int) -> list[str]:
    """`line` cut after commas that stand in at most `depth_max` parentheses, and in no braces."""
    parts, start, position, quoted, depth, braces = [], 0, 0, False, 0, 0
    while position < len(line):
        letter = line[position]
        if letter == "\\":
            position += 1  # whatever is behind it stands for itself
        quoted ^= letter == '"'
        if not quoted:
            depth += (letter == "(") - (letter == ")")
            braces += (letter == "{") - (letter == "}")
            if line.startswith(", ", position) and depth <= depth_max and not braces:
                parts.append(line[start:position + 1])
                start = position + 2
        position += 1
    return [*parts, line[start:]]
