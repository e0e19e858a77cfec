"""Forms: what clients send is read, whatever bytes it holds, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from smalti.errors import InputError
from smalti.server.openai.multipart import parts

TYPE = "multipart/form-data; boundary=---a.b"


def form(*contents: tuple[str, bytes]) -> bytes:
    return b"".join(b"-----a.b\r\n%s\r\n\r\n%s\r\n" % (head.encode(), content)
                    for head, content in contents) + b"-----a.b--\r\n"


@given(some.lists(some.binary(max_size=60), max_size=5))
def test_any_bytes_come_through(contents: list[bytes]) -> None:
    sent = [content for content in contents if b"-----a.b" not in content]
    found = parts(form(*(
        (f'Content-Disposition: form-data; name="image[]"; filename="{number}.png"\r\n'
         "Content-Type: image/png", content) for number, content in enumerate(sent))), TYPE)
    assert [(each.name, each.content, each.is_file) for each in found] == [
        ("image[]", content, True) for content in sent]


@given(some.binary(max_size=200))
def test_no_bytes_are_a_defect(content: bytes) -> None:
    for sent in (content, form(("Content-Disposition: form-data", content)), form(("", content))):
        with pytest.raises(InputError):
            parts(sent, TYPE)


@pytest.mark.parametrize("kind", [
    "multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=\xe9",
    f"multipart/form-data; boundary={'x' * 71}"])
def test_a_form_without_a_boundary_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match="boundary"):
        parts(form(), kind)


def test_a_form_of_many_parts_is_refused() -> None:
    many = form(*[('Content-Disposition: form-data; name="n"', b"1")] * 65)
    with pytest.raises(InputError, match="65 parts"):
        parts(many, TYPE)
