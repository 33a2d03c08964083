"""The RankMI loss for a given statistics network."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self, Unpack

import keras
import numpy as np
from keras import ops

from keras_dml._backend.configured import Configured
from keras_dml._common.checks import check_choice, check_number
from keras_dml._common.errors import ArgumentTypeError, argument_error
from keras_dml._common.types import Config, Parts, Tensor
from keras_dml._pairwise.arithmetic import count, masked_sum, maximum
from keras_dml._pairwise.divergence import (
    check_statistics_values,
    negative_costs,
    positive_costs,
)
from keras_dml._pairwise.negatives import distance_weighted
from keras_dml._pairwise.pairs import Pairs, mean_over_pairs, pair_means
from keras_dml.losses.base import LossOptions
from keras_dml.losses.pair_loss import WholeBatchLoss
from keras_dml.losses.registry import register


@register("rankmi")
class RankMILoss(WholeBatchLoss):
    """RankMI: minus a lower bound of the divergence between positive and negative distances.

    With distances `D_ij` of l2-normalized embeddings and a statistics network V from one distance
    to one number, the mean over anchors is the mean of T over the positive pairs plus the mean of C
    over the negative pairs:

    - tightness `softplus(−V(D)) − log 2`
    - contrastive `softplus(V(D)) − log 2`

    Means are over the pairs of the global batch. An anchor's value is n / (number of pairs) times
    the sum over its pairs. Minus the loss is at most twice the Jensen-Shannon divergence of the two
    distributions in nats, and thus below 2 log 2. T is 0 without positive pairs, and C is 0 without
    negative pairs.

    V is part of the loss, not of the compiled model, so `fit` does not train V. The configuration
    contains V with its weights, so a copied or loaded model has the same loss.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = RankMILoss()
        >>> round(float(loss(labels, z)), 3)
        0.054

    Args:
        statistics_network: A Keras layer, model, or serializable callable from distances `[m, 1]`
            to values `[m, 1]` that decrease with the distance. The default is `FixedStatistics()`,
            Eq. 13 on the distance.
        sampling: `"all"` weights negative pairs equally. `"distance_weighted"` is the expectation
            of drawing one of the anchor's negatives by `negatives.distance_weighted` for each
            positive pair. It is not random, because a loss does not know the training step. These
            weights are constants for the gradient (`stop_gradient`), and so for second derivatives.
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        TypeError: `statistics_network` is not callable.
        ValueError: `statistics_network` does not keep the shape `[m, 1]`, `sampling` is unknown, or
            shapes are wrong.

    Reference: Kemertas et al., "RankMI: A Mutual Information Maximizing Ranking Loss", CVPR 2020,
    Eq. 6, 7 and 10; negatives as in 4.1.
    """

    kind = "statistics_network"

    def __init__(
        self,
        statistics_network: Callable | None = None,
        *,
        sampling: Literal["all", "distance_weighted"] = "all",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        if statistics_network is None:
            statistics_network = FixedStatistics()
        if not callable(statistics_network):
            wanted = "a function from distances [m, 1] to values [m, 1]"
            raise argument_error(
                "statistics_network", wanted, statistics_network, ArgumentTypeError
            )
        self.statistics_network = statistics_network
        self.sampling = check_choice("sampling", sampling, ("all", "distance_weighted"))
        # The call also builds a network without variables, which a traced step could not do.
        check_statistics_values(self._statistics(ops.ones((2, 1), dtype=self.dtype)))

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        distances = pairs.distances()
        values = self._statistics(ops.reshape(distances, (-1, 1)))
        values = ops.reshape(values, ops.shape(distances))
        tightness = pair_means(positive_costs(values), pairs.positive)
        costs = negative_costs(values)
        if self.sampling == "all":
            return tightness, pair_means(costs, pairs.negative)
        # The number of expected draws is the anchor's number of positives, or 0 without negatives.
        draws = distance_weighted(distances, pairs.negative, ops.shape(pairs.anchors)[-1])
        num_positives = count(pairs.positive, values.dtype)
        num_negatives = num_positives * ops.sum(draws, axis=-1)
        contrastive = num_positives * masked_sum(draws * costs, pairs.negative)
        return tightness, mean_over_pairs(contrastive, num_negatives)

    def _statistics(self, distances: Tensor) -> Tensor:
        return ops.cast(self.statistics_network(distances), self.dtype)

    def get_config(self) -> Config:
        """Return the constructor's arguments and the weights of the statistics network."""
        weights: list[np.ndarray] = getattr(self.statistics_network, "get_weights", list)()
        config = super().get_config()
        return {**config, "statistics_weights": [values.tolist() for values in weights]}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, Any] | None = None) -> Self:
        """Create a loss from its configuration."""
        config = dict(config)
        weights = config.pop("statistics_weights", [])
        loss = super().from_config(config, custom_objects)
        network: Any = loss.statistics_network
        if weights:
            network.set_weights([np.asarray(values) for values in weights])
        return loss


@keras.saving.register_keras_serializable("keras_dml")
class FixedStatistics(Configured):
    """The statistics network of Eq. 13, which has no weights: `V(x)`, x = D − β.

    `V(x) = −log(e^x − 1)` for x > 0 and `log(e^{−x} − 1)` for x < 0, so V(−x) = −V(x). The paper
    leaves V(0) undefined. Here, V is constant for |x| below 1e-6 on each side of 0, and V(0) is
    V(1e-6). Then `softplus(−V(x)) = x` for x > 0 and `softplus(V(x)) = −x` for x < 0, and two
    statements are exact:

    - If every positive distance is above β and every negative distance below it, the RankMI loss is
      mean D⁺ − mean D⁻ − 2 log 2. Up to the constant, it is the quadruplet term with a margin so
      large that all hinges are open. The paper's claim is true only under this condition.
    - For β = 0, a positive pair costs `D − log 2`, and a negative pair costs
      `−log(1 − e^{−D}) − log 2`.

    With β = 0, V decreases over all distances, as a ranking loss requires. With any other β, V
    jumps up at D = β.

    Examples:
        >>> network = FixedStatistics(beta=1.0)
        >>> np.round(network(np.array([[0.5], [1.5]], "float32")), 3)
        array([[-0.433],
               [ 0.433]], dtype=float32)

    Args:
        beta: β, a distance of at least 0.

    Raises:
        ValueError: `beta` is below 0 or not finite.

    Reference: Kemertas et al. 2020, Eq. 13.
    """

    def __init__(self, beta: float = 0.0) -> None:
        self.beta = check_number("beta", beta, least=0)

    def __call__(self, distances: Tensor) -> Tensor:
        """Compute `V(D − β)`, with the shape of `distances`."""
        x = distances - self.beta
        # The floor keeps the logarithm and its gradient finite.
        size = maximum(ops.abs(x), 1e-6)
        value = size + ops.log(-ops.expm1(-size))
        return ops.where(x < 0, value, -value)
