"""Records from JSON, each value checked against the annotation of its field.

    decoded(Place, {"offset": 0, "shape": [2], "strides": [4], "dtype": "f32"})

Lists become tuples where the annotation says so. Nothing is called but the records themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
Decoder = Callable[[Any], Any]
SHOWN = 60  # characters of a value that an error shows


def decoded(kind: type[Record], value: Any) -> Record:
    """`value` as a `kind`: a dataclass, or tuples, lists, dicts and unions of such.

    Raises ValueError for anything that the annotations do not say.

    >>> decoded(tuple[int, ...], [1, 2])
    (1, 2)
    >>> decoded(int, True)
    Traceback (most recent call last):
        ...
    ValueError: True is no int
    """
    return _decoder(kind)(value)  # type: ignore[arg-type]  # every class is hashable


def _refuse(value: Any, kind: Any) -> ValueError:
    return ValueError(f"{value!r:.{SHOWN}} is no {getattr(kind, '__name__', kind)}")


@cache
def _decoder(kind: Any) -> Decoder:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return _tuples
    if is_dataclass(kind):
        return _record_decoder(kind)
    if origin in (Union, UnionType):
        return _union_decoder(kind, arguments)
    if origin is tuple and arguments[-1:] != (...,):
        return _fixed_decoder(kind, tuple(map(_decoder, arguments)))
    if origin in (tuple, list):
        return _list_decoder(kind, origin, _decoder(arguments[0]))
    if origin is dict:
        return _dict_decoder(kind, _decoder(arguments[1]))
    accepted = (int, float) if kind is float else (kind,)

    def plain(value: Any) -> Any:
        if type(value) not in accepted:
            raise _refuse(value, kind)
        return value

    return plain


def _tuples(value: Any) -> Any:
    """`value` with tuples for lists, which JSON makes of them."""
    if isinstance(value, dict):
        return {name: _tuples(inner) for name, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _record_decoder(kind: Any) -> Decoder:
    hints = get_type_hints(kind)
    decoders = {f.name: _decoder(hints[f.name]) for f in fields(kind)}
    needed = {f.name for f in fields(kind)
              if f.default is MISSING and f.default_factory is MISSING}

    def record(value: Any) -> Any:
        if type(value) is not dict or not needed <= value.keys() <= decoders.keys():
            raise _refuse(value, kind)
        return kind(**{name: decoders[name](inner) for name, inner in value.items()})

    return record


def _union_decoder(kind: Any, arguments: tuple[Any, ...]) -> Decoder:
    """None where that is meant, else the first alternative that fits."""
    decoders = [_decoder(argument) for argument in arguments if argument is not NoneType]

    def union(value: Any) -> Any:
        if value is None and NoneType in arguments:
            return None
        for decode in decoders[:-1]:
            try:
                return decode(value)
            except ValueError:
                continue
        return decoders[-1](value)

    return union


def _fixed_decoder(kind: Any, decoders: tuple[Decoder, ...]) -> Decoder:
    def fixed(value: Any) -> Any:
        if type(value) is not list or len(value) != len(decoders):
            raise _refuse(value, kind)
        return tuple(decode(inner) for decode, inner in zip(decoders, value))

    return fixed


def _list_decoder(kind: Any, origin: type, decode: Decoder) -> Decoder:
    def several(value: Any) -> Any:
        if type(value) is not list:
            raise _refuse(value, kind)
        return origin(map(decode, value))

    return several


def _dict_decoder(kind: Any, decode: Decoder) -> Decoder:
    def table(value: Any) -> Any:
        if type(value) is not dict:
            raise _refuse(value, kind)
        return {name: decode(inner) for name, inner in value.items()}

    return table
