"""Reads pickles without executing them: a machine that builds plain data and inert records.

A pickle is a program for a stack machine (https://docs.python.org/3/library/pickletools.html). Here
numbers, texts, lists, tuples and dictionaries are built as they are; `PickledTensor` records stand
for what PyTorch's own rebuilding functions would make; every other class or function becomes an
`Opaque` record with its name. No name is looked up, nothing is called, and a program that is long,
deep or malformed ends in a `CheckpointError`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import NamedTuple

from smalti.dataclass import dataclass
from smalti.errors import CheckpointError

INSTRUCTIONS_MAX = 1_000_000
"""A tensor takes about 45; the largest published checkpoints hold some thousands."""
INTEGER_BYTES_MAX = 32
LINE_BYTES_MAX = 1024
DIMENSIONS_MAX = 32
KEY_MAX = 1 << 60
"""Whole numbers up to here have different hashes, so that no dictionary is slow."""

REBUILDING = {
    ("torch._utils", "_rebuild_tensor"), ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_tensor_v3"),
}
PARAMETERS = {("torch._utils", "_rebuild_parameter"),
              ("torch._utils", "_rebuild_parameter_with_state")}
DICTIONARIES = {("collections", "OrderedDict"), ("collections", "defaultdict"),
                ("builtins", "dict"), ("__builtin__", "dict")}


class Global(NamedTuple):
    """The name of a class or function."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, eq=False)
class PickledStorage:
    """Numbers of a file that tensors are cut out of: key of its bytes, type, count."""

    key: str
    kind: str
    count: int


@dataclass(frozen=True, eq=False)
class PickledTensor:
    """A view of a storage: offset and strides in elements. `kind` such as "Float" or "float16"."""

    storage: PickledStorage
    kind: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(eq=False)
class Opaque:
    """An object that is not made: what it would have been, and the plain state it was to get."""

    what: str
    state: object = None


class _Fault(Exception):
    """The program is malformed; the text says how."""


class Unpickled(NamedTuple):
    """What a pickle stands for, the storages that it mentions by key, the position behind it."""

    value: object
    storages: dict[str, PickledStorage]
    end: int


def run(where: object, code: memoryview, start: int = 0) -> Unpickled:
    """Read the pickle at `code[start:]`.

    `where` names the file in messages. Raises CheckpointError for anything malformed or too long.

    >>> import pickle
    >>> run("x", memoryview(pickle.dumps({"a": (1, [2.5])}))).value
    {'a': (1, [2.5])}
    >>> run("x", memoryview(b"cposix\\nsystem\\n(S'true'\\ntR.")).value.what
    'posix.system'
    """
    machine = _Machine(code, start)
    try:
        return Unpickled(machine.run(), machine.storages, machine.position)
    except (_Fault, ValueError, TypeError, LookupError, struct.error, OverflowError) as error:
        said = str(error) if isinstance(error, _Fault) else "a malformed instruction"
        raise CheckpointError(
            f"{where}: its pickle breaks at byte {machine.position} ({said:.200}); expected one"
            " that torch.save wrote; the file is damaged; download or copy it again"
        ) from None


class _Machine:
    """Stack, memo and position of a run."""

    def __init__(self, code: memoryview, start: int) -> None:
        self.code, self.position = code, start
        self.stack: list = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.storages: dict[str, PickledStorage] = {}
        self.pairs_left = INSTRUCTIONS_MAX

    def run(self) -> object:
        """Run until the instruction that stops; what is on top then."""
        for _ in range(INSTRUCTIONS_MAX):
            if self.position >= len(self.code):
                raise _Fault("it is cut off")
            opcode = self.code[self.position]
            self.position += 1
            if opcode == STOP:
                return self.pop()
            action = ACTIONS.get(opcode)
            if action is None:
                raise _Fault(f"unknown instruction {opcode}")
            action(self)
        raise _Fault(f"over {INSTRUCTIONS_MAX} instructions")

    def take(self, count: int) -> bytes:
        """The next `count` bytes of the program."""
        if not 0 <= count <= len(self.code) - self.position:
            raise _Fault("it is cut off")
        self.position += count
        return bytes(self.code[self.position - count:self.position])

    def number(self, size: int) -> int:
        """The next unsigned number of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def line(self) -> bytes:
        """What stands up to the end of the line."""
        window = bytes(self.code[self.position:self.position + LINE_BYTES_MAX])
        end = window.find(b"\n")
        if end < 0:
            raise _Fault("a line without end")
        self.position += end + 1
        return window[:end]

    def word(self) -> str:
        """The text up to the end of the line."""
        return self.line().decode("utf-8")

    def push(self, value: object) -> None:
        """Put `value` on the stack."""
        self.stack.append(value)

    def pop(self) -> object:
        """Take the top off the stack, but nothing below a mark."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise _Fault("the stack is empty")
        return self.stack.pop()

    def top(self) -> object:
        """The top of the stack."""
        value = self.pop()
        self.stack.append(value)
        return value

    def popped_to_mark(self) -> list:
        """Everything above the last mark, which goes with it."""
        if not self.marks:
            raise _Fault("no mark")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values


def _text(size: int) -> Callable[[_Machine], None]:
    return lambda m: m.push(m.take(m.number(size)).decode("utf-8", "surrogatepass"))


def _bytes(size: int) -> Callable[[_Machine], None]:
    return lambda m: m.push(m.take(m.number(size)))


def _constant(value: object) -> Callable[[_Machine], None]:
    return lambda m: m.push(value)


def _packed(form: str) -> Callable[[_Machine], None]:
    size = struct.calcsize(form)
    return lambda m: m.push(struct.unpack(form, m.take(size))[0])


def _tuple(count: int) -> Callable[[_Machine], None]:
    return lambda m: m.push(tuple([m.pop() for _ in range(count)][::-1]))


def _long(size: int) -> Callable[[_Machine], None]:
    def action(m: _Machine) -> None:
        count = m.number(size)
        if count > INTEGER_BYTES_MAX:
            raise _Fault(f"a whole number of {count} bytes")
        m.push(int.from_bytes(m.take(count), "little", signed=True))

    return action


def _whole(m: _Machine) -> None:
    """A whole number as text; `00` and `01` are the truth values of the oldest protocol."""
    text = m.word().removesuffix("L")
    if len(text) > 2 * INTEGER_BYTES_MAX:
        raise _Fault("a long whole number")
    m.push({"00": False, "01": True}[text] if text in ("00", "01") else int(text))


def _quoted(m: _Machine) -> None:
    text = m.word()
    if len(text) < 2 or text[0] != text[-1] or text[0] not in "'\"":
        raise _Fault("a text without quotes")
    m.push(text[1:-1])


def _put(size: int) -> Callable[[_Machine], None]:
    def action(m: _Machine) -> None:
        m.memo[m.number(size)] = m.top()

    return action


def _get(size: int) -> Callable[[_Machine], None]:
    return lambda m: m.push(_remembered(m, m.number(size)))


def _remembered(m: _Machine, index: int) -> object:
    if index not in m.memo:
        raise _Fault(f"nothing was remembered as {index}")
    return m.memo[index]


def _put_line(m: _Machine) -> None:
    text = m.word()
    if not text.isdecimal() or len(text) > 10:
        raise _Fault("a damaged number")
    m.memo[int(text)] = m.top()


def _get_line(m: _Machine) -> None:
    text = m.word()
    if not text.isdecimal() or len(text) > 10:
        raise _Fault("a damaged number")
    m.push(_remembered(m, int(text)))


def _memoize(m: _Machine) -> None:
    m.memo[len(m.memo)] = m.top()


def _mark(m: _Machine) -> None:
    m.marks.append(len(m.stack))


def _pop(m: _Machine) -> None:
    if m.marks and m.marks[-1] == len(m.stack):
        m.marks.pop()
    else:
        m.pop()


def _append(m: _Machine) -> None:
    value = m.pop()
    _extend(m, [value])


def _extend(m: _Machine, values: list) -> None:
    """What is appended to an object that is not made is let go."""
    target = m.top()
    if isinstance(target, list):
        target.extend(values)
    elif not isinstance(target, Opaque):
        raise _Fault(f"something is appended to a {type(target).__name__}")


def _set_item(m: _Machine) -> None:
    value, key = m.pop(), m.pop()
    _set(m, [key, value])


def _set(m: _Machine, pairs: list) -> None:
    """Entries with other keys than texts and plain numbers are of no use here and let go."""
    target = m.top()
    if len(pairs) % 2:
        raise _Fault("a key without a value")
    if isinstance(target, Opaque):
        return
    if not isinstance(target, dict):
        raise _Fault(f"an entry is set in a {type(target).__name__}")
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        if isinstance(key, str) or isinstance(key, int) and -KEY_MAX < key < KEY_MAX:
            target[key] = value


def _dictionary(m: _Machine) -> None:
    pairs = m.popped_to_mark()
    m.push({})
    _set(m, pairs)


def _set_items(m: _Machine) -> None:
    _set(m, m.popped_to_mark())


def _global(m: _Machine) -> None:
    m.push(Global(m.word(), m.word()))


def _stack_global(m: _Machine) -> None:
    name, module = m.pop(), m.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise _Fault("a class whose name is no text")
    m.push(Global(module, name))


def _called(m: _Machine, function: object, arguments: object) -> object:
    """What stands for the result of a call that is not made."""
    if isinstance(function, Global):
        if function in DICTIONARIES:
            return _pairs(m, arguments)
        if function in REBUILDING:
            return _tensor(arguments)
        if function in PARAMETERS:
            first = arguments[0] if isinstance(arguments, tuple) and arguments else None
            if isinstance(first, PickledTensor):
                return first
            raise _Fault("a parameter without a tensor")
        if function == ("torch", "Size") and isinstance(arguments, tuple) and len(arguments) == 1:
            return arguments[0]
    return Opaque(_named(function))


def _named(function: object) -> str:
    if isinstance(function, Global):
        return str(function)
    return function.what if isinstance(function, Opaque) else type(function).__name__


def _pairs(m: _Machine, arguments: object) -> dict:
    """A dictionary; the arguments of old ones are one list of pairs, which may be a list that is
    remembered and given again and again."""
    found: dict = {}
    given = arguments[-1] if isinstance(arguments, tuple) and arguments else []
    given = given if isinstance(given, list) else []
    m.pairs_left -= len(given)
    if m.pairs_left < 0:
        raise _Fault(f"over {INSTRUCTIONS_MAX} entries of dictionaries")
    for pair in given:
        if isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str):
            found[pair[0]] = pair[1]
    return found


def _tensor(arguments: object) -> PickledTensor:
    """A tensor record; sizes are checked against the file where the file is known."""
    if not isinstance(arguments, tuple) or len(arguments) < 4:
        raise _Fault("a tensor without a shape")
    storage, offset, shape, strides = arguments[:4]
    kind = arguments[6] if len(arguments) > 6 and isinstance(arguments[6], Global) else None
    if not isinstance(storage, PickledStorage) or not _natural(offset):
        raise _Fault("a tensor without a storage")
    if not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise _Fault("a shape that is none")
    if len(shape) != len(strides) or len(shape) > DIMENSIONS_MAX:
        raise _Fault(f"a shape of {len(shape)} sizes with {len(strides)} strides")
    if not all(map(_natural, (*shape, *strides))):
        raise _Fault("a shape that is none")
    return PickledTensor(storage, kind.name if kind else storage.kind, offset, shape, strides)


def _natural(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 60


def _persistent(m: _Machine) -> None:
    """A storage: ("storage", class, key, place, count[, view of another one]); before 2020 also a
    class with its source, which is not read: ("module", class, file, text)."""
    given = m.pop()
    if isinstance(given, tuple) and len(given) == 4 and given[0] == "module" \
            and isinstance(given[1], Global):
        m.push(given[1])
        return
    if not isinstance(given, tuple) or not 5 <= len(given) <= 6 or given[0] != "storage":
        raise _Fault("a reference to something else than a storage")
    kind, key, count = given[1], given[2], given[4]
    if not isinstance(kind, Global) or not isinstance(key, str) or not _natural(count):
        raise _Fault("a damaged reference to a storage")
    if len(given) == 6 and given[5] is not None:
        raise _Fault("a storage that is a part of another one, as before 2018")
    storage = PickledStorage(key, kind.name.removesuffix("Storage"), count)
    known = m.storages.setdefault(key, storage)
    if (known.kind, known.count) != (storage.kind, count):
        raise _Fault("a storage of two types or lengths")
    m.push(known)


def _reduce(m: _Machine) -> None:
    arguments, function = m.pop(), m.pop()
    m.push(_called(m, function, arguments))


def _new_with_keywords(m: _Machine) -> None:
    m.pop()
    _reduce(m)


def _instance(m: _Machine) -> None:
    function = Global(m.word(), m.word())
    m.push(_called(m, function, tuple(m.popped_to_mark())))


def _object(m: _Machine) -> None:
    values = m.popped_to_mark()
    if not values:
        raise _Fault("an object without a class")
    m.push(_called(m, values[0], tuple(values[1:])))


def _build(m: _Machine) -> None:
    state, target = m.pop(), m.top()
    if isinstance(target, Opaque):
        target.state = state


def _set_of(m: _Machine) -> None:
    m.popped_to_mark()
    m.push(Opaque("a set"))


def _float(m: _Machine) -> None:
    value = float(m.word())
    m.push(value if math.isfinite(value) else math.nan)


STOP = ord(".")
ACTIONS: dict[int, Callable[[_Machine], None]] = {ord(key): action for key, action in {
    "\x80": lambda m: m.take(1) and None,
    "\x95": lambda m: m.take(8) and None,
    "(": _mark, "0": _pop, "1": lambda m: m.popped_to_mark() and None,
    "2": lambda m: m.push(m.top()),
    "N": _constant(None), "\x88": _constant(True), "\x89": _constant(False),
    "I": _whole, "L": _whole, "F": _float,
    "J": _packed("<i"), "K": _packed("<B"), "M": _packed("<H"), "G": _packed(">d"),
    "\x8a": _long(1), "\x8b": _long(4),
    "S": _quoted, "V": lambda m: m.push(m.line().decode("raw-unicode-escape")),
    "T": _text(4), "U": _text(1), "X": _text(4), "\x8c": _text(1), "\x8d": _text(8),
    "B": _bytes(4), "C": _bytes(1), "\x8e": _bytes(8), "\x96": _bytes(8),
    "]": lambda m: m.push([]), "l": lambda m: m.push(m.popped_to_mark()),
    "a": _append, "e": lambda m: _extend(m, m.popped_to_mark()),
    ")": _constant(()), "t": lambda m: m.push(tuple(m.popped_to_mark())),
    "\x85": _tuple(1), "\x86": _tuple(2), "\x87": _tuple(3),
    "}": lambda m: m.push({}), "d": _dictionary, "s": _set_item, "u": _set_items,
    "\x8f": lambda m: m.push(Opaque("a set")), "\x90": lambda m: m.popped_to_mark() and None,
    "\x91": _set_of,
    "q": _put(1), "r": _put(4), "p": _put_line, "h": _get(1), "j": _get(4), "g": _get_line,
    "\x94": _memoize,
    "c": _global, "\x93": _stack_global, "R": _reduce, "\x81": _reduce,
    "\x92": _new_with_keywords, "i": _instance, "o": _object, "b": _build,
    "\x82": lambda m: m.push(Opaque(f"extension {m.number(1)}")),
    "\x83": lambda m: m.push(Opaque(f"extension {m.number(2)}")),
    "\x84": lambda m: m.push(Opaque(f"extension {m.number(4)}")),
    "Q": _persistent,
}.items()}
"""Instruction -> what it does."""
