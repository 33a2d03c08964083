"""The losses of TensorFlow Addons as functions."""

import keras
from keras import ops

from keras_dml.hinges import hinge_sums, semihard_counts
from keras_dml.losses.base import check_embeddings, check_rows
from keras_dml.pairs import Pairs, log_sum_exp, masked_sum, safe_sqrt

METRICS = ("L2", "squared-L2", "angular")
registered = keras.saving.register_keras_serializable("Addons")


@registered
def contrastive_loss(y_true, y_pred, margin=1.0):
    """`y·d² + (1 − y)·max(margin − d, 0)²` for each pair of images.

    Args:
        y_true: `[n]`, 1 for a pair of one class, 0 for a pair of two.
        y_pred: `[n]`, the distance of each pair.
        margin: how far apart a pair of two classes shall be.

    Returns:
        Losses `[n]`.

    Reference: Hadsell et al., "Dimensionality Reduction by Learning an Invariant Mapping", 2006.
    """
    y_pred = ops.convert_to_tensor(y_pred)
    y_true = ops.cast(y_true, y_pred.dtype)
    apart = ops.square(ops.maximum(margin - y_pred, 0.0))
    return y_true * ops.square(y_pred) + (1.0 - y_true) * apart


@registered
def triplet_semihard_loss(y_true, y_pred, margin=1.0, distance_metric="L2"):
    """Triplet loss in which each positive meets its semi-hard negative.

    For each ordered positive pair (i, j) the partner is the nearest negative of i strictly farther
    than j or, where there is none, the farthest negative. The sum of `max(0, D_ij − D_ik + margin)`
    over the number of these pairs.

    Args:
        y_true: class ids `[n]` or `[n, 1]`.
        y_pred: embeddings `[n, d]`; the caller normalises them, if at all.
        margin: added to each difference of distances.
        distance_metric: `"L2"`, `"squared-L2"`, `"angular"` (1 minus the cosine), or a function of
            the embeddings that gives all distances `[n, n]`, row i those from image i.

    Returns:
        A scalar of the dtype of `y_pred`; 0 without a positive pair.

    Raises:
        ValueError: unknown `distance_metric`, or wrong shapes.

    Reference: Schroff et al., "FaceNet", CVPR 2015.
    """
    pairs, distances, dtype = _distances(y_true, y_pred, distance_metric)
    # A batch of one class has no negatives; the original then takes the least distance of the row.
    least = distances == ops.min(distances, axis=-1, keepdims=True)
    negative = ops.where(ops.any(pairs.negative), pairs.negative, least)
    counts = semihard_counts(distances, pairs.positive, negative, margin)
    total = sum(ops.sum(part) for part in hinge_sums(distances, *counts, margin))
    return ops.cast(total / _at_least_one(pairs.positive, distances.dtype), dtype)


@registered
def triplet_hard_loss(y_true, y_pred, margin=1.0, soft=False, distance_metric="L2"):
    """Triplet loss of each anchor's farthest positive and nearest negative.

    The mean over all anchors of `max(0, D_ij − D_ik + margin)`. As in the original, an anchor
    without positives takes the least distance of its row in their stead (its own, 0), one without
    negatives the greatest.

    Args:
        y_true, y_pred, margin, distance_metric: as in `triplet_semihard_loss`.
        soft: `log(1 + exp(D_ij − D_ik))` instead; `margin` is then unused.

    Returns:
        A scalar of the dtype of `y_pred`.

    Raises:
        ValueError: unknown `distance_metric`, or wrong shapes.

    Reference: Hermans et al., "In Defense of the Triplet Loss for Person Re-Identification", 2017.
    """
    pairs, distances, dtype = _distances(y_true, y_pred, distance_metric)
    farthest = -_least(-distances, pairs.positive)
    nearest = _least(distances, pairs.negative)
    if soft:
        each = ops.softplus(farthest - nearest)
    else:
        each = ops.maximum(farthest - nearest + margin, 0.0)
    return ops.cast(ops.mean(each), dtype)


@registered
def lifted_struct_loss(labels, embeddings, margin=1.0):
    """Lifted structure loss: each positive pair against all negatives of both its images.

    `Σ max(0, log(Σ_{k∈N_i} exp(margin − D_ik) + Σ_{k∈N_j} exp(margin − D_jk)) + D_ij)²` over the
    ordered positive pairs (i, j), divided by twice their number.

    Args:
        labels: class ids `[n]` or `[n, 1]`.
        embeddings: `[n, d]`, not normalised.
        margin: as in the formula.

    Returns:
        A scalar of the dtype of `embeddings`; 0 without positive or without negative pairs.

    Reference: Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding", 2016.
    """
    pairs, distances, dtype = _distances(labels, embeddings, "L2")
    of_anchor = log_sum_exp(margin - distances, pairs.negative)
    of_pair = ops.logaddexp(of_anchor[:, None], of_anchor[None, :]) + distances
    # An image without negatives has log 0; then no image has any.
    kept = ops.logical_and(pairs.positive, ops.any(pairs.negative))
    total = ops.sum(masked_sum(ops.square(ops.maximum(of_pair, 0.0)), kept))
    return ops.cast(0.5 * total / _at_least_one(pairs.positive, distances.dtype), dtype)


@registered
def npairs_loss(y_true, y_pred):
    """Cross-entropy of each row of similarities against equal shares of its class.

    Args:
        y_true: class ids `[n]`.
        y_pred: similarities `[n, n]` of n anchors (rows) and n images of the same classes.

    Returns:
        A scalar, the mean over rows.

    Reference: Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", 2016.
    """
    similarities = ops.convert_to_tensor(y_pred)
    class_ids = ops.convert_to_tensor(y_true)
    same = ops.equal(class_ids[:, None], class_ids[None, :])
    return _cross_entropy(ops.cast(same, similarities.dtype), similarities)


@registered
def npairs_multilabel_loss(y_true, y_pred):
    """Cross-entropy of each row of similarities against shares by the number of common labels.

    Args:
        y_true: `[n, classes]`, 1 where an image has a label, dense or sparse.
        y_pred: similarities `[n, n]`.

    Returns:
        A scalar, the mean over rows; an image without labels adds 0.
    """
    similarities = ops.convert_to_tensor(y_pred)
    labels = ops.cast(ops.convert_to_tensor(y_true, sparse=False), similarities.dtype)
    return _cross_entropy(ops.matmul(labels, ops.transpose(labels)), similarities)


def check_metric(distance_metric):
    """ValueError unless this is a known name or a function."""
    if not callable(distance_metric) and distance_metric not in METRICS:
        raise ValueError(
            f"distance_metric must be a function or one of {', '.join(map(repr, METRICS))}. "
            f"Received: distance_metric={distance_metric!r}"
        )


def _distances(labels, embeddings, distance_metric):
    """The pairs of a batch, their distances `[n, n]`, and the dtype to return."""
    check_metric(distance_metric)
    embeddings = ops.convert_to_tensor(embeddings)
    dtype = embeddings.dtype
    if keras.backend.standardize_dtype(dtype) in ("float16", "bfloat16"):
        embeddings = ops.cast(embeddings, "float32")
    check_embeddings(embeddings)
    class_ids = ops.reshape(ops.convert_to_tensor(labels), (-1,))
    check_rows(class_ids, embeddings)
    same = ops.equal(class_ids[:, None], class_ids[None, :])
    itself = ops.eye(ops.shape(class_ids)[0], dtype="bool")
    positive = ops.logical_and(same, ops.logical_not(itself))
    if distance_metric == "angular":
        embeddings = _unit(embeddings)
    pairs = Pairs(embeddings, embeddings, positive, ops.logical_not(same))
    if callable(distance_metric):
        return pairs, distance_metric(embeddings), dtype
    if distance_metric == "angular":
        return pairs, ops.maximum(1.0 - pairs.similarities(), 0.0), dtype
    squared = pairs.squared_distances()
    return pairs, squared if distance_metric == "squared-L2" else safe_sqrt(squared), dtype


def _unit(embeddings):
    # TensorFlow's l2_normalize, epsilon included, for the same gradient at a row of zeros.
    squares = ops.sum(ops.square(embeddings), axis=-1, keepdims=True)
    return embeddings * ops.rsqrt(ops.maximum(squares, 1e-12))


def _least(values, mask):
    """The least masked value of each row; the greatest of the whole row where none is masked."""
    least = ops.min(ops.where(mask, values, float("inf")), axis=-1)
    return ops.where(ops.any(mask, axis=-1), least, ops.max(values, axis=-1))


def _at_least_one(mask, dtype):
    return ops.maximum(ops.sum(ops.cast(mask, dtype)), 1.0)


def _cross_entropy(shares, similarities):
    """The mean over rows of −Σ_j t_j log softmax(s)_j, t the row of `shares` scaled to sum 1."""
    sums = ops.sum(shares, axis=-1)
    targets = shares / ops.where(sums > 0, sums, 1.0)[:, None]
    return -ops.mean(ops.sum(targets * ops.log_softmax(similarities, axis=-1), axis=-1))
