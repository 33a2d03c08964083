"""The n-pairs loss."""

from typing import Literal, Unpack

from keras import ops

from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.checks import check_choice
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import count, log_sum_exp, masked_sum
from keras_dml._pairwise.pairs import Candidates, Pairs, mean_over_anchors
from keras_dml.losses.base import LossOptions
from keras_dml.losses.pair_loss import WholeBatchLoss
from keras_dml.losses.registry import register


@register("n_pairs")
class NPairsLoss(WholeBatchLoss):
    """N-pairs loss: cross-entropy of an anchor's similarities against its class in the batch.

    With similarities `S_ij = z_i · z_j` and `A_i = P_i ∪ {i}`, the images of i's class:

    - tightness `T_i = −(1/|A_i|) Σ_{j∈A_i} S_ij`
    - contrastive `C_i = log Σ_j exp(S_ij)`, over all images of the batch

    The anchor itself is part of the targets and of the partition, as in tensorflow-addons: the loss
    equals its `npairs_loss(class_ids, z zᵀ)`. An anchor without positives or without negatives has
    the value 0 and no gradient.

    `positives="one"` is N-pair-mc, the form of the paper, for batches with two images of each
    class. The first image i of a class in the batch is an anchor, and the second image `i⁺` is its
    only positive. The partition contains the positives of all classes, but no anchors:

    - tightness `T_i = −S_{i i⁺}`
    - contrastive `C_i = log Σ_k exp(S_{i k⁺})`, over all classes k

    The mean is over the anchors. Other images of a class, and a class with one image, take no part.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = NPairsLoss(normalize=True)
        >>> round(float(loss(labels, z)), 3)
        1.265
        >>> round(float(NPairsLoss(positives="one")(labels, z)), 3)
        0.75

    Args:
        normalize: Whether similarities are cosines and not inner products.
        positives: The targets of an anchor, `"all"` or `"one"`, as above.
        reduction, name, dtype: as in `EmbeddingLoss`.

    Raises:
        ValueError: `positives` is unknown, or shapes are wrong.

    Reference: Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective",
    NIPS 2016, Eq. 7; tensorflow-addons 0.23 `npairs_loss`.
    """

    def __init__(
        self,
        normalize: bool = False,
        *,
        positives: Literal["all", "one"] = "all",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.normalize = bool(normalize)
        self.positives = check_choice("positives", positives, ("all", "one"))

    def compute_loss(
        self, class_ids: Tensor, embeddings: Tensor, candidates: Candidates | None = None
    ) -> Tensor:
        """Compute the loss `[n]` of checked labels and embeddings."""
        tightness, contrastive = self.compute_parts(class_ids, embeddings, candidates)
        return tightness + contrastive

    def compute_parts(
        self, class_ids: Tensor, embeddings: Tensor, candidates: Candidates | None = None
    ) -> Parts:
        """Compute the two parts `[n]` of checked labels and embeddings."""
        pairs = self.pairs_of(class_ids, embeddings, candidates)
        if self.positives == "all":
            return self.compute_pair_parts(pairs)
        batch_ids, _ = gather_candidates(class_ids)
        same_class = ops.equal(batch_ids[:, None], batch_ids[None, :])
        # The number of earlier images of its class, for each image of the batch.
        place = ops.sum(ops.tril(ops.cast(same_class, "int32"), -1), axis=-1)
        is_positive = ops.equal(place, 1)[None, :]
        is_first = ops.any(ops.logical_and(pairs.itself, ops.equal(place, 0)[None, :]), axis=-1)
        own = ops.logical_and(pairs.positive, is_positive)
        others = ops.logical_and(pairs.negative, is_positive)
        complete = ops.logical_and(ops.any(own, axis=-1), ops.any(others, axis=-1))
        kept = ops.logical_and(is_first, complete)
        similarities = pairs.similarities()
        tightness = -masked_sum(similarities, own)
        contrastive = log_sum_exp(similarities, ops.logical_or(own, others))
        return mean_over_anchors(tightness, kept), mean_over_anchors(contrastive, kept)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        similarities = pairs.similarities()
        same_class = ops.logical_or(pairs.positive, pairs.itself)
        number = count(same_class, similarities.dtype)
        tightness = -masked_sum(similarities, same_class) / number
        contrastive = ops.logsumexp(similarities, axis=-1)
        kept = ops.logical_and(pairs.have_positives(), pairs.have_negatives())
        return ops.where(kept, tightness, 0.0), ops.where(kept, contrastive, 0.0)
