"""Damaged and hostile checkpoint files: a CheckpointError, or tensors that read; nothing else.

    python tests/fuzz/checkpoint_files.py --minutes 20 [--seed 0]

`hostile()` is made by hand: pickles that execute or explode, archives, headers and indices that
lie. `changed(seed)` is a sound file of any format with bytes or numbers changed. Each is opened,
inspected and read in less than `CASE_SECONDS_MAX`, with memory in proportion to the file, and
without anything in it being run: a canary would be made, and an audit hook of the worker ends the
process when a program is started, code compiled or a file written.
"""

from __future__ import annotations

import io
import json
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save

from smalti import checkpoint
from smalti.checkpoint.adapters import AdapterFile
from smalti.checkpoint.blocks import FORMATS
from smalti.checkpoint.container import open_tensors
from smalti.checkpoint.embeddings import Embedding
from smalti.errors import CheckpointError

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("", "material")]
from fuzz.command_line import report, started  # noqa: E402
from fuzz.hostile_folders import INDEX, changed_folder, folders  # noqa: E402
from fuzz.hostile_pickles import bombs, executing, text  # noqa: E402
from torch_files import MAGIC, Code, View, pickled, torch_row, torch_zip, zipped  # noqa: E402

CASE_SECONDS_MAX = 2.0
SLACK_BYTES = 4 << 20
BYTES_PER_BYTE = 120
"""A list in a list takes so much in memory for the byte that it takes in a pickle."""
WORKER_CASES = 500
WORKER_BYTES = 1 << 30
NUMBERS = (0, 1, 2, 31, 32, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40,
           (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
ARRAY = np.arange(64, dtype=np.float32).reshape(2, 32)
Actions = tuple[Callable[[Path], object], ...]
Files = dict[str, bytes]
"""Names of files that are put into one folder, and what is in them; the first one is opened."""


# ---------------------------------------------------------------------- sound files


def gguf_bytes(tensors: list[tuple[bytes, tuple[int, ...], int, int]], data: bytes,
               entries: bytes = b"", counts: tuple[int, int] | None = None,
               version: int = 3) -> bytes:
    """A GGUF file of (name, sizes innermost first, type, offset) with what it is told to say."""
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), int(bool(entries)))))
    head += entries
    for name, sizes, kind, offset in tensors:
        head += struct.pack("<Q", len(name)) + name
        head += struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)
    return head + bytes(-len(head) % 32) + data


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    """A key and its value."""
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


@lru_cache(maxsize=1)
def samples() -> tuple[tuple[str, bytes], ...]:
    """Sound files of every format, with the ending that they usually have."""
    f8 = ARRAY.astype(ml_dtypes.float8_e4m3fn)
    table = {"a.weight": ARRAY, "a.bias": ARRAY[0].astype(np.float16), "n": np.arange(3)}
    shared = {"state_dict": {"a.weight": ARRAY, "t": View(ARRAY.reshape(-1), 0, (32, 2), (1, 32))},
              "epoch": 3, "x": Code(b"cmy\nclass\n)R")}
    found = [("safetensors", save(table, {"modelspec.resolution": "64x64"})),
             ("safetensors", save({"a.weight": f8, "a.scale_weight": ARRAY[0, 1:2], "scaled_fp8":
                                   f8[:0]})),
             ("ckpt", torch_zip(shared)), ("pt", torch_row(shared))]
    places, data, offset = [], b"", 0
    for number, format in enumerate(FORMATS.values()):
        block = bytes(range(format.bytes))
        places.append((b"t%d.weight" % number, (format.elements,), format.id, offset))
        data += block + bytes(-len(block) % 32)
        offset = len(data)
    entries = entry(b"general.architecture", 8, struct.pack("<Q", 3) + b"sd1")
    found.append(("gguf", gguf_bytes(places, data, entries)))
    found.append(("gguf", gguf_bytes([(b"a", (32, 2), 0, 0)], ARRAY.tobytes(), entry(
        b"comfy.gguf.orig_shape.a", 9, struct.pack("<IQ3I", 4, 3, 2, 4, 8)), version=2)))
    low, high = ARRAY[:, :4].copy(), ARRAY[:, :4].T.copy()
    found.append(("safetensors", save({
        "lora_unet_a_attn1_to_q.lora_down.weight": low, "lora_unet_a_attn1_to_q.alpha": low[0, :1],
        "lora_unet_a_attn1_to_q.lora_up.weight": high, "lora_te_a.hada_w1_a": low,
        "lora_te_a.hada_w1_b": high, "lora_te_a.hada_w2_a": low, "lora_te_a.hada_w2_b": high})))
    stated = {"quant_type": "nf4", "blocksize": 64, "shape": [2, 32], "nested_blocksize": 256,
              "nested_offset": 0.5}
    found.append(("safetensors", save({
        "w": np.arange(32, dtype=np.uint8), "w.quant_map": ARRAY[0, :16].copy(),
        "w.absmax": np.uint8([7]),
        "w.nested_absmax": ARRAY[0, :1], "w.nested_quant_map": np.arange(256, dtype=np.float32),
        "w.quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(stated).encode(), np.uint8)})))
    found.append(("pt", torch_zip({"string_to_token": {"*": 265}, "string_to_param": {
        "*": ARRAY}, "name": "x", "step": 1})))
    return tuple(found)


# ---------------------------------------------------------------------- hostile by hand


def hostile(canary: str) -> Iterator[tuple[str, Files]]:
    """Name of each case, and its files."""
    for name, code in bombs().items():
        yield f"bomb {name}", {"x.ckpt": torch_row({"state_dict": {"a": Code(code), "w": ARRAY}})}
    for name, code in executing(canary).items():
        for place, writer in (("zip", torch_zip), ("row", torch_row)):
            yield f"pickle {name}, {place}", {"x.ckpt": writer({"state_dict": {
                "a": Code(code), "w": ARRAY}})}
        yield f"pickle {name}, alone", {"x.pt": b"\x80\x04" + code + b"."}
        yield f"pickle {name}, behind the magic number", {"x.pt": MAGIC + b"\x80\x04" + code + b"."}
    code = executing(canary)["os system"]
    for name, files in folders(b"\x80\x02" + code + b".").items():
        yield f"folder {name}", files
    for make in (_tensors, _archives, _headers, _gguf, _indices, _scales):
        for name, files in make().items():
            yield f"{make.__name__[1:]} {name}", files


def _tensors() -> dict[str, Files]:
    flat = ARRAY.reshape(-1)
    views = {
        "repeated": View(flat, 0, (1 << 40,), (0,)), "huge": View(flat, 0, (1 << 59,), (1,)),
        "behind": View(flat, 1 << 50, (1,), (1,)), "far": View(flat, 0, (2,), (1 << 55,)),
        "many sizes": View(flat, 0, (1,) * 64, (1,) * 64), "shape of shapes": View(flat, 0, (
            (1,),), (1,)), "negative": View(flat, 0, (-5,), (1,)), "long": View(flat, 0, (
                1 << 200,), (1,)), "empty but huge": View(flat, 0, (0, 1 << 59), (1, 1)),
    }
    found = {name: {"x.pt": torch_zip({"w": ARRAY, "a": view})} for name, view in views.items()}

    def storage(kind: bytes, key: str, count: bytes) -> Code:
        head = b"(" + text("storage") + b"ctorch\n" + kind + b"\n" + text(key) + text("cpu")
        code = head + count + b"tQK\x00K\x01\x85K\x01\x85\x89N"
        return Code(b"ctorch._utils\n_rebuild_tensor_v2\n(" + code + b"tR")

    huge = b"\x8a\x07" + (1 << 50).to_bytes(7, "little")
    for name, code in {
            "path": storage(b"FloatStorage", "../../../../etc/passwd", b"K\x01"),
            "no key": storage(b"FloatStorage", "", b"K\x01"),
            "other key": storage(b"FloatStorage", "77", b"K\x01"),
            "huge storage": storage(b"FloatStorage", "0", huge),
            "unknown storage": storage(b"OsStorage", "0", b"K\x01"),
            "system storage": storage(b"system", "0", b"K\x01"),
            "negative storage": storage(b"FloatStorage", "0", b"J\xff\xff\xff\xff")}.items():
        for writer in (torch_zip, torch_row):
            found[f"{name} {writer.__name__}"] = {"x.pt": writer({"a": code, "w": ARRAY})}
    shared = View(np.zeros(1 << 16, np.uint8), 0, (1 << 16,), (1,))
    code, arrays = pickled({"a": shared})
    found["one storage many times"] = {"x.pt": _many(code, arrays)}
    found["many names"] = {"x.pt": torch_zip({str(i): {} for i in range(15_000)})}
    found["big endian"] = {"x.pt": zipped({"a/data.pkl": code, "a/byteorder": b"big",
                                           "a/data/0": arrays[0].tobytes()})}
    return found


def _many(code: bytes, arrays: list[np.ndarray]) -> bytes:
    """A zip in which one storage is 2,000 tensors."""
    tensor = code[code.index(b"ctorch._utils"):-2]
    body = b"\x80\x02}(" + text("0") + tensor + b"q\x00"
    body += b"".join(text(str(i)) + b"h\x00" for i in range(1, 2000)) + b"u."
    return zipped({"a/data.pkl": body, "a/data/0": arrays[0].tobytes()})


def _archives() -> dict[str, Files]:
    code, arrays = pickled({"a": ARRAY})
    plain = {"a/data.pkl": code, "a/data/0": arrays[0].tobytes()}
    sound = zipped(plain)
    end = sound.rindex(b"PK\x05\x06")
    directory = sound.index(b"PK\x01\x02")
    packed, twice = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/data.pkl", code + bytes(10_000_000))
    with zipfile.ZipFile(twice, "w") as file:
        for name, data in [*plain.items(), ("a/data/1", b"")]:
            file.writestr(name, data)
    overlap = bytearray(sound)  # the second entry is said to lie where the first one does
    second = sound.index(b"PK\x01\x02", directory + 4)
    overlap[second + 42:second + 46] = bytes(4)

    def put(place: int, form: str, value: int) -> bytes:
        changed = bytearray(sound)
        struct.pack_into(form, changed, place, value)
        return bytes(changed)

    found = {
        "compressed": packed.getvalue(), "overlap": bytes(overlap),
        "same name": twice.getvalue().replace(b"a/data/1", b"a/data/0"),
        "empty": b"PK\x05\x06" + bytes(18), "no end": sound[:end],
        "no directory": sound[:directory],
        "encrypted": put(directory + 8, "<H", 1), "entries of a lie": put(end + 10, "<H", 65535),
        "directory of a lie": put(end + 12, "<I", 0xFFFFFFFE),
        "directory elsewhere": put(end + 16, "<I", 0xFFFFFFFE),
        "size of a lie": put(directory + 24, "<I", 0x7FFFFFFF),
        "other size": put(directory + 20, "<I", 0x7FFFFFFF),
        "offset of a lie": put(directory + 42, "<I", 0x7FFFFFFF),
        "name of a lie": put(directory + 28, "<H", 65535),
        "another volume": put(end + 4, "<H", 3), "comment": sound + b"x" * 70_000,
        "two pickles": zipped({**plain, "b/data.pkl": code}), "no pickle": zipped({"a/x": code}),
        "paths": zipped({"../../a/data.pkl": code, "../../a/data/0": b""}),
        "wide": sound[:end] + b"PK\x06\x06" + struct.pack("<Q2H2I4Q", 44, 0, 0, 0, 0, 1 << 60,
                                                         1 << 60, 1 << 60, 1 << 60)
        + b"PK\x06\x07" + struct.pack("<IQI", 0, end, 1) + sound[end:],
        "wide, elsewhere": sound[:end] + b"PK\x06\x07" + struct.pack("<IQI", 0, 1 << 63, 1)
        + sound[end:],
        "many entries": zipped({f"a/{i}": b"" for i in range(5000)}),
        "nested": zipped({"a/data.pkl": zipped(plain)}), "zip in front": sound + sound,
    }
    return {name: {"x.ckpt": data} for name, data in found.items()}


def _headers() -> dict[str, Files]:
    def file(header: object, data: bytes = bytes(8), length: int | None = None) -> bytes:
        body = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(body) if length is None else length) + body + data

    def tensor(dtype: object = "F32", shape: object = (2,), places: object = (0, 8)) -> dict:
        return {"dtype": dtype, "shape": shape, "data_offsets": places}

    found = {
        "bomb of lists": file(b'{"a":' + b"[" * 400_000),
        "bomb of objects": file(b'{"a":' * 100_000), "long number": file(
            b'{"a":{"dtype":"F32","shape":[' + b"9" * 100_000 + b'],"data_offsets":[0,8]}}'),
        "huge float": file(b'{"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,8]}}'),
        "twice": file(b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{}}'),
        "huge header": file({}, length=1 << 62), "half a header": file({"a": tensor()}, length=7),
        "many keys": file({f"k{i}": 0 for i in range(20_000)}),
        "metadata of lists": file({"__metadata__": {"a": [1]}}),
        "no object": file(b"[1,2]"), "no utf-8": file(b'{"\xff":1}'), "zero": file(b"", b""),
        "a name of control": file({"\x1b]0;x\x07": tensor()}), "null": file(b'{"a\0":1}'),
        "overlap": file({"a": tensor(), "b": tensor(places=(4, 8), shape=(1,))}),
        "hole": file({"a": tensor(places=(4, 8), shape=(1,))}),
        "trailing": file({"a": tensor()}, bytes(80)),
        **{f"shape {shape}": file({"a": tensor(shape=shape)}) for shape in (
            [1 << 62, 1 << 62], [-1], ["2"], {"a": 2}, [[2]], [True, 2], None, [0] * 100)},
        **{f"places {places}": file({"a": tensor(places=places)}) for places in (
            [0, 1 << 62], [8, 0], [-8, 0], [0], [0, 8, 8], ["0", "8"], None)},
        **{f"dtype {dtype}": file({"a": tensor(dtype=dtype)}) for dtype in (
            "F4", "", None, ["F32"], "Q4_K", "__class__")},
        "arch_config bomb": save({"a": ARRAY}, {"arch_config": "[" * 100_000}),
    }
    return {name: {"x.safetensors": data} for name, data in found.items()}


def _gguf() -> dict[str, Files]:
    data, whole = bytes(64), (b"a", (8, 2), 0, 0)
    many = struct.pack("<IQ", 8, 100_000) + bytes(8) * 100_000
    found = {
        "tensors of a lie": gguf_bytes([whole], data, counts=(1 << 63, 0)),
        "entries of a lie": gguf_bytes([whole], data, counts=(1, 1 << 63)),
        "many tensors": gguf_bytes([whole], data, counts=(99_999, 0)),
        "version 1": gguf_bytes([whole], data, version=1),
        "other end first": gguf_bytes([whole], data, version=3 << 24),
        "sizes": gguf_bytes([(b"a", (1 << 62, 1 << 62), 0, 0)], data),
        "product": gguf_bytes([(b"a", (1 << 32, 1 << 32), 0, 0)], data),
        "no size": gguf_bytes([(b"a", (0, 8), 0, 0)], data),
        "dimensions": gguf_bytes([(b"a", (1,) * 200, 0, 0)], data),
        "dimensions of a lie": gguf_bytes([whole], data).replace(struct.pack("<I", 2),
                                                               b"\xff" * 4),
        "offset": gguf_bytes([(b"a", (8, 2), 0, 1 << 62)], data),
        "overlap": gguf_bytes([whole, (b"b", (8, 2), 0, 32)], data * 2),
        "same name": gguf_bytes([whole, (b"a", (8, 2), 0, 64)], data * 2),
        "half a block": gguf_bytes([(b"a", (33,), 2, 0)], data),
        "unknown type": gguf_bytes([(b"a", (8, 2), 77, 0)], data),
        "other block format": gguf_bytes([(b"a", (256,), 16, 0)], data * 2),
        "a name of control": gguf_bytes([(b"\x1b[31m", (8, 2), 0, 0)], data),
        "no name": gguf_bytes([(b"", (8, 2), 0, 0)], data),
        "bad name": gguf_bytes([(b"\xff\xfe", (8, 2), 0, 0)], data),
        "long name": gguf_bytes([(b"a" * 50_000, (8, 2), 0, 0)], data),
        "text of a lie": gguf_bytes([whole], data, entry(b"k", 8, struct.pack("<Q", 1 << 62))),
        "key of a lie": gguf_bytes([whole], data, struct.pack("<Q", 1 << 62)),
        "array of a lie": gguf_bytes([whole], data, entry(b"k", 9, struct.pack("<IQ", 4, 1 << 62))),
        "texts of a lie": gguf_bytes([whole], data, entry(b"k", 9, struct.pack("<IQ", 8, 1 << 62))),
        "array of arrays": gguf_bytes([whole], data, entry(b"k", 9, struct.pack("<IQ", 9, 1) * 99)),
        "unknown value": gguf_bytes([whole], data, entry(b"k", 99, b"")),
        "many texts": gguf_bytes([whole], data, entry(b"k", 9, many)),
        **{f"alignment {n}": gguf_bytes([whole], data, entry(
            b"general.alignment", 4, struct.pack("<I", n))) for n in (0, 3, 1 << 30)},
        "alignment is text": gguf_bytes([whole], data, entry(
            b"general.alignment", 8, struct.pack("<Q", 2) + b"-1")),
        **{f"original shape {stated}": gguf_bytes([whole], data, entry(
            b"comfy.gguf.orig_shape.a", 9, struct.pack(f"<IQ{len(stated)}i", 5, len(stated),
                                                       *stated)))
           for stated in ((3, 3), (-16, -1), (0,), (1 << 16, 1 << 16), ())},
        "original shape is text": gguf_bytes([whole], data, entry(
            b"comfy.gguf.orig_shape.a", 8, struct.pack("<Q", 5) + b"[[[[[")),
        "original shape is a bomb": gguf_bytes([whole], data, entry(
            b"comfy.gguf.orig_shape.a", 8, struct.pack("<Q", 9_000) + b"[" * 9_000)),
    }
    return {name: {"x.gguf": data} for name, data in found.items()}


def _indices() -> dict[str, Files]:
    part = save({"a": ARRAY})
    one, two = "m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"
    tables = {
        "path": {"a": "../../../../../etc/passwd.safetensors"}, "root": {"a": "/x.safetensors"},
        "back slash": {"a": "..\\x.safetensors"}, "zero": {"a": "a\0.safetensors"},
        "lost": {"b": one}, "missing": {"a": "b.safetensors"}, "itself": {"a": "m.json"},
        "many": {str(i): f"{i}.safetensors" for i in range(30_000)}, "numbers": {"a": 1},
        "empty": {}, "list": [1], "other format": {"a": "x.bin"},
    }
    found = {name: {"m.safetensors.index.json": json.dumps({"weight_map": table}).encode(),
                    one: part, "x.bin": b"\x80\x02cos\nsystem\n."}
             for name, table in tables.items()}
    return {**found, "bomb": {"m.safetensors.index.json": b"[" * 400_000},
            "half": {"m.safetensors.index.json": b'{"weight_map": {"a":'},
            "one of two": {one: part}, "twice": {one: part, two: part},
            "one of many": {"m-00001-of-99999.safetensors": part},
            "second is another": {one: part, two: b"PK\x03\x04" + bytes(99)}}


def _scales() -> dict[str, Files]:
    f8 = ARRAY.astype(ml_dtypes.float8_e4m3fn)
    cases = {
        "no weight": {"a.scale_weight": ARRAY[0, :1]}, "shape": {"w.scale_weight": ARRAY},
        "empty": {"w.scale_weight": ARRAY[:0]}, "of whole": {"w.weight_scale": np.arange(2)},
        "two": {"w.scale_weight": ARRAY[0, :1], "w.weight_scale": ARRAY[0, :1]},
        "bomb": {"w.comfy_quant": np.frombuffer(b"[" * 9_000, np.uint8)},
        "long": {"w.comfy_quant": np.zeros(20_000, np.uint8)},
        "floats": {"w.comfy_quant": ARRAY}, "nf4": {"w.weight.quant_state.bitsandbytes__nf4": f8},
        "absmax": {"w.absmax": ARRAY}, "awq": {"w.qweight": np.arange(3), "w.qzeros": np.arange(3)},
        **{f"format {stated}": {"w.comfy_quant": np.frombuffer(json.dumps(stated).encode(),
                                                              np.uint8)}
           for stated in ({"format": []}, {"format": "nvfp4"}, {}, 3, {"format": {"a": 1}})},
    }
    return {name: {"x.safetensors": save({"w.weight": f8, **table})}
            for name, table in cases.items()}


# ---------------------------------------------------------------------- changes


def changed(seed: int) -> tuple[str, Files]:
    """The kind of a case, and its file: a sound one, changed."""
    draw = random.Random(seed)
    if draw.random() < 0.1:
        return "changed folder", changed_folder(draw)
    ending, data = draw.choice(samples())
    found = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8])):
        at = draw.randrange(min(len(found), 2000) if draw.random() < 0.7 else len(found))
        action = draw.randrange(6)
        if action == 0:
            found[at] ^= 1 << draw.randrange(8)
        elif action == 1:
            found[at] = draw.randrange(256)
        elif action == 2:
            form = draw.choice("BHIQ")
            number = draw.choice(NUMBERS) % (1 << 8 * struct.calcsize(form))
            number = struct.pack(f"<{form}", number)
            found[at:at + len(number)] = number
        elif action == 3:
            del found[at:at + draw.choice([1, 8, 100, len(found)])]
        elif action == 4:
            found[at:at] = draw.randbytes(draw.choice([1, 8, 100]))
        else:
            other = draw.choice(samples())[1]
            place = draw.randrange(len(other))
            found[at:at] = other[place:place + draw.choice([8, 64, 512])]
        if not found:
            break
    return f"changed {ending}", {f"x.{ending}": bytes(found)}


# ---------------------------------------------------------------------- what must hold


def outcome_of(action: Callable[[Path], object], path: Path) -> str:
    """"reads", or that it is refused, with a sentence that can be shown and names the file."""
    try:
        action(path)
        return "reads"
    except CheckpointError as error:
        said = str(error)
        assert str(path.parent) in said and len(said) < 5_000, said[:2000]
        assert all(ch.isprintable() or ch == "\n" for ch in said), ascii(said)
        return "refused"


def read(path: Path) -> None:
    """Open the file and read every tensor."""
    file = open_tensors(path)
    for name in file:
        assert file.read(name).shape == file.shape(name) and file.dtype(name)
        file.raw(name)
        file.drop(name)


def inspect(path: Path) -> None:
    """Print nothing that a terminal would obey."""
    said = str(checkpoint.inspect(path))
    assert all(ch.isprintable() or ch == "\n" for ch in said) and len(said) < 20_000, ascii(said)


ACTIONS = (read, inspect, checkpoint.load,
           checkpoint.open_companion, AdapterFile.open, Embedding.open)
"""Every way to open a file."""


def attempt(path: Path, actions: Actions = ACTIONS) -> None:
    """Open, inspect and read the file at `path`, in time. Lets all errors but refusals pass."""
    for action in actions:
        before = time.process_time()
        outcome_of(action, path)
        taken = time.process_time() - before
        assert taken < CASE_SECONDS_MAX, f"{taken:.1f} s"


def judge(files: Files, folder: Path, actions: Actions = ACTIONS) -> str:
    """What happens to a case. Raises AssertionError when it takes too much time or memory."""
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    path = folder if INDEX in files else folder / next(iter(files))
    attempt(path, actions)
    limit = SLACK_BYTES + BYTES_PER_BYTE * sum(map(len, files.values()))
    tracemalloc.start()
    try:
        happened = outcome_of(inspect if path.is_dir() else read, path)
        peak = tracemalloc.get_traced_memory()[1]
        assert peak <= limit, f"{peak} bytes, {limit} are expected at most"
    finally:
        tracemalloc.stop()
        shutil.rmtree(folder)
        folder.mkdir()
    return happened


def cases(first: int, count: int, canary: str) -> Iterator[tuple[str, Files]]:
    """`count` cases from `first`: those by hand come first."""
    by_hand = list(hostile(canary))
    for number in range(first, first + count):
        yield by_hand[number] if number < len(by_hand) else changed(number)


# ---------------------------------------------------------------------- processes


def forbid(allowed: Path) -> Callable[[str, tuple], None]:
    """An audit hook that ends the process when something is run, or written outside `allowed`.

    Python's own modules, such as those of encodings, may still be loaded.
    """
    library = str(Path(json.__file__).parents[1])

    def hook(event: str, arguments: tuple) -> None:
        wrong = event in ("os.system", "os.exec", "os.spawn", "os.posix_spawn", "subprocess.Popen",
                          "exec", "compile", "pickle.find_class", "socket.connect", "os.fork")
        if event == "exec":
            wrong = not getattr(arguments[0], "co_filename", "").startswith(library)
        if event == "open":
            path, mode = str(arguments[0]), str(arguments[1] or "r")
            wrong = any(letter in mode for letter in "wax+") and not path.startswith(str(allowed))
        if wrong:
            raise SystemExit(f"{event} {str(arguments)[:300]}")

    return hook


def work(first: int, count: int) -> None:
    """Cases in this process: each prints its number, then what happened."""
    with tempfile.TemporaryDirectory() as name:
        folder, canary = Path(name) / "files", Path(name) / "canary"
        folder.mkdir()
        attempt_all(folder)
        folders(b"")  # what it needs is loaded before loading is forbidden
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + WORKER_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        sys.addaudithook(forbid(Path(name)))
        for number, (kind, files) in enumerate(cases(first, count, str(canary)), first):
            print(number, kind, end=": ", flush=True)
            print(judge(files, folder), flush=True)
            assert not canary.exists(), "the file was executed"


def attempt_all(folder: Path) -> None:
    """Open each sound file, so that everything is imported before limits are set."""
    for ending, data in samples():
        (folder / f"x.{ending}").write_bytes(data)
        attempt(folder / f"x.{ending}")
        assert outcome_of(read, folder / f"x.{ending}") == "reads"


def supervise(minutes: float, seed: int) -> int:
    """Children one after the other until the time is over; the number of bad cases."""
    until, bad, done, outcomes = time.monotonic() + 60 * minutes, [], 0, {}
    while time.monotonic() < until:
        command = [sys.executable, __file__, "--worker", str(WORKER_CASES), "--seed", str(seed)]
        try:
            child = subprocess.run(command, capture_output=True, text=True,
                                   timeout=60 + 6 * CASE_SECONDS_MAX * WORKER_CASES)
            output, code, errors = child.stdout, child.returncode, child.stderr
        except subprocess.TimeoutExpired as error:
            output, code, errors = (error.stdout or b"").decode(), -1, "it hangs"
        lines = output.splitlines()
        for line in lines:
            kind = line.partition(" ")[2]
            words = (kind.split()[0], kind.rpartition(": ")[2])
            outcomes[words] = outcomes.get(words, 0) + 1
        done += len(lines)
        if code:
            bad.append(lines[-1] if lines else f"{seed}")
            print(f"BAD {bad[-1]}\n{errors[-1500:]}", flush=True)
        seed += max(1, len(lines)) if code else WORKER_CASES
    return report(outcomes, done, bad)


if __name__ == "__main__":
    raise SystemExit(started(__doc__, work, supervise))
