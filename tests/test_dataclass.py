"""Dataclasses do what those of the standard library do, whose methods are the reference."""

from __future__ import annotations

import abc
import ast
import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from dataclasses import KW_ONLY, FrozenInstanceError, InitVar, asdict, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from smalti import dataclass as module
from smalti.dataclass import dataclass

OPTIONS = [dict(frozen=frozen, slots=slots, eq=eq, repr=repr)
           for frozen in (False, True) for slots in (False, True)
           for eq in (False, True) for repr in (False, True)]


class Plain:
    """A class that both make a dataclass of."""

    kinds: ClassVar[int] = 3
    width: int
    height: int = 128
    names: list[str] = field(default_factory=list)
    hidden: int = field(default=4, repr=False, compare=False)
    made: str = field(init=False, default="here")
    filled: list[int] = field(init=False, default_factory=lambda: [1])
    _: KW_ONLY
    late: float = 0.5


class Empty:
    """A class without fields."""


class Shadows:
    """A class whose fields are called as what sets them may be."""

    put: int
    default_0: str = "a"
    made_2: list[int] = field(default_factory=list)
    ABSENT: int = 3
    cls: int = 4
    object: int = 5


class Hashed:
    """A class of which a part counts for its hash, and another to compare it."""

    counts: int
    differs: int = field(default=0, hash=False)
    ignored: int = field(default=0, compare=False)
    kept: int = field(default=0, compare=False, hash=True)


class Awaited:
    """A class with what only `__post_init__` is given, and its own hash."""

    total: int = field(init=False)
    first: int
    second: InitVar[int] = 2

    def __post_init__(self, second: int) -> None:
        object.__setattr__(self, "total", self.first + second)

    def __hash__(self) -> int:
        return 11


class Own:
    """A class that says how it is shown and compared."""

    value: int

    def __repr__(self) -> str:
        return "own"

    def __eq__(self, other: object) -> bool:
        return True


def both(cls: type, **options: Any) -> tuple[Any, Any]:
    """The class, as a dataclass of ours and of the standard library."""
    spaces = [{name: value for name, value in vars(cls).items()
               if name not in ("__dict__", "__weakref__")} for _ in range(2)]
    return (dataclass(**options)(type(cls.__name__, (), spaces[0])),
            dataclasses.dataclass(**options)(type(cls.__name__, (), spaces[1])))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(
    name for name, value in options.items() if value))
@pytest.mark.parametrize(("cls", "given"), [
    (Plain, [((1,), {}), ((1, 2, ["a"]), {"late": 2.0}), ((1,), {"hidden": 9})]),
    (Empty, [((), {})]),
    (Shadows, [((1,), {}), ((1, "b", [2], 4, 5, 6), {})]),
    (Hashed, [((1,), {}), ((1, 2, 3), {}), ((1, 0, 9), {}), ((1, 0, 0, 4), {})]),
    (Awaited, [((1,), {}), ((1,), {"second": 5})]),
    (Own, [((1,), {}), ((2,), {})]),
], ids=lambda each: getattr(each, "__name__", ""))
def test_as_the_standard_library(cls: type, given: list, options: dict[str, Any]) -> None:
    ours, theirs = both(cls, **options)
    assert [each.name for each in fields(ours)] == [each.name for each in fields(theirs)]
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)
    pairs = [(ours(*places, **named), theirs(*places, **named)) for places, named in given]
    for one, other in pairs:
        assert [getattr(one, each.name) for each in fields(one)] == [
            getattr(other, each.name) for each in fields(other)]
        if options["repr"] or cls is Own:
            assert repr(one).replace(ours.__qualname__, "") == repr(other).replace(
                theirs.__qualname__, "")
        assert asdict(one) == asdict(other)
        assert hasattr(one, "__dict__") == hasattr(other, "__dict__")
        assert one != "another type" or cls is Own
    for number, (one, other) in enumerate(pairs):
        same = [mine == one for mine, _ in pairs]
        assert same == [their == other for _, their in pairs], number
        assert (copy.copy(one) == one) == (copy.copy(other) == other)
    assert how_it_fails(hash, pairs[0][0]) == how_it_fails(hash, pairs[0][1])
    if cls is Hashed and ours.__hash__ is not object.__hash__ and ours.__hash__:
        for made in zip(*pairs):
            assert [hash(each) == hash(made[0]) for each in made] == [True, True, True, False]
    for name in ("width", "value", "first", "unknown"):
        expected = how_it_fails(setattr, pairs[0][1], name, 3)
        if str(expected).startswith("TypeError super"):  # a defect of it, of frozen slots
            expected = f"FrozenInstanceError cannot assign to field {name!r}"
        assert how_it_fails(setattr, pairs[0][0], name, 3) == expected
    for places, named in [((1, 2, 3, 4, 5, 6), {}), ((), {"unknown": 1})]:
        assert how_it_fails(ours, *places, **named) == how_it_fails(theirs, *places, **named)


def how_it_fails(act: Any, *places: Any, **named: Any) -> str | None:
    """Name and text of what is raised, or None."""
    try:
        act(*places, **named)
    except (TypeError, AttributeError) as error:  # of which frozen ones are
        return f"{type(error).__name__} {error}"
    return None


@dataclass(frozen=True, slots=True)
class Point:
    """A place, which is pickled by its name."""

    x: int
    y: int = 0


@dataclass(frozen=True)
class Named(Point):
    """A place with a name."""

    name: str = "here"


def test_frozen_ones_are_hashed_copied_pickled_and_replaced() -> None:
    for each in (Point(1), Point(1, 2), Named(3), Named(3, 4, "there")):
        assert hash(each) == hash(replace(each))
        assert replace(each, y=9).y == 9
        for again in (pickle.loads(pickle.dumps(each)), copy.deepcopy(each)):
            assert again == each and again is not each
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
            each.x = 2  # type: ignore[misc]
        with pytest.raises(FrozenInstanceError, match="cannot delete field 'y'"):
            del each.y
    assert Point(1) != Named(1) and len({Point(1), Point(1), Point(2)}) == 2


def test_what_inherits_without_being_a_dataclass_may_have_more() -> None:
    class More(Named):
        """Has attributes of its own, beside frozen fields."""

    more = More(1)
    more.extra = 3
    assert more.extra == 3
    del more.extra
    assert not hasattr(more, "extra")
    for act in (lambda: setattr(more, "x", 2), lambda: delattr(more, "name"),
                lambda: setattr(Named(1), "extra", 2), lambda: delattr(Named(1), "extra")):
        with pytest.raises(FrozenInstanceError):
            act()


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"frozen": True, "slots": True}])
def test_fields_of_a_base_come_first_whichever_is_made_first(options: dict[str, bool]) -> None:
    for make in (dataclass, dataclasses.dataclass):
        base = make(**options)(type("Base", (), {"__annotations__": {"a": "int"}}))
        derived = make(**options)(
            type("Derived", (base,), {"__annotations__": {"b": "int"}, "b": 2}))
        assert (derived(1).a, derived(1).b, base(3).a) == (1, 2, 3)
        assert how_it_fails(base, 1, 2) and base(1) != derived(1)
        late = make(**options, kw_only=True)(
            type("Late", (derived,), {"__annotations__": {"c": "int"}}))
        assert str(inspect.signature(late)) == "(a: 'int', b: 'int' = 2, *, c: 'int') -> None"


def test_others_may_decide_whether_they_are_equal() -> None:
    class Anything:
        """Equal to all."""

        def __eq__(self, other: object) -> bool:
            return True

    assert Point(1) == Anything() and Point(1) != (1, 0)


def test_methods_of_a_class_stay() -> None:
    @dataclass(frozen=True, slots=True)
    class Kept:
        """Is pickled and hashed its own way."""

        value: int

        def __getstate__(self) -> tuple[str, int]:
            return "own", self.value

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Kept) and self.value == other.value

        def __hash__(self) -> int:
            return 5

    assert Kept(3).__getstate__() == ("own", 3) and hash(Kept(3)) == 5
    assert Kept.__repr__.__qualname__.endswith("Kept.__repr__")

    @dataclass(frozen=True)
    class Compared:
        """Says when it is equal, and not what its hash is."""

        value: int

        def __eq__(self, other: object) -> bool:
            return True

    assert hash(Compared(3)) == hash(Compared(3)) != hash(Compared(4))


@pytest.mark.parametrize("spelled", ["InitVar[int]", "dataclasses.InitVar[int]", InitVar[int]],
                         ids=str)
def test_what_only_post_init_is_given_may_be_spelled_otherwise(spelled: object) -> None:
    def add(self: Any, other: int) -> None:
        self.total += other

    made = dataclass(type("Sum", (), {
        "__annotations__": {"total": "int", "other": spelled}, "other": 3,
        "__post_init__": add, "__module__": __name__}))
    assert made(1).total == 4 and made(1, 5).total == 6
    assert [each.name for each in fields(made)] == ["total"]


@pytest.mark.parametrize(("first", "second"), [(False, True), (True, False)])
def test_frozen_and_other_classes_do_not_inherit_from_each_other(first: bool, second: bool) -> None:
    told = []
    for make in (dataclass, dataclasses.dataclass):
        base = make(frozen=first)(type("Base", (), {"__annotations__": {"a": "int"}}))
        told.append(how_it_fails(make(frozen=second), type("Derived", (base,), {})))
    assert told[0] == told[1] and "cannot inherit" in str(told[0])


def test_what_has_to_be_given_stands_before_defaults() -> None:
    wrong = [type("Wrong", (), {"__annotations__": {"a": "int", "b": "int"}, "a": 1})
             for _ in range(2)]
    told = how_it_fails(dataclass, wrong[0])
    assert told == how_it_fails(dataclasses.dataclass, wrong[1])
    assert told == "TypeError non-default argument 'b' follows default argument"


def test_a_field_may_be_called_self() -> None:
    made = dataclass(type("Told", (), {"__annotations__": {"self": "int", "a": "int"}}))
    assert made(1, a=2).self == 1 and made(self=3, a=2).self == 3


def test_abstract_methods_that_are_made_are_no_longer_abstract() -> None:
    class Shown(abc.ABC):
        """Asks to be shown."""

        @abc.abstractmethod
        def __repr__(self) -> str:
            """As text."""

    made = dataclass(type("Made", (Shown,), {"__annotations__": {"a": "int"}}))
    assert repr(made(2)).endswith("(a=2)")


def test_a_frozen_class_does_not_say_how_attributes_are_set() -> None:
    class Wrong:
        """Sets attributes its own way."""

        def __setattr__(self, name: str, value: object) -> None:
            pass

    with pytest.raises(TypeError, match="Wrong is frozen and has __setattr__"):
        dataclass(frozen=True)(Wrong)


@pytest.mark.parametrize("names", [["only"], ["first", "second"]])
@pytest.mark.parametrize("value", [float("nan"), np.arange(3.0)], ids=["NaN", "array"])
def test_the_same_object_is_equal_to_itself(names: list[str], value: object) -> None:
    for make in (dataclass, dataclasses.dataclass):
        cls = make(type("Held", (), {"__annotations__": dict.fromkeys(names, "object")}))
        assert cls(*[value] * len(names)) == cls(*[value] * len(names))


def test_what_refers_to_itself_is_shown() -> None:
    @dataclass
    class Node:
        """Holds nodes."""

        nodes: list[Any] = field(default_factory=list)

    node = Node()
    node.nodes.append(node)
    assert repr(node).endswith("Node(nodes=[...])")


def test_no_method_of_a_class_is_compiled_before_it_is_called() -> None:
    """What makes the start of a program short; the standard library compiles 6 a class."""
    code = """
import builtins, dataclasses
compiled, own = [], builtins.exec
def exec_and_tell(text, *rest):
    if isinstance(text, str):
        compiled.append(text)
    return own(text, *rest)
builtins.exec = exec_and_tell
from smalti.dataclass import dataclass

@dataclass(frozen=True)
class Size:
    width: int

assert not compiled, compiled
assert Size(3) == Size(3) and repr(Size(3)) == "Size(width=3)"
assert len(compiled) == 1, compiled
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_modules_take_this_one() -> None:
    ordered = ("runtime/gpu/removals.py", "schedule/group_limits.py")  # for `order=True`
    package, wrong = Path(module.__file__).parent, []
    for path in package.rglob("*.py"):
        if path.relative_to(package).as_posix() in (*ordered, "dataclass.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "dataclasses" and any(
                    each.name == "dataclass" for each in node.names) or isinstance(
                    node, ast.Attribute) and ast.unparse(node) == "dataclasses.dataclass":
                wrong.append(f"{path}:{node.lineno}")
    assert not wrong, "methods are compiled when it is imported: " + "; ".join(wrong)
