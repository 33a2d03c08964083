"""The n-pairs loss."""

from typing import Unpack

from keras import ops

from keras_dml._common.types import Parts
from keras_dml._pairwise.arithmetic import count, masked_sum
from keras_dml._pairwise.pairs import Pairs
from keras_dml.losses.base import LossOptions, WholeBatchLoss, register


@register("n_pairs")
class NPairsLoss(WholeBatchLoss):
    """N-pairs loss: cross-entropy of an anchor's similarities against its class in the batch.

    With similarities `S_ij = z_i · z_j` and `A_i = P_i ∪ {i}`, the images of i's class:

    - tightness `T_i = −(1/|A_i|) Σ_{j∈A_i} S_ij`
    - contrastive `C_i = log Σ_j exp(S_ij)`, over all images of the batch

    The anchor itself is part of the targets and of the partition, as in tensorflow-addons: the loss
    equals its `npairs_loss(class_ids, z zᵀ)`. An anchor without positives or without negatives has
    the value 0 and no gradient.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = NPairsLoss(normalize=True)
        >>> round(float(loss(labels, z)), 3)
        1.265

    Args:
        normalize: Whether similarities are cosines and not inner products.
        reduction, name, dtype: as in `EmbeddingLoss`.

    Raises:
        ValueError: wrong shapes.

    Reference: Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective",
    NIPS 2016, Eq. 7; tensorflow-addons 0.23 `npairs_loss`.
    """

    def __init__(self, normalize: bool = False, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.normalize = bool(normalize)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        similarities = pairs.similarities()
        same_class = ops.logical_or(pairs.positive, pairs.itself)
        number = count(same_class, similarities.dtype)
        tightness = -masked_sum(similarities, same_class) / number
        contrastive = ops.logsumexp(similarities, axis=-1)
        kept = ops.logical_and(pairs.have_positives(), pairs.have_negatives())
        return ops.where(kept, tightness, 0.0), ops.where(kept, contrastive, 0.0)
