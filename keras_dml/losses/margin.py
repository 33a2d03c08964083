"""The margin loss."""

import dataclasses
from typing import Literal, Unpack

from keras import ops

from keras_dml._common.checks import check_choice, check_number, check_positive, check_whole
from keras_dml._common.errors import argument_error, shape_error
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import count, masked_sum
from keras_dml._pairwise.arrays import one_hot
from keras_dml._pairwise.negatives import distance_weighted
from keras_dml._pairwise.pairs import Candidates, Pairs, mean_over_pairs
from keras_dml.losses.pair_loss import PairLoss, PairOptions
from keras_dml.losses.registry import register
from keras_dml.relations import SameClass

_BETA = 1.2


@dataclasses.dataclass(frozen=True)
class _BoundedPairs(Pairs):
    """Pairs with each anchor's boundary `[a]` between positive and negative distances."""

    boundary: Tensor | float = _BETA


@register("margin")
class MarginLoss(PairLoss):
    """Margin loss: positives closer than a boundary and negatives farther, by a margin.

    With `D_ij = ‖f_i − f_j‖`, a positive pair has the hinge `h⁺_ij = max(0, m + D_ij − β_i)`, a
    negative one `h⁻_ij = max(0, m + β_i − D_ij)`. With weights `w_ij` of the pairs and M, the sum
    of the weights of all hinges of the global batch that are above 0:

    - tightness `T_i = (n / M) Σ_{j∈P_i} w_ij h⁺_ij`, plus ν's part
    - contrastive `C_i = (n / M) Σ_{j∈N_i} w_ij h⁻_ij`

    The mean over anchors is the mean of the open hinges, and 0 without open hinges. M and the
    weights are constants for the gradient. `sampling` selects the weights:

    - `"distance_weighted"`: 1 for a positive pair, and for a negative pair the number of
      positives of the anchor times its probability under distance-weighted sampling, see
      `keras_dml.mining.DistanceWeighted`. The paper draws one negative for each positive pair. This
      is the expectation of that draw, because a loss does not know the training step that a draw
      would depend on. The weights are constants for the gradient (`stop_gradient`), and so for
      second derivatives.
    - `"all"`: the number of triplets that contain the pair: `|N_i|` for a positive pair, and
      `|P_i|` for a negative pair.

    Anchors without positives or without negatives have no term.

    With `boundaries`, the boundaries are learned: each row of `y_pred` is the embedding followed by
    B boundaries, as the layer `keras_dml.layers.Boundary` returns them. `β_i` is the boundary of
    the anchor's class, or the only boundary.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = MarginLoss(margin=0.2, beta=1.2, sampling="all")
        >>> round(float(loss(labels, z)), 3)
        0.314

    Args:
        margin: m, above 0.
        beta: β, the boundary if it is not learned.
        nu: ν, at least 0, the weight of a term that pulls learned boundaries down: the tightness
            includes the sum of `ν |P_i| β_i / M`, or `ν |P_i| |N_i| β_i / M` with `"all"`.
        sampling: Weights of the pairs, `"distance_weighted"` or `"all"`, as above.
        boundaries: B, the number of learned boundaries after each embedding: 0, 1, or one for each
            class. Class ids must then be 0 … B − 1. The loss of another id is NaN.
        reduction, name, dtype, mining, relation: as in `PairLoss`.

    Raises:
        ValueError: A number is out of range, both `beta` and `boundaries` are set, `sampling` is
            unknown, rows are too short for an embedding and the boundaries, or shapes are wrong.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, section 4.2.
    """

    def __init__(
        self,
        margin: float = 0.2,
        *,
        beta: float = 1.2,
        nu: float = 0.0,
        sampling: Literal["distance_weighted", "all"] = "distance_weighted",
        boundaries: int = 0,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(**options)
        self.margin = check_positive("margin", margin)
        self.beta = check_number("beta", beta)
        self.nu = check_number("nu", nu, least=0)
        self.sampling = check_choice("sampling", sampling, ("distance_weighted", "all"))
        self.boundaries = check_whole("boundaries", boundaries, least=0)
        if boundaries > 1 and not isinstance(self.relation, SameClass):
            advice = "Only a class can have its own boundary."
            raise argument_error("boundaries", "0 or 1 with a relation", boundaries, advice=advice)
        if self.boundaries and self.beta != _BETA:
            advice = "Set the initial boundaries in the layer that has them."
            raise argument_error("beta", "left out with boundaries", beta, advice=advice)

    def pairs_of(
        self, class_ids: Tensor, embeddings: Tensor, candidates: Candidates | None = None
    ) -> Pairs:
        """Pair the embeddings before the boundaries, and attach each anchor's boundary."""
        z: Tensor = embeddings
        boundary: Tensor | float = self.beta
        if self.boundaries:
            dimensions = embeddings.shape[1] - self.boundaries
            if dimensions < 1:
                wanted = f"embeddings followed by {self.boundaries} boundaries"
                raise shape_error("y_pred", wanted, embeddings)
            z, learned = embeddings[:, :dimensions], embeddings[:, dimensions:]
            boundary = learned[:, 0]
            if self.boundaries > 1:
                own = one_hot(class_ids, self.boundaries)
                boundary = ops.sum(ops.where(own, learned, ops.zeros_like(learned)), axis=-1)
                known = ops.any(own, axis=-1)
                boundary = ops.where(known, boundary, ops.full_like(boundary, float("nan")))
        pairs = super().pairs_of(class_ids, z, candidates)
        return _BoundedPairs(**vars(pairs), boundary=boundary)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """Compute the two parts `[n]`."""
        distances = pairs.distances()
        dtype = distances.dtype
        number = count(pairs.positive, dtype)
        if self.sampling == "all":
            partners = count(pairs.negative, dtype)
            weights = ops.cast(pairs.negative, dtype)
        else:
            partners = ops.cast(pairs.have_negatives(), dtype)
            size = ops.shape(pairs.anchors)[-1]
            weights = distance_weighted(distances, pairs.negative, size)
        boundary = ops.convert_to_tensor(getattr(pairs, "boundary", self.beta), dtype=dtype)
        boundary = ops.broadcast_to(boundary, ops.shape(number))
        pulled = ops.relu(self.margin + distances - boundary[:, None])
        pushed = ops.relu(self.margin + boundary[:, None] - distances)
        open_weights = partners * count(ops.logical_and(pairs.positive, pulled > 0), dtype)
        open_weights = open_weights + number * masked_sum(weights, pushed > 0)
        # Also at ν = 0, because comparisons hide the NaN of an unknown class.
        on_boundary = self.nu * number * partners * boundary
        return (
            mean_over_pairs(
                partners * masked_sum(pulled, pairs.positive) + on_boundary, open_weights
            ),
            mean_over_pairs(number * ops.sum(weights * pushed, axis=-1), open_weights),
        )
