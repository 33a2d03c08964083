"""Learned boundaries behind the embeddings, for the margin loss."""

import keras
from keras import ops

from keras_dml._backend.configured import Configured
from keras_dml._common.checks import check_positive, check_whole
from keras_dml._common.types import Tensor
from keras_dml.layers.checks import check_full_precision, embedding_size


@keras.saving.register_keras_serializable("keras_dml")
class Boundary(Configured, keras.Layer):
    """A layer that appends learned boundaries to embeddings `[n, d]`, for `MarginLoss`.

    The output is `[n, d + B]`. The layer has one weight, `boundaries` `[B]`: one boundary for all
    classes, or one per class.

    Examples:
        >>> boundary = Boundary()  # after the embedding; then MarginLoss(boundaries=1)
        >>> boundary(np.ones((2, 8), "float32")).shape
        TensorShape([2, 9])

    Args:
        num_classes: B, for one boundary per class. None creates a single boundary.
        initial: Initial boundary, above 0: a distance between unit vectors.
        dtype: float32 or float64.
        name, trainable: As in every Keras layer.

    Raises:
        ValueError: A number is out of range, `dtype` is not supported, or the inputs are not
            `[n, d]`.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, section 4.2.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        initial: float = 1.2,
        dtype: object = "float32",
        **kwargs: object,
    ) -> None:
        super().__init__(dtype=dtype or "float32", **kwargs)
        check_full_precision(self)
        if num_classes is not None:
            num_classes = check_whole("num_classes", num_classes, least=2)
        self.num_classes = num_classes
        self.initial = check_positive("initial", initial)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the boundaries."""
        embedding_size(input_shape)
        self.boundaries = self.add_weight(
            name="boundaries",
            shape=(self.num_classes or 1,),
            initializer=keras.initializers.Constant(self.initial),
        )

    def call(self, embeddings: Tensor) -> Tensor:
        """Append the boundaries to the embeddings."""
        embeddings = ops.cast(embeddings, self.compute_dtype)
        shape = (ops.shape(embeddings)[0], self.num_classes or 1)
        behind = ops.broadcast_to(ops.convert_to_tensor(self.boundaries)[None], shape)
        return ops.concatenate([embeddings, behind], axis=-1)
