"""Re-ranking: search results in the order of their neighborhoods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_dml._common.blocks import slices
from keras_dml._common.checks import check_number, check_whole
from keras_dml._common.errors import ArgumentError, argument_error, shape_error
from keras_dml._common.rows import BLOCK, normalized, prepared_rows
from keras_dml._common.types import BoolArray, Float32Array, Float64Array, Int64Array
from keras_dml.retrieval.products import largest

# Most rows of a gallery for k-reciprocal encoding, whose time grows with their square.
MOST_RECIPROCAL = 50_000
# Arguments of a re-ranking that a search sets.
_DATA = ("queries", "items", "gallery")
# Numbers of a block of queries times items: 2^22 float64 are 32 MiB.
_PAIRS = 2**22


def expand_queries(
    queries: npt.ArrayLike, items: npt.ArrayLike, k: int = 10, alpha: float = 3.0
) -> Float32Array:
    """Add the most similar items to each query: α query expansion.

    With the k items c_j of unit length that are most similar to the query q, and their cosine
    similarities s_j:

        q' = q + Σ_{j≤k} max(s_j, 0)^α c_j,  normalized

    Search with the expanded queries. α = 0 is the average query expansion.

    Examples:
        >>> items = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
        >>> expand_queries([[1.0, 0.1]], items, k=2).round(3)
        array([[0.982, 0.188]], dtype=float32)

    Args:
        queries: Numbers `[q, d]`. q can be 0.
        items: Numbers `[n, d]`, the gallery, n at least 1.
        k: Number of items, at least 1. All items if there are fewer.
        alpha: α, at least 0.

    Returns:
        Unit rows float32 `[q, d]`.

    Raises:
        ValueError: A number is out of range, the widths differ, or values are NaN or infinity.

    Reference: Radenović et al., "Fine-tuning CNN Image Retrieval with No Human Annotation", TPAMI
    2019, section 3.4.
    """
    rows, gallery = _unit_sets(queries, items)
    expansion = Expansion(k, alpha)
    return expansion(rows, gallery, *_nearest(rows, gallery, min(k, len(gallery))))


def augment_items(items: npt.ArrayLike, k: int = 10, alpha: float = 3.0) -> Float32Array:
    """Add the most similar other items to each item of a gallery: database augmentation.

    The formula of `expand_queries`, in which each item is a query, and is not its own neighbor.
    Augment a gallery once, and build the index from the result:
    `build_index(augment_items(items))`.

    Examples:
        >>> items = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
        >>> augment_items(items, k=1).round(3)
        array([[0.977, 0.213],
               [0.909, 0.416],
               [0.151, 0.989]], dtype=float32)

    Args:
        items: Numbers `[n, d]`, n at least 1.
        k: Number of other items, at least 1. All other items if there are fewer.
        alpha: α, at least 0.

    Returns:
        Unit rows float32 `[n, d]`.

    Raises:
        ValueError: A number is out of range, or values are NaN or infinity.

    References: Turcot and Lowe, "Better matching with fewer features", ICCV-W 2009; with the
    weights of Radenović et al., TPAMI 2019, section 3.4.
    """
    gallery = prepared_rows(items, "items", "cosine")
    if not len(gallery):
        raise shape_error("items", "an array [n, d] with at least one row", gallery)
    expansion = Expansion(k, alpha)
    return expansion(gallery, gallery, *_nearest_others(gallery, k))


def k_reciprocal_distances(
    queries: npt.ArrayLike,
    gallery: npt.ArrayLike | None = None,
    k1: int = 20,
    k2: int = 6,
    weight: float = 0.3,
) -> Float32Array:
    """Compare queries with items by the overlap of their neighborhoods: k-reciprocal encoding.

    The queries and the gallery together are the rows. N(p, k) is the row p and its k
    nearest other rows, by the distance d(p, g) = 1 − cos(p, g), half the squared Euclidean
    distance of unit rows. Then:

        R(p, k) = {g ∈ N(p, k) : p ∈ N(g, k)}
        R*(p, k) = R(p, k) ∪ the R(g, k/2), g ∈ R(p, k), with |R(p, k) ∩ R(g, k/2)| ≥ ⅔ |R(g, k/2)|
        V_pg = exp(−d(p, g)) if g ∈ R*(p, k1), or else 0
        V'_p = the mean of V_g over p and its k2 − 1 nearest other rows
        d_J(p, g) = 1 − Σ_h min(V'_ph, V'_gh) / Σ_h max(V'_ph, V'_gh)
        d*(p, g) = (1 − λ) d_J(p, g) + λ d(p, g)

    The queries are neighbors of each other, as in the code of the authors, so a distance depends on
    the other queries. That code divides by the largest distance and scales the rows of V to a sum
    of 1, and this function does not, as in the paper. Memory is `[q, n]` numbers for the result,
    and a few hundred for each row.

    Examples:
        >>> gallery = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
        >>> k_reciprocal_distances([[1.0, 0.1]], gallery, k1=1, k2=1).round(3)
        array([[0.005, 0.743, 0.97 ]], dtype=float32)

    Args:
        queries: Numbers `[q, d]`, at most 50,000 rows.
        gallery: Numbers `[n, d]`, at most 50,000 rows. None: the queries.
        k1: Number of neighbors, at least 1. All other rows if there are fewer.
        k2: Number of rows in a mean, at least 1, at most k1 + 1. 1: no mean.
        weight: λ, the weight of the original distance, from 0 to 1.

    Returns:
        float32 `[q, n]`. Lower is nearer. Without a gallery, a query is its own first item.

    Raises:
        ValueError: A number is out of range, there are more than 50,000 rows, the widths differ, or
            values are NaN or infinity.

    Reference: Zhong et al., "Re-ranking Person Re-identification with k-reciprocal Encoding", CVPR
    2017, Eq. 1 to 12.
    """
    rows, items = _unit_sets(queries, gallery, "gallery")
    encoding = KReciprocal(rows, items, k1, k2, weight)
    out = np.empty((len(rows), len(items)), np.float32)
    for block in slices(len(rows), _PAIRS // len(items)):
        out[block] = encoding.distances(np.arange(len(rows))[block])
    return out


Reranking: TypeAlias = Callable[..., Float32Array]
RERANKINGS: dict[str, Reranking] = {
    "expand_queries": expand_queries,
    "augment_items": augment_items,
    "k_reciprocal": k_reciprocal_distances,
}
"""The re-rankings by the names that `Index.search` and the commands take."""


def named_reranking(rerank: object) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a re-ranking and its arguments.

    Args:
        rerank: A name, a function of `RERANKINGS`, or a `functools.partial` of one.

    Raises:
        ValueError: It is something else, or the function has no such argument.
    """
    given = {}
    found = rerank
    if isinstance(rerank, functools.partial) and not rerank.args:
        found, given = rerank.func, rerank.keywords
    for name, function in RERANKINGS.items():
        if found is function or (isinstance(found, str) and found == name):
            known = [each for each in inspect.signature(function).parameters if each not in _DATA]
            if not set(given) <= set(known):
                wanted = f"a functools.partial that sets only {', '.join(known)} for {name}"
                raise argument_error("rerank", wanted, rerank)
            return name, given
    wanted = (
        f"None, one of {', '.join(map(repr, RERANKINGS))}, or a functools.partial of their "
        "functions"
    )
    raise argument_error("rerank", wanted, rerank)


class Expansion:
    """The sum of a query and its nearest items: the arguments of `expand_queries`.

    Args:
        k, alpha: As in `expand_queries`.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(self, k: int = 10, alpha: float = 3.0) -> None:
        self.k = check_whole("k", k, least=1)
        self.alpha = check_number("alpha", alpha, least=0)

    def __call__(
        self,
        queries: Float32Array,
        items: Float32Array,
        rows: Int64Array,
        similarities: Float32Array,
    ) -> Float32Array:
        """Return `normalize(q + Σ_j max(s_j, 0)^α c_j)` for unit queries.

        Args:
            queries: float32 `[q, d]`.
            items: float32 `[n, d]`.
            rows: Row numbers of the items c_j, `[q, k]`.
            similarities: s_j, `[q, k]`.
        """
        out = np.empty_like(queries)
        for block in slices(len(queries), BLOCK // max(1, rows.shape[1] * queries.shape[1])):
            weights = np.maximum(similarities[block].astype(np.float64), 0) ** self.alpha
            added = np.einsum("qk,qkd->qd", weights, items[rows[block]].astype(np.float64))
            out[block] = queries[block] + added
        return normalized(out, out=out)


class KReciprocal:
    """The encodings of queries and a gallery, for `k_reciprocal_distances`.

    Args:
        queries: Unit rows float32 `[q, d]`.
        items: Unit rows float32 `[n, d]`. The same array as the queries for a single set.
        k1, k2, weight: As in `k_reciprocal_distances`.

    Raises:
        ValueError: As in `k_reciprocal_distances`.
    """

    def __init__(
        self,
        queries: Float32Array,
        items: Float32Array,
        k1: int = 20,
        k2: int = 6,
        weight: float = 0.3,
    ) -> None:
        k1 = check_whole("k1", k1, least=1)
        k2 = check_whole("k2", k2, least=1, most=k1 + 1)
        self._weight = check_number("weight", weight, least=0, most=1)
        check_reciprocal_rows(len(queries), "queries")
        check_reciprocal_rows(len(items), "gallery")
        one_set = items is queries
        pool = items if one_set else np.concatenate([queries, items])
        self._queries, self._items = queries, items
        self._first = 0 if one_set else len(queries)  # the first item in the pool
        others, _ = _nearest_others(pool, k1)
        nearest = np.concatenate([np.arange(len(pool))[:, None], others], axis=1)
        self._rows = _mean_rows(_encoded(pool, nearest, k1), nearest[:, :k2])
        self._totals = self._rows.sums()
        self._columns = self._rows.transposed(self._first)

    def distances(self, rows: Int64Array) -> Float32Array:
        """Return the distances d* of queries to all items, float32 `[b, n]`."""
        first, items = self._first, self._items
        out = np.empty((len(rows), len(items)), np.float32)
        for block in slices(len(rows), _PAIRS // len(items)):
            some = rows[block]
            smaller = np.array([self._minima(row) for row in some]).reshape(len(some), len(items))
            larger = self._totals[some, None] + self._totals[None, first:] - smaller
            similarity = _similarities(self._queries[some], items)
            jaccard = 1 - smaller / larger
            out[block] = (1 - self._weight) * jaccard + self._weight * (1 - similarity)
        return out

    def _minima(self, row: int) -> Float64Array:
        """Return Σ_h min(V_ph, V_gh) of a row p and all items g, float64 `[n]`."""
        columns, values = self._rows.of(row)
        entries, owners = self._columns.entries(columns)
        least = np.minimum(self._columns.values[entries], values[owners])
        indices = self._columns.indices[entries]
        return np.bincount(indices, least, len(self._items)).astype(np.float64, copy=False)


def check_reciprocal_rows(count: int, name: str) -> None:
    """Raise `ValueError` if there are too many rows for k-reciprocal encoding."""
    if count > MOST_RECIPROCAL:
        raise ArgumentError(
            f"{name} must have at most {MOST_RECIPROCAL:,} rows for k-reciprocal re-ranking, whose "
            f"time grows with their square, but got {count:,}. Use expand_queries, or re-rank the "
            "nearest items of each query."
        )


def k_reciprocal_nearest(
    queries: Float32Array, items: Float32Array, k: int, arguments: Mapping[str, Any]
) -> tuple[Int64Array, Float32Array]:
    """Return the k nearest of unit items and their k-reciprocal distances, `[q, k]` each."""
    rows = np.empty((len(queries), k), np.int64)
    distances = np.empty((len(queries), k), np.float32)
    if rows.size:
        encoding = KReciprocal(queries, items, **arguments)
        for block in slices(len(queries), _PAIRS // len(items)):
            found = encoding.distances(np.arange(len(queries))[block])
            rows[block], nearness = largest(-found, k)
            distances[block] = -nearness
    return rows, distances


class Reranked:
    """The items in the order of a re-ranking, for the queries of a set.

    Args:
        rerank: As in `named_reranking`.
        queries: Numbers `[q, d]`.
        items: Numbers `[n, d]`. None: each query searches the other queries. They expand it, and
            augment each other, so an augmented item can contain the query.

    Raises:
        ValueError: As in the function of the re-ranking.
    """

    def __init__(
        self,
        rerank: str | Reranking,
        queries: npt.ArrayLike,
        items: npt.ArrayLike | None = None,
    ) -> None:
        name, arguments = named_reranking(rerank)
        rows, gallery = _unit_sets(queries, items)
        self._own = items is None
        self._count = len(gallery)
        self._reciprocal: KReciprocal | None = None
        if name == "k_reciprocal":
            self._reciprocal = KReciprocal(rows, gallery, **arguments)
        elif name == "augment_items":
            gallery = augment_items(gallery, **arguments)
        elif self._own:
            rows = augment_items(rows, **arguments)
        else:
            rows = expand_queries(rows, gallery, **arguments)
        self._queries, self._items = rows, gallery

    def blocks(self, rows: Int64Array, k: int) -> Iterator[tuple[slice, Int64Array, Float32Array]]:
        """Yield the k first items of queries, one block of queries at a time.

        Yields:
            (slice of `rows`, items int64 `[b, k]`, scores float32 `[b, k]`): similarities, or of
            k-reciprocal encoding negative distances. Ties are in row order.
        """
        from keras_dml._common.progress import long_work_bar  # imports tqdm

        with long_work_bar(f"re-ranked nearest {k}", len(rows)) as bar:
            for block in slices(len(rows), _PAIRS // self._count):
                nearness = self._nearness(rows[block])
                if self._own:
                    nearness[np.arange(len(nearness)), rows[block]] = -np.inf
                yield block, *largest(nearness, k)
                bar.update(len(nearness))

    def _nearness(self, rows: Int64Array) -> Float32Array:
        if self._reciprocal is not None:
            return -self._reciprocal.distances(rows)
        return _similarities(self._queries[rows], self._items)


class _SparseRows:
    """A sparse matrix of nonnegative float64 numbers, one row after the other.

    Args:
        starts: First entry of each row, and the number of entries, `[rows + 1]`.
        indices: Column of each entry.
        values: Value of each entry.
    """

    def __init__(self, starts: Int64Array, indices: Int64Array, values: Float64Array) -> None:
        self.starts, self.indices, self.values = starts, indices, values

    @classmethod
    def of_entries(
        cls, count: int, rows: Int64Array, indices: Int64Array, values: Float64Array
    ) -> _SparseRows:
        """Create it from entries in the order of their rows."""
        starts = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(rows, minlength=count), out=starts[1:])
        return cls(starts, indices, values)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, row: int) -> tuple[Int64Array, Float64Array]:
        """Return columns and values of a row."""
        entries = slice(self.starts[row], self.starts[row + 1])
        return self.indices[entries], self.values[entries]

    def entries(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the entries of rows, and for each entry its place in `rows`."""
        counts = self.starts[rows + 1] - self.starts[rows]
        owners = np.repeat(np.arange(len(rows)), counts)
        offsets = np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]
        return self.starts[rows][owners] + offsets, owners

    def sums(self) -> Float64Array:
        """Return the sum of each row."""
        rows = np.repeat(np.arange(len(self)), np.diff(self.starts))
        return np.bincount(rows, self.values, len(self)).astype(np.float64, copy=False)

    def transposed(self, first: int) -> _SparseRows:
        """Return the transposed rows from row `first` on, which becomes 0."""
        begin = self.starts[first]
        rows = np.repeat(np.arange(len(self) - first), np.diff(self.starts[first:]))
        columns = self.indices[begin:]
        order = np.argsort(columns, kind="stable")
        return self.of_entries(len(self), columns[order], rows[order], self.values[begin:][order])


def _mutual(nearest: Int64Array) -> BoolArray:
    """Return which g of N(p, k) are in R(p, k): whether p is in N(g, k), bool `[rows, k + 1]`."""
    found = np.empty(nearest.shape, bool)
    for block in slices(len(nearest), BLOCK // nearest.shape[1] ** 2):
        rows = np.arange(len(nearest))[block]
        found[block] = (nearest[nearest[block]] == rows[:, None, None]).any(axis=2)
    return found


def _encoded(pool: Float32Array, nearest: Int64Array, k1: int) -> _SparseRows:
    """Return V. The neighbors `[rows, k + 1]` include the row itself first."""
    half = nearest[:, : round(k1 / 2) + 1]
    # -1 stands for no row.
    sets = np.where(_mutual(nearest), nearest, -1)
    half_sets = np.where(_mutual(half), half, -1)
    sizes = (half_sets >= 0).sum(axis=1)
    width = nearest.shape[1]
    all_rows, all_columns, all_values = [], [], []
    for block in slices(len(pool), BLOCK // (width * half.shape[1] * width)):
        own = sets[block]
        candidates = np.where(own[:, :, None] >= 0, half_sets[own], -1)  # [b, k + 1, half]
        shared = (candidates[..., None] == own[:, None, None, :]).any(axis=3) & (candidates >= 0)
        joins = (own >= 0) & (3 * shared.sum(axis=2) >= 2 * sizes[own])
        joined = np.where(joins[:, :, None], candidates, -1).reshape(len(own), -1)
        together = np.sort(np.concatenate([own, joined], axis=1), axis=1)
        first = (np.diff(together, axis=1, prepend=-1) > 0) & (together >= 0)
        rows, places = np.nonzero(first)
        columns = together[rows, places]
        rows = rows + (block.start or 0)
        for some in slices(len(rows), BLOCK // pool.shape[1]):
            similarities = np.einsum(
                "ed,ed->e", pool[rows[some]], pool[columns[some]], dtype=np.float64
            )
            all_values.append(np.exp(similarities - 1))
        all_rows.append(rows)
        all_columns.append(columns)
    return _SparseRows.of_entries(
        len(pool), *(np.concatenate(each) for each in (all_rows, all_columns, all_values))
    )


def _mean_rows(matrix: _SparseRows, groups: Int64Array) -> _SparseRows:
    """Return the mean of the rows in each group `[rows, k2]`."""
    count, size = groups.shape
    if size == 1:
        return matrix
    all_rows, all_columns, all_values = [], [], []
    widest = int(np.diff(matrix.starts).max())
    for block in slices(count, BLOCK // (size * widest)):
        entries, owners = matrix.entries(groups[block].ravel())
        keys = owners // size * len(matrix) + matrix.indices[entries]
        unique, inverse = np.unique(keys, return_inverse=True)
        all_rows.append(unique // len(matrix) + (block.start or 0))
        all_columns.append(unique % len(matrix))
        all_values.append(np.bincount(inverse, matrix.values[entries]) / size)
    return _SparseRows.of_entries(
        count, *(np.concatenate(each) for each in (all_rows, all_columns, all_values))
    )


def _similarities(queries: Float32Array, items: Float32Array) -> Float32Array:
    """Return the cosines `[q, n]`, computed in float64, so that equal items have equal cosines."""
    return (queries.astype(np.float64) @ items.astype(np.float64).T).astype(np.float32)


def _nearest(queries: Float32Array, items: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
    """Return the k nearest items of each query and their similarities. Ties are in row order."""
    rows = np.empty((len(queries), k), np.int64)
    similarities = np.empty((len(queries), k), np.float32)
    for block in slices(len(queries), _PAIRS // len(items)):
        rows[block], similarities[block] = largest(_similarities(queries[block], items), k)
    return rows, similarities


def _nearest_others(rows: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
    """Return the k nearest other rows of each row and their similarities, or all if fewer."""
    k = min(k, len(rows) - 1)
    found, similarities = _nearest(rows, rows, k + 1)
    own = found == np.arange(len(rows))[:, None]
    # If more than k duplicates have lower row numbers, the row is not among the results.
    own[~own.any(axis=1), -1] = True
    shape = len(rows), k
    return found[~own].reshape(shape), similarities[~own].reshape(shape)


def _unit_sets(
    queries: npt.ArrayLike, items: npt.ArrayLike | None, name: str = "items"
) -> tuple[Float32Array, Float32Array]:
    """Return unit rows of both sets. Without items, they are the same array."""
    rows = prepared_rows(queries, "queries", "cosine")
    gallery = rows if items is None else prepared_rows(items, name, "cosine")
    if not len(gallery):
        raise shape_error(name, "an array [n, d] with at least one row", gallery)
    if gallery.shape[1] != rows.shape[1]:
        wanted = f"rows of {rows.shape[1]} dimensions, as the queries"
        raise shape_error(name, wanted, gallery)
    return rows, gallery
