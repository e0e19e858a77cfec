"""Names of the model as C++: identifiers, string literals, file names."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

import numpy as np

KEYWORDS = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t "
    "char32_t class compl concept const consteval constexpr constinit const_cast continue co_await "
    "co_return co_yield decltype default delete do double dynamic_cast else enum explicit export "
    "extern false float for friend goto if inline int long mutable namespace new noexcept not "
    "not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires "
    "return short signed sizeof static static_assert static_cast struct switch template this "
    "thread_local throw true try typedef typeid typename union unsigned using virtual void "
    "volatile wchar_t while xor xor_eq".split())
OURS = frozenset({"all", "blocks", "build", "ctx", "g", "inputs", "main", "ops", "std", "w"})
"""What generated code calls things of its own."""
IDENTIFIER_LENGTH_MAX = 80
"""Characters; compilers take far more, readers do not."""


def identifier(name: str) -> str:
    """`name` as an identifier: letters and digits stay, all else becomes `_`.

    What C++, the C library's macros, ggml or the generated code itself take gets a `_` behind it.

    >>> identifier("input_blocks.1.0"), identifier("/conv/Relu"), identifier("class")
    ('input_blocks_1_0', 'conv_Relu', 'class_')
    >>> identifier("1.weight"), identifier("ggml_add"), identifier("…"), identifier("EOF")
    ('n1_weight', 'ggml_add_', 'x', 'EOF_')
    """
    text = re.sub(r"[^0-9A-Za-z]+|__+", "_", name).strip("_")[-IDENTIFIER_LENGTH_MAX:].strip("_")
    if not text or text[0].isdigit():
        text = f"n{text}" if text else "x"
    macro = len(text) > 1 and text.upper() == text
    taken = text in KEYWORDS or text in OURS or re.match("(ggml|gguf)_|(Graph|Weights|Port)$", text)
    return f"{text}_" if macro or taken else text


def unique(name: str, taken: Collection[str]) -> str:
    """`name`, or `name_2`, `name_3`, … : the first that is not `taken`."""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name.rstrip('_')}_{number}"
    return candidate


def literal(text: str) -> str:
    r"""`text` as a C++ string literal of its UTF-8 bytes.

    >>> print(literal('a "quoted" name\n'), literal("é"))
    "a \"quoted\" name\012" "\303\251"
    """
    def byte(value: int) -> str:
        letter = chr(value)
        if letter in '"\\?':
            return f"\\{letter}"
        return letter if 32 <= value < 127 else f"\\{value:03o}"

    return '"' + "".join(map(byte, plain(text).encode())) + '"'


def comment(text: str) -> str:
    r"""`text` for the end of a `//` line: one line of ASCII that does not go on in the next.

    >>> comment("a\nb\\")
    'a\\nb\\\\ .'
    """
    escaped = text.encode("unicode_escape").decode()
    return f"{escaped} ." if escaped.endswith("\\") else escaped


def number(value: float) -> str:
    """A float literal that reads back as the same f32.

    >>> number(0.5), number(1e-05), number(3), number(float("-inf"))
    ('0.5f', '1e-05f', '3.0f', '-INFINITY')
    """
    rounded = np.float32(value)
    if not np.isfinite(rounded):
        return "NAN" if math.isnan(rounded) else "INFINITY" if rounded > 0 else "-INFINITY"
    return f"{rounded!s}f"


def plain(text: str) -> str:
    """`text` as C++ and GGUF can hold it: without zeros and lone surrogates.

    >>> plain("a" + chr(0) + "b")
    'a\\\\x00b'
    """
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
