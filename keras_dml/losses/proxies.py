"""The base class of losses on class cosines."""

from collections.abc import Mapping
from typing import ClassVar

from keras import ops

from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.class_ids import one_hot
from keras_dml.losses.base import EmbeddingLoss

__all__ = ["ProxyLoss"]


class ProxyLoss(EmbeddingLoss):
    """A loss on the cosines of each image to K classes, from `keras_dml.models.ProxyHead`.

    Call it as `loss(class_ids, cosines)` with class ids `[n]` in 0 … K − 1 and cosines `[n, K]`.
    The loss has no weights, because the head contains the proxies. The loss of an image with a
    class id out of range is NaN, because a compiled graph cannot raise.

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
        ValueError: There are fewer than two classes, or as in `EmbeddingLoss`.
    """

    kind = "proxies"
    head: ClassVar[Mapping[str, int | float | str]] = {}

    def compute_loss(self, class_ids: Tensor, embeddings: Tensor) -> Tensor:
        """Compute the loss `[n]` from class ids `[n]` and cosines `[n, K]`."""
        own = _own_class(class_ids, embeddings)
        return _nan_unless_known(self.compute_cosine_loss(own, embeddings), own)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """Compute the two parts from class ids `[n]` and cosines `[n, K]`."""
        own = _own_class(class_ids, embeddings)
        tightness, contrastive = self.compute_cosine_parts(own, embeddings)
        return _nan_unless_known(tightness, own), _nan_unless_known(contrastive, own)

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
    return one_hot(class_ids, num_classes)


def _nan_unless_known(values: Tensor, own: Tensor) -> Tensor:
    return ops.where(ops.any(own, axis=-1), values, ops.full_like(values, float("nan")))
