"""Write files like `torch.save`, in both formats, without PyTorch."""

import collections
import io
import pickle
import sys
import types
import zipfile
from typing import NamedTuple
from unittest import mock

import numpy as np

KINDS = {
    "float32": "FloatStorage", "float64": "DoubleStorage", "float16": "HalfStorage",
    "int64": "LongStorage", "int32": "IntStorage", "int16": "ShortStorage", "int8": "CharStorage",
    "uint8": "ByteStorage", "bool": "BoolStorage", "bfloat16": "BFloat16Storage",
}  # fmt: skip


class Tensor:
    """A tensor for `save`: an array, or a view of an array's numbers.

    Args:
        numbers: an array; the storage contains all of it.
        kind: a key of KINDS; None: the array's dtype. `"bfloat16"` numbers are uint16.
        offset, shape, strides: of the view, in numbers; None: the whole array.
    """

    def __init__(self, numbers, kind=None, offset=0, shape=None, strides=None):
        self.numbers = np.asarray(numbers, order="C")
        self.kind = KINDS[kind or str(self.numbers.dtype)]
        self.offset = offset
        self.shape = self.numbers.shape if shape is None else shape
        default = [stride // self.numbers.itemsize for stride in self.numbers.strides]
        self.strides = tuple(default) if strides is None else strides

    def __reduce__(self):
        storage, hooks = _Storage(self.kind, self.numbers), collections.OrderedDict()
        arguments = (storage, self.offset, self.shape, self.strides, False, hooks)
        return sys.modules["torch._utils"]._rebuild_tensor_v2, arguments


class _Storage(NamedTuple):
    kind: str
    numbers: np.ndarray


def state_dict(arrays):
    """Return an ordered dict of tensors with the `_metadata` of PyTorch's modules."""
    state = collections.OrderedDict(
        (name, array if isinstance(array, Tensor) else Tensor(array))
        for name, array in arrays.items()
    )
    state._metadata = collections.OrderedDict({"": {"version": 1}})
    return state


def save(content, path, zipped=False):
    """Write `content` with `Tensor`s as `torch.save` does.

    Args:
        content: a `state_dict`, or any object that can be pickled.
        path: path of the file.
        zipped: whether to use the format since PyTorch 1.6 instead of the older one.
    """
    storages = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            if not isinstance(thing, _Storage):
                return None
            key = str(id(thing.numbers))  # tensors of one array share a storage
            storages[key] = thing.numbers
            kind = getattr(sys.modules["torch"], thing.kind)
            words = ("storage", kind, key, "cpu", thing.numbers.size)
            return words if zipped else (*words, None)

    def pickled(thing):
        stream = io.BytesIO()
        Pickler(stream, protocol=2).dump(thing)
        return stream.getvalue()

    with mock.patch.dict(sys.modules, _modules()):
        body = pickled(content)
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", body)
            archive.writestr("archive/byteorder", b"little")
            for key, numbers in storages.items():
                archive.writestr(f"archive/data/{key}", numbers.tobytes())
        return
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
    head = [pickled(thing) for thing in (0x1950A86A20F9469CFC6C, 1001, system)]
    tail = [pickled(list(storages))]
    for numbers in storages.values():
        tail += [numbers.size.to_bytes(8, "little"), numbers.tobytes()]
    path.write_bytes(b"".join([*head, body, *tail]))


def _modules():
    """Return modules `torch` and `torch._utils` with the names in a file of tensors."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for kind in KINDS.values():
        setattr(torch, kind, type(kind, (), {"__module__": "torch"}))
    name = "_rebuild_tensor_v2"
    setattr(utils, name, type(name, (), {"__module__": "torch._utils"}))
    return {"torch": torch, "torch._utils": utils}
