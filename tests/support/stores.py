"""A store in memory, and images for it."""

import numpy as np
import pytest

from experiments.searching.store import Description, Store, made_rows

WITH_POSTGRES = pytest.param("pgvector", marks=[pytest.mark.slow, pytest.mark.thorough])
"""A case with a PostgreSQL server."""
PATHS = [f"{folder}/{number}.png" for folder in ("a", "b/c", "b") for number in range(8)]


class MemoryStore(Store):
    """A store in a dictionary; like the others, it ranks in float32."""

    kind = "memory"
    batch = 5
    errors = (OSError,)

    def __init__(self):
        super().__init__("here")
        self.described = None
        self.finished = False
        self.images = {}

    def _stored(self):
        return self.described and (self.described.text(), self.finished)

    def create(self, description):
        self.described, self.finished, self.images = description, False, {}

    def finish(self, images):
        self._check_count(len(self.images), images)
        self.finished = True

    def values(self, names):
        yield [tuple(one[name] for name in names) for one in self.images.values()]

    def upsert(self, rows):
        for place, one in enumerate(rows.ids):
            known = {name: each[place] for name, each in rows.columns.items()}
            self.images[one] = {"id": one, "vector": rows.vectors[place], **known}

    def remove(self, ids):
        for one in ids:
            del self.images[one]

    def nearest(self, query, k, metric, where):
        fits = [one for one in self.images.values()
                if all(one[name] in values for name, values in where.items())]  # fmt: skip
        vectors = np.array([one["vector"] for one in fits], np.float32).reshape(-1, len(query))
        far = -vectors @ query if metric == "cosine" else np.linalg.norm(vectors - query, axis=1)
        # Rounded, so that nearly equal distances come in another order.
        order = np.argsort(np.round(far, 5), kind="stable")[:k]
        return [fits[place]["path"] for place in order], vectors[order]


def description(columns=("brand",), **more):
    """Describe images without a model."""
    given = {"metric": "cosine", "dimensions": 6, "saved_model": "/model", "fingerprint": "1"}
    return Description(**given | {"images": "/photos", "columns": tuple(columns)} | more)


def rows(paths=PATHS, seed=0, metric="cosine", brand="it's 1"):
    """Return images with these paths; every fourth has the previous image's embedding."""
    vectors = np.random.default_rng(seed).normal(size=(len(paths), 6)).astype(np.float32)
    vectors[3::4] = vectors[2::4][: len(vectors[3::4])]
    if metric == "cosine":
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    folders = [path.rpartition("/")[0] for path in paths]
    own = [brand if number % 2 else "" for number in range(len(paths))]
    return made_rows(paths, vectors, {"class": folders, "folder": folders, "brand": own})
