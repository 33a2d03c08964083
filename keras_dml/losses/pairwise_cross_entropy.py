"""The pairwise cross-entropy and its simplified form, the loss to train with."""

from collections.abc import MutableMapping
from typing import Unpack

import keras
import numpy as np
from keras import ops

from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.checks import check_positive
from keras_dml._common.errors import ArgumentTypeError, argument_error, shape_error
from keras_dml._common.types import Parts, Tensor, TensorLike
from keras_dml._pairwise.arithmetic import count, log_sum_exp, masked_sum, matmul, maximum, minimum
from keras_dml._pairwise.arrays import as_labels, checked_class_ids
from keras_dml._pairwise.classes import ClassSums
from keras_dml.losses.base import EmbeddingLoss, LossOptions
from keras_dml.losses.registry import register


@register("spce")
class SimplifiedPairwiseCrossEntropyLoss(EmbeddingLoss):
    """Simplified pairwise cross-entropy: cross-entropy whose class weights are class sums over n.

    With `m_k = (1/n) Σ_{j: y_j=k} z_j`, where n is the number of images in the global batch and not
    in class k:

    - tightness `T_i = −z_i · m_{y_i}`
    - contrastive `C_i = log Σ_k exp(z_i · m_k)`, k over the classes in the batch (an absent class
      would add exp(0) = 1)

    `T_i + C_i` is thus plain cross-entropy with the weights `θ_k = m_k`. Gradients flow through z_i
    and through m_k. Embeddings are not normalized.

    Use long embeddings or a feature batch norm. The class sums are divided by n, so the scores of
    unit vectors are at most 1/K in a batch of K equal classes. The loss of perfectly separated unit
    vectors is then log K − 0.09 for K = 10 and log K − 0.01 for K = 100, and it hardly trains.

    SPCE simplifies PCE. The paper claims that PCE is a lower bound of cross-entropy, and
    `PairwiseCrossEntropyLoss` has a counterexample. SPCE is cross-entropy at one choice of θ, so it
    is never below the smallest cross-entropy over all θ.

    Relative labels (the paper's appendix D): `y_true` can be multi-hot `[n, G]`, G ≥ 2, for images
    that belong to any number of G groups (an entry above 0 means that the image belongs). Then m_k
    is the sum over group k's images divided by n, and T_i is the mean of `−z_i · m_k` over the
    image's groups. An image without groups contributes 0 and has no gradient, but counts in n. Only
    the shape of `y_true` decides its meaning: `[n]` and `[n, 1]` are always class ids, and a second
    dimension of 2 or more always means groups. Multi-hot labels cannot express a single group,
    but its T and C would cancel to 0.

    The class sums cost O(nd + n log n), and the scores cost one product `[n, d] x [d, n]`, or half
    of it if classes have on average two images or more. The product is O(n²d) instead of O(nKd),
    because shapes must not depend on the number of classes K in a batch. With G groups the cost is
    O(nGd).

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = SimplifiedPairwiseCrossEntropyLoss()
        >>> round(float(loss(labels, z)), 3)
        0.615

    Args:
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        ValueError: Shapes are wrong.

    Reference: Boudiaf et al. 2020, Eq. 15 and supplement D.
    """

    default_name = "simplified_pairwise_cross_entropy"

    def checked_labels(self, y_true: TensorLike) -> Tensor:
        """Convert `y_true` to class ids `[n]`, or to a multi-hot matrix `[n, G]` with G ≥ 2."""
        labels = as_labels(y_true)
        if len(labels.shape) > 2 or (len(labels.shape) == 2 and labels.shape[1] in (0, None)):
            wanted = (
                "class ids of shape [n] or [n, 1], or multi-hot groups of shape [n, G] with a "
                "known G"
            )
            raise shape_error("y_true", wanted, labels)
        multi_hot = len(labels.shape) == 2 and labels.shape[1] > 1
        return labels if multi_hot else checked_class_ids(labels)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """Compute the two parts from class ids `[n]` or groups `[n, G]`, and from embeddings."""
        if len(class_ids.shape) == 2:
            return _group_parts(class_ids, embeddings)
        classes = ClassSums.of_batch(class_ids, embeddings)
        own, means = classes.of_anchors() / classes.number, classes.of_candidates() / classes.number
        tightness = -ops.sum(embeddings * own, axis=-1)
        return tightness, classes.log_sum_exp(matmul(embeddings, ops.transpose(means)))


def _group_parts(groups: Tensor, embeddings: Tensor) -> Parts:
    candidates, _ = gather_candidates(embeddings)
    members = ops.cast(gather_candidates(groups)[0] > 0, embeddings.dtype)
    num_images = ops.cast(ops.shape(candidates)[0], embeddings.dtype)
    means = matmul(ops.transpose(members), candidates) / num_images
    scores = matmul(embeddings, ops.transpose(means))
    own = groups > 0
    num_own = count(own, embeddings.dtype)
    tightness = -masked_sum(scores, own) / maximum(num_own, 1.0)
    contrastive = log_sum_exp(scores, ops.any(members > 0, axis=0)[None, :])
    return tightness, ops.where(num_own > 0, contrastive, 0.0)


@register("pce")
class PairwiseCrossEntropyLoss(EmbeddingLoss):
    """Pairwise cross-entropy: cross-entropy without class weights, for soft assignments p.

    With `h_k = (1/n) Σ_{j: y_j=k} z_j` and `c_k = (1/n) Σ_i p_ik z_i`, over the n images of the
    global batch (not of the class):

    - tightness `T_i = −z_i · h_{y_i} / (2λ)`
    - contrastive `C_i = log Σ_k exp(c_k · z_i / λ) − (1/(2λ)) Σ_k ‖c_k‖²`

    The mean of T_i is `−1/(2λn²) Σ_i Σ_{j: y_j=y_i} z_i · z_j`. (The paper's table prints another
    factor before `Σ ‖c_k‖²`. This factor is from its proof.) Embeddings are not normalized.

    p and λ are constants for the gradient (`stop_gradient`), and so for second derivatives. At the
    fixed point `θ_k = c_k/λ`, `p = softmax(θ·z)`, the gradient terms through them cancel. p is the
    softmax of the logits of `classifier`. Without a classifier, p is the softmax of the simplified
    loss's scores `z_i · m_k` over the classes in the batch.

    By the paper's Eq. 25, λ is the smallest of all eigenvalues, over k, of the d x d matrices
    `A_k = (1/n) Σ_i (p_ik − p_ik²) z_i z_iᵀ`. It is 0 for fewer images than dimensions (n < d), and
    near 0 where p is near one-hot. `lam_floor` replaces every lower λ. λ then varies between
    batches, and so does the scale of the loss.

    Use this loss for analysis, and the simplified loss for training. It is not a lower bound of
    cross-entropy. For any weights θ, with `p = softmax(θ·z)`, `θ¹_k = h_k/λ`, `θ²_k = c_k/λ` and
    `g(θ) = (1/n) Σ_i log Σ_k exp(θ_k · z_i)`, exactly

        CE(θ) − PCE = (λ/2) (‖θ − θ¹‖² − ‖θ − θ²‖²) − B,
        B = g(θ²) − g(θ) − ⟨∇g(θ), θ² − θ⟩ ≥ 0.

    So CE ≥ PCE at θ = 0 and at fixed points θ = c(θ)/λ, and CE ≤ PCE at the minimizer of CE. The
    paper's Proposition 1 claims CE ≥ PCE for every θ. A counterexample in one dimension: for z =
    (−1, −1, 1) of one class and (1, 1, −1) of the other, the smallest cross-entropy is 0.637, Eq.
    25 gives λ = 2/9, and PCE is 0.701.

    The cost is O(n²d), or O(nKd) with a classifier. Eq. 25 adds one eigen-decomposition for each
    class, O(K (nd² + d³)) time, and stops at the first class that is not above `lam_floor`. From
    n ≥ d = 512 on, Eq. 25 takes seconds per step, so set `lam`.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = PairwiseCrossEntropyLoss(lam=0.1)
        >>> round(float(loss(labels, z)), 3)
        0.282

    Args:
        lam: λ, the weight of the regularizer, above 0, or None for Eq. 25.
        lam_floor: Smallest λ from Eq. 25, above 0. Has no effect with `lam`.
        classifier: None, or a Keras layer (or model) from embeddings `[n, d]` to logits `[n, K]`,
            called with `training=False`. The loss does not train it, so share the layer with the
            model that does. The loss's configuration contains the layer's configuration, and a
            saved model also contains its weights. A loaded loss has a separate layer. To resume
            training, set `loss.classifier` to the loaded model's layer before compiling.
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        TypeError: `classifier` is neither None nor a Keras layer.
        ValueError: `lam` or `lam_floor` is not above 0, or shapes are wrong.

    Reference: Boudiaf et al. 2020, Prop. 1, Eq. 12; supplement A.2, Eq. 22-30 (λ: Eq. 25).
    """

    default_name = "pairwise_cross_entropy"
    measured = ("lambda_of_batch",)

    def __init__(
        self,
        lam: float | None = None,
        *,
        lam_floor: float = 1e-3,
        classifier: keras.Layer | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.lam = None if lam is None else check_positive("lam", lam)
        self.lam_floor = check_positive("lam_floor", lam_floor)
        if classifier is not None and not isinstance(classifier, keras.Layer):
            wanted = "None or a Keras layer that gives logits"
            raise argument_error("classifier", wanted, classifier, ArgumentTypeError)
        self.classifier = classifier

    def lambda_of_batch(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        """Return the λ of a batch, a scalar: `lam`, Eq. 25, or `lam_floor`.

        `keras_dml.metrics.LossPart(loss, "lambda_of_batch")` records it during `fit`.

        Args:
            y_true: Class ids, `[n]` or `[n, 1]`, integer or float.
            y_pred: Embeddings `[n, d]`.
        """
        classes = ClassSums.of_batch(*self._checked(y_true, y_pred))
        lam = self._lambda(classes, self._assigned(classes)[0])
        return ops.cast(lam, classes.candidates.dtype)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """Compute the two parts from class ids `[n]` and embeddings `[n, d]`."""
        classes = ClassSums.of_batch(class_ids, embeddings)
        z, number = classes.candidates, classes.number
        assigned, copies = self._assigned(classes)
        lam = self._lambda(classes, assigned)
        theta = matmul(ops.transpose(assigned), z) / (number * lam)  # c_k / λ
        scores = matmul(embeddings, ops.transpose(theta)) - ops.log(copies)
        lengths = ops.sum(ops.sum(ops.square(theta), axis=-1) / copies)
        contrastive = ops.logsumexp(scores, axis=-1) - 0.5 * lam * lengths
        own = classes.of_anchors() / (2.0 * lam * number)
        return -ops.sum(embeddings * own, axis=-1), contrastive

    def _assigned(self, classes: ClassSums) -> tuple[Tensor, Tensor]:
        """Compute p `[c, m]`, and the number of columns per class, `[m]`."""
        z = ops.stop_gradient(classes.candidates)
        if self.classifier is None:
            means = ops.stop_gradient(classes.of_candidates()) / classes.number
            return classes.softmax(matmul(z, ops.transpose(means))), classes.sizes
        logits = ops.cast(self.classifier(z, training=False), z.dtype)
        return ops.stop_gradient(ops.softmax(logits, axis=-1)), ops.ones_like(logits[0])

    def _lambda(self, classes: ClassSums, assigned: Tensor) -> Tensor | float:
        """Compute λ from p `[c, m]`."""
        z = ops.stop_gradient(classes.candidates)
        num_images, dimensions = z.shape
        if self.lam is not None:
            return self.lam
        if num_images is not None and dimensions is not None and num_images < dimensions:
            return self.lam_floor
        distinct = classes.first if self.classifier is None else ops.ones_like(assigned[0]) > 0
        weights = assigned - ops.square(assigned)
        return _smallest_eigenvalue(z, weights, distinct, self.lam_floor)

    def __dir__(self) -> list[str]:
        # Keras saves the layers that it finds by `dir`, each of them once. A classifier that the
        # model shares would leave the loss without weights, and the file could not be loaded.
        return [name for name in super().__dir__() if name != "classifier"]

    def save_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Store the classifier's weights, if any, in the file of a saved model."""
        for number, weight in enumerate(self.classifier.get_weights() if self.classifier else ()):
            store[str(number)] = weight

    def load_own_variables(self, store: MutableMapping[str, np.ndarray]) -> None:
        """Load the classifier's weights from the file of a saved model, if it contains them."""
        if self.classifier and store.keys():
            self.classifier.set_weights([store[str(number)] for number in range(len(store.keys()))])


def _smallest_eigenvalue(z: Tensor, weights: Tensor, distinct: Tensor, floor: float) -> Tensor:
    """Compute Eq. 25, the smallest eigenvalue of `(1/n) Σ_i w_ik z_i z_iᵀ` over all k, or `floor`.

    The matrices are computed one after another, because all of them take K·d² numbers. The search
    ends at the first matrix that is not above the floor.

    Args:
        z: `[n, d]`.
        weights: `w_ik = p_ik − p_ik²`, `[n, m]`.
        distinct: Bool `[m]`, the columns that do not repeat another.
        floor: The smallest result.
    """
    number, columns = ops.cast(ops.shape(z)[0], z.dtype), ops.shape(weights)[1]

    def eigenvalue(k: Tensor) -> Tensor:
        weighted = ops.take(weights, k, axis=1)[:, None] * z / number
        matrix = matmul(ops.transpose(weighted), z)
        # TensorFlow's eigh raises on NaN and infinity.
        return ops.min(ops.eigh(ops.where(ops.isfinite(matrix), matrix, 0.0))[0])

    def next_column(k: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
        found = ops.cond(ops.take(distinct, k), lambda: eigenvalue(k), lambda: least)
        return k + 1, minimum(least, found)

    _, least = ops.while_loop(
        lambda k, least: ops.logical_and(k < columns, least > floor),
        next_column,
        (ops.zeros((), "int32"), ops.full((), float("inf"), z.dtype)),
    )
    return maximum(least, floor)
