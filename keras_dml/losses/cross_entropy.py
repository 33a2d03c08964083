"""Smoothed cross-entropy over a classifier's logits."""

from typing import Unpack

from keras import ops

from keras_dml._common.checks import check_number
from keras_dml._common.errors import shape_error
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arrays import check_class_range, one_hot
from keras_dml.losses.base import EmbeddingLoss, LossOptions
from keras_dml.losses.registry import register


@register("ce")
class CrossEntropyLoss(EmbeddingLoss):
    """Cross-entropy with targets smoothed by 0.1 (default), for logits `a_ik` of K classes.

    With targets `t_ik = 1 − ε` on the true class and `ε / (K − 1)` on each other one:

    - tightness `T_i = −Σ_k t_ik a_ik`
    - contrastive `C_i = log Σ_k exp(a_ik)`

    and `T_i + C_i = −Σ_k t_ik log softmax(a_i)_k`. (`keras.losses.CategoricalCrossentropy` spreads
    its `label_smoothing` over all K classes. There, `ε K / (K − 1)` gives the same loss.)

    Call it with class ids `[n]` from 0 to K − 1 and logits `[n, K]`, K ≥ 2.

    Examples:
        >>> labels, logits = np.array([0, 1]), np.array([[2.0, -1.0], [0.5, 1.0]])
        >>> loss = CrossEntropyLoss(label_smoothing=0.1)
        >>> round(float(loss(labels, logits)), 3)
        0.436

    Args:
        label_smoothing: ε, at least 0 and below 1: the share of the other classes in the target.
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        ValueError: `label_smoothing` is not in [0, 1), there are fewer than two logits, a class
            id is out of range, or shapes are wrong. A compiled graph cannot raise, and there the
            loss of an image of another class is NaN.

    Reference: Boudiaf et al. 2020, section 5.3, Eq. 13 and 22.
    """

    kind = "classifier"
    default_name = "cross_entropy"

    def __init__(self, label_smoothing: float = 0.1, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.label_smoothing = check_number("label_smoothing", label_smoothing, least=0, below=1)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """Compute the two parts from class ids `[n]` and logits `[n, K]`."""
        logits, num_classes = embeddings, embeddings.shape[1]
        if num_classes is None or num_classes < 2:
            raise shape_error("y_pred", "the logits of at least 2 classes", logits)
        check_class_range(
            class_ids, num_classes, "num_classes of keras_dml.models.classifier_model"
        )
        is_true = one_hot(class_ids, num_classes)
        on_others = self.label_smoothing / (num_classes - 1)
        on_true = ops.cast(is_true, logits.dtype) * (1.0 - self.label_smoothing - on_others)
        targets = on_others + on_true
        known = ops.any(is_true, axis=-1)
        tightness = ops.where(known, -ops.sum(targets * logits, axis=-1), float("nan"))
        return tightness, ops.logsumexp(logits, axis=-1)
