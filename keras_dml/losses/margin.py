"""The margin loss."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import keras
from keras import ops

from keras_dml.checks import check_choice, check_number, check_positive, check_whole
from keras_dml.class_ids import one_hot
from keras_dml.errors import ArgumentError
from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.losses.base import PairLoss
from keras_dml.losses.registry import register
from keras_dml.mining import Strategy
from keras_dml.negatives import distance_weighted
from keras_dml.pairs import Memory, Pairs, count, mean_over_pairs
from keras_dml.types import Config, Parts, Tensor

_BETA = 1.2


@dataclasses.dataclass(frozen=True)
class _BoundedPairs(Pairs):
    """Pairs, and each anchor's boundary `[a]` between positive and negative distances."""

    boundary: Tensor | float = _BETA


@dataclasses.dataclass(frozen=True)
class _OpenHinges:
    """The hinges above 0: `m + D_ij − β_i` of positive pairs, `m + β_i − D_ij` of negative ones.

    Attributes:
        near, far: bool `[a, c]`, the positive and the negative pairs that have one.
        weights: `[a, c]`, of positive pairs times −1; 0 for all other pairs. Constants.
        squared: `D²`. distances: D, constants. boundary: β `[a]`. beyond: `D − β`, constants.
        pull_on_boundary: ν's part `[a]`.
    """

    near: Tensor
    far: Tensor
    weights: Tensor
    squared: Tensor
    distances: Tensor
    boundary: Tensor
    beyond: Tensor
    pull_on_boundary: Tensor

    def sums_of_distances(self, weights: Tensor) -> Tensor:
        """`Σ_j w_ij (D_ij − β_i)`, `[a]`."""

        @with_gradient
        def sums(squared: Tensor, boundary: Tensor) -> WithGradient:
            def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
                slopes = weights * (0.5 * upstream)[:, None]
                of_boundary = -upstream * ops.sum(weights, axis=-1)
                return ops.divide_no_nan(slopes, self.distances), of_boundary

            return ops.sum(weights * self.beyond, axis=-1), gradient

        return sums(self.squared, self.boundary)


@register("margin")
@keras.saving.register_keras_serializable("keras_dml")
class MarginLoss(PairLoss):
    """Margin loss: positives nearer than a boundary, negatives farther, each by a margin.

    With `D_ij = ‖f_i − f_j‖`, a positive pair has the hinge `h⁺_ij = max(0, m + D_ij − β_i)`, a
    negative one `h⁻_ij = max(0, m + β_i − D_ij)`. With weights `w_ij` of the pairs and M, the sum
    of the weights of all hinges of the global batch that are above 0:

    - tightness `T_i = (n / M) Σ_{j∈P_i} w_ij h⁺_ij`, plus ν's part
    - contrastive `C_i = (n / M) Σ_{j∈N_i} w_ij h⁻_ij`

    so that the mean over anchors is the mean of the open hinges; without one it is 0. M and the
    weights are constants for the gradient. They are, by `sampling`:

    - `"distance_weighted"`: 1 for a positive pair, and for a negative one the number of positives
      of the anchor times its probability under `keras_dml.negatives.distance_weighted`. The paper
      draws one negative for each positive pair so; this is the draw in expectation, since a loss
      knows no step that a draw could be a function of.
    - `"all"`: the number of triplets that the pair is in, `|N_i|` for a positive, `|P_i|` for a
      negative. No triplet is formed: O(n²).

    Anchors without positives or without negatives have no term.

    With `boundaries` the boundary is learned: each row of `y_pred` is the embedding with B
    boundaries behind it, as the layer `keras_dml.models.Boundary` gives them, and `β_i` is the one
    of the anchor's class, or the only one.

    Example:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = MarginLoss(margin=0.2, beta=1.2, sampling="all")
        >>> round(float(loss(labels, z)), 3)
        0.314

    Args:
        margin: m, above 0.
        beta: β, the boundary where it is not learned.
        nu: ν, at least 0, a weight on the boundaries: the sum of `ν |P_i| β_i / M`, with `"all"`
            of `ν |P_i| |N_i| β_i / M`, is added to the tightness, and pulls learned ones down.
        sampling: weights of the pairs, `"distance_weighted"` or `"all"`, as above.
        boundaries: B, how many learned boundaries there are behind each embedding: 0, 1, or one
            for each class, whose ids then must be 0 … B − 1. (Another gives its image NaN.)
        reduction, name, dtype, mining: as in `PairLoss`.

    Raises:
        ValueError: a number out of its range, `beta` beside `boundaries`, unknown `sampling`, rows
            without room for an embedding beside the boundaries, or wrong shapes.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, section 4.2.
    """

    def __init__(
        self,
        margin: float = 0.2,
        beta: float = 1.2,
        nu: float = 0.0,
        sampling: Literal["distance_weighted", "all"] = "distance_weighted",
        boundaries: int = 0,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "margin",
        dtype: str | None = None,
        mining: Strategy | Sequence[Strategy] | None = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype, mining=mining)
        self.margin = check_positive("margin", margin)
        self.beta = check_number("beta", beta)
        self.nu = check_number("nu", nu, least=0)
        self.sampling = check_choice("sampling", sampling, ("distance_weighted", "all"))
        self.boundaries = check_whole("boundaries", boundaries, least=0)
        if self.boundaries and self.beta != _BETA:
            raise ArgumentError(
                "beta must not be given with boundaries, which are learned: set their start in the "
                f"layer that holds them. Received: beta={beta}, boundaries={boundaries}"
            )

    def pairs_of(
        self, class_ids: Tensor, embeddings: Tensor, memory: Memory | None = None
    ) -> Pairs:
        """The pairs of what stands before the boundaries, with each anchor's boundary."""
        z: Tensor = embeddings
        boundary: Tensor | float = self.beta
        if self.boundaries:
            dimensions = embeddings.shape[1] - self.boundaries
            if dimensions < 1:
                raise ArgumentError(
                    f"y_pred must hold embeddings with {self.boundaries} boundaries behind them. "
                    f"Received: y_pred.shape={tuple(embeddings.shape)}"
                )
            z, learned = embeddings[:, :dimensions], embeddings[:, dimensions:]
            memory = None if memory is None else memory.prefix(dimensions)
            boundary = learned[:, 0]
            if self.boundaries > 1:
                own = one_hot(class_ids, self.boundaries)
                boundary = ops.sum(ops.where(own, learned, ops.zeros_like(learned)), axis=-1)
                known = ops.any(own, axis=-1)
                boundary = ops.where(known, boundary, ops.full_like(boundary, float("nan")))
        pairs = super().pairs_of(class_ids, z, memory)
        return _BoundedPairs(**vars(pairs), boundary=boundary)

    def compute_pair_loss(self, pairs: Pairs) -> Tensor:
        """The loss `[n]`, with one pass for both kinds of hinges where its parts take two."""
        hinges = self._open_hinges(pairs)
        weights = ops.sum(ops.absolute(hinges.weights), axis=-1)
        total = self.margin * weights - hinges.sums_of_distances(hinges.weights)
        return mean_over_pairs(total + hinges.pull_on_boundary, weights)

    def compute_pair_parts(self, pairs: Pairs) -> Parts:
        """The two parts `[n]`."""
        hinges = self._open_hinges(pairs)
        near, far = (ops.where(mask, hinges.weights, 0.0) for mask in (hinges.near, hinges.far))
        of_near, of_far = -ops.sum(near, axis=-1), ops.sum(far, axis=-1)
        tightness = self.margin * of_near - hinges.sums_of_distances(near)
        contrastive = self.margin * of_far - hinges.sums_of_distances(far)
        return (
            mean_over_pairs(tightness + hinges.pull_on_boundary, of_near + of_far),
            mean_over_pairs(contrastive, of_near + of_far),
        )

    def _open_hinges(self, pairs: Pairs) -> "_OpenHinges":
        squared = pairs.squared_distances()
        distances = ops.sqrt(ops.stop_gradient(squared))
        dtype = distances.dtype
        positives = count(pairs.positive, dtype)
        if self.sampling == "all":
            together = count(pairs.negative, dtype)
            apart = ops.cast(pairs.negative, dtype) * positives[:, None]
        else:
            together = ops.cast(pairs.have_negatives(), dtype)
            dimensions = ops.shape(pairs.anchors)[-1]
            apart = distance_weighted(distances, pairs.negative, dimensions, sums=positives)
        # Not a cast, which makes of a Python number a float32 first.
        boundary = ops.convert_to_tensor(getattr(pairs, "boundary", self.beta), dtype=dtype)
        boundary = ops.broadcast_to(boundary, ops.shape(positives))
        beyond = distances - ops.stop_gradient(boundary)[:, None]
        near = ops.logical_and(pairs.positive, beyond > -self.margin)
        far = ops.logical_and(pairs.negative, beyond < self.margin)
        return _OpenHinges(
            near=near,
            far=far,
            weights=ops.where(near, -together[:, None], ops.where(far, apart, 0.0)),
            squared=squared,
            distances=distances,
            boundary=boundary,
            beyond=beyond,
            # Also at ν = 0, since comparisons would hide the NaN of an unknown class.
            pull_on_boundary=self.nu * (positives * together) * boundary,
        )

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "margin": self.margin,
            "beta": self.beta,
            "nu": self.nu,
            "sampling": self.sampling,
            "boundaries": self.boundaries,
        }
