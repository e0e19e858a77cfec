"""PyTorch's files: tensors come out as they went in, everything else stays what it is: inert."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from torch_files import Code, View, Writer, torch_row, torch_zip

from smalti.checkpoint.container import open_tensors
from smalti.errors import CheckpointError
from smalti.runtime.tensor_file import Tensors

WRITERS = {"zip": torch_zip, "row": torch_row}
NUMBERS = np.arange(24, dtype=np.float32)
OBJECT = Code(b"cargparse\nNamespace\n)R}(X\x01\x00\x00\x00xK\x05ub")


def opened(folder: Path, data: bytes, name: str = "x.ckpt") -> Tensors:
    path = folder / name
    path.write_bytes(data)
    return open_tensors(path)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", ml_dtypes.bfloat16, "int64",
                                   "int32", "int16", "int8", "uint8", "bool"])
def test_every_type_of_number(tmp_path: Path, writer: str, dtype: object) -> None:
    array = NUMBERS.reshape(4, 6).astype(dtype)
    file = opened(tmp_path, WRITERS[writer]({"a.b": array}))
    assert file.names() == ("a.b",) and file.shape("a.b") == (4, 6)
    np.testing.assert_array_equal(file.read("a.b"), array.astype(np.float32))
    np.testing.assert_array_equal(file.array("a.b"), array)
    file.drop("a.b")
    np.testing.assert_array_equal(file.array("a.b"), array)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.uint16])
def test_types_that_have_no_storage_of_their_own(tmp_path: Path, dtype: object) -> None:
    array = NUMBERS.reshape(4, 6).astype(dtype)
    file = opened(tmp_path, torch_zip({"a": array}))
    np.testing.assert_array_equal(file.read("a"), array.astype(np.float32))


@pytest.mark.parametrize("writer", WRITERS)
def test_views_and_shared_storages(tmp_path: Path, writer: str) -> None:
    value = {"t": View(NUMBERS, 0, (6, 4), (1, 6)), "s": View(NUMBERS, 5, (3, 2), (4, 2)),
             "e": View(NUMBERS, 0, (0, 4), (4, 1)), "scalar": View(NUMBERS, 7, (), ())}
    file = opened(tmp_path, WRITERS[writer](value))
    np.testing.assert_array_equal(file.read("t"), NUMBERS.reshape(4, 6).T)
    np.testing.assert_array_equal(file.read("s"), [[5, 7], [9, 11], [13, 15]])
    assert file.read("e").shape == (0, 4) and file.read("scalar") == 7
    assert file.read("t").flags.c_contiguous


WRAPPED = {
    "state_dict": {"state_dict": {"w": NUMBERS}, "epoch": 3, "optimizer": {"m": NUMBERS}},
    "params_ema": {"params": {"w": -NUMBERS}, "params_ema": {"w": NUMBERS}},
    "twice": {"model": {"state_dict": {"w": NUMBERS}}},
    "module": {"module": {"w": NUMBERS}, "step": 5},
}


@pytest.mark.parametrize("what", WRAPPED)
def test_weights_are_found_where_programs_keep_them(tmp_path: Path, what: str) -> None:
    file = opened(tmp_path, torch_zip(WRAPPED[what]))
    assert file.names() == ("w",)
    np.testing.assert_array_equal(file.read("w"), NUMBERS)


def test_what_stands_beside_the_weights(tmp_path: Path) -> None:
    file = opened(tmp_path, torch_zip({
        "state_dict": {"w": NUMBERS, "odd": OBJECT}, "epoch": 3, "lr": 0.5, "name": "x",
        "callbacks": OBJECT, "optimizer": {"state": {"m": NUMBERS}, "n": [NUMBERS, NUMBERS]}}))
    assert file.metadata == {"epoch": "3", "lr": "0.5", "name": "x"}
    assert file.notes == (
        "left out 2 objects that are no tensors: argparse.Namespace (2)",
        "left out 3 tensors beside state_dict, in optimizer")


def test_a_textual_inversion(tmp_path: Path) -> None:
    file = opened(tmp_path, torch_zip({
        "string_to_token": {"*": 265}, "string_to_param": {"*": NUMBERS.reshape(2, 12)},
        "name": "cat", "step": 500, "sd_checkpoint": None}))
    assert file.names() == ("string_to_param.*",) and file.shape("string_to_param.*") == (2, 12)
    assert file.metadata == {"string_to_token.*": "265", "name": "cat", "step": "500"}


def module(parameters: dict, buffers: dict, modules: dict) -> Code:
    """A PyTorch module as torch.save writes it, without tensors of its own class."""
    def part(table: dict) -> bytes:
        return Writer().code(table)

    state = {"training": True, "_parameters": Code(part(parameters)),
             "_buffers": Code(part(buffers)), "_modules": Code(part(modules))}
    return Code(b"cmy.package\nNet\n)\x81" + part(state) + b"b")


def test_a_module_that_was_saved_whole(tmp_path: Path) -> None:
    writer = Writer()
    weight, moments = Code(writer.code(NUMBERS)), Code(writer.code(NUMBERS[:2]))
    net = module({}, {"moments": moments}, {"0": module({"weight": weight}, {}, {})})
    data = torch_zip({"tensors": [NUMBERS, NUMBERS[:2]], "autoencoder": net})
    file = opened(tmp_path, data)
    assert file.names() == ("tensors.0", "tensors.1", "autoencoder.moments",
                            "autoencoder.0.weight")
    np.testing.assert_array_equal(file.read("autoencoder.0.weight"), NUMBERS)
    assert not file.notes


def wide(data: bytes) -> bytes:
    """A zip archive whose directory has all sizes and places in its 64-bit fields."""
    end = data.rindex(b"PK\x05\x06")
    count, size, start = struct.unpack_from("<HII", data, end + 10)
    at, entries = start, b""
    for _ in range(count):
        names, extra, comment = struct.unpack_from("<HHH", data, at + 28)
        record, name = bytearray(data[at:at + 46]), data[at + 46:at + 46 + names]
        packed, plain = struct.unpack_from("<II", record, 20)
        (offset,) = struct.unpack_from("<I", record, 42)
        record[20:28], record[42:46] = b"\xff" * 8, b"\xff" * 4
        struct.pack_into("<HHH", record, 28, names, 32, 0)
        field = struct.pack("<HHI", 0x4246, 0, 0x00180001)
        field += struct.pack("<3Q", plain, packed, offset)
        entries += bytes(record) + name + field
        at += 46 + names + extra + comment
    last = start + len(entries)
    return data[:start] + entries + b"PK\x06\x06" + struct.pack(
        "<Q2H2I4Q", 44, 45, 45, 0, 0, count, count, len(entries), start) + b"PK\x06\x07" \
        + struct.pack("<IQI", 0, last, 1) + b"PK\x05\x06" + struct.pack(
            "<4H2IH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)


def test_archives_of_over_4_gigabytes(tmp_path: Path) -> None:
    data = wide(torch_zip({"a": NUMBERS, "b": NUMBERS[:3]}))
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert len(file.namelist()) == 5
    file = opened(tmp_path, data)
    np.testing.assert_array_equal(file.read("a"), NUMBERS)
    np.testing.assert_array_equal(file.read("b"), NUMBERS[:3])


DAMAGED = {
    "no tensors": ({"a": 3}, "holds no tensors, but a dict"),
    "an object": (OBJECT, "holds no tensors, but an object of 'argparse.Namespace'"),
    "beyond the storage": ({"a": View(NUMBERS, 1, (24,), (1,))}, "needs 25 numbers"),
    "repeated numbers": ({"a": View(NUMBERS, 0, (1000, 1000), (0, 0))}, "needs 1000000 numbers"),
    "negative strides": ({"a": View(NUMBERS, 20, (2,), (-1,))}, "a shape that is none"),
    "negative offset": ({"a": View(NUMBERS, -1, (2,), (1,))}, "without a storage"),
    "sizes and strides": ({"a": View(NUMBERS, 0, (2, 2), (1,))}, "2 sizes with 1 strides"),
    "a name with an escape": ({"\x1b[31m": NUMBERS}, "no name of at most"),
    "a name without end": ({"a" * 501: NUMBERS}, "no name of at most"),
    "two of a name": ({"a": {"b": NUMBERS}, "a.b": NUMBERS}, "is there twice"),
    "another reference": ({"a": Code(b"X\x01\x00\x00\x00aQ")}, "else than a storage"),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("what", DAMAGED)
def test_damage_is_named(tmp_path: Path, writer: str, what: str) -> None:
    value, said = DAMAGED[what]
    with pytest.raises(CheckpointError, match=said) as caught:
        opened(tmp_path, WRITERS[writer](value))
    assert "x.ckpt" in str(caught.value)


@pytest.mark.peers
@pytest.mark.parametrize("zipped", [True, False])
def test_against_torch(tmp_path: Path, zipped: bool) -> None:
    import torch

    torch.manual_seed(0)
    base = torch.randn(5, 7)
    kinds = [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool]
    table = {"base": base, "row": base[2], "t": base.t(), "part": base[1:4, ::2],
             "parameter": torch.nn.Parameter(base[:2]), "scalar": torch.tensor(3.5),
             "wide": torch.arange(7).expand(1, -1), "empty": torch.zeros(0, 3),
             "channels": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
             **{str(kind): base.to(kind) for kind in kinds}}
    if zipped:
        table["8 bits"] = base.to(torch.float8_e4m3fn)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    path = tmp_path / "x.pt"
    torch.save({"tables": table, "network": network, "other": torch.device("cpu"),
                "complex": torch.zeros(2, dtype=torch.complex64)}, path,
               _use_new_zipfile_serialization=zipped)
    file = open_tensors(path)
    wanted = {f"tables.{name}": tensor for name, tensor in table.items()}
    wanted |= {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    assert set(file) == set(wanted)
    for name, tensor in wanted.items():
        np.testing.assert_array_equal(file.read(name), tensor.detach().float().numpy())
    (note,) = file.notes
    assert "tensors of type ComplexFloat (1)" in note and "torch.device (1)" in note
