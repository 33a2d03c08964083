"""PyTorch's files of tensors, read by NumPy: no PyTorch is needed, and no code in them is run.

`torch.save` writes a pickle that names storages, and their bytes beside it: since 1.6 as entries of
a zip file, before (and in many published checkpoints) one after the other in one stream.
"""

import collections
import io
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from keras_dml.errors import ArgumentError

__all__ = ["read_tensors"]

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
    """What a tensor's numbers are kept in: `length` numbers under a key."""

    kind: str
    key: str
    length: int


class _Tensor(NamedTuple):
    """A tensor as the pickle tells it: where in its storage, and how."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_tensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The tensors of a saved `state_dict` by name, each with its own dtype (bfloat16 as float32).

    What the pickle in it may hold is tensors, their storages, ordered dicts and plain values; any
    other name in it is refused before anything is made of it.

    Args:
        path: of a `.pth` file in either format.

    Raises:
        OSError: it cannot be opened.
        ValueError: no such file, a damaged one, one that holds anything but tensors by name, or one
            that needs code to be run.

    Examples:
        >>> {name: array.shape for name, array in read_tensors("net.pth").items()}  # doctest: +SKIP
    """
    with open(path, "rb") as stream:
        read = _read_zip if zipfile.is_zipfile(stream) else _read_stream
        stream.seek(0)
        try:
            content, numbers = read(stream)
        except Exception as error:  # a damaged file may end in nearly any
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
    except Exception as error:  # as above: sizes and keys in it are whatever somebody wrote
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
    """A stream whose reads end with the file: a longer read reserves memory for all its bytes.

    Args:
        stream: the file or a part of it.
        end: its length, or more.
    """

    def __init__(self, stream: BinaryIO, end: int) -> None:
        self._stream, self._end = stream, end
        self.readline = stream.readline

    def read(self, size: int) -> bytes:
        """At most `size` bytes."""
        return self._stream.read(max(0, min(size, self._end - self._stream.tell())))


class _Unpickler(pickle._Unpickler):
    """Reads pickles of tensors only; `used` gets the storages that they name.

    It is the unpickler in Python: the one in C reserves memory for any index that a file names.
    """

    def __init__(self, stream: BinaryIO, end: int, used: dict[str, _Storage]) -> None:
        super().__init__(_Bounded(stream, end))
        self._used = used

    def find_class(self, module: str, name: str) -> Any:
        """What stands here for the few names that a file of tensors needs."""
        if module == "torch" and name in _STORAGES:
            return _StorageType(name)
        # Functions made anew for each file: a pickle may write attributes into what it names.
        made: dict[tuple[str, str], Callable[[], Any]] = {
            ("collections", "OrderedDict"): lambda: collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor"): lambda: lambda *of_it: _tensor(*of_it),
            ("torch._utils", "_rebuild_tensor_v2"): lambda: lambda *of_it: _tensor(*of_it[:4]),
            ("torch._utils", "_rebuild_parameter"): lambda: lambda tensor, *_: tensor,
        }
        if (module, name) not in made:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no tensor")
        return made[module, name]()

    def persistent_load(self, pid: Any) -> _Storage:
        """The storage that a pickle names."""
        word, kind, key, _, length, *view = pid
        if word != "storage" or not isinstance(kind, _StorageType) or any(view):
            raise pickle.UnpicklingError("it holds something that is no storage of a tensor")
        storage = _Storage(kind.name, str(key), int(length))
        if self._used.setdefault(storage.key, storage) != storage:
            raise pickle.UnpicklingError("it names one storage twice")
        return storage


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise pickle.UnpicklingError("it holds a tensor without a storage")
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _size(tensor: _Tensor) -> int:
    """Bytes of a tensor's numbers."""
    numbers = int(np.prod(tensor.shape, dtype=object))
    return abs(numbers) * np.dtype(_STORAGES[tensor.storage.kind]).itemsize


def _array(tensor: _Tensor, numbers: Mapping[str, np.ndarray]) -> np.ndarray:
    """The tensor's numbers, within its storage."""
    held = numbers[tensor.storage.key]
    _, offset, shape, strides = tensor
    if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
        raise ValueError("shape and strides do not fit")
    size = int(np.prod(shape, dtype=object))
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides))
    if size and (last >= len(held) or size > len(held)):
        raise ValueError("reaches beyond its storage")
    # An empty one may lie anywhere.
    part = held[offset : last + 1] if size else held[:0]
    array = np.lib.stride_tricks.as_strided(
        part, shape, [stride * held.itemsize for stride in strides], writeable=False
    )
    if tensor.storage.kind == "BFloat16Storage":
        return (array.astype("<u4") << 16).view("<f4")
    return array.copy()
