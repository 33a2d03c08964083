"""What every loss shares: the checks of its arguments, its two parts, its configuration."""

import keras
from keras import ops

from keras_dml.pairs import Pairs


class EmbeddingLoss(keras.losses.Loss):
    """A metric-learning loss as a tightness part plus a contrastive part.

    Called as `loss(class_ids, embeddings)`; works in `model.compile(loss=...)`.

    Args:
        reduction: a Keras reduction, by default `"sum_over_batch_size"` (the mean over anchors).
        name: name of the loss.
        dtype: float32 (the default) or float64. A half-precision loss would merge class ids, which
            float16 keeps apart only up to 2,048, and lose the differences between distances; models
            under a mixed-precision policy keep their losses in float32.

    Raises:
        ValueError: for a half-precision `dtype`, class ids that are not `[n]` or `[n, 1]`,
            embeddings that are not `[n, d]`, or different n.

    Reference: Boudiaf et al., "A Unifying Mutual Information View of Metric Learning:
    Cross-Entropy vs. Pairwise Losses", ECCV 2020, Table 2.
    """

    def __init__(self, reduction="sum_over_batch_size", name=None, dtype=None):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        if self.dtype not in ("float32", "float64"):
            raise ValueError(
                "dtype must be float32 or float64, since half precision merges class ids. "
                f"Received: dtype={dtype}"
            )

    def call(self, y_true, y_pred):
        """The loss of each anchor, `[n]`."""
        tightness, contrastive = self.parts(y_true, y_pred)
        return tightness + contrastive

    def parts(self, y_true, y_pred):
        """The tightness and the contrastive part of each anchor.

        Args:
            y_true: class ids, `[n]` or `[n, 1]`, integer or float.
            y_pred: embeddings (or logits) `[n, d]`.

        Returns:
            `(tightness, contrastive)`, each `[n]`; their sum is the loss.
        """
        class_ids = ops.convert_to_tensor(y_true, dtype=self.dtype)
        embeddings = ops.convert_to_tensor(y_pred, dtype=self.dtype)
        return self.compute_parts(_checked_ids(class_ids, embeddings), embeddings)

    def compute_parts(self, class_ids, embeddings):
        """The two parts from checked class ids `[n]` and embeddings `[n, d]`."""
        raise NotImplementedError

    def get_config(self):
        """The constructor's arguments."""
        return {**super().get_config(), "dtype": self.dtype}


class PairLoss(EmbeddingLoss):
    """A loss over pairs: anchors of this replica against the candidates of all replicas."""

    def compute_parts(self, class_ids, embeddings):
        """The two parts from checked class ids `[n]` and embeddings `[n, d]`."""
        return self.compute_pair_parts(Pairs.of_batch(class_ids, self.prepare(embeddings)))

    def prepare(self, embeddings):
        """What the pairs are made of: the embeddings as they are, unless a loss normalises them."""
        return embeddings

    def compute_pair_parts(self, pairs):
        """The two parts `[n]` from the batch's `keras_dml.pairs.Pairs`."""
        raise NotImplementedError


def _checked_ids(class_ids, embeddings):
    if len(embeddings.shape) != 2:
        raise ValueError(
            "y_pred must be embeddings or logits of shape [n, d]. "
            f"Received: y_pred.shape={tuple(embeddings.shape)}"
        )
    if len(class_ids.shape) == 2 and class_ids.shape[1] == 1:
        class_ids = ops.squeeze(class_ids, axis=1)
    if len(class_ids.shape) != 1:
        raise ValueError(
            "y_true must be class ids of shape [n] or [n, 1]. "
            f"Received: y_true.shape={tuple(class_ids.shape)}"
        )
    labels, images = class_ids.shape[0], embeddings.shape[0]
    if labels is not None and images is not None and labels != images:
        raise ValueError(
            "y_true and y_pred must have one row for each image. "
            f"Received: {labels} class ids and {images} embeddings"
        )
    return class_ids


def check_positive(name, value):
    """`value` as a float, or ValueError unless it is a finite number above 0."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 < value < float("inf")
    ):
        raise ValueError(f"{name} must be a number above 0. Received: {name}={value!r}")
    return float(value)


def check_choice(name, value, choices):
    """`value`, or ValueError unless it is one of `choices`."""
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {known}. Received: {name}={value!r}")
    return value
