"""Callbacks for `model.fit`: retrieval scores, the cause of a NaN loss, and nearest classes."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeAlias

import keras
import numpy as np
import numpy.typing as npt

from keras_dml import relations
from keras_dml._backend.replicas import from_first_worker
from keras_dml._common.blocks import slices
from keras_dml._common.checks import check_choice, check_number, check_whole, check_wholes
from keras_dml._common.collapse import mean_unit_distance, nearly_equal, nearly_equal_sentence
from keras_dml._common.errors import (
    ArgumentError,
    ArgumentTypeError,
    argument_error,
    as_array,
)
from keras_dml._common.labels import joined_labels, plain_labels
from keras_dml._common.types import METRICS, NEIGHBORS, Metric, Neighbors
from keras_dml.losses.base import EmbeddingLoss
from keras_dml.models.sampled_classes import SampledClasses

__all__ = ["RefreshHardCandidates", "RefreshHardClasses", "RetrievalEvaluation", "StopAtNaN"]

# `(images, labels)`, or batches of them.
_Dataset: TypeAlias = (
    "tuple[npt.ArrayLike, npt.ArrayLike] | Iterable[tuple[Any, ...]] | keras.utils.PyDataset"
)


class RetrievalEvaluation(keras.callbacks.Callback):
    """A callback that adds retrieval metrics of a validation set to the logs of an epoch.

    The logs get recall at K as `val_recall@K` for each K, MAP@R as `val_map@r`, and R-precision as
    `val_r_precision`. All are fractions, and higher is better. `History` records them, and
    callbacks *after* this one in `callbacks` can use them by name,

        evaluation = RetrievalEvaluation(validation, ks=(1, 10))
        keep = keras.callbacks.ModelCheckpoint(
            "best.keras", monitor="val_recall@1", mode="max", save_best_only=True
        )
        stop = keras.callbacks.EarlyStopping(monitor="val_recall@1", mode="max", patience=5)
        model.fit(batches, epochs=100, callbacks=[evaluation, keep, stop])

    The definitions are in `metrics.recall_at_k` and `metrics.precision_at_r`: each image is a query
    against all other images, or against the gallery. An image without another image of its class
    counts as a miss in recall at K, and is excluded from the other two metrics. Works with every
    Keras backend. Under a `tf.distribute` strategy, every replica embeds all images. If embeddings
    are not finite, the values are NaN. If the embeddings of three evaluations are nearly equal,
    as when a loss stays at its margin, the callback warns once.

    Examples:
        >>> images, labels = np.random.default_rng(0).normal(size=(8, 4)), np.arange(8) // 2
        >>> model = keras.Sequential([keras.layers.Dense(2)])
        >>> model.compile("adam", keras_dml.losses.SupConLoss())
        >>> scores = RetrievalEvaluation((images, labels), ks=[1])
        >>> history = model.fit(images, labels, callbacks=[scores], verbose=0).history
        >>> "val_recall@1" in history
        True

    Args:
        dataset: `(images, labels)`, arrays of n images and of their classes `[n]`, or repeatable
            batches of them: a finite tf.data.Dataset, a `keras.utils.PyDataset`, or a list. (Other
            elements of a batch are ignored.)
        ks: Values of K, each below the number of images (at most the number in the gallery).
        gallery: Images to search, with the same types as `dataset`.
        prefix: Prefix of the names in the logs.
        metric: "cosine" or "l2".
        every: Number of epochs between evaluations. The last epoch is always evaluated. The logs of
            other epochs lack the names, as with `validation_freq` of Keras.
        embedding_model: Model that maps the images to embeddings `[n, d]`. The default is the
            trained model. Required if the trained model has a classifier after the embeddings. It
            shares the layers, `keras.Model(model.inputs, model.get_layer("embedding").output)`.
        batch_size: Number of images to embed at once, for arrays.
        relation: Which images are relevant, a relation of `keras_dml.relations`. The labels of
            `dataset` and `gallery` are then the relation's labels.
        neighbors: "auto", "exact", or "scann", as in `metrics.evaluate`: from 200,000 images on,
            "auto" selects ScaNN's tree. The logs then have the certificate of each score, for
            example `val_recall@1/exact`, `val_recall@1/exact_low`, and `val_recall@1/exact_high`.

    Raises:
        TypeError, ValueError: An argument is invalid. During `fit`: the model does not return
            embeddings `[n, d]`, batches do not contain images and class ids, or no image has
            another image of its class to find.
    """

    def __init__(
        self,
        dataset: _Dataset,
        *,
        ks: int | Iterable[int] = (1,),
        gallery: _Dataset | None = None,
        prefix: str = "val_",
        metric: Metric = "cosine",
        every: int = 1,
        embedding_model: keras.Model | None = None,
        batch_size: int = 128,
        relation: relations.RelationLike = None,
        neighbors: Neighbors = "auto",
    ) -> None:
        super().__init__()
        self.relation = relations.get(relation)
        several = ks if isinstance(ks, Iterable) else (ks,)
        self.ks = check_wholes("ks", several, least=1)
        self.every = check_whole("every", every, least=1)
        batch_size = check_whole("batch_size", batch_size, least=1)
        check_choice("metric", metric, METRICS)
        check_choice("neighbors", neighbors, NEIGHBORS)
        self._sets = [_Batches("dataset", dataset, batch_size, self.relation)]
        if gallery is not None:
            self._sets.append(_Batches("gallery", gallery, batch_size, self.relation))
        self.prefix = prefix
        self.metric: Metric = metric
        self.neighbors: Neighbors = neighbors
        self.embedding_model = embedding_model
        self._distances: list[float] = []  # `mean_unit_distance` of the last evaluations

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Embed one batch of each set, so that mismatches fail before the first epoch.

        Counts the images only up to the largest K, and reads classes only up to the first match.
        """
        self._distances = []
        for batches in self._sets:
            self._embeddings(batches, limit=1)
        images = 0
        for _, labels in self._sets[-1]:
            images += len(labels)
            if images > max(self.ks):
                break
        gallery = len(self._sets) == 2
        most = images if gallery else images - 1
        if max(self.ks) > most:
            among = "images in gallery" if gallery else "other images"
            raise argument_error("ks", f"at most {most}, the number of {among}", self.ks)
        if self.relation.of_classes:  # the metrics raise this error for other relations
            self._check_matches()

    def _check_matches(self) -> None:
        """Raise `ValueError` unless a query has an image of its class to find.

        Mostly, the first batches contain one, and the others are not read.
        """
        queries, items = self._sets[0], self._sets[-1]
        first = {label for _, labels in itertools.islice(queries, 1) for label in labels.tolist()}
        there: set[Any] = set()
        for _, labels in items:
            classes = labels.tolist()
            if items is queries:
                if len(there.union(classes)) < len(there) + len(classes):
                    return
            elif not first.isdisjoint(classes):
                return
            there.update(classes)
        if items is not queries:
            for _, labels in queries:
                if not there.isdisjoint(labels.tolist()):
                    return
        where = "two images of a class" if items is queries else "an image of a class of gallery"
        raise ArgumentError(
            f"dataset must have {where}, but got none, so that every score would be 0 or NaN."
        )

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Evaluate if it is due, and add the metrics to the logs."""
        last = (self.params or {}).get("epochs")
        if logs is not None and ((epoch + 1) % self.every == 0 or epoch + 1 == last):
            logs.update(self.evaluate())

    def evaluate(self) -> dict[str, float]:
        """Compute the metrics of the current model, by their names in the logs.

        Raises:
            ValueError: As in `RetrievalEvaluation`. Also without a model, before `fit` and without
                `embedding_model`.
        """
        from keras_dml.metrics.neighbors import engine_of
        from keras_dml.metrics.retrieval_scores import approximate_scores

        found = [array for batches in self._sets for array in self._embeddings(batches)]
        if not all(np.isfinite(rows).all() for rows in found[::2]):
            names = [*(f"recall@{k}" for k in self.ks), "map@r", "r_precision"]
            return {f"{self.prefix}{name}": float("nan") for name in names}
        rows, labels, *gallery = found
        self._warn_if_nearly_equal(rows)
        sets: dict[str, Any] = dict(zip(("gallery", "gallery_labels"), gallery))
        engine = engine_of(self.neighbors, rows, sets.get("gallery"))
        scores = approximate_scores(
            rows, labels, self.ks, self.metric, **sets, relation=self.relation, engine=engine
        )
        return scores.named(self.prefix)

    def _warn_if_nearly_equal(self, rows: np.ndarray) -> None:
        before, distance = self._distances, mean_unit_distance(rows)
        self._distances = [*before, distance]
        if nearly_equal(self._distances) and not nearly_equal(before):
            warnings.warn(nearly_equal_sentence(distance), stacklevel=3)

    def _embeddings(
        self, batches: _Batches, limit: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return embeddings `[n, d]` and labels `[n]` of the first `limit` batches."""
        model = self.embedding_model or self.model
        if model is None:
            wanted = "set to evaluate before fit or set_model"
            raise argument_error("embedding_model", wanted, None)
        rows, labels = [], []
        for images, classes in itertools.islice(batches, limit):
            rows.append(_embeddings_of(model, images, len(classes)))
            labels.append(classes)
        if not rows:
            raise ArgumentError(f"{batches.name} must have images, but got no batch.")
        if not self.relation.of_classes:
            return np.concatenate(rows), np.concatenate(labels)
        return np.concatenate(rows), joined_labels((batches.name, each) for each in labels)


class _Batches:
    """A repeatable iteration over batches (images, labels).

    Attributes:
        name: Name of the argument.
    """

    def __init__(
        self, name: str, dataset: _Dataset, batch_size: int, relation: relations.Relation
    ) -> None:
        self.name = name
        self._dataset: Any = dataset
        self._batch_size, self._relation = batch_size, relation
        wanted = "(images, labels) or batches of these"
        if isinstance(dataset, tuple):
            if len(dataset) != 2 or np.ndim(dataset[0]) < 1:
                raise ArgumentError(f"{name} must be {wanted}, but got a tuple of {len(dataset)}.")
            images: Any = dataset[0]  # any object with a length and slices
            labels = self._labels(dataset[1])
            if len(images) != len(labels) or not len(images):
                raise ArgumentError(
                    f"{name} must have at least one image, and one label for each image, but got "
                    f"{len(images)} images and {len(labels)} labels."
                )
            return
        _checked_dataset(name, dataset)
        # An endless tf.data.Dataset has the cardinality -1.
        if hasattr(dataset, "cardinality") and int(dataset.cardinality()) == -1:
            raise ArgumentError(f"{name} must end, but got an endless dataset. Remove repeat().")
        if isinstance(dataset, keras.utils.PyDataset) and dataset.num_batches is None:
            raise ArgumentError(
                f"{name} must end, but got an endless PyDataset. Pass arrays, or batches of each "
                "image once."
            )

    def __iter__(self) -> Iterator[tuple[Any, np.ndarray]]:
        for batch in _batches(self._dataset, self._batch_size):
            if not isinstance(batch, (tuple, list)) or len(batch) < 2:
                raise ArgumentError(
                    f"{self.name} must give batches (images, labels), but got a batch of type "
                    f"{type(batch).__name__}."
                )
            yield batch[0], self._labels(batch[1])

    def _labels(self, given: Any) -> np.ndarray:
        if not self._relation.of_classes:
            tensor = self._relation.checked_labels(given, f"labels of {self.name}")
            return keras.ops.convert_to_numpy(tensor)
        labels = plain_labels(self.name, given)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim != 1:
            raise ArgumentError(
                f"{self.name} must have class ids [n] as labels, but got labels of shape "
                f"{labels.shape}."
            )
        return labels


class _Refreshed(Protocol):
    """A sampler with tables, which it chooses by the step."""

    def has_begun(self, first_step: int) -> bool:
        """Return whether the first batch of a table was drawn with this table."""


class _HardClasses(_Refreshed, Protocol):
    """The sampler of `RefreshHardClasses`: `pipelines.HardClassSampler`."""

    nearest_per_batch: int
    num_rows: int
    steps_per_epoch: int

    @property
    def num_neighbors(self) -> int | None:
        """Number of columns of the tables, or None before the first table."""

    def some_rows(self, images_per_class: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return row numbers, and the number of the class of each."""

    def refresh(self, neighbors: npt.ArrayLike, first_step: int) -> None:
        """Use a table from a step on."""


class _HardCandidates(_Refreshed, Protocol):
    """The sampler of `RefreshHardCandidates`: `pipelines.HardCandidateSampler`."""

    per_query: int
    frozen: bool
    labels: np.ndarray
    candidate_labels: np.ndarray

    @property
    def has_table(self) -> bool:
        """Whether a table exists."""

    def refresh(
        self, nearest: npt.ArrayLike, first_step: int, embeddings: npt.ArrayLike | None = None
    ) -> None:
        """Use a table from a step on."""


class _Refresh(keras.callbacks.Callback):
    """A callback that computes a table for a sampler by the current weights.

    Args:
        sampler: The sampler.
        kind: Name of its class, for messages.
        method: A method or attribute that only this class has.
        every, ahead, start_step, batch_size: As in `RefreshHardClasses`.
    """

    def __init__(
        self,
        sampler: Any,
        kind: str,
        method: str,
        every: int,
        ahead: int,
        start_step: int,
        batch_size: int,
    ) -> None:
        super().__init__()
        if not hasattr(sampler, method):
            wanted = f"a pipelines.{kind}"
            raise argument_error("sampler", wanted, sampler, ArgumentTypeError)
        self.sampler = sampler
        self.every = check_whole("every", every, least=1)
        self.ahead = check_whole("ahead", ahead, least=0)
        self.batch_size = check_whole("batch_size", batch_size, least=1)
        self._step = check_whole("start_step", start_step, least=0)
        self._in_epoch = 0
        self._unseen: int | None = None  # first step of the last table, until its batch trains

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Compute the first table, if the sampler has none."""
        if not self.has_table():
            self.refresh()

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Count the steps of the epoch from 0."""
        self._in_epoch = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Check that the first batch of the last table was drawn after the table was ready."""
        self._in_epoch += self.model.steps_per_execution
        first = self._unseen
        if first is None or self._step + self._in_epoch <= first:
            return
        self._unseen = None
        if not self.sampler.has_begun(first):
            wanted = "at least the number of batches that the pipeline prefetches"
            advice = (
                f"The batch of step {first} was drawn before its table was ready, or in another "
                "process. Use batches of one epoch, such as pipelines.BalancedDataset, and threads "
                "instead of processes."
            )
            raise argument_error("ahead", wanted, self.ahead, advice=advice)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Replace the table if it is due."""
        # An execution of several steps can be longer than the rest of an epoch.
        self._step += (self.params or {}).get("steps") or self._in_epoch
        self._in_epoch = 0
        if (epoch + 1) % self.every == 0:
            self.refresh()

    def next_first_step(self) -> int:
        """Return the first step of a table that is ready now, and expect its batch."""
        self._unseen = self._step + self.ahead
        return self._unseen

    def are_finite(self, *embeddings: np.ndarray) -> bool:
        """Return whether embeddings are finite. If not, warn that the table stays."""
        finite = all(np.isfinite(rows).all() for rows in embeddings)
        if not finite:
            warnings.warn(
                "The table of the sampler stays, because embeddings are not finite.", stacklevel=3
            )
        return finite

    def share(self, array: np.ndarray) -> np.ndarray:
        """Return the first worker's array."""
        return from_first_worker(getattr(self.model, "distribute_strategy", None), array)

    def has_table(self) -> bool:
        """Return whether the sampler has a table."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Compute the table, and give it to the sampler."""
        raise NotImplementedError


class RefreshHardClasses(_Refresh):
    """A callback that finds the nearest classes of each class for `pipelines.HardClassSampler`.

    At the beginning of the training, if the sampler has no table yet, and then at the end of every
    few epochs, the callback embeds some training images of each class by the current weights, finds
    the classes with the nearest mean embeddings (`metrics.nearest_classes`), and gives the table to
    the sampler. The next step uses it, or with `ahead` a later step:

    - Batches of one epoch at a time need no `ahead`: `pipelines.BalancedDataset`, and
      `pipelines.training_batches` with `steps_per_epoch`.
    - A pipeline that prefetches across the end of an epoch has drawn some batches of the next epoch
      already. With `ahead`, the table before stays valid for so many steps. The same batches then
      train in every run, on fast and slow machines.

    Processes that load batches do not receive the tables, so load with threads. Under
    `tf.distribute` with several workers, all workers receive the first worker's table. If
    embeddings are not finite, the sampler keeps the table before, and a warning says so.

    To resume a training, call `sampler.restore` with the `sampler.state()` of its checkpoint, and
    set `start_step`.

    Examples:
        >>> images, labels = np.random.default_rng(0).normal(size=(12, 4)), np.arange(12) // 2
        >>> table = pipelines.ImageTable.from_arrays(images.astype("float32"), labels)
        >>> sampler = pipelines.HardClassSampler(labels, 3, 2)
        >>> model = keras.Sequential([keras.layers.Dense(2)])
        >>> model.compile("adam", keras_dml.losses.SupConLoss())
        >>> refresh = RefreshHardClasses(sampler, table.arrays)
        >>> batches = pipelines.BalancedDataset(table, sampler)
        >>> history = model.fit(batches, epochs=2, callbacks=[refresh], verbose=0)
        >>> sampler.state()["first_steps"]
        array([ 0,  6, 12])

    Args:
        sampler: The `pipelines.HardClassSampler` of the batches.
        images: The training images in the order of the sampler's labels: an array `[n, ...]`, or a
            function from row numbers to their images. For a head on cached features, the features.
        every: Number of epochs between two tables.
        neighbors: k, the number of nearest classes from which the sampler draws. None: twice as
            many as a batch has, or as many as the sampler's first table has.
        images_per_class: Most images of each class to embed. None: all.
        ahead: Number of batches that the input pipeline prefetches across the end of an epoch.
        start_step: Number of finished steps when the training resumes.
        metric: "cosine" or "l2".
        embedding_model: Model that maps the images to embeddings `[n, d]`. The default is the
            trained model, as in `RetrievalEvaluation`.
        batch_size: Number of images to embed at once.

    Raises:
        ValueError, TypeError: An argument is out of range. During `fit`: the model does not return
            embeddings `[n, d]`, or a batch was drawn before its table was ready.
    """

    sampler: _HardClasses

    def __init__(
        self,
        sampler: _HardClasses,
        images: Any,
        *,
        every: int = 1,
        neighbors: int | None = None,
        images_per_class: int | None = 8,
        ahead: int = 0,
        start_step: int = 0,
        metric: Metric = "cosine",
        embedding_model: keras.Model | None = None,
        batch_size: int = 128,
    ) -> None:
        super().__init__(
            sampler, "HardClassSampler", "some_rows", every, ahead, start_step, batch_size
        )
        self.images = _checked_inputs("images", images, sampler.num_rows)
        self.neighbors = neighbors
        if neighbors is not None:
            most = sampler.steps_per_epoch - 1
            least = max(sampler.nearest_per_batch, 1)
            self.neighbors = check_whole("neighbors", neighbors, least=least, most=most)
            if sampler.num_neighbors not in (None, self.neighbors):
                wanted = f"None or {sampler.num_neighbors}, as in the first table of the sampler"
                raise argument_error("neighbors", wanted, neighbors)
        self.images_per_class = images_per_class
        if images_per_class is not None:
            self.images_per_class = check_whole("images_per_class", images_per_class, least=1)
        check_choice("metric", metric, METRICS)
        self.metric: Metric = metric
        self.embedding_model = embedding_model

    def has_table(self) -> bool:
        """Return whether the sampler has a table."""
        return self.sampler.num_neighbors is not None

    def refresh(self) -> None:
        """Compute the table of the nearest classes, and give it to the sampler."""
        sampler = self.sampler
        if not sampler.nearest_per_batch:
            return  # no class of a batch depends on the table
        from keras_dml.metrics import nearest_classes

        rows, classes = sampler.some_rows(self.images_per_class)
        embeddings = self.embed(rows)
        if self.are_finite(embeddings):
            k = sampler.num_neighbors or self.neighbors or 2 * sampler.nearest_per_batch
            k = min(k, sampler.steps_per_epoch - 1)
            table = nearest_classes(embeddings, classes, k, self.metric).astype(np.int32)
            sampler.refresh(self.share(table), self.next_first_step())

    def embed(self, rows: np.ndarray) -> np.ndarray:
        """Compute the embeddings of training images by the current weights.

        Args:
            rows: Row numbers `[r]`, ascending.

        Returns:
            float32 `[r, d]`.
        """
        return _embeddings_of_rows(
            self.embedding_model or self.model, self.images, rows, self.batch_size
        )


class RefreshHardCandidates(_Refresh):
    """A callback that finds the nearest candidates for `pipelines.HardCandidateSampler`.

    At the beginning of the training of a `models.DualEncoder`, if the sampler has no table yet, and
    then at the end of every few epochs, the callback embeds all queries and all candidates by the
    current weights, and searches an index of the candidates (`retrieval.build_index`). For each
    query q with the candidates P of its class, the table has the nearest candidates c of other
    classes with

        cos(q, c) ≤ min(skip · m, m),   m = max_{p∈P} cos(q, p)

    A more similar candidate is probably a match without a label. The table has fewer candidates if
    the 1,024 nearest do not contain enough of them. Everything else is as in `RefreshHardClasses`.

    Examples:
        >>> x = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
        >>> labels = np.arange(12) // 2
        >>> sampler = pipelines.HardCandidateSampler(
        ...     pipelines.RandomSampler(12, 4), labels, labels, per_query=1
        ... )
        >>> encoder = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
        >>> refresh = RefreshHardCandidates(sampler, x, x)
        >>> refresh.set_model(keras_dml.models.DualEncoder(encoder, encoder))
        >>> refresh.refresh()
        >>> sampler.state()["nearest"].shape
        (1, 12, 1)

    Args:
        sampler: The `pipelines.HardCandidateSampler` of the batches.
        queries: The queries in the order of the sampler's labels: an array `[n, ...]`, or a
            function from row numbers to their inputs.
        candidates: The same for the candidates.
        every, ahead, start_step, batch_size: As in `RefreshHardClasses`.
        skip: Highest cosine of a negative candidate, as a fraction of the cosine of the query's
            most similar match. 1 skips only candidates that are more similar than the match.

    Raises:
        ValueError, TypeError: An argument is out of range. During `fit`: the model is not a
            `DualEncoder`, or a batch was drawn before its table was ready.

    Reference: Moreira et al., "NV-Retriever: Improving text embedding models with effective
    hard-negative mining", 2024, section 4.2 (TopK-PercPos).
    """

    sampler: _HardCandidates

    def __init__(
        self,
        sampler: _HardCandidates,
        queries: Any,
        candidates: Any,
        *,
        every: int = 1,
        skip: float = 0.95,
        ahead: int = 0,
        start_step: int = 0,
        batch_size: int = 128,
    ) -> None:
        super().__init__(
            sampler,
            "HardCandidateSampler",
            "candidate_labels",
            every,
            ahead,
            start_step,
            batch_size,
        )
        self.queries = _checked_inputs("queries", queries, len(sampler.labels))
        self.candidates = _checked_inputs("candidates", candidates, len(sampler.candidate_labels))
        self.skip = check_number("skip", skip, above=0, most=1)

    def has_table(self) -> bool:
        """Return whether the sampler has a table."""
        return self.sampler.has_table

    def refresh(self) -> None:
        """Compute the table of the nearest candidates, and give it to the sampler."""
        from keras_dml.models import DualEncoder

        model, sampler = self.model, self.sampler
        while not isinstance(model, DualEncoder):
            model = getattr(model, "wrapped", None)
            if model is None:
                wanted = "a keras_dml.models.DualEncoder, or a wrapper of one"
                raise argument_error("model", wanted, self.model, ArgumentTypeError)
        rows = [np.arange(len(each)) for each in (sampler.labels, sampler.candidate_labels)]
        q = _embeddings_of_rows(model.query_encoder, self.queries, rows[0], self.batch_size)
        c = _embeddings_of_rows(model.candidate_encoder, self.candidates, rows[1], self.batch_size)
        if self.are_finite(q, c):
            from keras_dml.metrics.nearest_candidates import nearest_candidates

            found = nearest_candidates(
                q, sampler.labels, c, sampler.candidate_labels, sampler.per_query, self.skip
            )
            stored = self.share(c) if sampler.frozen else None
            sampler.refresh(self.share(found), self.next_first_step(), stored)


class StopAtNaN(keras.callbacks.Callback):
    """A callback that stops the training at a loss of NaN or infinity, and logs the cause.

    A compiled loss cannot raise an error, so a mistake in the labels or in the model only shows as
    `loss: nan`. At the end of such an epoch, the callback restores the weights from the beginning
    of the epoch for a moment. It searches the first batches of `dataset`, as many as the training
    has seen, for the first of these causes, and logs it in one line:

    1. `y_pred` is outside [−1, 1], but the loss takes cosines to proxies. A `Dense` layer is in the
       place of a `keras_dml.layers.ProxyHead`.
    2. A class id is out of range, a batch has more classes than the sample of a
       `keras_dml.layers.ProxyHead`, or another error that the loss raises outside of `fit`.
    3. The batch contains NaN or infinity.
    4. The weights contain NaN or infinity: before the epoch, or because the training diverged.

    Memory holds a copy of the weights, and each step waits for its loss, as with
    `keras.callbacks.TerminateOnNaN`, which stops without a cause.

    Examples:
        >>> x, y = np.eye(4, dtype="float32"), np.array([0, 0, 1, 5])
        >>> model = keras.Sequential([keras.layers.Dense(2)])
        >>> model.compile("sgd", keras_dml.losses.CrossEntropyLoss())
        >>> stop = StopAtNaN((x, y))
        >>> history = model.fit(x, y, epochs=3, callbacks=[stop], verbose=0)
        >>> print(stop.cause.partition(".")[0])
        y_true must be class ids from 0 to 1, but got 5 in row 3

    Args:
        dataset: The training data of `fit`: `(x, y)`, or batches of them, as for
            `RetrievalEvaluation`. It can be endless.
        batch_size: Number of images in a batch, for arrays.

    Attributes:
        cause: The logged cause, or None.

    Raises:
        TypeError, ValueError: `dataset` cannot be read again, or `batch_size` is below 1.
    """

    def __init__(self, dataset: _Dataset, *, batch_size: int = 128) -> None:
        super().__init__()
        self._batch_size = check_whole("batch_size", batch_size, least=1)
        self._dataset = _checked_dataset("dataset", dataset)
        self.cause: str | None = None
        self._weights: list[np.ndarray] = []
        self._steps = 0

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Forget the previous training."""
        self.cause, self._steps = None, 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Copy the weights, which a model without an input shape first creates for a batch."""
        if not self.model.built:
            _predict(self.model, next(_batches(self._dataset, self._batch_size))[0])
        self._weights = self.model.get_weights()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Stop the training if the loss is NaN or infinite."""
        self._steps += self.model.steps_per_execution
        if not np.isfinite((logs or {}).get("loss", 0.0)):
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Log the cause if the loss of the epoch is NaN or infinite."""
        if np.isfinite((logs or {}).get("loss", 0.0)):
            return
        self.model.stop_training = True
        weights = self.model.get_weights()
        self.model.set_weights(self._weights)
        try:
            batches = itertools.islice(_batches(self._dataset, self._batch_size), self._steps)
            causes = filter(None, map(self._cause_in, batches))
            self.cause = next(causes, None) or self._cause_in_weights(weights)
        finally:
            self.model.set_weights(weights)
        logging.getLogger("keras_dml").warning(
            "The loss is not finite in epoch %d. %s", epoch + 1, self.cause
        )

    def _cause_in(self, batch: Any) -> str | None:
        """Return the cause in a batch, for the weights of the model."""
        labels_of = batch[1] if len(batch) > 1 else ()
        columns = map(
            keras.tree.flatten, (self.model.loss, labels_of, _predict(self.model, batch[0]))
        )
        for loss, labels, rows in zip(*columns):
            labels = as_array("labels", labels)
            # Each replica of a strategy predicts the whole batch.
            rows = rows[: len(labels)]
            # NaN in one image must not hide the errors of other images.
            finite = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
            if isinstance(loss, EmbeddingLoss):
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # some rows are left out
                        loss(labels[finite], rows[finite])
                    if isinstance(self.model, SampledClasses) and self.model.sampling_head:
                        self.model.sampling_head.check_room(labels)
                except ArgumentError as error:
                    return str(error)
        numbers = [as_array("dataset", each) for each in keras.tree.flatten(batch)]
        if not all(np.isfinite(each).all() for each in numbers if each.dtype.kind == "f"):
            return "A batch of dataset contains NaN or infinity. Remove its images."
        return None

    def _cause_in_weights(self, after: list[np.ndarray]) -> str:
        """Return the cause in the weights before and after the epoch."""
        paths = [variable.path for variable in self.model.weights]
        before, after = (
            [path for path, array in zip(paths, arrays) if not np.isfinite(array).all()]
            for arrays in (self._weights, after)
        )
        if before:
            return f"{before[0]} contained NaN or infinity before the epoch."
        if after:
            return (
                f"{after[0]} became NaN or infinite, but the batches are finite. Divide the "
                "learning rate by 10, or set global_clipnorm=1."
            )
        return "The batches and the weights are finite. Check the loss and the regularizers."


def _checked_dataset(name: str, dataset: _Dataset) -> Any:
    """Return a dataset that can be read again, or raise `TypeError`."""
    can_iterate = hasattr(dataset, "__iter__") or hasattr(dataset, "__getitem__")
    if isinstance(dataset, str | bytes | dict) or not can_iterate:
        wanted = "(images, labels) or batches of these"
        raise argument_error(name, wanted, dataset, ArgumentTypeError)
    if isinstance(dataset, Iterator):
        wanted = "a repeatable dataset, which each epoch reads again"
        advice = "Pass a list or a tf.data.Dataset instead of a generator."
        raise argument_error(name, wanted, dataset, ArgumentTypeError, advice=advice)
    return dataset


def _batches(dataset: Any, batch_size: int) -> Iterator[Any]:
    """Return the batches of a dataset from the first one, or of a tuple of arrays."""
    if isinstance(dataset, tuple):
        rows = dataset[1] if len(dataset) > 1 else keras.tree.flatten(dataset[0])[0]
        parts = slices(len(rows), batch_size)
        return (tuple(_rows(column, part) for column in dataset) for part in parts)
    # The iteration of a PyDataset does not end, although it has a length.
    if isinstance(dataset, keras.utils.PyDataset):
        number = dataset.num_batches
        return map(dataset.__getitem__, itertools.count() if number is None else range(number))
    return iter(dataset)


def _rows(column: Any, part: slice) -> Any:
    """Return rows of the images or labels of a dataset.

    A model with several inputs has a dict or a tuple. A list is a list of rows.
    """
    if isinstance(column, tuple):
        return tuple(_rows(each, part) for each in column)
    if isinstance(column, dict):
        return {name: _rows(each, part) for name, each in column.items()}
    return column[part]


def _embeddings_of(model: keras.Model, images: Any, number: int) -> np.ndarray:
    """Return the embeddings of a batch, float32 `[number, d]`, or raise `ValueError`."""
    found = _predict(model, images)
    if not isinstance(found, np.ndarray) or found.ndim != 2 or len(found) < number:
        shape = keras.tree.map_structure(np.shape, found)
        raise ArgumentError(
            "The model must map a batch of images to embeddings [n, d], but got shape "
            f"{shape} for {number} images. If a part of it does, set embedding_model."
        )
    # Each replica of a strategy embeds the whole batch.
    return found[:number].astype("float32")


def _checked_inputs(name: str, inputs: Any, rows: int) -> Any:
    """Return inputs: a function, or an array of as many rows as the sampler has labels.

    None is for a subclass that embeds other inputs.
    """
    if inputs is None or callable(inputs):
        return inputs
    if isinstance(inputs, (list, tuple)) or keras.ops.is_tensor(inputs):
        inputs = as_array(name, inputs)  # row numbers do not index them
    shape = getattr(inputs, "shape", None)
    if not shape:
        wanted = "an array [n, ...], or a function from row numbers to their inputs"
        raise argument_error(name, wanted, inputs, ArgumentTypeError)
    if shape[0] != rows:
        wanted = f"of {rows} rows, one for each label of the sampler"
        raise argument_error(name, wanted, tuple(shape))
    return inputs


def _embeddings_of_rows(
    model: keras.Model, inputs: Any, rows: np.ndarray, batch_size: int
) -> np.ndarray:
    """Return the embeddings of rows of the inputs, or of a function of row numbers, `[r, d]`."""
    parts = []
    for block in slices(len(rows), batch_size):
        wanted = rows[block]
        given = inputs(wanted) if callable(inputs) else inputs[wanted]
        parts.append(_embeddings_of(model, given, len(wanted)))
    return np.concatenate(parts)


def _predict(model: keras.Model, images: Any) -> Any:
    """Return the outputs of a batch. Copies of the last image can follow them."""
    tensors = keras.tree.map_structure(_tensor, images)
    distribution = keras.distribution.distribution()
    if distribution is not None:
        # JAX refuses a batch that the devices do not divide.
        devices = int(np.prod(distribution.device_mesh.shape))
        tensors = keras.tree.map_structure(lambda rows: _padded(rows, devices), tensors)
    return model.predict_on_batch(tensors)


def _padded(rows: Any, multiple: int) -> Any:
    """Repeat the last row up to a multiple of a number of rows."""
    missing = -rows.shape[0] % multiple
    copies = [keras.ops.repeat(rows[-1:], missing, axis=0)] if missing else []
    return keras.ops.concatenate([rows, *copies], axis=0)


def _tensor(array: Any) -> Any:
    """Convert to a tensor of the backend, because a tf.data.Dataset yields TensorFlow tensors."""
    if keras.ops.is_tensor(array):
        return array
    return keras.ops.convert_to_tensor(np.asarray(array))
