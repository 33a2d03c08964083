"""The FastAP loss."""

from typing import Unpack

from keras import ops

from keras_dml._common.checks import check_whole
from keras_dml._common.types import Parts
from keras_dml._pairwise.arithmetic import count, masked_sum, maximum, minimum
from keras_dml._pairwise.pairs import Pairs, mean_over_anchors
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register

# Largest squared distance of two unit vectors.
_LARGEST = 4.0


@register("fastap")
class FastAPLoss(PairLoss):
    """FastAP: one minus average precision, on softly binned distances.

    Squared distances of l2-normalized embeddings lie in [0, 4]. Bins stand at 4l/L, l = 0…L, Δ =
    4/L apart, and a distance belongs to bin b by `max(0, 1 − |D² − b|/Δ)`. Let `h⁺_l` sum this over
    the anchor's positives, `h_l` over all other images, and `H⁺_l`, `H_l` be their inclusive
    cumulative sums. Then, over the anchors that have positives (the others have the value 0, and
    the kept ones are multiplied by n / n_kept, counted over the global batch),

    `loss_i = 1 − AP_i`, `AP_i = (1/|P_i|) Σ_l h⁺_l H⁺_l / H_l` (0 where `H_l = 0`).

    The parts come from the log bound of average precision. With M = n − 1 other images and
    expectations over the bins of the positives, `p_l = h⁺_l / |P_i|`, Jensen's inequality gives
    `−log AP_i ≤ −E log P(D ≤ d, R⁺) + E log P(D ≤ d)`. The factor `P(R⁺) = |P_i|/M` that the
    paper's second line drops is kept here inside the joint probability. Then

    - tightness `T_i = −Σ_l p_l log(H⁺_l / M)`, the bound's first term, of positives only
    - contrastive `C_i = loss_i − T_i`: the bound's second term, `Σ_l p_l log(H_l / M)`, less the
      slack of the bound (by Jensen and by 1 − AP ≤ −log AP), so that T + C is the loss exactly.

    The bound departs from the paper's Eq. 38 in two places. The cumulative sums include the bin
    itself (the paper has D < d), and the expectation is over the positives' own distribution
    P(d | R⁺) (the paper weights by P(d, R⁺), with which Jensen's inequality does not hold).

    Soft bins do not converge to the exact average precision as L grows. The weights of neighboring
    bins become narrower, and gradients become rarer and noisier. Keep L small.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = FastAPLoss(num_bins=10)
        >>> round(float(loss(labels, z)), 3)
        0.539

    Args:
        num_bins: L, the bins of the distance histogram, a whole number of at least 1.
        reduction, name, dtype, mining, relation: as in `PairLoss`.

    Raises:
        ValueError: `num_bins` not a whole number above 0, or wrong shapes.

    Reference: Boudiaf et al. 2020, appendix C, Eq. 37-38, after Cakir et al., "Deep Metric Learning
    to Rank", CVPR 2019.
    """

    def __init__(self, num_bins: int = 10, **options: Unpack[PairOptions]) -> None:
        super().__init__(**options)
        self.num_bins = check_whole("num_bins", num_bins, least=1)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        positions = pairs.squared_distances() * (self.num_bins / _LARGEST)
        # The memberships of the bins up to b add up to this.
        within = [minimum(maximum(b + 1.0 - positions, 0.0), 1.0) for b in range(self.num_bins + 1)]
        positives = ops.stack([masked_sum(each, pairs.positive) for each in within], axis=-1)
        images = ops.stack([masked_sum(each, pairs.others()) for each in within], axis=-1)
        in_bin = positives - ops.pad(positives, ((0, 0), (1, 0)))[:, :-1]
        share = in_bin / maximum(count(pairs.positive, in_bin.dtype), 1.0)[:, None]
        precision = positives / ops.where(images > 0, images, 1.0)
        loss = 1.0 - ops.sum(share * precision, axis=-1)

        others = maximum(count(pairs.others(), in_bin.dtype), 1.0)[:, None]
        reached = positives > 0  # Otherwise no positive is in the bin either.
        surprise = ops.log(others / ops.where(reached, positives, others))
        tightness = ops.sum(share * surprise, axis=-1)
        kept = pairs.have_positives()
        return mean_over_anchors(tightness, kept), mean_over_anchors(loss - tightness, kept)
