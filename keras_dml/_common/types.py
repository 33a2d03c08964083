"""The types in the annotations of this package."""

import os
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

StrPath: TypeAlias = str | os.PathLike[str]

# NumPy arrays of any shape, by dtype.
Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


class Tensor(Protocol):
    """The common interface of TensorFlow, JAX, and PyTorch tensors, and of `KerasTensor`.

    For annotations only. Keras has no annotations, so results of `keras.ops` are not checked.
    Operators and shapes of tensors are checked.
    """

    @property
    def shape(self) -> Any:
        """Size of each axis. None if only a running graph knows it."""

    @property
    def dtype(self) -> Any:
        """Dtype of the backend. `keras.backend.standardize_dtype` converts it to a string."""

    def __getitem__(self, index: Any, /) -> "Tensor": ...
    def __neg__(self) -> "Tensor": ...
    def __invert__(self) -> "Tensor": ...
    def __add__(self, other: Any, /) -> "Tensor": ...
    def __radd__(self, other: Any, /) -> "Tensor": ...
    def __sub__(self, other: Any, /) -> "Tensor": ...
    def __rsub__(self, other: Any, /) -> "Tensor": ...
    def __mul__(self, other: Any, /) -> "Tensor": ...
    def __rmul__(self, other: Any, /) -> "Tensor": ...
    def __truediv__(self, other: Any, /) -> "Tensor": ...
    def __rtruediv__(self, other: Any, /) -> "Tensor": ...
    def __floordiv__(self, other: Any, /) -> "Tensor": ...
    def __mod__(self, other: Any, /) -> "Tensor": ...
    def __and__(self, other: Any, /) -> "Tensor": ...
    def __or__(self, other: Any, /) -> "Tensor": ...
    def __lt__(self, other: Any, /) -> "Tensor": ...
    def __le__(self, other: Any, /) -> "Tensor": ...
    def __gt__(self, other: Any, /) -> "Tensor": ...
    def __ge__(self, other: Any, /) -> "Tensor": ...


TensorLike: TypeAlias = Tensor | np.ndarray | Sequence[Any] | float
"""Input of `keras.ops.convert_to_tensor`: a tensor, an array, or a list of numbers."""

Parts: TypeAlias = tuple[Tensor, Tensor]
"""The tightness part and the contrastive part of a loss, `[n]` each."""

Config: TypeAlias = dict[str, Any]
"""Output of `get_config` and input of `from_config`."""

Logs: TypeAlias = dict[str, Tensor]
"""Metrics of a training or test step, by name."""

Metric = Literal["cosine", "l2"]
"""Cosine similarity, higher is nearer, or Euclidean distance, lower is nearer."""
METRICS: tuple[Metric, ...] = ("cosine", "l2")
"""The valid values of `metric`."""

Neighbors = Literal["auto", "exact", "scann"]
"""Search for neighbors: exact by NumPy, by ScaNN's tree, or by ScaNN as fits the number of rows."""
NEIGHBORS: tuple[Neighbors, ...] = ("auto", "exact", "scann")
Engine = Literal["numpy", "scann", "scann_tree"]
"""The search in use: exact by NumPy, exact by ScaNN, or by ScaNN's tree."""
"""The valid values of `neighbors`."""
