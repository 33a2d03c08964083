"""Embeddings, labels, and data of indexed examples."""

import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._files.archives import check_zip
from keras_dml.similarity.types import PandasDataFrame

__all__ = ["MemoryStore", "Store"]


class Store:
    """The interface of stores. A subclass defines all methods of `MemoryStore`.

    Examples:
        >>> issubclass(MemoryStore, Store)
        True
    """


class MemoryStore(Store):
    """Embeddings, labels, and data in lists.

    Examples:
        >>> store = MemoryStore()
        >>> store.add(np.ones(2), label=3)
        0
        >>> store.get(0)
        (array([1., 1.]), 3, None)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Remove all records."""
        self.embeddings: list[np.ndarray] = []
        self.labels: list[int | None] = []
        self.data: list[Any] = []

    def add(self, embedding: np.ndarray, label: int | None = None, data: Any = None) -> int:
        """Add a record, and return its number."""
        self.embeddings.append(embedding)
        self.labels.append(label)
        self.data.append(data)
        return self.size() - 1

    def batch_add(
        self,
        embeddings: Sequence[np.ndarray],
        labels: Sequence[int] | None = None,
        data: Sequence[Any] | None = None,
    ) -> list[int]:
        """Add records, and return their numbers.

        Raises:
            ValueError: The numbers of embeddings, labels, and data differ.
        """
        for name, values in (("y", labels), ("data", data)):
            if values is not None and len(values) != len(embeddings):
                wanted = f"None or of length {len(embeddings)}, one for each example"
                raise argument_error(name, wanted, len(values))
        blank: Sequence[Any] = [None] * len(embeddings)
        ids = blank if labels is None else [int(np.ravel(label)[0]) for label in labels]
        records = zip(embeddings, ids, blank if data is None else data)
        return [self.add(*record) for record in records]

    def get(self, idx: int) -> tuple[np.ndarray, int | None, Any]:
        """Return the embedding, the label, and the data of a record."""
        return self.embeddings[idx], self.labels[idx], self.data[idx]

    def batch_get(self, idxs: Sequence[int]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the embeddings, the labels, and the data of records."""
        rows = [self.get(idx) for idx in idxs]
        return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]

    def size(self) -> int:
        """Return the number of records."""
        return len(self.embeddings)

    def save(self, path: str | pathlib.Path, compression: bool = True) -> None:
        """Write `index.npz` into a folder.

        Raises:
            ValueError: Data are neither numbers, nor strings, nor arrays of them.
        """
        arrays = {"embeddings": np.array(self.embeddings)}
        arrays["labels"] = np.array([0 if one is None else one for one in self.labels], "int64")
        arrays["unlabeled"] = np.array([one is None for one in self.labels], bool)
        known = [row for row, one in enumerate(self.data) if one is not None]
        values = [np.asarray(self.data[row]) for row in known]
        if any(value.dtype == object for value in values):
            raise ArgumentError("data must be numbers, strings, or arrays of them to be saved.")
        kinds = {(value.shape, value.dtype) for value in values}
        if len(kinds) == 1 and len(known) == self.size():
            arrays["data"] = np.stack(values)
        else:
            arrays.update({f"data_{row}": value for row, value in zip(known, values)})
        write = np.savez_compressed if compression else np.savez
        with open(pathlib.Path(path, "index.npz"), "wb") as file:
            write(file, **arrays)  # type: ignore[arg-type]

    def load(self, path: str | pathlib.Path) -> int:
        """Read `index.npz` from a folder, and return the number of records.

        The file is never unpickled. Labels and data that need pickle, in files of TensorFlow
        Similarity, become None with a warning.
        """
        self.reset()
        file = pathlib.Path(path, "index.npz")
        check_zip(file)
        with np.load(file, allow_pickle=False) as arrays:
            names = set(arrays.files)

            def read(name: str) -> Any:
                try:
                    return arrays[name] if name in names else None
                except ValueError:  # an object array
                    warnings.warn(f"{name} are missing: reading them needs pickle.", stacklevel=4)
                    return None

            embeddings = list(arrays["embeddings"])
            labels, unlabeled, data = map(read, ("labels", "unlabeled", "data"))
            rows = range(len(embeddings))
            if data is None:
                data = [read(f"data_{row}") for row in rows]
        blank = np.zeros(len(rows), bool) if unlabeled is None else unlabeled
        self.embeddings, self.data = embeddings, list(data)
        self.labels = [None if labels is None or blank[row] else int(labels[row]) for row in rows]
        return self.size()

    def to_data_frame(self, num_records: int = 0) -> PandasDataFrame:
        """Return the first records as a table. 0 returns all of them. Needs pandas."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise ImportError("to_data_frame needs pandas: pip install pandas") from error
        end = num_records or self.size()
        columns = {"embeddings": self.embeddings, "data": self.data, "labels": self.labels}
        return pandas.DataFrame({name: values[:end] for name, values in columns.items()})
