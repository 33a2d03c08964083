"""Arrow tables of images, for LanceDB and Parquet files."""

from __future__ import annotations

import numpy as np

from experiments.searching.store import CLASS, DIGEST, FOLDER, ID, PATH, VECTOR, Description, Rows
from keras_dml._common.extras import needing

with needing("parquet", "what writes Arrow tables"):
    import pyarrow as pa

__all__ = ["DESCRIPTION", "arrow_schema", "arrow_table", "embeddings_of"]

DESCRIPTION = b"keras_dml"
"""The key of the description in the metadata of a table."""


def arrow_schema(description: Description) -> pa.Schema:
    """Return the schema of a table of images, with the description as metadata."""
    text = [ID, PATH, CLASS, FOLDER, *description.columns, DIGEST]
    vector = pa.field(VECTOR, pa.list_(pa.float32(), description.dimensions))
    fields = [pa.field(name, pa.string()) for name in text]
    return pa.schema([*fields, vector], metadata={DESCRIPTION: description.text()})


def arrow_table(rows: Rows, schema: pa.Schema) -> pa.Table:
    """Convert rows to a table with this schema."""
    flat = pa.array(rows.vectors.reshape(-1), pa.float32())
    dimensions = schema.field(VECTOR).type.list_size
    known = {**rows.columns, ID: rows.ids}
    known[VECTOR] = pa.FixedSizeListArray.from_arrays(flat, dimensions)
    return pa.table({name: known[name] for name in schema.names}, schema=schema)


def embeddings_of(table: pa.Table) -> np.ndarray:
    """Return the embeddings in a table, float32 `[n, d]`."""
    column = table[VECTOR].combine_chunks()
    return np.asarray(column.flatten()).reshape(len(table), -1)
