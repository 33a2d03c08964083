"""Batches of two sets whose candidates contain the nearest ones of the whole training set."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keras_dml._common.checks import argument_error, check_bool, check_whole
from keras_dml._common.errors import ArgumentError
from keras_dml._common.rows import finite_rows
from pipelines.checks import as_integers
from pipelines.relation_samplers import CatalogSampler
from pipelines.samplers import Sampler
from pipelines.step_tables import StepTables


class HardCandidateSampler:
    """A sampler of candidates: for each query of a batch, a match and the nearest other candidates.

    A batch of b queries has b · (1 + per_query) candidates. Query i is followed in rows
    `(1 + per_query) · i …` by

    - a candidate of its class, drawn as by `CatalogSampler`
    - the nearest candidates of the whole training set that do not match it, from a table that
      `callbacks.RefreshHardCandidates` computes and replaces during the training

    Where the table has too few candidates, and before the first table, candidates of other classes
    are drawn at random. A batch can contain a candidate several times. All tables are kept, and the
    step chooses the table, as in `HardClassSampler`.

    The rows are the candidates of a `models.DualEncoder`, which embeds them in the step, so
    gradients reach all of them. With `frozen=True`, a batch has only the matches, and
    `stored(step)` returns the embeddings of the other candidates from the last refresh. They are
    the third input of the `DualEncoder`, constants without the cost of an encoder. The first batch
    needs them, so call `set_model` and `refresh` of the callback before `fit`.

    Examples:
        >>> labels, candidate_labels = np.arange(6) // 2, np.arange(3)
        >>> queries = pipelines.RandomSampler(6, batch_size=2)
        >>> sampler = HardCandidateSampler(queries, labels, candidate_labels, per_query=1)
        >>> sampler.refresh([[1], [1], [2], [2], [0], [0]], first_step=0)
        >>> labels[queries(0)], candidate_labels[sampler(0)]
        (array([0, 1]), array([0, 1, 1, 2]))

    Args:
        sampler: Sampler of the queries.
        labels: Class ids `[n]` of the queries.
        candidate_labels: Class ids `[c]` of the candidates. Each class of a query has a candidate.
        per_query: Number of other candidates for each query.
        frozen: Whether the other candidates are stored embeddings.
        seed: Seed of the draws, 0 or more.

    Attributes:
        batch_size: Candidates in a batch.
        labels, candidate_labels: As in the arguments, int64.

    Raises:
        ValueError, TypeError: As in `CatalogSampler`, all candidates are of one class, or
            `per_query` is below 1.
    """

    def __init__(
        self,
        sampler: Sampler,
        labels: ArrayLike,
        candidate_labels: ArrayLike,
        per_query: int = 4,
        *,
        frozen: bool = False,
        seed: int = 0,
    ) -> None:
        self._matches = CatalogSampler(sampler, labels, candidate_labels, seed=seed)
        self._sampler, self._seed = sampler, seed
        self.labels = as_integers("labels", labels, None).astype(np.int64)
        self.candidate_labels = as_integers("candidate_labels", candidate_labels, None).astype(
            np.int64
        )
        if len(np.unique(self.candidate_labels)) < 2:
            wanted = "labels of at least 2 classes"
            raise argument_error("candidate_labels", wanted, candidate_labels)
        self.per_query = check_whole("per_query", per_query, least=1)
        self.frozen = check_bool("frozen", frozen)
        each = 1 if self.frozen else 1 + self.per_query
        self.batch_size = self._matches.batch_size * each
        self._order = np.argsort(self.candidate_labels, kind="stable")
        self._sorted = self.candidate_labels[self._order]
        self._tables = StepTables()
        self._stored: dict[int, np.ndarray] = {}

    def __call__(self, step: int) -> np.ndarray:
        """Return the row numbers of the candidates of batch `step` (from 0), `[batch_size]`."""
        matches = self._matches(step)
        if self.frozen:
            return matches
        return np.concatenate([matches[:, None], self.others(step)], axis=1).ravel()

    def others(self, step: int) -> np.ndarray:
        """Return the candidates that do not match the queries of a batch, `[b, per_query]`."""
        rows = self._sampler(step)
        first, end = (
            np.searchsorted(self._sorted, self.labels[rows], side)[:, None]
            for side in ("left", "right")
        )
        shape = len(rows), self.per_query
        most = len(self._order) - (end - first)
        drawn = np.random.default_rng((self._seed, 1, step)).integers(0, most, shape)
        random = self._order[np.where(drawn < first, drawn, drawn + (end - first))]
        found = self._tables.at(step)
        return random if found is None else np.where(found[1][rows] < 0, random, found[1][rows])

    def stored(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the stored embeddings of `others(step)` and their class ids, with `frozen=True`.

        Returns:
            float32 `[b · per_query, d]`, and int64 `[b · per_query]`.

        Raises:
            ValueError: No stored embeddings are kept for this step, or `frozen` is False.
        """
        found, rows = self._tables.at(step), self.others(step).ravel()
        if found is None or found[0] not in self._stored:
            wanted = f"a step from {min(self._stored, default='a refresh')} on, with frozen=True"
            advice = "Before fit, call set_model and refresh of RefreshHardCandidates."
            raise argument_error("step", wanted, step, advice=advice)
        return self._stored[found[0]][rows], self.candidate_labels[rows]

    def refresh(
        self, nearest: ArrayLike, first_step: int, embeddings: ArrayLike | None = None
    ) -> None:
        """Use a new table from a step on. Earlier steps keep their tables.

        Args:
            nearest: Rows of candidates for each query, integers `[n, per_query]`. −1 where a query
                has fewer.
            first_step: First step that uses the table.
            embeddings: Embeddings of all candidates `[c, d]`, for `frozen=True`. They are kept
                until batches of a later table are drawn.

        Raises:
            ValueError, TypeError: The table is wrong or contains a match of its query, the
                embeddings are missing or superfluous, or another table begins at this step or
                later.
        """
        table = self._checked_table(nearest)
        if (embeddings is None) == self.frozen:
            wanted = "set with frozen=True" if self.frozen else "None without frozen=True"
            raise argument_error("embeddings", wanted, embeddings)
        stored = None
        if embeddings is not None:
            stored = finite_rows(embeddings, "embeddings")
            if len(stored) != len(self._order):
                wanted = f"[{len(self._order)}, d], a row for each candidate"
                raise argument_error("embeddings", wanted, stored.shape)
        self._tables.add(table, first_step)
        if stored is not None:
            kept = list(self._stored.items())
            while len(kept) > 1 and kept[1][0] <= self._tables.last_used:
                del kept[0]
            self._stored = {**dict(kept), int(first_step): stored}

    @property
    def has_table(self) -> bool:
        """Whether a table exists."""
        return self._tables.shape is not None

    def has_begun(self, first_step: int) -> bool:
        """Return whether the batch of a table's first step was drawn with this table."""
        return self._tables.has_begun(first_step)

    def state(self) -> dict[str, np.ndarray]:
        """Return all tables and the stored embeddings, for the checkpoint of a training.

        Returns:
            `nearest` int32 `[tables, n, per_query]`, `first_steps` int64 `[tables]`, and with
            `frozen=True` `embeddings` float32 `[tables, c, d]` of the last tables.
        """
        nearest, first_steps = self._tables.arrays(len(self.labels))
        state = {"nearest": nearest, "first_steps": first_steps}
        if self._stored:
            state["embeddings"] = np.stack(list(self._stored.values()))
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace all tables by those of `state()`.

        Raises:
            ValueError, TypeError: The tables are not for these queries, or are wrong.
        """
        tables = [self._checked_table(table) for table in state["nearest"]]
        self._tables = StepTables.of_arrays(tables, state["first_steps"])
        rows = state.get("embeddings", ())
        self._stored = dict(zip(map(int, state["first_steps"][-len(rows) or None :]), rows))

    def _checked_table(self, nearest: ArrayLike) -> np.ndarray:
        bounds = (-1, len(self._order) - 1)
        shape = len(self.labels), self.per_query
        table = as_integers("nearest", nearest, *shape, bounds=bounds)
        matches = (self.candidate_labels[table] == self.labels[:, None]) & (table >= 0)
        if matches.any():
            row = int(np.flatnonzero(matches.any(axis=1))[0])
            raise ArgumentError(
                "nearest must be candidates of other classes than the query, but got "
                f"{table[row].tolist()} in row {row}, of class {self.labels[row]}."
            )
        return table.astype(np.int32)
