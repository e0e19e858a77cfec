"""Syntax trees of the repository's own files, for tests of style; each file is read once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the syntax tree of a Python file."""
    return tuple(ast.walk(tree(path)))


def functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions of a module, those inside of others, too; expressions, most of a tree, are not
    looked into."""
    left: list[ast.AST] = [module]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        left += [inner for inner in ast.iter_child_nodes(node)
                 if isinstance(inner, ast.stmt | ast.ExceptHandler | ast.match_case)]
