"""The Smooth-AP loss."""

from collections.abc import Sequence
from functools import partial

import keras
from keras import ops

from keras_dml.bounds import at_least
from keras_dml.checks import check_positive
from keras_dml.losses.base import PairLoss
from keras_dml.losses.registry import register
from keras_dml.mining import Strategy
from keras_dml.pairs import Pairs, count, kept_weights
from keras_dml.smooth_ranks import sums_over_positives
from keras_dml.types import Config, Parts, Tensor


@register("smooth_ap")
@keras.saving.register_keras_serializable("keras_dml")
class SmoothAPLoss(PairLoss):
    """Smooth-AP: one minus the average precision of each query's ranking, by smooth ranks.

    On cosine similarities, with the smooth ranks `r⁺_i` of a positive i among the query's positives
    and `r_i` among all other images (`keras_dml.smooth_ranks`), `AP_q = mean_{i∈P_q} r⁺_i / r_i`
    and the loss is `1 − AP_q`. With M = n − 1 other images its parts are those of FastAP:

    - tightness `T_q = −mean_i log(r⁺_i / M)`
    - contrastive `C_q = 1 − AP_q − T_q`

    Queries without positives are left out of the mean: their value is 0 and the others' are
    multiplied by n / n_kept, counted over the global batch. O(n²) memory; O(n² p) time, p the
    largest number of positives that a query has. Pairs of similarities that differ by more than
    about 10 τ have no gradient.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = SmoothAPLoss(temperature=0.1)
        >>> round(float(loss(labels, z)), 3)
        0.429

    Args:
        temperature: τ, above 0.
        query_in_database: rank each query among its own positives, as the authors' code does to the
            profit of the value (M is n then); set it to repeat their numbers.
        reduction, name, dtype, mining: as in `PairLoss`.

    Raises:
        ValueError: `temperature` not above 0, or wrong shapes.

    Reference: Brown et al., "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval",
    ECCV 2020, Eq. 6 and 7.
    """

    def __init__(
        self,
        temperature: float = 0.01,
        query_in_database: bool = False,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "smooth_ap",
        dtype: str | None = None,
        mining: Strategy | Sequence[Strategy] | None = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype, mining=mining)
        self.temperature = check_positive("temperature", temperature)
        self.query_in_database = bool(query_in_database)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]`."""
        loss, tightness = self._ranked(pairs)
        return tightness, loss - tightness

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """The loss `[n]`."""
        return self._ranked(pairs)[0]

    def _ranked(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """The loss and its tightness, `[n]`."""
        positives = pairs.positives(self.query_in_database)
        similarities = pairs.similarities(1.0 / self.temperature)
        number = ops.cast(positives.number, similarities.dtype)
        weights = kept_weights(ops.any(pairs.positive, axis=-1), similarities.dtype)
        others = number + count(pairs.negative, similarities.dtype)
        # Not `maximum`, which makes a float64 of it on JAX where floatx is bfloat16.
        others = ops.where(others > 0, others, 1.0)
        sums = sums_over_positives(
            similarities,
            positives,
            pairs.negative,
            partial(_precision_and_surprise, others[:, None]),
        )
        means = sums / at_least(number, 1.0)[:, None]
        return weights * (1.0 - means[:, 0]), weights * means[:, 1]

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "temperature": self.temperature,
            "query_in_database": self.query_in_database,
        }


def _precision_and_surprise(
    others: Tensor, among_positives: Tensor, among_all: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`r⁺ / r` and `−log(r⁺ / M)`, and their derivatives by r⁺ and by r."""
    precision = among_positives / among_all
    return (
        ops.concatenate([precision, ops.log(others / among_positives)], axis=-1),
        ops.concatenate([1.0 / among_all, -1.0 / among_positives], axis=-1),
        ops.concatenate([-precision / among_all, ops.zeros_like(precision)], axis=-1),
    )
