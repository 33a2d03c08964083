"""The losses of TensorFlow Addons as Keras losses."""

import numbers

import keras
from keras import ops

from keras_dml.addons.functional import (
    check_metric,
    contrastive_loss,
    lifted_struct_loss,
    npairs_loss,
    npairs_multilabel_loss,
    registered,
    triplet_hard_loss,
    triplet_semihard_loss,
)
from keras_dml.errors import ArgumentTypeError
from keras_dml.losses.base import LabelsAsTheyAre


class _FunctionLoss(keras.losses.Loss):
    """A loss that is one of the functions with some of its arguments: a scalar for the batch."""

    def __init__(self, function, name, reduction="none", **arguments):
        super().__init__(name=name, reduction=reduction)
        self._function, self._arguments = function, arguments

    def __call__(self, y_true, y_pred, sample_weight=None):
        """The reduced loss; integers in `y_true` stay integers."""
        return LabelsAsTheyAre(self, y_true)((), y_pred, sample_weight)

    def call(self, y_true, y_pred):
        """The function's value."""
        return self._function(y_true, y_pred, **self._arguments)

    def get_config(self):
        """The constructor's arguments."""
        return {"name": self.name, **self._arguments}

    @classmethod
    def from_config(cls, config):
        """The loss of this configuration; a `distance_metric` function must be registered."""
        return cls(**keras.saving.deserialize_keras_object(config))


@registered
class ContrastiveLoss(_FunctionLoss):
    """`contrastive_loss` with a Keras reduction: labels 0/1 in y_true, distances in y_pred.

    Args:
        margin, reduction, name: as in `contrastive_loss` and Keras.
    """

    def __init__(self, margin=1.0, reduction="sum_over_batch_size", name="contrastive_loss"):
        check_number("margin", margin)
        super().__init__(contrastive_loss, name, reduction, margin=margin)

    def get_config(self):
        """The constructor's arguments."""
        return {**super().get_config(), "reduction": self.reduction}


@registered
class TripletSemiHardLoss(_FunctionLoss):
    """`triplet_semihard_loss`: class ids in y_true, embeddings in y_pred.

    Args:
        margin, distance_metric: as in `triplet_semihard_loss`.
        name: of the loss.
        kwargs: ignored, as in the original.

    Raises:
        TypeError: `margin` is not a number. ValueError: unknown `distance_metric`.
    """

    def __init__(self, margin=1.0, distance_metric="L2", name=None, **kwargs):
        check_number("margin", margin)
        check_metric(distance_metric)
        super().__init__(
            triplet_semihard_loss, name, margin=margin, distance_metric=distance_metric
        )


@registered
class TripletHardLoss(_FunctionLoss):
    """`triplet_hard_loss`: class ids in y_true, embeddings in y_pred.

    Args:
        margin, soft, distance_metric: as in `triplet_hard_loss`.
        name: of the loss.
        kwargs: ignored, as in the original.

    Raises:
        TypeError: `margin` is not a number. ValueError: unknown `distance_metric`.
    """

    def __init__(self, margin=1.0, soft=False, distance_metric="L2", name=None, **kwargs):
        check_number("margin", margin)
        check_metric(distance_metric)
        super().__init__(
            triplet_hard_loss, name, margin=margin, soft=soft, distance_metric=distance_metric
        )


@registered
class LiftedStructLoss(_FunctionLoss):
    """`lifted_struct_loss`: class ids in y_true, embeddings in y_pred.

    Args:
        margin: as in `lifted_struct_loss`.
        name: of the loss.
        kwargs: ignored, as in the original.

    Raises:
        TypeError: `margin` is not a number. ValueError: unknown `distance_metric`.
    """

    def __init__(self, margin=1.0, name=None, **kwargs):
        check_number("margin", margin)
        super().__init__(lifted_struct_loss, name, margin=margin)


@registered
class NpairsLoss(_FunctionLoss):
    """`npairs_loss`: class ids in y_true, similarities in y_pred."""

    def __init__(self, name="npairs_loss"):
        super().__init__(npairs_loss, name)


@registered
class NpairsMultilabelLoss(_FunctionLoss):
    """`npairs_multilabel_loss`: binary labels in y_true, similarities in y_pred."""

    def __init__(self, name="npairs_multilabel_loss"):
        super().__init__(npairs_multilabel_loss, name)


def check_number(name, value):
    """TypeError unless this is a number or a tensor."""
    if isinstance(value, bool) or not (isinstance(value, numbers.Number) or ops.is_tensor(value)):
        raise ArgumentTypeError(f"{name} must be a number. Received: {name}={value!r}")
