"""The base class of losses on the cosines to classes."""

from keras import ops

from keras_dml._common.errors import ArgumentError, shape_error
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arrays import check_class_range, known_numbers, one_hot
from keras_dml.losses.base import EmbeddingLoss

# Rounding in half precision can exceed 1.
_LARGEST_COSINE = 1.01


class ProxyLoss(EmbeddingLoss):
    """A loss on the cosines of each image to K classes, from `keras_dml.layers.ProxyHead`.

    Call it as `loss(class_ids, cosines)` with class ids `[n]` in 0 … K − 1 and cosines `[n, K]`.
    The loss has no weights, because the head contains the proxies.

    Examples:
        >>> head = keras_dml.layers.ProxyHead(num_classes=3)
        >>> cosines = head(np.eye(4, dtype="float32"))
        >>> isinstance(keras_dml.losses.NormSoftmaxLoss(), ProxyLoss), tuple(cosines.shape)
        (True, (4, 3))

    Args:
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        ValueError: There are fewer than two classes, a class id is out of range, `y_pred` has
            numbers beyond 1 (embeddings in place of cosines), or as in `EmbeddingLoss`. A compiled
            graph cannot raise, and there the loss of such an image is NaN. In `fit`,
            `keras_dml.callbacks.StopAtNaN` names the cause.
    """

    kind = "proxies"

    def are_sound(self, labels: Tensor, embeddings: Tensor) -> Tensor:
        """Return which images `[n]` have cosines and one of the K classes."""
        are_known = ops.any(one_hot(labels, embeddings.shape[1]), axis=-1)
        are_cosines = ops.all(ops.abs(embeddings) <= _LARGEST_COSINE, axis=-1)
        sound = ops.logical_and(are_known, are_cosines)
        return ops.logical_and(sound, super().are_sound(labels, embeddings))

    def compute_loss(self, class_ids: Tensor, embeddings: Tensor) -> Tensor:
        """Compute the loss `[n]` from class ids `[n]` and cosines `[n, K]`."""
        return self.compute_cosine_loss(_own_class(class_ids, embeddings), embeddings)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """Compute the two parts from class ids `[n]` and cosines `[n, K]`."""
        return self.compute_cosine_parts(_own_class(class_ids, embeddings), embeddings)

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
        raise shape_error("y_pred", "the cosines to at least 2 classes", cosines)
    # On PyTorch, and eagerly on JAX, a training step knows the cosines without their gradient.
    sizes = ops.abs(ops.stop_gradient(cosines))
    finite = ops.where(ops.isfinite(sizes), sizes, ops.zeros_like(sizes))
    largest = known_numbers(ops.max(finite)) if cosines.shape[0] else None
    if largest is not None and largest > _LARGEST_COSINE:
        raise ArgumentError(
            f"y_pred must be cosines to the classes, but got {largest} in absolute value. End the "
            "model with a keras_dml.layers.ProxyHead instead of a Dense layer, or use the model "
            "that keras_dml.models.proxy_model(embedding, num_classes) returns."
        )
    check_class_range(class_ids, num_classes, "num_classes of keras_dml.models.proxy_model")
    return one_hot(class_ids, num_classes)
