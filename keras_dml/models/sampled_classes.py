"""Models whose training steps compare with a sample of the classes."""

from typing import Any

import keras
from keras import ops

from keras_dml._common.types import Logs, Tensor, TensorLike
from keras_dml.layers.proxy_head import ProxyHead
from keras_dml.models.distributed_model import FunctionalDistributedModel


class SampledClasses:
    """A mixin for models with a `ProxyHead` that samples, placed before a Keras class in the bases.

    In training, the outputs of such a model are `{"embeddings": embeddings}`. `compute_loss` gives
    the head the class ids, and the loss and the metrics receive the cosines to the sample, and ids
    in 0 … s − 1.
    """

    @property
    def sampling_head(self) -> ProxyHead | None:
        """The head that samples, or None."""
        raise NotImplementedError

    def train_step(self, *args: Any) -> Any:
        """Run one step, in which the head waits for the class ids.

        In the steps of other models, such as a model around this one, the head raises an error.
        """
        parent: Any = super()
        if (head := self.sampling_head) is None:
            return parent.train_step(*args)
        with head.deferred():
            return parent.train_step(*args)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: TensorLike | None = None,
        training: bool = True,
    ) -> Tensor:
        """Compute the loss of a batch. In training, of the cosines to the next sample."""
        parent: Any = super()
        if (head := self._sampling(y_pred)) is not None:
            y, y_pred = head.sampled_cosines(y_pred["embeddings"], y)
            # Recorded here, because on JAX the metrics could not read the sample later.
            parent.compute_metrics(x, y, ops.stop_gradient(y_pred), sample_weight)
        return parent.compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: TensorLike | None = None
    ) -> Logs:
        """Update the metrics, and return them. `compute_loss` updates the metrics of a sample."""
        parent: Any = super()
        if self._sampling(y_pred) is not None:
            return parent.get_metrics_result()
        return parent.compute_metrics(x, y, y_pred, sample_weight)

    def _sampling(self, y_pred: Any) -> ProxyHead | None:
        """Return the head if the outputs are from a training step."""
        return self.sampling_head if isinstance(y_pred, dict) else None


@keras.saving.register_keras_serializable("keras_dml")
class SampledProxyModel(SampledClasses, FunctionalDistributedModel):
    """The class of `proxy_model(..., sampled=0.1)`: images to the cosines to K classes."""

    __init__ = FunctionalDistributedModel.__init__

    @property
    def sampling_head(self) -> ProxyHead:
        """The head."""
        return next(layer for layer in self.layers if isinstance(layer, ProxyHead))

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Compute the cosines `[n, K]`, or the outputs of training."""
        outputs = super().call(inputs, training=training, mask=mask)
        return {"embeddings": outputs} if training else outputs
