"""The center loss."""

from typing import Unpack

from keras import ops

from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.classes import ClassSums
from keras_dml._pairwise.pairs import normalize
from keras_dml.losses.base import EmbeddingLoss, LossOptions
from keras_dml.losses.registry import register


@register("center")
class CenterLoss(EmbeddingLoss):
    """Center loss: each embedding close to the mean of its class.

    - tightness `T_i = ½ ‖z_i − c_{y_i}‖²`, with `c_k` the mean of the batch's images of class k
    - contrastive `C_i = 0`

    The contrastive part in the paper's table is a separate cross-entropy. The center loss is
    smallest when all embeddings coincide, so train it together with another loss.

    The centers are means of the global batch, not moving averages, and gradients flow through them.
    (The gradient of the mean over anchors is `(z_i − c_{y_i}) / n` in both cases.) The table sums
    over images. This loss averages, as all losses here do. The only image of a class is its own
    center and has the value 0.

    Examples:
        >>> labels = np.array([0, 0, 1, 1])
        >>> z = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
        >>> loss = CenterLoss(normalize=True)
        >>> round(float(loss(labels, z)), 3)
        0.115

    Args:
        normalize: Whether to l2-normalize the embeddings. Their means are not normalized.
        reduction, name, dtype: as in `EmbeddingLoss`.

    Raises:
        ValueError: wrong shapes.

    Reference: Boudiaf et al. 2020, Table 2, after Wen et al., "A Discriminative Feature Learning
    Approach for Deep Face Recognition", ECCV 2016.
    """

    kind = "beside_classifier"

    def __init__(self, normalize: bool = False, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.normalize = bool(normalize)

    def compute_parts(self, class_ids: Tensor, embeddings: Tensor) -> Parts:
        """Compute the two parts from class ids `[n]` and embeddings `[n, d]`."""
        if self.normalize:
            embeddings = normalize(embeddings)
        classes = ClassSums.of_batch(class_ids, embeddings)
        size = ops.sum(classes.anchor_members, axis=-1)
        centers = classes.of_anchors() / size[:, None]
        tightness = 0.5 * ops.sum(ops.square(embeddings - centers), axis=-1)
        return tightness, ops.zeros_like(tightness)
