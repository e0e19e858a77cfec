"""Names of any kind as C++."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from smalti.export.ggml.names import KEYWORDS, OURS, comment, identifier, literal, unique

names = st.text(max_size=100) | st.sampled_from(sorted(KEYWORDS | OURS)) | st.text(
    alphabet="._/ aZ09", max_size=12)


@given(names)
def test_identifiers_are_such_and_nobody_elses(name: str) -> None:
    found = identifier(name)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", found) and "__" not in found
    assert found not in KEYWORDS | OURS and not found.startswith(("ggml_", "gguf_")) \
        or found.endswith("_")


@given(st.lists(names, max_size=20))
def test_unique_names_differ(given_names: list[str]) -> None:
    taken: set[str] = set()
    for name in given_names:
        taken.add(unique(identifier(name), taken))
    assert len(taken) == len(given_names)


ESCAPE = re.compile(r'\\([0-7]{3}|["\\?])')


def value_of(text: str) -> bytes:
    """What a C++ compiler makes of a literal."""
    assert re.fullmatch(r'"(?:[ !#-\[\]-~]|\\[0-7]{3}|\\["\\?])*"', text)
    return ESCAPE.sub(lambda found: chr(int(found[1], 8)) if found[1].isdigit() else found[1],
                      text[1:-1]).encode("latin-1")


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_literals_are_the_bytes_of_the_name(name: str) -> None:
    assert value_of(literal(name)) == name.encode()


def test_zeros_and_lone_surrogates_are_spelled_out() -> None:
    assert value_of(literal("a\0\ud800")) == rb"a\x00\ud800"


@given(st.text())
def test_a_comment_ends_with_its_line(name: str) -> None:
    found = comment(name)
    assert found.isprintable() and found.isascii() and not found.endswith("\\")
