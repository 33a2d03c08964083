"""Arrow tables of images, for LanceDB, Parquet files, and the workers of Ray."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Sequence

import numpy as np

from experiments.searching.store import CLASS, DIGEST, FOLDER, ID, PATH, VECTOR, Description, Rows
from keras_dml._common.extras import needing

with needing("parquet", "a table of Arrow"):
    import pyarrow as pa
    import pyarrow.parquet as pq

DESCRIPTION = b"keras_dml"
"""The key of the description in the metadata of a table."""
_REASON = "reason"


def arrow_schema(description: Description) -> pa.Schema:
    """Return the schema of a table of images, with the description as metadata."""
    text = [ID, PATH, CLASS, FOLDER, *description.columns, DIGEST]
    vector = pa.field(VECTOR, pa.list_(pa.float32(), description.dimensions))
    fields = [pa.field(name, pa.string()) for name in text]
    return pa.schema([*fields, vector], metadata={DESCRIPTION: description.text()})


def arrow_table(rows: Rows, schema: pa.Schema) -> pa.Table:
    """Convert rows to a table with this schema."""
    known = {**rows.columns, ID: rows.ids, VECTOR: _vectors(rows.vectors)}
    return pa.table({name: known[name] for name in schema.names}, schema=schema)


def _vectors(embeddings: np.ndarray) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(embeddings, np.float32).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, embeddings.shape[1])


def embeddings_of(table: pa.Table) -> np.ndarray:
    """Return the embeddings in a table, float32 `[n, d]`."""
    column = table[VECTOR].combine_chunks()
    return np.asarray(column.flatten()).reshape(len(table), -1)


def batch_table(ids: Sequence[str], embeddings: np.ndarray, reasons: Sequence[str]) -> pa.Table:
    """Return the table of a batch: ids, embeddings `[n, d]`, and reasons of bad images or ""."""
    return pa.table(
        {ID: ids, VECTOR: _vectors(embeddings), _REASON: pa.array(reasons, pa.string())}
    )


def read_ids(folder: pathlib.Path) -> set[str]:
    """Read the ids in all Parquet files of a folder."""
    files = folder.glob("*.parquet")
    return {image for file in files for image in pq.read_table(file, columns=[ID])[ID].to_pylist()}


def read_batches(
    folder: pathlib.Path, wanted: Collection[str]
) -> tuple[list[str], np.ndarray, list[str]]:
    """Read the batches in all Parquet files of a folder, without ids that are not wanted."""
    table = pq.read_table(folder)
    table = table.filter(pa.compute.is_in(table[ID], pa.array(wanted, pa.string())))
    return table[ID].to_pylist(), embeddings_of(table), table[_REASON].to_pylist()
