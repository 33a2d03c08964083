"""Qdrant: a collection of a server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.options.errors import UsageError
from experiments.searching import store
from keras_dml._common.extras import needing

with needing("qdrant", "a store qdrant:URL"):
    import qdrant_client
    from qdrant_client import models
    from qdrant_client.http.exceptions import ApiException

_DESCRIPTION, _FINISHED = "keras_dml", "keras_dml_finished"
_READ = 2_000
_SECONDS = 120


class QdrantStore(store.Store):
    """A collection of Qdrant. `place` is a server's URL."""

    kind = "qdrant"
    batch = 256
    errors = (ApiException, OSError, RuntimeError, ValueError)

    def __init__(self, place: str, table: str) -> None:
        super().__init__(place, table)
        if "://" not in place:
            raise UsageError(f"qdrant:URL must be the URL of a server, but got {self}.")
        with self.asking():
            self._client = qdrant_client.QdrantClient(
                url=place,
                api_key=os.environ.get("QDRANT_API_KEY"),
                timeout=_SECONDS,
                check_compatibility=False,
            )

    def _stored(self) -> tuple[str, bool] | None:
        if not self._client.collection_exists(self.table):
            return None
        metadata = self._client.get_collection(self.table).config.metadata or {}
        return metadata.get(_DESCRIPTION, ""), metadata.get(_FINISHED) is True

    def create(self, description: store.Description) -> None:  # noqa: D102
        # Embeddings for the cosine have length 1. Qdrant's cosine would normalize them again.
        is_cosine = description.metric == "cosine"
        distance = models.Distance.DOT if is_cosine else models.Distance.EUCLID
        self._client.delete_collection(self.table)
        self._client.create_collection(
            self.table,
            vectors_config=models.VectorParams(
                size=description.dimensions, distance=distance, on_disk=True
            ),
            metadata={_DESCRIPTION: description.text(), _FINISHED: False},
        )
        for name in (store.CLASS, store.FOLDER, *description.columns):
            self._client.create_payload_index(
                self.table, _key(name), models.PayloadSchemaType.KEYWORD
            )

    def finish(self, images: int) -> None:  # noqa: D102
        self._check_count(self._client.count(self.table, exact=True).count, images)
        self._client.update_collection(self.table, metadata={_FINISHED: True})

    def values(self, names: Sequence[str]) -> Iterator[list[tuple[str, ...]]]:  # noqa: D102
        offset = None
        wanted = [_key(name) for name in names if name != store.ID]
        while True:
            points, offset = self._client.scroll(
                self.table, limit=_READ, offset=offset, with_payload=wanted
            )
            yield [
                tuple(str(point.id) if name == store.ID else point.payload[name] for name in names)
                for point in points
            ]
            if offset is None:
                return

    def upsert(self, rows: store.Rows) -> None:  # noqa: D102
        names = list(rows.columns)
        payloads = [dict(zip(names, each)) for each in zip(*rows.columns.values())]
        batch = models.Batch(ids=rows.ids, vectors=rows.vectors.tolist(), payloads=payloads)
        self._client.upsert(self.table, batch, wait=True)

    def remove(self, ids: Sequence[str]) -> None:  # noqa: D102
        self._client.delete(self.table, models.PointIdsList(points=list(ids)), wait=True)

    def nearest(self, query: store.Vectors, k: int, metric: str, where: store.Where) -> store.Found:  # noqa: D102
        must = [
            models.FieldCondition(key=_key(name), match=models.MatchAny(any=list(values)))
            for name, values in where.items()
        ]
        found = self._client.query_points(
            self.table,
            query=query.tolist(),
            limit=k,
            query_filter=models.Filter(must=must) if must else None,
            search_params=models.SearchParams(exact=True),
            with_payload=[store.PATH],
            with_vectors=True,
        )
        paths = [point.payload[store.PATH] for point in found.points]
        vectors = np.array([point.vector for point in found.points], np.float32)
        return paths, vectors.reshape(len(paths), len(query))

    def close(self) -> None:  # noqa: D102
        self._client.close()


def _key(name: str) -> str:
    """Return a column name as a key of Qdrant's payload."""
    return name if name.isidentifier() and name.isascii() else json.dumps(name, ensure_ascii=False)
