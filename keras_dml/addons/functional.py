"""TensorFlow Addons losses as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import keras
from keras import ops

from keras_dml._common.checks import check_bool, check_number
from keras_dml._common.errors import ArgumentError, argument_error, shape_error
from keras_dml._common.types import Tensor, TensorLike
from keras_dml._pairwise.arithmetic import (
    are_finite,
    count,
    log_add_exp,
    log_sum_exp,
    masked_sum,
    matmul,
    maximum,
    mean,
    row_lengths,
)
from keras_dml._pairwise.arrays import (
    are_apart,
    as_labels,
    check_embeddings,
    check_rows,
    checked_class_ids,
    numbers_of,
    one_per_image,
)
from keras_dml._pairwise.pairs import Pairs, safe_sqrt
from keras_dml._pairwise.search import semihard_negatives

METRICS = ("L2", "squared-L2", "angular")

Metric: TypeAlias = str | Callable[[Tensor], Tensor]
"""One of `METRICS`, or a function from embeddings to all distances `[n, n]`."""

registered = keras.saving.register_keras_serializable("Addons")


@registered
def contrastive_loss(
    y_true: TensorLike, y_pred: TensorLike, margin: Tensor | float = 1.0
) -> Tensor:
    """Compute `y·d² + (1 − y)·max(margin − d, 0)²` for each pair of images.

    Examples:
        >>> np.round(contrastive_loss(np.array([1.0, 0.0]), np.array([0.2, 0.6]), margin=1.0), 3)
        array([0.04, 0.16])

    Args:
        y_true: `[n]` or `[n, 1]`, 1 for a positive pair, 0 for a negative pair.
        y_pred: `[n]` or `[n, 1]`, the distance of each pair.
        margin: Minimum distance of a negative pair without loss.

    Returns:
        Losses with the shape of `y_pred`.

    Raises:
        ValueError: The number of labels differs from the number of distances.

    Reference: Hadsell et al., "Dimensionality Reduction by Learning an Invariant Mapping", 2006.
    """
    margin = checked_margin(margin)
    distances = _as_floats(y_pred, "y_pred", "distances")
    labels = numbers_of("y_true", y_true, "labels, 0 or 1")
    labels = one_per_image(labels, "y_true", "labels, 0 or 1,")
    check_rows(labels, one_per_image(distances, "y_pred", "distances"))
    labels = ops.reshape(ops.cast(labels, distances.dtype), ops.shape(distances))
    apart = ops.square(maximum(margin - distances, 0.0))
    return labels * ops.square(distances) + (1.0 - labels) * apart


@registered
def triplet_semihard_loss(
    y_true: TensorLike,
    y_pred: TensorLike,
    margin: Tensor | float = 1.0,
    distance_metric: Metric = "L2",
) -> Tensor:
    """Compute the triplet loss of each positive with its semi-hard negative.

    For each ordered positive pair (i, j), the negative is the nearest negative of i that is
    strictly farther than j or, if all are closer, the farthest negative. The loss is the sum of
    `max(0, D_ij − D_ik + margin)` divided by the number of these pairs.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> round(float(triplet_semihard_loss(labels, z, margin=1.0)), 3)
        0.74

    Args:
        y_true: Class ids `[n]` or `[n, 1]`.
        y_pred: Embeddings `[n, d]`. The function does not normalize them.
        margin: Margin to add to each difference of distances.
        distance_metric: `"L2"`, `"squared-L2"`, `"angular"` (1 minus the cosine), or a function
            from embeddings to all distances `[n, n]`, with the distances of image i in row i.

    Returns:
        A scalar with the dtype of `y_pred`. 0 without positive pairs.

    Raises:
        ValueError: `distance_metric` is unknown, or shapes are wrong.

    Reference: Schroff et al., "FaceNet", CVPR 2015.
    """
    margin = checked_margin(margin)
    pairs, distances, returned = _distances(y_true, y_pred, distance_metric)
    # A batch of one class has no negatives. The original then uses the smallest distance of the
    # row.
    least = distances == ops.min(distances, axis=-1, keepdims=True)
    negative = ops.where(ops.any(pairs.negative), pairs.negative, least)
    hinges = ops.relu(distances - semihard_negatives(distances, negative) + margin)
    total = ops.sum(masked_sum(hinges, pairs.positive))
    return returned(total / _number_of_pairs(pairs.positive, distances.dtype))


@registered
def triplet_hard_loss(
    y_true: TensorLike,
    y_pred: TensorLike,
    margin: Tensor | float = 1.0,
    soft: bool = False,
    distance_metric: Metric = "L2",
) -> Tensor:
    """Compute the triplet loss of each anchor's farthest positive and nearest negative.

    The loss is the mean over all anchors of `max(0, D_ij − D_ik + margin)`. As in the original, an
    anchor without positives uses the smallest distance of its row instead (its distance to itself,
    0), and an anchor without negatives uses the largest.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> round(float(triplet_hard_loss(labels, z, margin=1.0)), 3)
        1.131

    Args:
        y_true, y_pred, margin, distance_metric: As in `triplet_semihard_loss`.
        soft: Whether to use `log(1 + exp(D_ij − D_ik))`, without `margin`.

    Returns:
        A scalar with the dtype of `y_pred`.

    Raises:
        ValueError: `distance_metric` is unknown, or shapes are wrong.

    Reference: Hermans et al., "In Defense of the Triplet Loss for Person Re-Identification", 2017.
    """
    margin, soft = checked_margin(margin), check_bool("soft", soft)
    pairs, distances, returned = _distances(y_true, y_pred, distance_metric)
    farthest = -_least(-distances, pairs.positive)
    nearest = _least(distances, pairs.negative)
    each = ops.softplus(farthest - nearest) if soft else maximum(farthest - nearest + margin, 0.0)
    return returned(mean(each))


@registered
def lifted_struct_loss(
    labels: TensorLike, embeddings: TensorLike, margin: Tensor | float = 1.0
) -> Tensor:
    """Compute the lifted structure loss: each positive pair against the negatives of both images.

    The loss is `Σ max(0, log(Σ_{k∈N_i} exp(margin − D_ik) + Σ_{k∈N_j} exp(margin − D_jk)) + D_ij)²`
    over the ordered positive pairs (i, j), divided by twice their number.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> round(float(lifted_struct_loss(labels, z, margin=1.0)), 3)
        2.786

    Args:
        labels: Class ids `[n]` or `[n, 1]`.
        embeddings: `[n, d]`, not normalized.
        margin: As in the formula.

    Returns:
        A scalar with the dtype of `embeddings`. 0 without positive or without negative pairs.

    Reference: Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding", 2016.
    """
    margin = checked_margin(margin)
    pairs, distances, returned = _distances(labels, embeddings, "L2")
    nearest = log_sum_exp(margin - distances, pairs.negative)
    hinges = ops.relu(log_add_exp(nearest[:, None], nearest[None, :]) + distances)
    total = ops.sum(masked_sum(ops.square(hinges), pairs.matched()))
    return returned(0.5 * total / _number_of_pairs(pairs.positive, distances.dtype))


@registered
def npairs_loss(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute the cross-entropy of each row of similarities against equal shares of its class.

    Examples:
        >>> similarities = np.array([[0.9, 0.1], [0.3, 0.8]], "float32")
        >>> round(float(npairs_loss(np.array([0, 1]), similarities)), 3)
        0.423

    Args:
        y_true: Class ids `[n]` or `[n, 1]`.
        y_pred: Similarities `[n, n]` of n anchors (rows) and n images of the same classes.

    Returns:
        A scalar, the mean over rows.

    Raises:
        ValueError: Shapes are wrong, or class ids are invalid as in
            `keras_dml._pairwise.arrays.as_labels`.

    Reference: Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", 2016.
    """
    class_ids = checked_class_ids(as_labels(y_true))
    similarities = _similarities(class_ids, y_pred)
    same = ops.equal(class_ids[:, None], class_ids[None, :])
    value = _cross_entropy(ops.cast(same, similarities.dtype), similarities)
    return _nan_unless(are_apart(class_ids), value)


@registered
def npairs_multilabel_loss(y_true: TensorLike, y_pred: TensorLike) -> Tensor:
    """Compute the cross-entropy of each row of similarities against shares by common labels.

    Examples:
        >>> labels = np.array([[1, 0, 1], [0, 1, 0]])
        >>> similarities = np.array([[0.9, 0.1], [0.3, 0.8]], "float32")
        >>> round(float(npairs_multilabel_loss(labels, similarities)), 3)
        0.423

    Args:
        y_true: `[n, classes]`, 1 where an image has a label, dense or sparse.
        y_pred: Similarities `[n, n]`.

    Returns:
        A scalar, the mean over rows. An image without labels adds 0.

    Raises:
        ValueError: Shapes are wrong.
    """
    labels = numbers_of("y_true", y_true, "labels of shape [n, classes]")
    if len(labels.shape) != 2:
        wanted = "labels of shape [n, classes], 1 where an image has a label"
        raise shape_error("y_true", wanted, labels)
    similarities = _similarities(labels, y_pred)
    labels = ops.cast(labels, similarities.dtype)
    return _cross_entropy(matmul(labels, ops.transpose(labels)), similarities)


def check_metric(distance_metric: Metric) -> None:
    """Raise `ValueError` unless `distance_metric` is a known name or a function."""
    known = isinstance(distance_metric, str) and distance_metric in METRICS
    if not known and not callable(distance_metric):
        wanted = f"a function or one of {', '.join(map(repr, METRICS))}"
        raise argument_error("distance_metric", wanted, distance_metric)


def checked_margin(margin: Tensor | float) -> Tensor | float:
    """Return a number as a float, and a tensor unchanged, as in the original."""
    return margin if ops.is_tensor(margin) else check_number("margin", margin)


def _distances(
    labels: TensorLike, embeddings: TensorLike, distance_metric: Metric
) -> tuple[Pairs, Tensor, Callable[[Tensor], Tensor]]:
    """Return a batch's pairs, their distances `[n, n]`, and a function that finishes the result."""
    check_metric(distance_metric)
    z = _as_floats(embeddings, "y_pred", "embeddings or logits")
    dtype = z.dtype
    if keras.backend.standardize_dtype(dtype) in ("float16", "bfloat16"):
        z = ops.cast(z, "float32")
    check_embeddings(z)
    class_ids = checked_class_ids(as_labels(labels))
    check_rows(class_ids, z)
    sound = ops.logical_and(are_apart(class_ids), are_finite(z))
    same = ops.equal(class_ids[:, None], class_ids[None, :])
    itself = ops.eye(ops.shape(class_ids)[0], dtype="bool")
    positive = ops.logical_and(same, ops.logical_not(itself))
    if distance_metric == "angular":
        z = _unit(z)
    pairs = Pairs(z, z, positive, ops.logical_not(same), itself)

    def returned(value: Tensor) -> Tensor:
        return ops.cast(_nan_unless(sound, value), dtype)

    if callable(distance_metric):
        return pairs, distance_metric(z), returned
    if distance_metric == "angular":
        return pairs, maximum(1.0 - pairs.similarities(), 0.0), returned
    squared = pairs.squared_distances()
    return pairs, squared if distance_metric == "squared-L2" else safe_sqrt(squared), returned


def _as_floats(values: TensorLike, name: str, what: str) -> Tensor:
    """Convert floats or whole numbers to a tensor of floats, or raise `ValueError`."""
    tensor = numbers_of(name, values, what)
    if "float" in keras.backend.standardize_dtype(tensor.dtype):
        return tensor
    return ops.cast(tensor, keras.config.floatx())


def _similarities(labels: Tensor, similarities: TensorLike) -> Tensor:
    """Convert similarities `[n, n]` for n labels to a tensor, or raise `ValueError`."""
    table = _as_floats(similarities, "y_pred", "similarities")
    shape = tuple(table.shape)
    sizes = {size for size in (labels.shape[0], *shape) if size is not None}
    if len(shape) != 2 or len(sizes) > 1:
        raise ArgumentError(
            f"y_pred must be similarities of shape [n, n] for n labels, but got shape {shape} for "
            f"y_true of shape {tuple(labels.shape)}."
        )
    return table


def _nan_unless(sound: Tensor | bool, value: Tensor) -> Tensor:
    # A graph cannot raise. In eager mode, the labels are already checked.
    return ops.where(sound, value, ops.full_like(value, float("nan")))


def _unit(embeddings: Tensor) -> Tensor:
    # As l2_normalize of TensorFlow, including epsilon, for the same gradient at a row of zeros.
    return embeddings / row_lengths(embeddings, epsilon=1e-12)


def _least(values: Tensor, mask: Tensor) -> Tensor:
    """Return the smallest masked value per row. The row's largest value if none is masked."""
    least = ops.min(ops.where(mask, values, float("inf")), axis=-1)
    return ops.where(ops.any(mask, axis=-1), least, ops.max(values, axis=-1))


def _number_of_pairs(positive: Tensor, dtype: str) -> Tensor:
    """Count the positive pairs, at least 1."""
    return maximum(ops.sum(count(positive, dtype)), 1.0)


def _cross_entropy(shares: Tensor, similarities: Tensor) -> Tensor:
    """Compute the mean over rows of −Σ_j t_j log softmax(s)_j, t the row of `shares` with sum 1."""
    sums = ops.sum(shares, axis=-1)
    targets = shares / ops.where(sums > 0, sums, 1.0)[:, None]
    return -mean(ops.sum(targets * ops.log_softmax(similarities, axis=-1), axis=-1))
