"""Reader for PyTorch tensor files, based on NumPy. Needs no PyTorch, and runs no code in files.

`torch.save` writes a pickle that names storages, and the bytes of the storages. Since 1.6 they are
entries of a zip file. Before (and in many published checkpoints), they follow each other in one
stream.
"""

import collections
import io
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from keras_dml._backend.private import PythonUnpickler
from keras_dml._common.errors import ArgumentError
from keras_dml._common.regular_files import check_regular
from keras_dml._common.types import StrPath

_MAGIC, _STREAM_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_BFLOAT16 = "BFloat16Storage"
_STORAGES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    _BFLOAT16: "<u2",  # the upper half of a float32
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "<?",
}


class _Storage(NamedTuple):
    """The numbers of a storage, of which its tensors are views.

    Attributes:
        numbers: The numbers, for bfloat16 as float32.
        content: The part of `numbers` that the file contains.
    """

    numbers: np.ndarray
    content: np.ndarray

    def fill(self, stored: bytes) -> None:
        """Set the numbers to those in the file."""
        if len(stored) != self.content.size * self.content.itemsize:
            raise pickle.UnpicklingError("it is cut off")
        self.content[:] = np.frombuffer(stored, self.content.dtype)


def read_tensors(path: StrPath) -> dict[str, np.ndarray]:
    """Read the tensors of a saved `state_dict` by name, with their dtypes (bfloat16 as float32).

    The pickle can contain only tensors, their storages, ordered dictionaries, and plain values. Any
    other name is refused before an object is created. Tensors that share a storage in the file,
    such as tied weights, share memory.

    Args:
        path: Path of a `.pth` file in either format.

    Raises:
        OSError: The file cannot be opened, or is a folder, pipe, or device.
        ValueError: The file is missing or damaged, contains anything except tensors by name, or
            requires running code.

    Examples:
        >>> {name: array.shape for name, array in read_tensors("net.pth").items()}  # doctest: +SKIP
    """
    check_regular(path, sys.maxsize)
    with open(path, "rb") as stream:
        read = _read_zip if zipfile.is_zipfile(stream) else _read_stream
        stream.seek(0)
        try:
            content = read(stream)
        except Exception as error:  # a damaged file may raise nearly any error
            reason = f": {error}" if isinstance(error, pickle.UnpicklingError) else ""
            raise ArgumentError(
                f"not a PyTorch file of tensors that can be read{reason}"
            ) from error
    tensors = isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(tensor, np.ndarray) for name, tensor in content.items()
    )
    if not tensors:
        raise ArgumentError("not a state_dict: it must hold tensors by name and nothing else")
    return dict(content)


def _read_zip(stream: BinaryIO) -> Any:
    end = os.fstat(stream.fileno()).st_size
    with zipfile.ZipFile(stream) as archive:
        names = archive.namelist()
        entries = archive.infolist()
        # torch.save compresses nothing. A compressed or overlapping entry may be of any size.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise pickle.UnpicklingError("its entries are compressed")
        if sum(entry.file_size for entry in entries) > end:
            raise pickle.UnpicklingError("its entries are larger than the file")
        (pickled,) = (name for name in names if name.endswith("/data.pkl"))
        folder = pickled.removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in names and archive.read(order) != b"little":
            raise pickle.UnpicklingError("its numbers are big-endian")
        unpickler = _Unpickler(io.BytesIO(archive.read(pickled)), end)
        content = unpickler.load()
        for key, storage in unpickler.storages.items():
            storage.fill(archive.read(f"{folder}data/{key}"))
    return content


def _read_stream(stream: BinaryIO) -> Any:
    end = os.fstat(stream.fileno()).st_size
    magic, protocol, system = (_Unpickler(stream, end).load() for _ in range(3))
    if (magic, protocol) != (_MAGIC, _STREAM_PROTOCOL):
        raise pickle.UnpicklingError("it does not begin as one")
    if not system["little_endian"]:
        raise pickle.UnpicklingError("its numbers are big-endian")
    unpickler = _Unpickler(stream, end)
    content = unpickler.load()
    for key in _Unpickler(stream, end).load():
        storage = unpickler.storages[key]
        stream.read(8)  # the number of numbers, which the pickle contains
        storage.fill(stream.read(storage.content.size * storage.content.itemsize))
    return content


class _Bounded:
    """A stream whose reads end with the file. A longer read would reserve memory for all bytes.

    Args:
        stream: The file or a part of it.
        end: Its length, or more.
    """

    def __init__(self, stream: BinaryIO, end: int) -> None:
        self._stream, self._end = stream, end
        self.readline = stream.readline

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes."""
        return self._stream.read(max(0, min(size, self._end - self._stream.tell())))


class _Unpickler(PythonUnpickler):
    """An unpickler that reads only tensors.

    It derives from Python's unpickler. The one in C reserves memory for any index in a file.

    Args:
        stream: The file or a part of it.
        end: Length of the file, which bounds the size of all storages together.

    Attributes:
        storages: The storages that the pickle names, by key. The caller fills them.
    """

    def __init__(self, stream: BinaryIO, end: int) -> None:
        super().__init__(_Bounded(stream, end))
        self.storages: dict[str, _Storage] = {}
        self._bytes_left = end

    def find_class(self, module: str, name: str) -> Any:
        """Return replacements for the few names that a tensor file needs."""
        if module == "torch" and name in _STORAGES:
            return name
        # New functions for each file, because a pickle can set attributes of the objects that it
        # names.
        made: dict[tuple[str, str], Callable[[], Any]] = {
            ("collections", "OrderedDict"): lambda: collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor"): lambda: lambda *of_it: _tensor(*of_it),
            ("torch._utils", "_rebuild_tensor_v2"): lambda: lambda *of_it: _tensor(*of_it[:4]),
            ("torch._utils", "_rebuild_parameter"): lambda: lambda tensor, *_: tensor,
        }
        if (module, name) not in made:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not a tensor")
        return made[module, name]()

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the storage that a pickle names."""
        word, kind, key, _, length, *view = pid
        if word != "storage" or kind not in _STORAGES or any(view):
            raise pickle.UnpicklingError("it contains an object that is not a tensor's storage")
        if key not in self.storages:
            self._bytes_left -= length * np.dtype(_STORAGES[kind]).itemsize
            if self._bytes_left < 0:
                raise pickle.UnpicklingError("it is cut off")
            numbers = np.zeros(length, "<f4" if kind == _BFLOAT16 else _STORAGES[kind])
            content = numbers.view("<u2")[1::2] if kind == _BFLOAT16 else numbers
            self.storages[key] = _Storage(numbers, content)
        return self.storages[key]


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> np.ndarray:
    """Return a tensor, a view of the numbers of its storage."""
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("it holds a tensor without a storage")
    numbers = storage.numbers
    if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
        raise pickle.UnpicklingError("the shape and strides of a tensor do not fit")
    size = int(np.prod(shape, dtype=object))
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides))
    if size and (last >= len(numbers) or size > len(numbers)):
        raise pickle.UnpicklingError("a tensor reaches beyond its storage")
    # The offset of an empty tensor does not matter.
    part = numbers[offset : last + 1] if size else numbers[:0]
    steps = [stride * numbers.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(part, shape, steps)
