"""What the losses over class cosines share: the own class of each image among the columns."""

from collections.abc import Mapping
from typing import ClassVar

from keras import ops

from keras_dml.class_ids import one_hot
from keras_dml.errors import ArgumentError
from keras_dml.losses.base import EmbeddingLoss
from keras_dml.types import Parts, Tensor

__all__ = ["ProxyLoss"]


class ProxyLoss(EmbeddingLoss):
    """A loss over the cosines of each image to K classes, as `keras_dml.models.ProxyHead` gives.

    Called as `loss(class_ids, cosines)` with class ids `[n]` in 0 … K − 1 and cosines `[n, K]`. The
    loss has no weights: the proxies that it trains are the head's. A class id outside the range
    makes its image's loss NaN, since a compiled graph cannot raise.

    Examples:
        >>> head = keras_dml.models.ProxyHead(num_classes=3)
        >>> cosines = head(np.eye(4, dtype="float32"))
        >>> isinstance(keras_dml.losses.NormSoftmaxLoss(), ProxyLoss), tuple(cosines.shape)
        (True, (4, 3))

    Args:
        reduction, name, dtype: as in `EmbeddingLoss`.

    Attributes:
        head: arguments of the head that this loss is defined with, where they are not its defaults.

    Raises:
        ValueError: fewer than two classes, or as `EmbeddingLoss` does.
    """

    kind = "proxies"
    head: ClassVar[Mapping[str, int | float | str]] = {}

    def compute_loss(self, class_ids: Tensor, embeddings: Tensor) -> Tensor:
        """The loss `[n]` from class ids `[n]` and cosines `[n, K]`."""
        own = _own_class(class_ids, embeddings)
        return _nan_unless_known(self.compute_cosine_loss(own, embeddings), own)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """The two parts from class ids `[n]` and cosines `[n, K]`."""
        own = _own_class(class_ids, embeddings)
        tightness, contrastive = self.compute_cosine_parts(own, embeddings)
        return _nan_unless_known(tightness, own), _nan_unless_known(contrastive, own)

    def compute_cosine_loss(self, own: Tensor, cosines: Tensor) -> Tensor:
        """The loss `[n]`; overridden where it is more exact than its parts' sum."""
        tightness, contrastive = self.compute_cosine_parts(own, cosines)
        return tightness + contrastive

    def compute_cosine_parts(self, own: Tensor, cosines: Tensor) -> Parts:
        """The two parts `[n]`.

        Args:
            own: bool `[n, K]`, each image's class.
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
