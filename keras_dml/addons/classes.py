"""TensorFlow Addons losses as Keras losses."""

from collections.abc import Callable
from typing import Any, Self

import keras
from keras import ops

from keras_dml._common.checks import check_bool
from keras_dml._common.types import Config, Tensor, TensorLike
from keras_dml._pairwise.arrays import numbers_of
from keras_dml.addons.functional import (
    Metric,
    check_metric,
    checked_margin,
    contrastive_loss,
    lifted_struct_loss,
    npairs_loss,
    npairs_multilabel_loss,
    registered,
    triplet_hard_loss,
    triplet_semihard_loss,
)
from keras_dml.losses.reduction import reduced


class _FunctionLoss(keras.losses.Loss):
    """A loss that calls a function with fixed arguments and returns a scalar for the batch."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        name: str | None,
        reduction: str | None = "none",
        **arguments: Any,
    ) -> None:
        super().__init__(name=name, reduction=reduction)
        self._function, self._arguments = function, arguments

    def __call__(
        self, y_true: TensorLike, y_pred: TensorLike, sample_weight: TensorLike | None = None
    ) -> Tensor:
        """Compute the reduced loss. Integers in `y_true` stay integers."""
        given = numbers_of("y_pred", y_pred, "embeddings, distances or similarities")
        values = self.call(y_true, ops.cast(given, self.dtype))
        return reduced(self, values, given, sample_weight)

    def call(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        """Compute the value of the function."""
        return self._function(y_true, y_pred, **self._arguments)

    def get_config(self) -> Config:
        """Return the constructor's arguments."""
        return {"name": self.name, **self._arguments}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Create a loss from its configuration. A `distance_metric` function must be registered."""
        return cls(**keras.saving.deserialize_keras_object(config))


@registered
class ContrastiveLoss(_FunctionLoss):
    """`contrastive_loss` with a Keras reduction: labels 0 and 1 in y_true, distances in y_pred.

    Examples:
        >>> round(float(ContrastiveLoss(margin=1.0)(np.array([1.0, 0.0]), np.array([0.2, 0.6]))), 3)
        0.1

    Args:
        margin, reduction, name: As in `contrastive_loss` and Keras.
    """

    def __init__(
        self,
        margin: Tensor | float = 1.0,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "contrastive_loss",
    ) -> None:
        margin = checked_margin(margin)
        super().__init__(contrastive_loss, name, reduction, margin=margin)

    def get_config(self) -> Config:
        """Return the constructor's arguments."""
        return {**super().get_config(), "reduction": self.reduction}


@registered
class TripletSemiHardLoss(_FunctionLoss):
    """`triplet_semihard_loss`: class ids in y_true, embeddings in y_pred.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> round(float(TripletSemiHardLoss(margin=1.0)(labels, z)), 3)
        0.74

    Args:
        margin, distance_metric: As in `triplet_semihard_loss`.
        name: Name of the loss.
        reduction: Ignored, as in the original, which returns a scalar.

    Raises:
        TypeError: `margin` is not a number.
        ValueError: `distance_metric` is unknown.
    """

    def __init__(
        self,
        margin: Tensor | float = 1.0,
        distance_metric: Metric = "L2",
        name: str | None = None,
        reduction: str | None = "none",
    ) -> None:
        margin = checked_margin(margin)
        check_metric(distance_metric)
        super().__init__(
            triplet_semihard_loss, name, margin=margin, distance_metric=distance_metric
        )


@registered
class TripletHardLoss(_FunctionLoss):
    """`triplet_hard_loss`: class ids in y_true, embeddings in y_pred.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> round(float(TripletHardLoss(margin=1.0)(labels, z)), 3)
        1.131

    Args:
        margin, soft, distance_metric: As in `triplet_hard_loss`.
        name: Name of the loss.
        reduction: Ignored, as in the original, which returns a scalar.

    Raises:
        TypeError: `margin` is not a number.
        ValueError: `distance_metric` is unknown.
    """

    def __init__(
        self,
        margin: Tensor | float = 1.0,
        soft: bool = False,
        distance_metric: Metric = "L2",
        name: str | None = None,
        reduction: str | None = "none",
    ) -> None:
        margin = checked_margin(margin)
        soft = check_bool("soft", soft)
        check_metric(distance_metric)
        super().__init__(
            triplet_hard_loss, name, margin=margin, soft=soft, distance_metric=distance_metric
        )


@registered
class LiftedStructLoss(_FunctionLoss):
    """`lifted_struct_loss`: class ids in y_true, embeddings in y_pred.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> round(float(LiftedStructLoss(margin=1.0)(labels, z)), 3)
        2.786

    Args:
        margin: As in `lifted_struct_loss`.
        name: Name of the loss.
        reduction: Ignored, as in the original, which returns a scalar.

    Raises:
        TypeError: `margin` is not a number.
        ValueError: `distance_metric` is unknown.
    """

    def __init__(
        self,
        margin: Tensor | float = 1.0,
        name: str | None = None,
        reduction: str | None = "none",
    ) -> None:
        margin = checked_margin(margin)
        super().__init__(lifted_struct_loss, name, margin=margin)


@registered
class NpairsLoss(_FunctionLoss):
    """`npairs_loss`: class ids in y_true, similarities in y_pred.

    Examples:
        >>> similarities = np.array([[0.9, 0.1], [0.3, 0.8]], "float32")
        >>> round(float(NpairsLoss()(np.array([0, 1]), similarities)), 3)
        0.423
    """

    def __init__(self, name: str | None = "npairs_loss") -> None:
        super().__init__(npairs_loss, name)


@registered
class NpairsMultilabelLoss(_FunctionLoss):
    """`npairs_multilabel_loss`: binary labels in y_true, similarities in y_pred.

    Examples:
        >>> labels = np.array([[1, 0, 1], [0, 1, 0]])
        >>> similarities = np.array([[0.9, 0.1], [0.3, 0.8]], "float32")
        >>> round(float(NpairsMultilabelLoss()(labels, similarities)), 3)
        0.423
    """

    def __init__(self, name: str | None = "npairs_multilabel_loss") -> None:
        super().__init__(npairs_multilabel_loss, name)
