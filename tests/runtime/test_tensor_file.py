"""Sound files are read exactly; every kind of damage is one clear `CheckpointError`."""

import json
import os
import struct

import numpy as np
import pytest
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from smalti.errors import CheckpointError
from smalti.runtime.tensor_file import RAW_TYPES, TensorFile, to_float32


def write(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def record(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_reads_what_safetensors_writes(tmp_path):
    rng = np.random.default_rng(1)
    arrays = {
        "half": rng.standard_normal((3, 4)).astype(np.float16),
        "single": rng.standard_normal(5).astype(np.float32),
        "double": rng.standard_normal((2, 1, 2)),
        "index": np.arange(6, dtype=np.int64).reshape(2, 3),
        "flag": np.array([True, False]),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(7, np.float32),
    }
    path = tmp_path / "a.safetensors"
    save_file(arrays, path, metadata={"about": "test"})
    file = TensorFile(path)
    assert set(file.names()) == set(arrays) and len(file) == len(arrays)
    assert file.metadata == {"about": "test"}
    for name, array in arrays.items():
        assert file.shape(name) == array.shape
        np.testing.assert_array_equal(file.raw(name), array)
        read = file.read(name)
        assert read.dtype == np.float32 and read.flags.writeable
        np.testing.assert_array_equal(read, array.astype(np.float32))
    with pytest.raises(ValueError, match="read-only"):
        file.raw("half")[0, 0] = 1


def test_unaligned_data_is_read(tmp_path):
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} '
    assert len(header) % 4
    path = write(tmp_path / "a.safetensors", header, np.float32([1, 2]).tobytes())
    assert TensorFile(path).read("a").tolist() == [1, 2]


def test_bfloat16_is_the_upper_half_of_float32(tmp_path):
    values = np.float32([1.5, -0.0, np.inf, 3.140625])
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    path = write(tmp_path / "a.safetensors", {"a": record("BF16", (4,), (0, 8))}, bits.tobytes())
    file = TensorFile(path)
    assert file.dtype("a") == "BF16" and file.raw("a").dtype == np.uint16
    np.testing.assert_array_equal(file.read("a"), values)


def test_float8_values_of_the_paper():
    # Micikevicius et al. 2022, table 1
    e4m3 = to_float32(np.uint8([0x7E, 0x08, 0x07, 0x01, 0x38, 0xB8]), "F8_E4M3")
    expected = [448, 2**-6, 0.875 * 2**-6, 2**-9, 1, -1]
    np.testing.assert_array_equal(e4m3, np.float32(expected))
    e5m2 = to_float32(np.uint8([0x7B, 0x04, 0x03, 0x01, 0x7C]), "F8_E5M2")
    expected = [57344, 2**-14, 0.75 * 2**-14, 2**-16, np.inf]
    np.testing.assert_array_equal(e5m2, np.float32(expected))
    assert np.isnan(to_float32(np.uint8([0x7F]), "F8_E4M3"))[0]


DAMAGED = {
    "empty": (b"", "is empty"),
    "one byte": (b"x", "only 1 bytes"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(50), "PNG picture"),
    "zip": (b"PK\x03\x04" + bytes(50), "pickled"),
    "pickle": (b"\x80\x02}q\x00" + bytes(50), "pickle"),
    "gguf": (b"GGUF" + bytes(50), "GGUF"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
    "web page": (b"<!DOCTYPE html><html></html>", "web page"),
    "zeros": (bytes(100), "is something else: expected a safetensors file"),
    "text": (b"hello, this is no model file at all", "expected a safetensors"),
    "huge header": (struct.pack("<Q", 2**60) + b'{"a":1}', "header of 1152921504606846976 bytes"),
    "long header": (struct.pack("<Q", 5000) + b'{"a":1}', "cut off"),
    "no json": (struct.pack("<Q", 8) + b'{"a": 1,', "damaged header"),
    "bad utf-8": (struct.pack("<Q", 7) + b'{"\xff\xfe":1', "damaged header"),
    "nested": (struct.pack("<Q", 90000) + b'{"a":' + b"[" * 89995, "damaged header"),
    "doubled": (struct.pack("<Q", 15) + b'{"a":{},"a":{}}', "occurs twice"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_files_are_named(tmp_path, what):
    data, expected = DAMAGED[what]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=expected) as caught:
        TensorFile(path)
    assert str(path) in str(caught.value)


BAD_HEADERS = {
    "unknown dtype": ({"a": record("F4")}, "dtype 'F4'"),
    "dtype is a list": ({"a": record(["F32"])}, "dtype"),
    "negative shape": ({"a": record(shape=(-2,))}, "shape"),
    "shape of floats": ({"a": record(shape=(2.0,))}, "shape"),
    "shape of bools": ({"a": record(shape=(True, 2))}, "shape"),
    "33 dimensions": ({"a": record(shape=(1,) * 33)}, "shape"),
    "too many elements": ({"a": record(shape=(0, 2**40, 2**40), offsets=(0, 0))}, "elements"),
    "three offsets": ({"a": record(offsets=(0, 8, 8))}, "data_offsets"),
    "offsets backwards": ({"a": record(offsets=(8, 0))}, "data_offsets"),
    "length": ({"a": record(shape=(3,))}, "8 bytes; expected 12 bytes"),
    "out of range": ({"a": record(shape=(4,), offsets=(0, 16))}, "cut off"),
    "overlap": ({"a": record(), "b": record(offsets=(0, 8))}, "overlaps"),
    "hole": ({"a": record(shape=(1,), offsets=(4, 8))}, "hole"),
    "too short": ({"a": record(shape=(1,), offsets=(0, 4))}, "expected"),
    "no record": ({"a": 3}, "record"),
    "no fields": ({"a": {}}, "dtype"),
    "control characters": ({"\x1b[31ma": record()}, "printable"),
    "half a character": ({"\ud800": record()}, "printable"),
    "a name without end": ({"a" * 501: record()}, "at most 500"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, "metadata"),
    "metadata is a list": ({"__metadata__": [1]}, "metadata"),
}


@pytest.mark.parametrize("what", BAD_HEADERS)
def test_false_headers_are_named(tmp_path, what):
    header, expected = BAD_HEADERS[what]
    path = write(tmp_path / "bad.safetensors", header, bytes(8))
    with pytest.raises(CheckpointError, match=expected):
        TensorFile(path)


def test_every_truncation_is_found(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"a": np.arange(5, dtype=np.float32), "b": np.ones(3, np.float16)}, path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            TensorFile(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError):
        TensorFile(path)


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            TensorFile(path)


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    with pytest.raises(CheckpointError, match="not a regular file"):
        TensorFile(os.devnull)  # of a pipe, opening would wait for a writer


def test_a_header_larger_than_any_model_has_is_not_parsed(tmp_path):
    path = write(tmp_path / "a.safetensors", b'{"a":[' + b"[]," * 4_000_000 + b"[]]}")
    with pytest.raises(CheckpointError, match="expected at most 10000000"):
        TensorFile(path)


def test_unknown_tensor_name(tmp_path):
    path = write(tmp_path / "a.safetensors", {"a": record()}, bytes(8))
    with pytest.raises(CheckpointError, match="no tensor 'b'"):
        TensorFile(path).read("b")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
records = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*RAW_TYPES, "X"]) | json_values,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 40), max_size=3) | json_values,
    }
)


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.dictionaries(st.text(max_size=3), records | json_values), size=st.integers(0, 40))
def test_any_header_is_read_or_refused(tmp_path, header, size):
    path = write(tmp_path / "a.safetensors", header, bytes(size))
    try:
        file = TensorFile(path)
    except CheckpointError:
        return
    for name in file:
        assert file.read(name).shape == file.shape(name)
