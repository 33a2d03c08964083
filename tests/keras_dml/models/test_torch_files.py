"""PyTorch's files read without PyTorch: both formats, damaged files, and malicious files."""

import contextlib
import io
import os
import pathlib
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest
from torch_format import KINDS, Tensor, save, state_dict

from keras_dml.models import torch_files
from keras_dml.models.torch_files import read_tensors

BOTH = pytest.mark.parametrize("zipped", [False, True], ids=["stream", "zip"])


@BOTH
def test_arrays_of_every_dtype_are_read(zipped, tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        kind: (rng.uniform(-9, 9, (2, 3)) > 0 if kind == "bool" else
               rng.uniform(0, 99, (2, 3)).astype(kind))
        for kind in KINDS if kind != "bfloat16"
    }  # fmt: skip
    arrays["scalar"] = np.array(7, "int64")
    arrays["empty"] = np.zeros((0, 3), "float32")
    save(state_dict(arrays), tmp_path / "all.pth", zipped)
    found = read_tensors(tmp_path / "all.pth")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable and found[name].shape == array.shape


@BOTH
def test_views_of_a_storage(zipped, tmp_path):
    kept = np.arange(12, dtype="float32")
    tensors = {
        "transposed": Tensor(kept, shape=(4, 3), strides=(1, 4)),
        "column": Tensor(kept, offset=2, shape=(3,), strides=(4,)),
        "half": Tensor(np.array([0x3F80, 0xC000, 0x7F80], "uint16"), "bfloat16"),
    }
    save(state_dict(tensors), tmp_path / "views.pth", zipped)
    found = read_tensors(tmp_path / "views.pth")
    np.testing.assert_array_equal(found["transposed"], kept.reshape(3, 4).T)
    np.testing.assert_array_equal(found["column"], [2, 6, 10])
    np.testing.assert_array_equal(found["half"], [1, -2, np.inf])
    assert np.shares_memory(found["transposed"], found["column"])


@BOTH
@pytest.mark.parametrize(
    "tensor",
    [
        Tensor(np.ones(4, "float32"), shape=(5,), strides=(1,)),
        Tensor(np.ones(4, "float32"), offset=-1, shape=(1,), strides=(1,)),
        Tensor(np.ones(4, "float32"), offset=3, shape=(2,), strides=(-1,)),
        Tensor(np.ones(4, "float32"), shape=(10**9, 10**9), strides=(0, 0)),
        Tensor(np.ones(4, "float32"), shape=(2, 2), strides=(1,)),
        Tensor(np.ones(4, "float32"), shape=("a",), strides=(1,)),
    ],
)
def test_a_tensor_beyond_its_storage(tensor, zipped, tmp_path):
    save(state_dict({"x": tensor}), tmp_path / "beyond.pth", zipped)
    with pytest.raises(ValueError, match="not a PyTorch file of tensors that can be read"):
        read_tensors(tmp_path / "beyond.pth")


@BOTH
def test_truncated_files(zipped, tmp_path):
    path = tmp_path / "whole.pth"
    save(state_dict({"x": np.ones((3, 5), "float32"), "n": np.array(3)}), path, zipped)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="that can be read"):
            read_tensors(path)


def zipped_pickle(body, compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("archive/data.pkl", body)
    return stream.getvalue()


# Protocol 2: an empty dict with memo index 2^24. Protocol 4: 2^27 bytes, then dropped.
INDEX = b"\x80\x02}r" + (2**24).to_bytes(4, "little") + b"."
BYTES = b"\x80\x04\x8e" + (2**27).to_bytes(8, "little") + bytes(2**27) + b"0}."


@pytest.mark.parametrize(
    "content",
    [
        b"".join(map(pickle.dumps, (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})))
        + INDEX,
        zipped_pickle(INDEX),
        zipped_pickle(BYTES, zipfile.ZIP_DEFLATED),
    ],
    ids=["index in a stream", "index in a zip", "compressed"],
)
def test_a_small_file_uses_little_memory(content, tmp_path):
    path = tmp_path / "small.pth"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with contextlib.suppress(ValueError):
            read_tensors(path)
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20 + 2 * len(content)
    finally:
        tracemalloc.stop()


class Trap:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@BOTH
def test_code_in_a_pickle_does_not_run(zipped, tmp_path):
    sprung = tmp_path / "sprung"
    for trap in (
        Trap(pathlib.Path.touch, sprung),
        Trap(eval, "1 + 1"),
        Trap(getattr, "x", "upper"),
    ):
        save(state_dict({"x": np.ones(3)}) | {"trap": trap}, tmp_path / "trap.pth", zipped)
        with pytest.raises(ValueError, match="it asks for .*, which is not a tensor"):
            read_tensors(tmp_path / "trap.pth")
    assert not sprung.exists()


def test_a_pickle_leaves_no_attributes_in_the_module(tmp_path):
    # GLOBAL _rebuild_tensor_v2, then BUILD with a dict: pickle sets attributes of the global.
    mark = b"ctorch._utils\n_rebuild_tensor_v2\n}X\x04\x00\x00\x00markK\x01sb."
    path = tmp_path / "mark.pth"
    path.write_bytes(zipped_pickle(b"\x80\x02" + mark))
    with pytest.raises(ValueError, match="not a state_dict"):
        read_tensors(path)
    assert not [name for name, value in vars(torch_files).items() if hasattr(value, "mark")]


@BOTH
@pytest.mark.parametrize(
    "content", [[1, 2], {"epoch": 3}, {3: Tensor(np.ones(2))}, {"x": {"y": Tensor(np.ones(2))}}]
)
def test_a_pickle_without_named_tensors(content, zipped, tmp_path):
    save(content, tmp_path / "other.pth", zipped)
    with pytest.raises(ValueError, match="not a state_dict: it must hold tensors by name"):
        read_tensors(tmp_path / "other.pth")


@pytest.mark.parametrize("content", [b"", b"noise", b"PK\x03\x04 cut off", pickle.dumps(3) * 9])
def test_an_invalid_file(content, tmp_path):
    path = tmp_path / "noise.pth"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a PyTorch file of tensors that can be read"):
        read_tensors(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
def test_a_pipe_and_a_folder_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.pth")
    with pytest.raises(OSError, match="not a regular file.*pipe.pth"):
        read_tensors(tmp_path / "pipe.pth")
    with pytest.raises(IsADirectoryError):
        read_tensors(tmp_path)


@BOTH
def test_files_written_by_pytorch(zipped, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is in the extra benchmark")
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.BatchNorm2d(4))
    state = module.state_dict()
    state["transposed"] = state["0.weight"][1:].transpose(0, 3)
    state["half"] = state["0.weight"].bfloat16()
    state["parameter"] = torch.nn.Parameter(state["0.bias"])
    torch.save(state, tmp_path / "torch.pth", _use_new_zipfile_serialization=zipped)
    found = read_tensors(tmp_path / "torch.pth")
    assert list(found) == list(state)
    for name, tensor in state.items():
        values = tensor.detach().float() if tensor.dtype == torch.bfloat16 else tensor.detach()
        np.testing.assert_array_equal(found[name], values.numpy())
        assert found[name].dtype == values.numpy().dtype
