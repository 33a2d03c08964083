"""Parquet files of embeddings that workers write and one command reads."""

from __future__ import annotations

import pathlib
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from experiments.searching.arrow import embeddings_of
from keras_dml._common.extras import needing

with needing("parquet", "--engine=ray"):
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["EmbeddedRows", "read_ids", "read_rows", "rows_table"]

_ID, _VECTOR, _REASON = "id", "vector", "reason"


class EmbeddedRows(NamedTuple):
    """Ids of image files, their embeddings `[n, d]`, and the reasons why bad images are bad."""

    ids: list[str]
    embeddings: np.ndarray
    reasons: list[str]


def rows_table(rows: EmbeddedRows) -> pa.Table:
    """Convert rows to an Arrow table."""
    flat = pa.array(np.ascontiguousarray(rows.embeddings, np.float32).reshape(-1))
    vectors = pa.FixedSizeListArray.from_arrays(flat, rows.embeddings.shape[1])
    return pa.table({_ID: pa.array(rows.ids), _VECTOR: vectors, _REASON: pa.array(rows.reasons)})


def read_ids(folder: pathlib.Path) -> set[str]:
    """Read the ids in all Parquet files of a folder."""
    files = folder.glob("*.parquet")
    return {one for file in files for one in pq.read_table(file, columns=[_ID])[_ID].to_pylist()}


def read_rows(folder: pathlib.Path, wanted: Collection[str]) -> EmbeddedRows:
    """Read the rows with the wanted ids from all Parquet files of a folder."""
    ids, blocks, reasons = list[str](), list[np.ndarray](), list[str]()
    for file in sorted(folder.glob("*.parquet")):
        table = pq.read_table(file)
        keep = [one in wanted for one in table[_ID].to_pylist()]
        table = table.filter(pa.array(keep, pa.bool_()))
        ids += table[_ID].to_pylist()
        reasons += table[_REASON].to_pylist()
        blocks.append(embeddings_of(table))
    return EmbeddedRows(ids, np.concatenate(blocks) if blocks else np.empty((0, 0)), reasons)
