"""The lifted structure loss."""

from typing import Unpack

from keras import ops

from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.checks import check_positive
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import log_add_exp, log_sum_exp
from keras_dml._pairwise.pairs import Pairs, pair_means
from keras_dml.losses.base import LossOptions
from keras_dml.losses.pair_loss import WholeBatchLoss
from keras_dml.losses.registry import register


@register("lifted_structure")
class LiftedStructureLoss(WholeBatchLoss):
    """Lifted structure loss: each positive pair against all negatives of both images.

    With distances `D_ij` and the soft nearest negative `A_i = log Σ_{k∈N_i} exp(m − D_ik)`, an
    ordered positive pair has the hinge `J_ij = max(0, log(exp(A_i) + exp(A_j)) + D_ij)`. The mean
    over anchors is the sum of `J_ij²` over the ordered positive pairs of the global batch, divided
    by twice their number. An open hinge `J_ij` is a sum, so its square splits into

    - tightness `T_i ∝ Σ_{j∈P_i} J_ij D_ij`
    - contrastive `C_i ∝ Σ_{j∈P_i} J_ij log(exp(A_i) + exp(A_j))`

    with the factor n / (2 · number of ordered positive pairs). Without negatives the value is 0,
    with no gradient. `A` is one number for each image, so memory is O(n²).

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = LiftedStructureLoss(margin=1.0)
        >>> round(float(loss(labels, z)), 3)
        2.786

    Args:
        margin: m, above 0, the smallest distance that negatives should have.
        normalize: Whether distances are between l2-normalized embeddings.
        reduction, name, dtype: as in `EmbeddingLoss`.

    Raises:
        ValueError: `margin` not above 0, or wrong shapes.

    Reference: Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR
    2016, Eq. 4 (the smooth bound); tensorflow-addons 0.23 `lifted_struct_loss`, which does not
    normalize.
    """

    def __init__(
        self,
        margin: float = 1.0,
        *,
        normalize: bool = True,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.margin = check_positive("margin", margin)
        self.normalize = bool(normalize)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """Compute the loss `[n]` without the cancellation of its parts."""
        distances, nearest = self._nearest(pairs)
        return 0.5 * pair_means(ops.square(ops.relu(nearest + distances)), pairs.matched())

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        distances, nearest = self._nearest(pairs)
        hinges = ops.relu(nearest + distances)
        tightness = 0.5 * pair_means(hinges * distances, pairs.matched())
        return tightness, 0.5 * pair_means(hinges * nearest, pairs.matched())

    def _nearest(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Compute D, and `log(exp(A_i) + exp(A_j))`, each `[a, c]`."""
        distances = pairs.distances()
        nearest = log_sum_exp(self.margin - distances, pairs.negative)
        # The partner may be on another replica, which has all of its negatives.
        of_partner, _ = gather_candidates(nearest)
        return distances, log_add_exp(nearest[:, None], of_partner[None, :])
