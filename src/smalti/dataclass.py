"""`dataclass`, as that of the standard library, for a program that is started for one picture.

The standard library writes each method of each class as text and compiles it when the class is
defined: 0.7 ms for a frozen class of five fields (Python 3.11 on one core of Zen 3), which for the
400 classes that a picture needs was a quarter of its whole process. Here methods are closures, and
only `__init__`, whose parameters are those of the class, is compiled, when it is first called:
0.06 ms for such a class. Fields, `replace`, `asdict`, inheritance and pickles are the standard
library's.

What differs: `__dataclass_params__` says of no class made here that it is frozen, so that frozen
classes of the standard library and of this module cannot inherit from each other; a class without a
docstring has one without its fields; and there is no `order`.
"""

from __future__ import annotations

import abc
import dataclasses
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

FROZEN = "__smalti_frozen__"
"""The attribute of a class that says whether its instances can be changed."""

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass  # what type checkers know all about
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, slots: bool = False,
                  eq: bool = True, repr: bool = True, kw_only: bool = False) -> Any:
        """As `dataclasses.dataclass`.

        >>> @dataclass(frozen=True)
        ... class Size:
        ...     '''Pixels.'''
        ...     width: int
        ...     height: int = 128
        >>> Size(256), Size(256) == Size(width=256, height=128), {Size(1, 2): "a"}[Size(1, 2)]
        (Size(width=256, height=128), True, 'a')
        """
        def made(cls: type) -> type:
            return _made(cls, frozen, slots, eq, repr, kw_only)

        return made if cls is None else made(cls)


def _made(cls: type, frozen: bool, slots: bool, eq: bool, repr: bool, kw_only: bool) -> type:
    for base in cls.__mro__[1:]:
        if vars(base).get(FROZEN, frozen) != frozen:
            kind, other = ("frozen", "non-frozen") if frozen else ("non-frozen", "frozen")
            raise TypeError(f"cannot inherit {kind} dataclass from a {other} one")
    own = set(vars(cls))
    if vars(cls).get("__hash__", 0) is None and "__eq__" in own:  # Python sets it with __eq__
        own.remove("__hash__")
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only,
                                slots=slots)(cls)
    setattr(cls, FROZEN, frozen)
    fields = dataclasses.fields(cls)
    _check_order(cls)
    methods: dict[str, Any] = {"__init__": _Initialiser(cls, frozen, slots)}
    if repr:
        methods["__repr__"] = _representing([each.name for each in fields if each.repr])
    if eq:
        methods["__eq__"] = _comparing(_values([each.name for each in fields if each.compare]))
        methods["__hash__"] = _hashing(_values([
            each.name for each in fields
            if (each.compare if each.hash is None else each.hash)])) if frozen else None
    if frozen:
        if refused := own & {"__setattr__", "__delattr__"}:
            raise TypeError(f"{cls.__qualname__} is frozen and has {min(refused)}")
        methods |= _freezing(cls, frozenset(each.name for each in fields))
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name, method in methods.items():
        if name not in own:
            if hasattr(method, "__qualname__"):
                method.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, method)
    abc.update_abstractmethods(cls)
    return cls


def _check_order(cls: Any) -> None:
    """Raise TypeError where a field that has to be given stands behind one that has a default."""
    may_be_left_out = False
    for each in _taken(cls):
        if each.init and not each.kw_only:
            if each.default is not dataclasses.MISSING or \
                    each.default_factory is not dataclasses.MISSING:
                may_be_left_out = True
            elif may_be_left_out:
                raise TypeError(f"non-default argument {each.name!r} follows default argument")


def _taken(cls: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a class and what is passed on to `__post_init__`, in their order."""
    stored = {each.name for each in dataclasses.fields(cls)}
    return [each for each in cls.__dataclass_fields__.values() if each.name in stored
            or each._field_type is dataclasses._FIELD_INITVAR]  # type: ignore[attr-defined]


class _Factory:
    """Stands in a signature for a default that is made anew each time."""

    def __repr__(self) -> str:
        return "<factory>"


class _Initialiser:
    """`__init__` of a dataclass, which is made when it is first asked for."""

    def __init__(self, owner: type, frozen: bool, slots: bool):
        self._owner, self._frozen, self._slots = owner, frozen, slots

    def __get__(self, instance: object, kind: type | None = None) -> Any:
        function = _initialiser(self._owner, self._frozen, self._slots)
        self._owner.__init__ = function  # type: ignore[misc]
        return function if instance is None else function.__get__(instance)


def _initialiser(cls: Any, frozen: bool, slots: bool) -> Any:
    """`__init__` of a class: it takes the fields in their order, sets them and calls
    `__post_init__`. Names of its helpers begin with two underscores, as those of no field do:
    Python mangles such names in a class."""
    known: dict[str, Any] = {"__put": object.__setattr__, "__absent": _Factory()}
    stored, taken = {each.name for each in dataclasses.fields(cls)}, _taken(cls)
    instance = "__self" if "self" in stored else "self"
    usual: list[str] = []
    named: list[str] = []
    lines, passed = [], []
    for number, each in enumerate(taken):
        name, value = each.name, each.name
        if each.default_factory is not dataclasses.MISSING:
            known[f"__made_{number}"], default = each.default_factory, "=__absent"
            value = f"__made_{number}() if {name} is __absent else {name}"
        elif each.default is not dataclasses.MISSING:
            known[f"__default_{number}"], default = each.default, f"=__default_{number}"
        else:
            default = ""
        if each.init:
            (named if each.kw_only else usual).append(name + default)
        elif default == "=__absent":
            value = f"__made_{number}()"
        elif default and slots:
            value = f"__default_{number}"
        else:  # what the class itself has, or what `__post_init__` sets
            continue
        if name in stored:
            lines.append(f"__put({instance}, {name!r}, {value})" if frozen else
                         f"{instance}.{name} = {value}")
        else:
            passed.append(name)
    if hasattr(cls, "__post_init__"):
        lines.append(f"{instance}.__post_init__({', '.join(passed)})")
    parameters = ", ".join([instance, *usual, *(["*", *named] if named else [])])
    exec(f"def __init__({parameters}):\n  " + "\n  ".join(lines or ["pass"]), known)
    function = known["__init__"]
    function.__qualname__, function.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    function.__annotations__ = {each.name: each.type for each in taken if each.init} | {
        "return": None}
    return function


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What reads attributes of these names, as a tuple: it takes what is the same object for equal,
    such as NaN or an array."""
    if not names:
        return lambda instance: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda instance: (get(instance),)


def _representing(names: list[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({shown})"

    return __repr__


def _comparing(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        if other.__class__ is self.__class__:
            return values(self) == values(other)
        return NotImplemented

    return __eq__


def _hashing(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _freezing(cls: Any, names: frozenset[str]) -> dict[str, Callable[..., None]]:
    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
