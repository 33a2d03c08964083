"""LanceDB: a table is a folder, on this machine or in an object store."""

from __future__ import annotations

import datetime
import functools
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.options.errors import UsageError
from experiments.searching import store
from keras_dml._common.extras import needing

# Otherwise LanceDB prints a note for each new table.
os.environ.setdefault("LANCEDB_LOG", "error")
with needing("lancedb", "a store lancedb:FOLDER"):
    import lancedb

from experiments.searching.arrow import DESCRIPTION, arrow_schema, arrow_table, embeddings_of

# Ray forks and executes a new program at once, which is safe.
warnings.filterwarnings("ignore", "lancedb fork support is experimental", RuntimeWarning)

_READ = 50_000


class LanceStore(store.Store):
    """A table of LanceDB. `place` is a folder, or an address such as s3://BUCKET/FOLDER.

    A column's metadata marks a complete table, because a table's metadata cannot be changed.
    """

    kind = "lancedb"
    batch = 10_000
    errors = (OSError, RuntimeError, ValueError)

    def __init__(self, place: str, table: str) -> None:
        super().__init__(place, table)
        self._is_local = "://" not in place
        if self._is_local and os.path.exists(place) and not os.path.isdir(place):
            raise UsageError(f"lancedb:FOLDER must be a folder, but got {self}.")
        self._opened: Any = None
        if not self._is_local:
            with self.asking():
                _ = self._database.list_tables()

    def _reason(self, error: Exception) -> str:
        """Return the message without places in LanceDB's source."""
        reason = re.sub(r", /\S+\.rs:[\d:]+", "", super()._reason(error))
        return reason if self._is_local else f"{reason}. Are its address and credentials right?"

    @functools.cached_property
    def _database(self) -> Any:
        return lancedb.connect(self.place)  # creates the folder

    @property
    def _table(self) -> Any:
        if self._opened is None:
            self._opened = self._database.open_table(self.table)
        return self._opened

    def _stored(self) -> tuple[str, bool] | None:
        if self._is_local and not os.path.isdir(self.place):
            return None
        try:
            schema = self._table.schema
        except ValueError as error:
            if "was not found" not in str(error):
                raise
            return None
        of_path = schema.field(store.PATH).metadata or {} if store.PATH in schema.names else {}
        text = (schema.metadata or {}).get(DESCRIPTION, b"").decode()
        return text, of_path.get(b"keras_dml") == b"finished"

    def create(self, description: store.Description) -> None:  # noqa: D102
        schema = arrow_schema(description)
        self._opened = self._database.create_table(self.table, schema=schema, mode="overwrite")

    def finish(self, images: int) -> None:  # noqa: D102
        self._check_count(self._table.count_rows(), images)
        if not self.is_finished():
            finished = {"keras_dml": "finished"}
            self._table.update_field_metadata({"path": store.PATH, "metadata": finished})
        # Many writes leave many small files and earlier versions.
        self._table.optimize(cleanup_older_than=datetime.timedelta(days=1))

    def values(self, names: Sequence[str]) -> Iterator[list[tuple[str, ...]]]:  # noqa: D102
        found = self._table.search().select(list(names)).limit(None)
        for batch in found.to_batches(_READ):
            columns = [batch.column(name).to_pylist() for name in names]
            yield list(zip(*columns))

    def upsert(self, rows: store.Rows) -> None:  # noqa: D102
        merge = self._table.merge_insert(store.ID)
        merge = merge.when_matched_update_all().when_not_matched_insert_all()
        merge.execute(arrow_table(rows, self._table.schema))

    def remove(self, ids: Sequence[str]) -> None:  # noqa: D102
        self._table.delete(_any_of(store.ID, ids))

    def nearest(self, query: store.Vectors, k: int, metric: str, where: store.Where) -> store.Found:  # noqa: D102
        search = self._table.search(query, vector_column_name=store.VECTOR)
        # For embeddings of length 1, the dot product is the cosine.
        search = search.distance_type("dot" if metric == "cosine" else "l2")
        columns = [store.PATH, store.VECTOR, "_distance"]
        search = search.bypass_vector_index().select(columns).limit(k)
        if where:
            asked = " AND ".join(_any_of(name, values) for name, values in where.items())
            search = search.where(asked, prefilter=True)
        found = search.to_arrow()
        return found[store.PATH].to_pylist(), embeddings_of(found)


def _any_of(name: str, values: Sequence[str]) -> str:
    """Return the condition in LanceDB's SQL that a column has one of these values."""
    if not values:
        return "false"
    texts = ("'" + value.replace("'", "''") + "'" for value in values)
    return f"`{name}` IN ({', '.join(texts)})"
