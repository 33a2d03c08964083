"""Maps between the embeddings of two models, and scores of one model's queries in another's index.

Notation: `x` is a row of the source model, `y` the row of the target model for the same image, and
`unit(x) = x / |x|`. All rows have length 1 before and after a map.
"""

from __future__ import annotations

import dataclasses
import io
import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dml._common.blocks import slices
from keras_dml._common.checks import check_choice, check_path, check_seed, items_of
from keras_dml._common.errors import (
    ArgumentError,
    ArgumentTypeError,
    argument_error,
    as_array,
    shape_error,
)
from keras_dml._common.labels import plain_labels
from keras_dml._common.rows import BLOCK, finite_rows, first_few, normalized
from keras_dml._common.types import Float32Array, Float64Array, Int64Array, Metric, StrPath
from keras_dml._files.archives import opened_zip
from keras_dml._files.atomic import replacing
from keras_dml.metrics.neighbors import RetrievalTask, make_index, neighbor_blocks
from keras_dml.metrics.relevance import SameClassRelevance
from keras_dml.metrics.retrieval_scores import scores_of_queries

Kind = Literal["orthogonal", "affine", "residual"]
KINDS: tuple[Kind, ...] = ("orthogonal", "affine", "residual")
"""The valid values of `kind`."""

Direction = Literal["old to new", "new to old"]
DIRECTIONS: tuple[Direction, ...] = ("old to new", "new to old")
"""The directions of maps in `cross_scores`."""

_FORMAT = 1
# The arrays of a file: kinds of the dtype, and a letter for each axis.
_FORM = {
    "kind": ("U", ""),
    "fitted_rows": ("i", ""),
    "strength": ("f", ""),
    "matrix": ("f", "st"),
    "intercept": ("f", "t"),
    "hidden_matrix": ("f", "sh"),
    "hidden_bias": ("f", "h"),
    "output_matrix": ("f", "ht"),
}
_FEWEST_ROWS = 50
_FOLDS = 5
# Unit rows have XᵀX with the trace n, so the mean of its eigenvalues is n / d. The strength of the
# ridge is one of these multiples of it. The strongest is first, and wins ties.
_STRENGTHS = 10.0 ** np.arange(1, -6.5, -0.5)
# The network of "residual".
_HIDDEN, _BATCH, _EPOCHS, _PATIENCE, _RATE = 256, 128, 60, 5, 3e-3
_SAMPLES = 2000
_NEIGHBORS = 10


@dataclasses.dataclass(frozen=True, eq=False)
class EmbeddingMap:
    """A map from the embeddings of one model to the embeddings of another.

    With the weights of `fit_map`,

        map(x) = unit(unit(x) W + b + relu(unit(x) A + a) B)

    where W is orthogonal and b = 0 for "orthogonal", and A and B are empty for "orthogonal" and
    "affine". A row of zeros, which has no direction, stays zero.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> old = rng.normal(size=(200, 8)).astype("float32")
        >>> rotation, _ = np.linalg.qr(rng.normal(size=(8, 8)))
        >>> to_new = keras_dml.upgrade.fit_map(old, old @ rotation, kind="orthogonal")
        >>> to_new(old[:2]).shape, np.allclose(to_new.matrix, rotation, atol=1e-6)
        ((2, 8), True)

    Attributes:
        kind: "orthogonal", "affine", or "residual".
        fitted_rows: Number of pairs of rows that fitted the map.
        strength: λ of the ridge. 0 for "orthogonal".
        matrix: W, float32 `[d_source, d_target]`.
        intercept: b, float32 `[d_target]`.
        hidden_matrix, hidden_bias: A and a, float32 `[d_source, h]` and `[h]`.
        output_matrix: B, float32 `[h, d_target]`.
    """

    kind: Kind
    fitted_rows: int
    strength: float
    matrix: Float32Array
    intercept: Float32Array
    hidden_matrix: Float32Array
    hidden_bias: Float32Array
    output_matrix: Float32Array

    @property
    def source_dimensions(self) -> int:
        """Length of the rows that the map takes."""
        return self.matrix.shape[0]

    @property
    def target_dimensions(self) -> int:
        """Length of the rows that the map returns."""
        return self.matrix.shape[1]

    def __call__(self, rows: npt.ArrayLike) -> Float32Array:
        """Map rows, block by block.

        Args:
            rows: Numbers `[n, d_source]`, also a memory map.

        Returns:
            float32 `[n, d_target]`, of unit length.

        Raises:
            ValueError: The rows have another length, or are not finite.
        """
        array = as_array("rows", rows)
        if array.ndim != 2 or array.shape[1] != self.source_dimensions:
            wanted = f"an array of shape [n, {self.source_dimensions}], as the source of the map"
            raise shape_error("rows", wanted, array)
        mapped = np.empty((len(array), self.target_dimensions), np.float32)
        widest = max(*self.matrix.shape, *self.hidden_matrix.shape)
        for block in slices(len(array), BLOCK // widest):
            x = normalized(finite_rows(array[block], "rows", block.start))
            hidden = np.maximum(x @ self.hidden_matrix + self.hidden_bias, 0)
            y = x @ self.matrix + self.intercept + hidden @ self.output_matrix
            y[~x.any(axis=1)] = 0
            normalized(y, out=mapped[block])
        return mapped

    def save(self, path: StrPath) -> None:
        """Write the map to one file, first under a temporary name.

        Examples:
            >>> rows = np.random.default_rng(0).normal(size=(60, 4))
            >>> keras_dml.upgrade.fit_map(rows, -rows, kind="orthogonal").save("old_to_new.map")
            >>> keras_dml.upgrade.load_map("old_to_new.map").kind
            'orthogonal'

        Args:
            path: The file, in an existing folder.
        """
        path = check_path("path", path)
        if not path.parent.is_dir():
            raise argument_error("path", "a file in an existing folder", os.fspath(path))
        with replacing(path) as temporary, temporary.open("wb") as stream:
            np.savez(stream, format=_FORMAT, **vars(self))


def load_map(path: StrPath) -> EmbeddingMap:
    """Load the map that `EmbeddingMap.save` wrote.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(60, 4))
        >>> keras_dml.upgrade.fit_map(rows, -rows, kind="orthogonal").save("old_to_new.map")
        >>> load_map("old_to_new.map").source_dimensions
        4

    Raises:
        ValueError: The file is missing, is not a map, is damaged, or is from a newer version of
            the library.
    """
    path = check_path("path", path)
    if not path.is_file():
        raise argument_error("path", "a file that EmbeddingMap.save wrote", os.fspath(path))
    try:
        with opened_zip(path) as archive:
            found = {name: _member(archive, name) for name in ("format", *_FORM)}
    except PermissionError:  # another user's file is not damaged
        raise
    except Exception as error:  # zipfile, zlib, and NumPy raise any exception for a damaged file
        raise _damaged(path, str(error) or type(error).__name__) from error
    return _checked_map(path, found)


def _checked_map(path: StrPath, found: dict[str, np.ndarray]) -> EmbeddingMap:
    """Return the map of the arrays of a file."""
    form = found.pop("format")
    if form.shape == () and form.dtype.kind == "i" and form > _FORMAT:
        wanted, advice = f"a map of format {_FORMAT}", "Install a newer version of keras-dml."
        raise argument_error("path", wanted, os.fspath(path), advice=advice)
    sizes: dict[str, int] = {}
    for name, (kinds, axes) in _FORM.items():
        array = found[name]
        fits = array.dtype.kind in kinds and array.ndim == len(axes)
        fits = fits and all(sizes.setdefault(*axis) == axis[1] for axis in zip(axes, array.shape))
        if not fits or (array.dtype.kind == "f" and not np.isfinite(array).all()):
            raise _damaged(path, f"{name} has shape {array.shape} and dtype {array.dtype}")
    if found["kind"] not in KINDS:
        raise _damaged(path, f"its kind is {str(found['kind'])!r}")
    scalars = {name: array.item() for name, array in found.items() if array.ndim == 0}
    return EmbeddingMap(**{**found, **scalars})


def _member(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Return an array of a `.npz` file. Reading a whole member checks its CRC."""
    content = io.BytesIO(archive.read(f"{name}.npy"))
    return np.lib.format.read_array(content, allow_pickle=False)


def _damaged(path: StrPath, reason: object) -> ArgumentError:
    wanted = "an undamaged file that EmbeddingMap.save wrote"
    return argument_error("path", wanted, os.fspath(path), advice=f"Reason: {reason}.")


def fit_map(
    source: npt.ArrayLike,
    target: npt.ArrayLike,
    kind: Kind = "affine",
    seed: int = 0,
    classes: npt.ArrayLike | None = None,
) -> EmbeddingMap:
    """Fit a map from one model's embeddings to another's, from images that both models embedded.

    With the unit rows X of the source and Y of the target:

    - "orthogonal": `W = argmin ‖X W − Y‖_F` with `WᵀW = I` (Procrustes). With the singular value
      decomposition `XᵀY = U S Vᵀ`, W = U Vᵀ. If the lengths differ, the shorter rows are padded
      with zeros.
    - "affine": ridge regression, `argmin ‖X W + 1 bᵀ − Y‖² + λ ‖W‖²`. Five-fold cross-validation
      chooses λ, so that fewer rows than numbers suffice. A class is in one fold.
    - "residual": an affine map plus a network with one hidden layer, `relu(x A + a) B`, whose
      training minimizes 1 − cos(map(x), y). It stops early by the images of a fifth of the classes.
      The map has no network if those images gain nothing from it.

    Fit from old to new to change the rows of an index without its images, or from new to old to
    change only queries. For classes without such images, a map can lose most of the new model's
    advantage, so measure it on other classes, with `cross_scores`.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> old = rng.normal(size=(200, 8))
        >>> new = old @ rng.normal(size=(8, 16)) + 1
        >>> to_new = fit_map(old, new)
        >>> to_new.kind, to_new.source_dimensions, to_new.target_dimensions
        ('affine', 8, 16)

    Args:
        source: Embeddings of n images by one model, `[n, d_source]`, n at least 50.
        target: Embeddings of the same images by the other model, `[n, d_target]`.
        kind: "orthogonal", "affine", or "residual".
        seed: Seed of the folds and of the network.
        classes: Class of each image, `[n]`, as numbers or strings. None: each image is a class.

    Raises:
        ValueError: Rows are not finite or zero, there are fewer than 50, the numbers of rows
            differ, there is only one class, or `kind` is unknown.

    Warns:
        UserWarning: There are fewer than `2 · max(d_source, d_target)` rows.

    References: Schönemann, "A generalized solution of the orthogonal Procrustes problem", 1966.
    Hoerl and Kennard, "Ridge regression", 1970. Vejendla, "Drift-Adapter", EMNLP 2025 (the three
    kinds). Ramanujan et al., "Forward Compatible Training", CVPR 2022.
    """
    check_choice("kind", kind, KINDS)
    seed = check_seed("seed", seed)
    x, y = _unit_rows("source", source), _unit_rows("target", target)
    _check_same_rows("target", y, "source", x)
    if len(x) < _FEWEST_ROWS:
        advice = "Embed more images by both models."
        raise shape_error("source", f"at least {_FEWEST_ROWS} rows", x, advice=advice)
    codes = np.arange(len(x)) if classes is None else _class_numbers("classes", classes, len(x))
    if not codes.any():
        raise argument_error("classes", "of at least two classes, or None", classes)
    enough = 2 * max(x.shape[1], y.shape[1])
    if len(x) < enough:
        warnings.warn(
            f"A map of {len(x):,} pairs of {x.shape[1]:,} and {y.shape[1]:,} numbers is uncertain. "
            f"Fit it with at least {enough:,} pairs, or measure it with cross_scores.",
            stacklevel=2,
        )
    if kind == "orthogonal":
        u, _, vt = np.linalg.svd(x.T @ y, full_matrices=False)
        return _linear_map(kind, len(x), 0.0, u @ vt, np.zeros(y.shape[1]))
    if kind == "affine":
        return _ridge(x, y, codes, seed)
    return _residual(x, y, codes, seed)


def _unit_rows(name: str, rows: npt.ArrayLike) -> Float64Array:
    """Return rows of length 1, float64. Refuse rows of zeros, which have no direction."""
    finite = finite_rows(rows, name)
    zeros = np.flatnonzero(~finite.any(axis=1))
    if len(zeros):
        raise ArgumentError(
            f"{name} must be rows with a direction, but got {len(zeros)} rows of zeros (row "
            f"numbers {first_few(zeros)})."
        )
    return normalized(finite).astype(np.float64)


def _check_same_rows(name: str, rows: np.ndarray, other_name: str, other: np.ndarray) -> None:
    if len(rows) != len(other):
        wanted = f"{len(other)} rows, one for each image of {other_name}"
        raise shape_error(name, wanted, rows)


def _class_numbers(name: str, labels: npt.ArrayLike, rows: int) -> Int64Array:
    """Return the class of each row as a number from 0 on, `[rows]`."""
    found = plain_labels(name, labels)
    if found.shape != (rows,):
        raise shape_error(name, f"[{rows}], one class for each row", found)
    return np.unique(found, return_inverse=True)[1]


def _linear_map(
    kind: Kind, rows: int, strength: float, matrix: np.ndarray, intercept: np.ndarray
) -> EmbeddingMap:
    """Return a map without a network."""
    w, b = matrix.astype(np.float32), intercept.astype(np.float32)
    none = np.zeros((len(w), 0), np.float32), np.zeros(0, np.float32), np.zeros((0, len(b)), "f4")
    return EmbeddingMap(kind, rows, float(strength), w, b, *none)


def _folds(codes: Int64Array, seed: int) -> Int64Array:
    """Return the fold of each row, from 0 to 4. A class is in one fold."""
    shuffled = np.random.default_rng(seed).permutation(codes.max() + 1)
    return shuffled[codes] % _FOLDS


def _ridge(x: Float64Array, y: Float64Array, codes: Int64Array, seed: int) -> EmbeddingMap:
    """Fit the affine map, with the λ that has the least squared error on held-out classes."""
    from keras_dml._common.progress import long_work_bar  # imports tqdm

    folds, errors = _folds(codes, seed), np.zeros(len(_STRENGTHS))
    numbers = np.unique(folds)
    with long_work_bar("cross-validated map", len(numbers), " folds") as bar:
        for fold in numbers:
            kept = folds != fold
            regression = _Regression(x[kept], y[kept])
            predicted = regression.predictions(x[~kept], _STRENGTHS)
            errors += [np.square(each - y[~kept]).sum() for each in predicted]
            bar.update()
    regression, factor = _Regression(x, y), _STRENGTHS[errors.argmin()]
    matrix = regression.matrix(factor)
    intercept = regression.mean_y - regression.mean_x @ matrix
    return _linear_map("affine", len(x), regression.strength(factor), matrix, intercept)


class _Regression:
    """Ridge regressions of Y on X for all λ, from the eigenvalues of the centered XᵀX = V D Vᵀ.

    `W = (XᵀX + λ I)⁻¹ XᵀY = V (D + λ I)⁻¹ Vᵀ XᵀY`.
    """

    def __init__(self, x: Float64Array, y: Float64Array) -> None:
        self.mean_x, self.mean_y = x.mean(axis=0), y.mean(axis=0)
        self._mean_eigenvalue = len(x) / x.shape[1]
        centered = x - self.mean_x
        self._eigenvalues, self._v = np.linalg.eigh(centered.T @ centered)
        self._targets = self._v.T @ (centered.T @ (y - self.mean_y))

    def strength(self, factor: float) -> float:
        """Return λ."""
        return factor * self._mean_eigenvalue

    def _rotated(self, factor: float) -> Float64Array:
        eigenvalues = np.maximum(self._eigenvalues, 0)
        return self._targets / (eigenvalues + self.strength(factor))[:, None]

    def matrix(self, factor: float) -> Float64Array:
        """Return W."""
        return self._v @ self._rotated(factor)

    def predictions(self, x: Float64Array, factors: Float64Array) -> Iterator[Float64Array]:
        """Yield X W + b for each factor."""
        turned = (x - self.mean_x) @ self._v
        for factor in factors:
            yield turned @ self._rotated(factor) + self.mean_y


def _residual(x: Float64Array, y: Float64Array, codes: Int64Array, seed: int) -> EmbeddingMap:
    """Fit the affine map, and add the network."""
    import keras

    held_out = _folds(codes, seed) == 0
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(~held_out))
    classes = np.unique(codes[rows], return_inverse=True)[1]
    linear = _ridge(x[rows], y[rows], classes if classes.any() else np.arange(len(rows)), seed)
    dense = keras.layers.Dense
    inputs = keras.Input((x.shape[1],), dtype="float32")
    hidden = dense(
        _HIDDEN,
        "relu",
        kernel_initializer=keras.initializers.GlorotUniform(seed),
        dtype="float32",
    )
    output = dense(y.shape[1], use_bias=False, kernel_initializer="zeros", dtype="float32")
    affine = dense(y.shape[1], trainable=False, dtype="float32")
    outputs = keras.layers.Add(dtype="float32")([affine(inputs), output(hidden(inputs))])
    affine.set_weights([linear.matrix, linear.intercept])
    model = keras.Model(inputs, outputs)
    loss = keras.losses.CosineSimilarity(dtype="float32")
    model.compile(keras.optimizers.Adam(_RATE), loss, auto_scale_loss=False)
    x, y = x.astype(np.float32), y.astype(np.float32)
    test = x[held_out], y[held_out]
    before = model.evaluate(*test, batch_size=_BATCH, verbose=0)
    stopping = keras.callbacks.EarlyStopping(patience=_PATIENCE, restore_best_weights=True)
    history = model.fit(
        x[rows],
        y[rows],
        batch_size=_BATCH,
        epochs=_EPOCHS,
        validation_data=test,
        shuffle=False,  # the rows are shuffled, by the seed
        callbacks=[stopping],
        verbose=0,
    )
    linear = dataclasses.replace(linear, kind="residual", fitted_rows=len(x))
    if min(history.history["val_loss"]) >= before:
        return linear
    (a, bias), (b,) = hidden.get_weights(), output.get_weights()
    return dataclasses.replace(linear, hidden_matrix=a, hidden_bias=bias, output_matrix=b)


class CrossScore(NamedTuple):
    """A score of one model's queries in a gallery of another model, with its 95 % interval.

    Examples:
        >>> CrossScore("old", "new", "map@r", 0.61, 0.58, 0.64).gallery
        'old'

    Attributes:
        gallery: "old", "new", or "old to new, KIND" for rows that a map changed.
        queries: "old", "new", or "new to old, KIND".
        score: "recall@1", "map@r", or "neighbors@10". Or "difference in SCORE" to the old
            model's search, and "gain in SCORE".
        value: The score, a fraction.
        low, high: The interval, or NaN.
    """

    gallery: str
    queries: str
    score: str
    value: float
    low: float
    high: float


class _Pair(NamedTuple):
    """Queries and a gallery, with their names: `[n, d]` each, row i of both from image i."""

    gallery_name: str
    queries_name: str
    gallery: Float32Array
    queries: Float32Array


def cross_scores(
    old: npt.ArrayLike,
    new: npt.ArrayLike,
    labels: npt.ArrayLike | None,
    maps: Mapping[Direction, EmbeddingMap | Sequence[EmbeddingMap]] | None = None,
    metric: Metric = "cosine",
    seed: int = 0,
    queries: npt.ArrayLike | None = None,
) -> list[CrossScore]:
    """Compare searches with the old model, with the new model, and with both.

    M(q/g) is a score (R@1, MAP@R) of queries by the model q in a gallery by the model g. Each image
    is a query against all other images. The table has M(o/o), M(n/n), M(n/o) if the new embeddings
    are at least as long as the old ones, and the score of each map. n/o compares the first d_o
    numbers of the new embeddings, as `models.BackwardCompatible` trains them.

    The update gain of n/o and of each map is `(M − M(o/o)) / (M(n/n) − M(o/o))`: 0 if the new model
    changes nothing, and 1 if the search is as good as after embedding the gallery again. If the new
    model is not better than the old one, it is left out: a warning states the difference.

    Intervals are from the 2.5th to the 97.5th percentile of 2,000 resamplings of the classes, or
    without labels of the images. They are the same for all searches.

    Fit maps on other classes than the queries', or the scores are too high. More images in the
    gallery can only lower R@1 and MAP@R, and they lower a map that loses more. So measure in a
    large gallery, with the images of the fit in it: set `queries` to the other images.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat(np.arange(20), 10)
        >>> new = np.repeat(rng.normal(size=(20, 16)), 10, axis=0) + rng.normal(size=(200, 16)) / 2
        >>> old = new + rng.normal(size=(200, 16))
        >>> to_new = fit_map(old[:100], new[:100], classes=labels[:100])
        >>> table = cross_scores(old[100:], new[100:], labels[100:], {"old to new": to_new})
        >>> [(row.gallery, row.queries) for row in table if row.score == "map@r"]
        [('old', 'old'), ('new', 'new'), ('old', 'new'), ('old to new, affine', 'new')]
        >>> queries = np.arange(200) >= 100
        >>> harder = cross_scores(old, new, labels, {"old to new": to_new}, queries=queries)
        >>> all(one.value <= other.value for one, other in zip(harder[:4], table[:4]))
        True

    Args:
        old: Embeddings of n images by the old model, `[n, d_o]`.
        new: Embeddings of the same images by the new model, `[n, d_n]`.
        labels: Class of each image, `[n]`, as numbers or strings. None: the only score is
            "neighbors@10", the share of the new model's ten nearest images that a search finds.
        maps: A map or a list of maps for "old to new" (of the gallery) and "new to old" (of the
            queries).
        metric: "cosine" or "l2". A map returns rows of length 1, so these are compared with rows of
            length 1.
        seed: Seed of the resamplings.
        queries: Which images are queries, bool `[n]`. The others are in the gallery only. None:
            all images.

    Returns:
        The rows of the table, `CrossScore`. "difference in SCORE" is M − M(o/o).

    Raises:
        ValueError: The numbers of rows differ, rows are not finite, no query has another image of
            its class, the metric is unknown, or a map has another direction or length.

    Warns:
        UserWarning: The new model is not better than the old one: the interval of the difference
            contains 0 or is below 0.

    Reference: Shen et al., "Towards Backward-Compatible Representation Learning", CVPR 2020, Eq. 7
    (the update gain).
    """
    old, new = finite_rows(old, "old"), finite_rows(new, "new")
    _check_same_rows("new", new, "old", old)
    seed = check_seed("seed", seed)
    pairs = list(_pairs(old, new, maps or {}))
    rows = _query_rows(queries, len(old))
    if labels is None:
        codes = np.arange(len(old))
        values = _kept_neighbors(pairs, rows, metric)
    else:
        codes = _class_numbers("labels", labels, len(old))
        values = _retrieval_scores(pairs, rows, codes, metric)
    table = []
    for score, of_pairs in values.items():
        table += _compared(score, pairs, of_pairs, codes[rows], seed)
    return table


def _query_rows(queries: npt.ArrayLike | None, rows: int) -> Int64Array:
    """Return the row numbers of the queries."""
    if queries is None:
        return np.arange(rows)
    chosen = as_array("queries", queries)
    if chosen.dtype != bool or chosen.shape != (rows,) or not chosen.any():
        wanted = f"{rows} booleans, at least one of them True"
        raise argument_error("queries", wanted, queries)
    return np.flatnonzero(chosen)


def _pairs(
    old: Float32Array,
    new: Float32Array,
    maps: Mapping[Direction, EmbeddingMap | Sequence[EmbeddingMap]],
) -> Iterator[_Pair]:
    """Yield o/o, n/n, n/o, and the pair of each map."""
    yield _Pair("old", "old", old, old)
    yield _Pair("new", "new", new, new)
    if new.shape[1] >= old.shape[1]:
        yield _Pair("old", "new", old, new[:, : old.shape[1]])
    if not isinstance(maps, Mapping):
        wanted = 'a dictionary such as {"old to new": a_map}'
        raise argument_error("maps", wanted, maps, ArgumentTypeError)
    sides = {"old": old, "new": new}
    for direction, given in maps.items():
        check_choice("maps", direction, DIRECTIONS)
        source, target = (sides[side] for side in direction.split(" to "))
        several = items_of(given)
        for each in [given] if several is None else several:
            if not isinstance(each, EmbeddingMap):
                raise argument_error("maps", "maps of fit_map", each, ArgumentTypeError)
            lengths = each.source_dimensions, each.target_dimensions
            if lengths != (source.shape[1], target.shape[1]):
                wanted = f"from {source.shape[1]} to {target.shape[1]} numbers for {direction!r}"
                raise argument_error("maps", wanted, lengths)
            name, mapped, unit = f"{direction}, {each.kind}", each(source), normalized(target)
            if direction == "old to new":
                yield _Pair(name, "new", mapped, unit)
            else:
                yield _Pair("old", name, unit, mapped)


def _retrieval_scores(
    pairs: Iterable[_Pair], rows: Int64Array, codes: Int64Array, metric: Metric
) -> dict[str, list[Float64Array]]:
    """Return the value of each query `[len(rows)]` for each score and pair."""
    values: dict[str, list[Float64Array]] = {"recall@1": [], "map@r": []}
    relevance = SameClassRelevance(codes, codes, own_rows=True)
    if not relevance.counts[rows].any():
        raise ArgumentError(
            "labels must contain a query with another image of its class, so a class of at least "
            "two rows, but got none."
        )
    for pair in pairs:
        task = RetrievalTask(pair.queries, pair.gallery, relevance, metric, paired=True)
        found = scores_of_queries(task, (1,), rows=rows)
        for score, of_pairs in values.items():
            of_pairs.append(found[score])
    return values


def _kept_neighbors(
    pairs: Sequence[_Pair], rows: Int64Array, metric: Metric
) -> dict[str, list[Float64Array]]:
    """Return the share of the new model's ten nearest images of each query, `[len(rows)]`."""
    k = min(_NEIGHBORS, len(pairs[0].gallery) - 1)
    if k < 1:
        raise shape_error("old", "at least two rows", pairs[0].gallery)

    def nearest(pair: _Pair) -> np.ndarray:
        blocks = neighbor_blocks(make_index(pair.gallery, metric), pair.queries[rows], k, rows)
        return np.concatenate([found for _, found, _ in blocks])

    best = nearest(pairs[1])
    shares = [
        (nearest(pair)[:, :, None] == best[:, None]).any(axis=2).mean(axis=1) for pair in pairs
    ]
    return {f"neighbors@{_NEIGHBORS}": shares}


def _compared(
    score: str, pairs: Sequence[_Pair], values: Sequence[Float64Array], codes: Int64Array, seed: int
) -> list[CrossScore]:
    """Return the rows of one score, with the difference of the models and the update gains."""
    known = ~np.isnan(values[0])
    means = np.array([each[known].mean() for each in values])
    samples = _resampled([each[known] for each in values], codes[known], seed)

    def row(pair: _Pair, name: str, value: float, sampled: Float64Array) -> CrossScore:
        low, high = np.percentile(sampled, [2.5, 97.5])
        return CrossScore(
            pair.gallery_name, pair.queries_name, name, float(value), float(low), float(high)
        )

    table = [row(pair, score, *each) for pair, *each in zip(pairs, means, samples)]
    step, steps = means[1] - means[0], samples[1] - samples[0]
    for place in range(1, len(pairs)):
        change = means[place] - means[0], samples[place] - samples[0]
        table.append(row(pairs[place], f"difference in {score}", *change))
    difference = table[len(pairs)]  # of the models
    if difference.low <= 0:
        warnings.warn(
            f"The new model is not better than the old one in {score}: the difference is "
            f"{step:.3f}, {difference.low:.3f} to {difference.high:.3f}. So the table has no "
            "update gain in it. Keep the old model, or compare with more images.",
            stacklevel=3,
        )
        return table
    with np.errstate(divide="ignore", invalid="ignore"):  # a resampling can have no difference
        gains = (samples - samples[0]) / steps
    for place in range(2, len(pairs)):
        gain = (means[place] - means[0]) / step
        table.append(row(pairs[place], f"gain in {score}", gain, gains[place]))
    return table


def _resampled(values: Sequence[Float64Array], codes: Int64Array, seed: int) -> Float64Array:
    """Return the mean of each pair's values for resamplings of the classes, `[pairs, samples]`."""
    sizes = np.bincount(codes)
    sums = np.stack([np.bincount(codes, each) for each in values], axis=1)[sizes > 0]
    sizes = sizes[sizes > 0]
    rng, means = np.random.default_rng(seed), []
    for _ in range(20):  # in blocks, because there may be 10,000 classes
        shares = np.full(len(sizes), 1 / len(sizes))
        times = rng.multinomial(len(sizes), shares, _SAMPLES // 20)
        means.append((times @ sums) / (times @ sizes)[:, None])
    return np.concatenate(means).T


__all__ = [
    "DIRECTIONS",
    "KINDS",
    "CrossScore",
    "EmbeddingMap",
    "cross_scores",
    "fit_map",
    "load_map",
]
