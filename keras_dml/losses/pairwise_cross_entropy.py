"""The pairwise cross-entropy and its simplified form, the loss to train with."""

import dataclasses
from collections.abc import Callable, MutableMapping
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_dml.bounds import at_least
from keras_dml.checks import check_positive, checked_class_ids
from keras_dml.class_sums import ClassSums, Slots
from keras_dml.distribute import gather_candidates
from keras_dml.errors import ArgumentError, ArgumentTypeError
from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.losses.base import EmbeddingLoss
from keras_dml.losses.registry import register
from keras_dml.matmul import matmul
from keras_dml.pairs import count, log_sum_exp, masked_sum
from keras_dml.shares import LEFT_OUT, log_sum_exp_and_shares
from keras_dml.types import Config, Parts, Tensor, TensorLike


@register("spce")
@keras.saving.register_keras_serializable("keras_dml")
class SimplifiedPairwiseCrossEntropyLoss(EmbeddingLoss):
    """Simplified pairwise cross-entropy: cross-entropy whose class weights are class sums over n.

    With `m_k = (1/n) Σ_{j: y_j=k} z_j`, n being the images of the global batch and not of class k:

    - tightness `T_i = −z_i · m_{y_i}`
    - contrastive `C_i = log Σ_k exp(z_i · m_k)`, k over the classes present in the batch (each
      absent one would add exp(0) = 1)

    so T_i + C_i is plain cross-entropy with the weights θ_k = m_k. Gradients flow through z_i and
    through m_k. Embeddings are not normalized.

    Use long embeddings or a feature batch norm. The class sums are divided by n, so the scores of
    unit vectors are at most 1/K in a batch of K equal classes. The loss of perfectly separated unit
    vectors is then log K − 0.09 for K = 10 and log K − 0.01 for K = 100, and it hardly trains.

    SPCE simplifies PCE. The paper claims that PCE is a lower bound of cross-entropy, and
    `PairwiseCrossEntropyLoss` has a counterexample. SPCE is cross-entropy at one choice of θ, so it
    is never below the smallest cross-entropy over all θ.

    Relative labels (the paper's appendix D): `y_true` may be multi-hot `[n, G]`, G ≥ 2, for images
    that belong to any number of G groups (an entry above 0 means that the image belongs). Then m_k
    is the sum over group k's images over n, and T_i is the mean over the image's own groups of
    `−z_i · m_k`. An image in no group contributes 0 and has no gradient, but counts in n. What
    `y_true` means is read from its shape alone: `[n]` and `[n, 1]` are always class ids, whatever
    the numbers, and a second dimension of 2 or more is always groups. One single group cannot be
    given as multi-hot, and nothing is lost: its T and C cancel to 0.

    Costs O(nd + n log n) for the class sums and one product `[n, d] x [d, n]` for the scores, of
    half the size where classes have two images or more on average: that is O(n²d), though O(nKd)
    would do, because shapes must not depend on how many classes K a batch happens to hold. With G
    groups it is O(nGd).

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = SimplifiedPairwiseCrossEntropyLoss()
        >>> round(float(loss(labels, z)), 3)
        0.615

    Args:
        reduction, name, dtype: as in `EmbeddingLoss`.

    Raises:
        ValueError: wrong shapes.

    Reference: Boudiaf et al. 2020, Eq. 15 and supplement D.
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "simplified_pairwise_cross_entropy",
        dtype: str | None = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)

    def checked_labels(self, labels: Tensor) -> Tensor:
        """`y_true` as class ids `[n]`, or as a multi-hot matrix `[n, G]` with G of 2 or more."""
        if len(labels.shape) > 2 or (len(labels.shape) == 2 and labels.shape[1] in (0, None)):
            raise ArgumentError(
                "y_true must be class ids of shape [n] or [n, 1], or multi-hot groups of shape "
                f"[n, G] with a known G. Received: y_true.shape={tuple(labels.shape)}"
            )
        multi_hot = len(labels.shape) == 2 and labels.shape[1] > 1
        return labels if multi_hot else checked_class_ids(labels)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """The two parts from class ids `[n]` or groups `[n, G]`, and embeddings `[n, d]`."""
        if len(class_ids.shape) == 2:
            return _group_parts(class_ids, embeddings)
        return _class_parts(ClassSums.of_batch(class_ids, embeddings))


def _class_parts(classes: ClassSums) -> Parts:
    """The two parts; as one function, for its gradient takes few passes over what it has."""
    number = classes.batch_size()

    @with_gradient
    def parts(anchors: Tensor, candidates: Tensor) -> WithGradient:
        means = classes.sums(candidates) / number
        own = classes.of_anchors(means)

        def over(slots: Slots) -> tuple[Tensor, ...]:
            scores = matmul(anchors, ops.transpose(means[: slots.number]))
            logarithm, shares = log_sum_exp_and_shares(ops.add(scores, _absent(classes, slots)))
            return logarithm, *slots.split(shares, axis=1)

        contrastive, *shares = classes.over_slots(over)
        tightness = -ops.sum(anchors * own, axis=-1)

        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
            of_tightness, of_contrastive = ops.unstack(upstream, 2)

            def back(slots: Slots) -> tuple[Tensor, ...]:
                of_scores = slots.join(shares, axis=1) * of_contrastive[:, None]
                of_means = matmul(ops.transpose(of_scores), anchors)
                return matmul(of_scores, means[: slots.number]), *slots.split(of_means, axis=0)

            of_anchors, *of_means = classes.over_slots(back)
            of_anchors = of_anchors - of_tightness[:, None] * own
            of_means = ops.concatenate(of_means, axis=0)
            of_means = of_means - classes.sums_of_anchors(of_tightness[:, None] * anchors)
            return of_anchors, classes.of_candidates(of_means / number)

        return ops.stack([tightness, contrastive]), gradient

    return tuple(ops.unstack(parts(classes.anchors, classes.candidates), 2))


def _absent(classes: ClassSums, slots: Slots) -> Tensor:
    """What leaves the scores of empty slots out, `[slots]`: 0 for the others."""
    present = ops.arange(slots.number, dtype="int32") < classes.num_classes
    return ops.cast(ops.where(present, 0.0, LEFT_OUT), classes.candidates.dtype)


def _group_parts(groups: Tensor, embeddings: Tensor) -> Parts:
    candidates, _ = gather_candidates(embeddings)
    members = ops.cast(gather_candidates(groups)[0] > 0, embeddings.dtype)
    num_images = ops.cast(ops.shape(candidates)[0], embeddings.dtype)
    means = matmul(ops.transpose(members), candidates) / num_images
    scores = matmul(embeddings, ops.transpose(means))
    own = groups > 0
    num_own = count(own, embeddings.dtype)
    tightness = -masked_sum(scores, own) / at_least(num_own, 1.0)
    contrastive = log_sum_exp(scores, ops.any(members > 0, axis=0)[None, :])
    return tightness, ops.where(num_own > 0, contrastive, ops.zeros_like(contrastive))


@register("pce")
@keras.saving.register_keras_serializable("keras_dml")
class PairwiseCrossEntropyLoss(EmbeddingLoss):
    """Pairwise cross-entropy: cross-entropy without class weights, for soft assignments p.

    With `h_k = (1/n) Σ_{j: y_j=k} z_j` and `c_k = (1/n) Σ_i p_ik z_i`, over the n images of the
    global batch (not over the class's):

    - tightness `T_i = −z_i · h_{y_i} / (2λ)`
    - contrastive `C_i = log Σ_k exp(c_k · z_i / λ) − (1/(2λ)) Σ_k ‖c_k‖²`

    The mean of T_i is `−1/(2λn²) Σ_i Σ_{j: y_j=y_i} z_i · z_j`. (The paper's table prints another
    factor before Σ ‖c_k‖²; this one is its proof's.) Embeddings are used as they are.

    p and λ are constants for the gradient: at the fixed point θ_k = c_k/λ, p = softmax(θ·z), the
    terms through them cancel. p is the softmax of `classifier`'s logits, or without one the softmax
    of the simplified loss's scores `z_i · m_k` over the classes present in the batch.

    λ is by the paper's Eq. 25 the smallest of all eigenvalues, over k, of the d x d matrices
    `A_k = (1/n) Σ_i (p_ik − p_ik²) z_i z_iᵀ`. It is 0 for fewer images than dimensions (n < d), and
    near 0 where p is near one-hot: `lam_floor` stands in whenever it comes out lower. λ then
    changes from batch to batch, and the size of the loss with it.

    An instrument rather than a loss to train with, for which the simplified one is made. It is not
    a lower bound of cross-entropy. For any weights θ, with p = softmax(θ·z), θ¹_k = h_k/λ,
    θ²_k = c_k/λ and `g(θ) = (1/n) Σ_i log Σ_k exp(θ_k · z_i)`, exactly

        CE(θ) − PCE = (λ/2) (‖θ − θ¹‖² − ‖θ − θ²‖²) − B,
        B = g(θ²) − g(θ) − ⟨∇g(θ), θ² − θ⟩ ≥ 0.

    So CE ≥ PCE at θ = 0 and at fixed points θ = c(θ)/λ, and CE ≤ PCE at the minimizer of CE. The
    paper's Proposition 1 claims CE ≥ PCE for every θ. A counterexample in one dimension: for
    z = (−1, −1, 1) of one class and (1, 1, −1) of the other, the smallest cross-entropy is 0.637,
    Eq. 25 gives λ = 2/9, and PCE is 0.701.

    Costs O(nd + n log n) for h, and three products `[n, d] x [d, n]` (scores for p, c, scores of c;
    n in place of K, since shapes must not depend on the classes that a batch holds, or n/2 where
    these have two images or more on average), or O(nKd) with a classifier of K classes. Eq. 25 is
    computed only as far as λ can be above `lam_floor`: O(nd + nK) for bounds, then one d x d
    eigen-decomposition, O(nd² + d³), of the classes' mean matrix, then one for each class, one
    after the other: O(K (nd² + d³)) time, O(nd + d²) memory. To go all the way takes seconds a step
    from n ≥ d = 512 on: give `lam` there.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = PairwiseCrossEntropyLoss(lam=0.1)
        >>> round(float(loss(labels, z)), 3)
        0.282

    Args:
        lam: λ, the weight of the regularizer, above 0, or None for Eq. 25.
        lam_floor: least λ that Eq. 25 may give, above 0. Has no effect with `lam`.
        classifier: None, or a Keras layer (or model) from embeddings `[n, d]` to logits `[n, K]`,
            called with `training=False`. The loss does not train it: share the layer with the model
            that does. The loss's configuration holds the layer's; a saved model holds its weights
            too. A loaded loss has a layer of its own, shared with nothing: to train on, set
            `loss.classifier` to the loaded model's layer before compiling.
        reduction, name, dtype: as in `EmbeddingLoss`.

    Raises:
        TypeError: `classifier` is neither None nor a Keras layer.
        ValueError: `lam` or `lam_floor` not above 0, a classifier whose logits are not `[n, K]`, or
            wrong shapes.

    Reference: Boudiaf et al. 2020, Prop. 1, Eq. 12; supplement A.2, Eq. 22-30 (λ: Eq. 25).
    """

    measured = ("lambda_of_batch",)

    def __init__(
        self,
        lam: float | None = None,
        lam_floor: float = 1e-3,
        classifier: keras.Layer | None = None,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "pairwise_cross_entropy",
        dtype: str | None = None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)
        self.lam = None if lam is None else check_positive("lam", lam)
        self.lam_floor = check_positive("lam_floor", lam_floor)
        if classifier is not None and not isinstance(classifier, keras.Layer):
            raise ArgumentTypeError(
                "classifier must be None or a Keras layer that gives logits. "
                f"Received: classifier={classifier!r}"
            )
        self.classifier = classifier

    def lambda_of_batch(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        """Return the λ of a batch, a scalar: `lam`, Eq. 25, or `lam_floor`.

        `keras_dml.metrics.LossPart(loss, "lambda_of_batch")` records it during `fit`.

        Args:
            y_true: class ids, `[n]` or `[n, 1]`, integer or float.
            y_pred: embeddings `[n, d]`.
        """
        classes = ClassSums.of_batch(*self._checked(y_true, y_pred))
        lam = self._lambda(classes.candidates, self._assigned(classes))
        return ops.cast(lam, classes.candidates.dtype)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """The two parts from class ids `[n]` and embeddings `[n, d]`."""
        classes = ClassSums.of_batch(class_ids, embeddings)
        number = classes.batch_size()
        assigned = self._assigned(classes)
        lam = self._lambda(ops.stop_gradient(classes.candidates), assigned)
        over_classes = assigned.over_classes

        @with_gradient
        def parts(anchors: Tensor, candidates: Tensor) -> WithGradient:
            own = classes.of_anchors(classes.sums(candidates) / number)

            def over(slots: Slots) -> tuple[Tensor, ...]:
                probabilities = slots.join(assigned.halves, axis=1)
                soft = matmul(ops.transpose(probabilities), candidates) / (number * lam)
                scores = assigned.without_absent(matmul(anchors, ops.transpose(soft)), slots)
                logarithm, shares = log_sum_exp_and_shares(scores)
                logarithm = logarithm - (0.5 * lam) * ops.sum(ops.square(soft))
                return logarithm, *slots.split(soft, axis=0), *slots.split(shares, axis=1)

            contrastive, *kept = over_classes(over)
            tightness = -ops.sum(anchors * own, axis=-1) / (2.0 * lam)

            def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
                of_tightness, of_contrastive = ops.unstack(upstream, 2)
                of_tightness = (of_tightness / (2.0 * lam))[:, None]

                def back(slots: Slots) -> tuple[Tensor, Tensor]:
                    soft, probabilities = (
                        slots.join(kept[:2], 0),
                        slots.join(assigned.halves, 1),
                    )
                    of_scores = slots.join(kept[2:], 1) * of_contrastive[:, None]
                    of_soft = matmul(ops.transpose(of_scores), anchors)
                    of_soft = of_soft - (lam * ops.sum(of_contrastive)) * soft
                    of_candidates = matmul(probabilities, of_soft / (number * lam))
                    return matmul(of_scores, soft), of_candidates

                of_anchors, of_candidates = over_classes(back)
                of_sums = classes.sums_of_anchors((of_tightness / number) * anchors)
                return (
                    of_anchors - of_tightness * own,
                    of_candidates - classes.of_candidates(of_sums),
                )

            return ops.stack([tightness, contrastive]), gradient

        return tuple(ops.unstack(parts(classes.anchors, classes.candidates), 2))

    def _assigned(self, classes: ClassSums) -> "_Assigned":
        """The soft assignments of all candidates, constants for the gradient."""
        classified = self._classified(classes)
        candidates = ops.stop_gradient(classes.candidates)
        if classified is None:
            over_classes, num_classes = classes.over_slots, classes.num_classes
        else:
            num_classes = ops.shape(classified)[1]
            every_class = Slots(num_classes, both=False)

            def over_classes(compute: Callable[[Slots], Any]) -> Any:
                return compute(every_class)

        def without_absent(scores: Tensor, slots: Slots) -> Tensor:
            return scores if classified is not None else ops.add(scores, _absent(classes, slots))

        def assign(slots: Slots) -> tuple[Tensor, ...]:
            scores = classified
            if scores is None:
                means = classes.sums(candidates) / classes.batch_size()
                scores = matmul(candidates, ops.transpose(means[: slots.number]))
            return slots.split(ops.softmax(without_absent(scores, slots), axis=-1), axis=1)

        return _Assigned(over_classes(assign), num_classes, over_classes, without_absent)

    def _classified(self, classes: ClassSums) -> Tensor | None:
        """The classifier's logits of all candidates `[c, K]`; None without one."""
        if self.classifier is None:
            return None
        z = ops.stop_gradient(classes.candidates)
        logits = ops.stop_gradient(self.classifier(z, training=False))
        if len(logits.shape) != 2:
            raise ArgumentError(
                "classifier must give logits of shape [n, K]. "
                f"Received: logits of shape {tuple(logits.shape)}"
            )
        return ops.cast(logits, z.dtype)

    def _lambda(self, z: Tensor, assigned: "_Assigned") -> Tensor | float:
        if self.lam is not None:
            return self.lam
        num_images, dimensions = z.shape
        if num_images is not None and dimensions is not None and num_images < dimensions:
            return self.lam_floor
        return _smallest_eigenvalue(z, assigned, self.lam_floor)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "lam": self.lam,
            "lam_floor": self.lam_floor,
            "classifier": keras.saving.serialize_keras_object(self.classifier),
        }

    def __dir__(self) -> list[str]:
        # Keras saves the layers that it finds by `dir`, and each one once: of a classifier shared
        # with the model the loss would be left without weights, and the file could not be loaded.
        return [name for name in super().__dir__() if name != "classifier"]

    def save_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Put the classifier's weights, if any, into Keras' file of a saved model."""
        for number, weight in enumerate(self.classifier.get_weights() if self.classifier else ()):
            store[str(number)] = weight

    def load_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Take the classifier's weights from Keras' file, where it has them."""
        if self.classifier and store.keys():
            self.classifier.set_weights([store[str(number)] for number in range(len(store.keys()))])

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """The loss of this configuration; the classifier, if any, is a new layer."""
        classifier = keras.saving.deserialize_keras_object(config.get("classifier"))
        return cls(**{**config, "classifier": classifier})


@dataclasses.dataclass(frozen=True)
class _Assigned:
    """Probabilities p of the images, `[n, slots]`, split into halves; the classes' slots first."""

    halves: tuple[Tensor, Tensor]
    num_classes: Tensor | int
    over_classes: Callable[[Callable[[Slots], Any]], Any]
    without_absent: Callable[[Tensor, Slots], Tensor]

    def weights(self, slots: Slots) -> Tensor:
        """`w_ik = p_ik − p_ik²`, `[n, slots]`."""
        return _weights(slots.join(self.halves, axis=1))

    def weights_of_class(self, k: Tensor) -> Tensor:
        """`w_ik` of the class k, `[n]`."""
        first, second = self.halves
        half = ops.shape(first)[1]
        column = [ops.take(part, k % half, axis=1) for part in (first, second)]
        return _weights(ops.where(k < half, *column))


def _weights(probabilities: Tensor) -> Tensor:
    return probabilities - ops.square(probabilities)


def _smallest_eigenvalue(z: Tensor, assigned: _Assigned, floor: float) -> Tensor:
    """Eq. 25: the least eigenvalue of any class's `(1/n) Σ_i w_ik z_i z_iᵀ`, `w_ik = p_ik − p_ik²`.

    Or `floor`, if that is larger. Bounds from above come first, and where one of them is not above
    the floor, the rest is left out: fewer images than dimensions leave some eigenvalue at 0; a
    matrix's least eigenvalue is at most the mean of them all, its trace over d; and the least over
    all K classes is at most that of the classes' mean matrix, which is at most its least diagonal
    entry and at most any of its Rayleigh quotients. (The least eigenvalue is a concave function of
    the matrix.) The first one needs no weights: `Σ_k w_ik = 1 − Σ_k p_ik²` is at most `1 − 1/K`.
    """
    num_images, dimensions = ops.shape(z)[0], ops.shape(z)[1]
    number, size, count = (
        ops.cast(x, z.dtype) for x in (num_images, dimensions, assigned.num_classes)
    )
    squares = ops.square(z)
    lengths = ops.sum(squares, axis=1)

    def at_floor() -> Tensor:
        return ops.full((), floor, dtype=z.dtype)

    def of_matrix(weight: Tensor) -> Tensor:
        return ops.min(ops.eigh(matmul(ops.transpose(z * weight[:, None]), z))[0])

    def of_next_class(k: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
        # One class after the other: all matrices at once would be K·d² numbers.
        return k + 1, ops.minimum(least, of_matrix(assigned.weights_of_class(k) / number))

    def of_all_classes() -> Tensor:
        start = ops.zeros((), "int32"), ops.full((), float("inf"), dtype=z.dtype)
        _, least = ops.while_loop(
            lambda k, least: ops.logical_and(k < assigned.num_classes, least > floor),
            of_next_class,
            start,
        )
        return at_least(least, floor)

    def by_weights() -> Tensor:
        def over(slots: Slots) -> tuple[Tensor, Tensor]:
            weights = assigned.weights(slots)
            traces = matmul(lengths[None, :], weights)[0] / number
            present = ops.arange(slots.number, dtype="int32") < assigned.num_classes
            return ops.sum(weights, axis=1), ops.min(ops.where(present, traces, float("inf")))

        of_images, trace = assigned.over_classes(over)
        mean_weights = of_images / (number * count)
        diagonal = matmul(mean_weights[None, :], squares)[0]

        def by_eigenvalues() -> Tensor:
            return ops.cond(of_matrix(mean_weights) > floor, of_all_classes, at_floor)

        def by_quotient() -> Tensor:
            return ops.cond(_least_quotient(z, mean_weights) > floor, by_eigenvalues, at_floor)

        bound = ops.minimum(trace / size, ops.min(diagonal))
        return ops.cond(bound > floor, by_quotient, at_floor)

    # No number is infinite or NaN where their sum is not. TensorFlow's eigh raises on NaN, where
    # the loss should be NaN instead.
    total = ops.sum(lengths)
    bound = total * (1.0 - 1.0 / count) / (number * count * size)
    finite = ops.logical_and(total < float("inf"), bound > floor)
    return ops.cond(ops.logical_and(num_images >= dimensions, finite), by_weights, at_floor)


def _least_quotient(z: Tensor, weights: Tensor, steps: int = 8) -> Tensor:
    """A Rayleigh quotient of `Σ_i w_i z_i z_iᵀ`, so at least its least eigenvalue, and near it.

    The quotient is that of the best direction that `steps` of Lanczos' method know: as many pairs
    of products of the `[n, d]` rows with a vector, where all eigenvalues cost d³ and, by XLA, a
    hundred times the rest of the loss. Its own directions need not be exact for it to be a bound.
    """

    def times_matrix(v: Tensor) -> Tensor:
        return matmul(ops.transpose(z), weights[:, None] * matmul(z, v))

    def unit(v: Tensor) -> Tensor:
        return ops.divide_no_nan(v, ops.sqrt(ops.sum(ops.square(v))))

    # Any start will do that is not made of few eigenvectors.
    start = ops.cos(ops.square(ops.cast(ops.arange(ops.shape(z)[1], dtype="int32"), z.dtype)))
    directions, images = [unit(start[:, None])], []
    for _ in range(min(steps, z.shape[1] or steps)):
        images.append(times_matrix(directions[-1]))
        known = ops.concatenate(directions, axis=1)
        rest = images[-1] - matmul(known, matmul(ops.transpose(known), images[-1]))
        directions.append(unit(rest))
    known = ops.concatenate(directions[:-1], axis=1)
    small = matmul(ops.transpose(known), ops.concatenate(images, axis=1))
    _, vectors = ops.eigh(0.5 * (small + ops.transpose(small)))
    best = matmul(known, vectors[:, :1])
    length = ops.sum(ops.square(best))
    quotient = ops.sum(weights[:, None] * ops.square(matmul(z, best)))
    return ops.where(length > 0.5, ops.divide_no_nan(quotient, length), float("inf"))
