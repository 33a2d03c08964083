"""The FastAP loss."""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from keras_dml.bounds import at_least
from keras_dml.cells import are_quick, counts_in_cells, jax_is_on_cpu, look_up, sums_in_cells
from keras_dml.checks import check_whole
from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.losses.base import PairLoss
from keras_dml.losses.registry import register
from keras_dml.mining import Strategy
from keras_dml.pairs import Pairs, count, kept_weights
from keras_dml.types import Config, Parts, Tensor

# Largest squared distance of two unit vectors.
_LARGEST = 4.0
# Rows counted at a time.
_BLOCK = 64


@register("fastap")
@keras.saving.register_keras_serializable("keras_dml")
class FastAPLoss(PairLoss):
    """FastAP: one minus the average precision of each anchor's ranking, on softly binned distances.

    Squared distances of l2-normalised embeddings lie in [0, 4]. Bins stand at 4l/L, l = 0…L, Δ =
    4/L apart, and a distance belongs to bin b by `max(0, 1 − |D² − b|/Δ)`. Let `h⁺_l` sum this over
    the anchor's positives, `h_l` over all other images, and `H⁺_l`, `H_l` be their inclusive
    cumulative sums. Then, over the anchors that have positives (the others have the value 0, and
    the kept ones are multiplied by n / n_kept, counted over the global batch),

    `loss_i = 1 − AP_i`, `AP_i = (1/|P_i|) Σ_l h⁺_l H⁺_l / H_l` (0 where H_l = 0).

    The parts come from the log bound of average precision. With M = n − 1 other images and
    expectations over the bins of the positives, `p_l = h⁺_l / |P_i|`, Jensen's inequality gives
    `−log AP_i ≤ −E log P(D ≤ d, R⁺) + E log P(D ≤ d)`. The factor P(R⁺) = |P_i|/M that the
    paper's second line drops is kept here inside the joint probability. Then

    - tightness `T_i = −Σ_l p_l log(H⁺_l / M)`, the bound's first term: positives alone
    - contrastive `C_i = loss_i − T_i`: the bound's second term, `Σ_l p_l log(H_l / M)`, less the
      slack of the bound (by Jensen and by 1 − AP ≤ −log AP), so that T + C is the loss exactly.

    The bound departs from the paper's Eq. 38 in two places. The cumulative sums include the bin
    itself (the paper has D < d), and the expectation is over the positives' own distribution
    P(d | R⁺) (the paper weights by P(d, R⁺), with which Jensen's inequality does not hold).

    Soft bins do not converge to the exact average precision as L grows: the weights of neighbouring
    bins only become narrower, gradients rarer and noisier. Keep L small.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = FastAPLoss(num_bins=10)
        >>> round(float(loss(labels, z)), 3)
        0.539

    Args:
        num_bins: L, the bins of the distance histogram, a whole number of at least 1.
        reduction, name, dtype, mining: as in `PairLoss`.

    Raises:
        ValueError: `num_bins` not a whole number above 0, or wrong shapes.

    Reference: Boudiaf et al. 2020, appendix C, Eq. 37-38, after Cakir et al., "Deep Metric Learning
    to Rank", CVPR 2019.
    """

    def __init__(
        self,
        num_bins: int = 10,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "fastap",
        dtype: str | None = None,
        mining: Strategy | Sequence[Strategy] | None = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype, mining=mining)
        self.num_bins = check_whole("num_bins", num_bins, least=1)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """The loss `[n]`, without the logarithms of its parts."""
        return self._ranked(pairs)[0]

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]`."""
        loss, shares, within, weights = self._ranked(pairs)
        others = count(pairs.others(), loss.dtype)[:, None]
        occupied = within > 0
        # No positive so near: no share of them either, so the logarithm is not needed.
        within = ops.where(occupied, within, 1.0)
        surprise = ops.where(occupied, ops.log(at_least(others, 1.0)) - ops.log(within), 0.0)
        tightness = weights * ops.sum(shares * surprise, axis=-1)
        return tightness, loss - tightness

    def _ranked(self, pairs: Pairs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The loss, the positives' share of each bin, H⁺ `[n, L + 1]`, the weights of anchors."""
        counts = self._cumulative_counts(pairs)
        positives, all_others = counts[:, 0], counts[:, 1]
        in_bin = positives - ops.pad(positives, ((0, 0), (1, 0)))[:, :-1]
        num_positives = count(pairs.positive, counts.dtype)[:, None]
        shares = in_bin / at_least(num_positives, 1.0)
        anyone = all_others > 0
        precisions = ops.where(anyone, positives / ops.where(anyone, all_others, 1.0), 0.0)
        weights = kept_weights(num_positives[:, 0] > 0, counts.dtype)
        return weights * (1.0 - ops.sum(shares * precisions, axis=-1)), shares, positives, weights

    def _cumulative_counts(self, pairs: Pairs) -> Tensor:
        others = pairs.others()
        # To look up the partners' gradients, too, costs less than a transposition by XLA, and more
        # than TensorFlow's.
        mirrored = pairs.complete and jax_is_on_cpu()
        squared = pairs.squared_distances_to_sum() if mirrored else pairs.squared_distances()
        return _cumulative_counts(squared, pairs.positive, others, self.num_bins, mirrored)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "num_bins": self.num_bins}


def _cumulative_counts(
    squared_distances: Tensor, positive: Tensor, others: Tensor, num_bins: int, mirrored: bool
) -> Tensor:
    """Soft counts `[a, 2, L + 1]` of positives and of all others at or before each bin.

    From squared distances `[a, c]` in [0, 4]. The weight of one at x bins, summed over bins 0…l, is
    clip(l + 1 − x, 0, 1); what is no other counts nowhere. The gradient is set by hand: a position
    between bins l and l + 1 changes the counts of bin l alone, so one look-up in the small table of
    the counts' gradients replaces L + 1 passes over the matrix.

    `mirrored`: that it is to be of both places of a pair, as of `keras_dml.gram.mirrored_sums`.
    """
    scale = num_bins / _LARGEST

    @with_gradient
    def counts(squared_distances: Tensor) -> WithGradient:
        positions = squared_distances * scale
        # Beyond all bins, at L + 1, is what is no other, and NaN, which has no bin. (The loss of
        # embeddings that are no numbers is NaN, whatever is counted here.)
        counted = ops.logical_and(others, positions < num_bins + 1.0)
        positions = ops.where(counted, positions, num_bins + 1.0)
        # The cell of a position: its bin, L + 1 beyond all bins, and those of positives above.
        cells = ops.cast(positions, "int32")
        cells = ops.where(positive, cells + (num_bins + 2), cells)

        def gradient(upstream: Tensor) -> Tensor:
            of_positives, of_all = upstream[:, 0], upstream[:, 1]
            of_all = ops.pad(of_all, ((0, 0), (0, 1)))
            of_positives = ops.pad(of_positives, ((0, 0), (0, 1)))
            table = -scale * ops.concatenate([of_all, of_all + of_positives], axis=-1)
            # Not `take_along_axis`, which TensorFlow's graphs refuse without any row.
            rows, width = ops.shape(table)[0], 2 * (num_bins + 2)
            table = ops.reshape(table, (-1,))
            starts = ops.arange(rows, dtype="int32") * width
            slopes = look_up(table, starts[:, None] + cells)
            return slopes + look_up(table, starts[None, :] + cells) if mirrored else slopes

        if are_quick():
            return _by_cells(positions, cells, num_bins), gradient
        return _by_bins(positions, positive, num_bins), gradient

    return counts(squared_distances)


def _by_bins(positions: Tensor, positive: Tensor, num_bins: int) -> Tensor:
    """One pass over the matrix for each bin."""
    if jax_is_on_cpu() and positions.shape[0] > _BLOCK:
        return _in_blocks(positions, positive, num_bins)
    rows = []
    for number in range(num_bins + 1):
        within = ops.clip(number + 1.0 - positions, 0.0, 1.0)
        near = ops.where(positive, within, ops.zeros_like(within))
        rows.append(ops.stack([ops.sum(near, axis=-1), ops.sum(within, axis=-1)], axis=-1))
    return ops.stack(rows, axis=-1)


def _in_blocks(positions: Tensor, positive: Tensor, num_bins: int) -> Tensor:
    """The same for as many rows at a time as stay in the cache between the bins."""
    rows, columns = positions.shape
    number = -(-rows // _BLOCK)
    missing = ((0, number * _BLOCK - rows), (0, 0))
    blocks = [
        ops.reshape(ops.pad(each, missing), (number, _BLOCK, columns))
        for each in (positions, positive)
    ]
    counts = ops.map(lambda block: _by_bins(block[0], block[1], num_bins), blocks)
    return ops.reshape(counts, (number * _BLOCK, 2, num_bins + 1))[:rows]


def _by_cells(positions: Tensor, cells: Tensor, num_bins: int) -> Tensor:
    """At bin l what lies before l + 1, less how far what lies in [l, l + 1) is from l."""
    size = num_bins + 2
    number = ops.cast(counts_in_cells(cells, 2 * size), positions.dtype)
    beyond_bin = sums_in_cells(positions - ops.floor(positions), cells, 2 * size, largest=1.0)

    def soft(of: Callable[[Tensor], Tensor]) -> Tensor:
        return (ops.cumsum(of(number), axis=-1) - of(beyond_bin))[:, :-1]

    of_positives = soft(lambda found: found[:, size:])
    return ops.stack([of_positives, of_positives + soft(lambda found: found[:, :size])], axis=1)
