"""The base class of losses on class cosines."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from keras import ops

from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arrays import check_class_range, known_numbers
from keras_dml._pairwise.class_ids import one_hot
from keras_dml.losses.base import EmbeddingLoss

__all__ = ["ProxyLoss"]

# Rounding in half precision can exceed 1.
_LARGEST_COSINE = 1.01


class ProxyLoss(EmbeddingLoss):
    """A loss on the cosines of each image to K classes, from `keras_dml.models.ProxyHead`.

    Call it as `loss(class_ids, cosines)` with class ids `[n]` in 0 … K − 1 and cosines `[n, K]`.
    The loss has no weights, because the head contains the proxies.

    Examples:
        >>> head = keras_dml.models.ProxyHead(num_classes=3)
        >>> cosines = head(np.eye(4, dtype="float32"))
        >>> isinstance(keras_dml.losses.NormSoftmaxLoss(), ProxyLoss), tuple(cosines.shape)
        (True, (4, 3))

    Args:
        reduction, name, dtype: As in `EmbeddingLoss`.

    Attributes:
        head: Arguments of the loss's head that differ from the defaults of `ProxyHead`.

    Raises:
        ValueError: There are fewer than two classes, a class id is out of range, `y_pred` has
            numbers beyond 1 (embeddings in place of cosines), or as in `EmbeddingLoss`. A compiled
            graph cannot raise, and there the loss of such an image is NaN.
    """

    kind = "proxies"
    head: ClassVar[Mapping[str, int | float | str]] = {}

    def compute_loss(self, class_ids: Tensor, embeddings: Tensor) -> Tensor:
        """Compute the loss `[n]` from class ids `[n]` and cosines `[n, K]`."""
        own = _own_class(class_ids, embeddings)
        return _nan_unless_sound(self.compute_cosine_loss(own, embeddings), own, embeddings)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """Compute the two parts from class ids `[n]` and cosines `[n, K]`."""
        own = _own_class(class_ids, embeddings)
        tightness, contrastive = self.compute_cosine_parts(own, embeddings)
        return (
            _nan_unless_sound(tightness, own, embeddings),
            _nan_unless_sound(contrastive, own, embeddings),
        )

    def compute_cosine_loss(self, own: Tensor, cosines: Tensor) -> Tensor:
        """Compute the loss `[n]`. Override this if it is more exact than the sum of the parts."""
        tightness, contrastive = self.compute_cosine_parts(own, cosines)
        return tightness + contrastive

    def compute_cosine_parts(self, own: Tensor, cosines: Tensor) -> Parts:
        """Compute the two parts `[n]`.

        Args:
            own: bool `[n, K]`, True at each image's class.
            cosines: `[n, K]`.
        """
        raise NotImplementedError


def _own_class(class_ids: Tensor, cosines: Tensor) -> Tensor:
    num_classes = cosines.shape[1]
    if num_classes is None or num_classes < 2:
        raise ArgumentError(
            "y_pred must hold the cosines to at least 2 classes. "
            f"Received: y_pred.shape={tuple(cosines.shape)}"
        )
    check_class_range(class_ids, num_classes, "num_classes of keras_dml.models.proxy_model")
    known = known_numbers(cosines)
    if known is not None and known.size and np.abs(known).max() > _LARGEST_COSINE:
        raise ArgumentError(
            "y_pred must be cosines to the classes, from keras_dml.models.proxy_model(embedding, "
            f"num_classes). Received: {known.flat[np.abs(known).argmax()]} in y_pred"
        )
    return one_hot(class_ids, num_classes)


def _nan_unless_sound(values: Tensor, own: Tensor, cosines: Tensor) -> Tensor:
    """Replace the losses of unknown classes, and of rows that are not cosines, with NaN."""
    are_cosines = ops.all(ops.abs(cosines) <= _LARGEST_COSINE, axis=-1)
    sound = ops.logical_and(ops.any(own, axis=-1), are_cosines)
    return ops.where(sound, values, ops.full_like(values, float("nan")))
