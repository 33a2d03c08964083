"""Reader for PyTorch tensor files, based on NumPy. Needs no PyTorch, and runs no code in files.

`torch.save` writes a pickle that names storages, and the bytes of the storages. Since 1.6 they are
entries of a zip file. Before (and in many published checkpoints), they follow each other in one
stream.
"""

import collections
import io
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from keras_dml._backend.private import PythonUnpickler
from keras_dml._common.errors import ArgumentError

_MAGIC, _STREAM_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_STORAGES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": "<u2",  # the upper half of a float32
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "<?",
}


# Tensors that share storages, such as tied weights, may be so many times as large together.
_MOST_SHARED = 16


class _StorageType(NamedTuple):
    name: str


class _Storage(NamedTuple):
    """The storage of a tensor: `length` numbers under a key."""

    kind: str
    key: str
    length: int


class _Tensor(NamedTuple):
    """A tensor as described in the pickle: its storage and its layout in it."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_tensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the tensors of a saved `state_dict` by name, with their dtypes (bfloat16 as float32).

    The pickle can contain only tensors, their storages, ordered dictionaries, and plain values. Any
    other name is refused before an object is created.

    Args:
        path: Path of a `.pth` file in either format.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is missing or damaged, contains anything except tensors by name, or
            requires running code.

    Examples:
        >>> {name: array.shape for name, array in read_tensors("net.pth").items()}  # doctest: +SKIP
    """
    with open(path, "rb") as stream:
        read = _read_zip if zipfile.is_zipfile(stream) else _read_stream
        stream.seek(0)
        try:
            content, numbers = read(stream)
        except Exception as error:  # a damaged file may raise nearly any error
            reason = f": {error}" if isinstance(error, pickle.UnpicklingError) else ""
            raise ArgumentError(
                f"not a PyTorch file of tensors that can be read{reason}"
            ) from error
    # Tensors may share a storage, but a small file must not become a large amount of memory.
    most = _MOST_SHARED * sum(storage.nbytes for storage in numbers.values())
    tensors = isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(tensor, _Tensor) for name, tensor in content.items()
    )
    if not tensors:
        raise ArgumentError("not a state_dict: it must hold tensors by name and nothing else")
    try:
        if sum(_size(tensor) for tensor in content.values()) > most:
            raise ValueError("its tensors are larger than its storages")
        return {name: _array(tensor, numbers) for name, tensor in content.items()}
    except Exception as error:  # sizes and keys in the file can have any value
        raise ArgumentError("not a PyTorch file of tensors that can be read") from error


def _read_zip(stream: BinaryIO) -> tuple[Any, Mapping[str, np.ndarray]]:
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
        used: dict[str, _Storage] = {}
        content = _Unpickler(io.BytesIO(archive.read(pickled)), end, used).load()
        numbers = {
            key: np.frombuffer(archive.read(f"{folder}data/{key}"), _STORAGES[storage.kind])
            for key, storage in used.items()
        }
    return content, numbers


def _read_stream(stream: BinaryIO) -> tuple[Any, Mapping[str, np.ndarray]]:
    used: dict[str, _Storage] = {}
    end = os.fstat(stream.fileno()).st_size

    def load() -> Any:
        return _Unpickler(stream, end, used).load()

    if (load(), load()) != (_MAGIC, _STREAM_PROTOCOL):
        raise pickle.UnpicklingError("it does not begin as one")
    if not load()["little_endian"]:
        raise pickle.UnpicklingError("its numbers are big-endian")
    content, keys = load(), load()
    numbers = {}
    for key in keys:
        storage = used[key]
        dtype = np.dtype(_STORAGES[storage.kind])
        length = int.from_bytes(stream.read(8), "little")
        if length != storage.length or length * dtype.itemsize > end - stream.tell():
            raise pickle.UnpicklingError("it is cut off")
        numbers[key] = np.frombuffer(stream.read(length * dtype.itemsize), dtype)
    return content, numbers


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
    """An unpickler that reads only tensors. `used` gets the storages that they name.

    It derives from Python's unpickler. The one in C reserves memory for any index in a file.
    """

    def __init__(self, stream: BinaryIO, end: int, used: dict[str, _Storage]) -> None:
        super().__init__(_Bounded(stream, end))
        self._used = used

    def find_class(self, module: str, name: str) -> Any:
        """Return replacements for the few names that a tensor file needs."""
        if module == "torch" and name in _STORAGES:
            return _StorageType(name)
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
        if word != "storage" or not isinstance(kind, _StorageType) or any(view):
            raise pickle.UnpicklingError("it contains an object that is not a tensor's storage")
        storage = _Storage(kind.name, str(key), int(length))
        if self._used.setdefault(storage.key, storage) != storage:
            raise pickle.UnpicklingError("it names one storage twice")
        return storage


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("it holds a tensor without a storage")
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _size(tensor: _Tensor) -> int:
    """Return the number of bytes of a tensor."""
    numbers = int(np.prod(tensor.shape, dtype=object))
    return abs(numbers) * np.dtype(_STORAGES[tensor.storage.kind]).itemsize


def _array(tensor: _Tensor, numbers: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the tensor's numbers, within its storage."""
    held = numbers[tensor.storage.key]
    _, offset, shape, strides = tensor
    if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
        raise ValueError("shape and strides do not fit")
    size = int(np.prod(shape, dtype=object))
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides))
    if size and (last >= len(held) or size > len(held)):
        raise ValueError("reaches beyond its storage")
    # The offset of an empty tensor does not matter.
    part = held[offset : last + 1] if size else held[:0]
    array = np.lib.stride_tricks.as_strided(
        part, shape, [stride * held.itemsize for stride in strides], writeable=False
    )
    if tensor.storage.kind == "BFloat16Storage":
        return (array.astype("<u4") << 16).view("<f4")
    return array.copy()
