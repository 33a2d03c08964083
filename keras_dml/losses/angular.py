"""The angular loss."""

import math
from typing import Unpack

from keras import ops

from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.checks import check_number
from keras_dml._common.types import Parts
from keras_dml._pairwise.arithmetic import matmul, maximum
from keras_dml._pairwise.pairs import Pairs, pair_means
from keras_dml.losses.base import LossOptions
from keras_dml.losses.pair_loss import WholeBatchLoss
from keras_dml.losses.registry import register


@register("angular")
class AngularLoss(WholeBatchLoss):
    """Angular loss: the angle at a negative, seen from a positive pair, below α.

    With cosine similarities `S_ij`, t = tan² α, and `A_ij = log Σ_{k∈N_i} exp(4t (S_ik + S_jk))`,
    the mean over the ordered positive pairs (i, j) of `log(1 + exp(A_ij − 2 (1 + t) S_ij))`:

    - tightness `T_i ∝ Σ_{j∈P_i} −2 (1 + t) S_ij`
    - contrastive `C_i ∝ Σ_{j∈P_i} log(exp(2 (1 + t) S_ij) + exp(A_ij))`

    with the factor n / (number of ordered positive pairs). Without negatives the value is 0, with
    no gradient. The two images of a positive pair have the same negatives, so A is the logarithm of
    a matrix product: O(n³) time, O(n²) memory.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = AngularLoss(angle=45.0)
        >>> round(float(loss(labels, z)), 3)
        2.628

    Args:
        angle: α, the largest angle at a negative in degrees, above 0 and at most 60. The paper uses
            36 to 55.
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        ValueError: `angle` is out of range, or shapes are wrong.

    Reference: Wang et al., "Deep Metric Learning with Angular Loss", ICCV 2017, Eq. 5 to 8.
    """

    def __init__(self, angle: float = 45.0, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.angle = check_number("angle", angle, above=0, most=60)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        tangent = math.tan(math.radians(self.angle)) ** 2
        similarities = pairs.similarities()
        # At most 1, and a product of two factors is within the range of float32.
        factors = ops.where(pairs.negative, ops.exp(4.0 * tangent * (similarities - 1.0)), 0.0)
        # The partner may be on another replica.
        of_partner, _ = gather_candidates(factors)
        sums = matmul(factors, ops.transpose(of_partner))
        pushed = 8.0 * tangent + ops.log(maximum(sums, 1e-30))
        pulled = 2.0 * (1.0 + tangent) * similarities
        contrastive = pushed + ops.softplus(pulled - pushed)
        kept = pairs.matched()
        return pair_means(-pulled, kept), pair_means(contrastive, kept)
