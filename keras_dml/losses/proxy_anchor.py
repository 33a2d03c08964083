"""The Proxy-Anchor loss."""

from typing import Unpack

from keras import ops

from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.checks import check_number, check_positive
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import masked_sum, maximum, mean
from keras_dml.losses.base import LossOptions
from keras_dml.losses.proxy_loss import ProxyLoss
from keras_dml.losses.registry import register


@register("proxy_anchor")
class ProxyAnchorLoss(ProxyLoss):
    """Proxy-Anchor: each proxy is an anchor for the images of its class and of all other classes.

    With cosines `c_ik`, `L⁺_k = log(1 + Σ_{i: y_i=k} exp(−α (c_ik − δ)))` and
    `L⁻_k = log(1 + Σ_{i: y_i≠k} exp(α (c_ik + δ)))`, the loss is the mean of `L⁺` over the classes
    with an image in the global batch, plus the mean of `L⁻` over all classes. The parts per image
    have that mean under the Keras reduction:

    - tightness `T_i = n L⁺_{y_i} / (|K⁺| n_{y_i})`, where n is the number of images, `n_k` the
      number of images of class k, and `|K⁺|` the number of classes with an image
    - contrastive `C_i = (1/K) Σ_k L⁻_k`, equal for all images

    Sample weights weight these shares. Proxies of classes without an image are only pushed away. A
    class id outside 0 … K − 1 makes the whole batch NaN. Replicas exchange 3 K + 1 numbers.

    Examples:
        >>> labels, cosines = np.array([0, 1]), np.array([[0.5, 0.4], [0.6, 0.3]], "float32")
        >>> loss = ProxyAnchorLoss(scale=32, margin=0.1)
        >>> round(float(loss(labels, cosines)), 3)
        19.201

    Args:
        scale: α, above 0.
        margin: δ, at least 0, on the cosine.
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        ValueError: `scale` is not above 0, `margin` is below 0, or as in
            `keras_dml.losses.ProxyLoss`.

    Reference: Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020, Eq. 4.
    """

    def __init__(
        self, scale: float = 32.0, *, margin: float = 0.1, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(**options)
        self.scale = check_positive("scale", scale)
        self.margin = check_number("margin", margin, least=0)

    def compute_cosine_parts(self, own: Tensor, cosines: Tensor) -> Parts:
        """Compute the two parts `[n]`."""
        nothing = ops.full_like(cosines, -1e30)
        pulling = ops.where(own, -self.scale * (cosines - self.margin), nothing)
        pushing = ops.where(own, nothing, self.scale * (cosines + self.margin))
        sums = ops.logsumexp(ops.stack([pulling, pushing]), axis=1)
        of_replicas, _ = gather_candidates(sums[None])
        # An additional exponent 0 is the 1 in each sum.
        exponents = ops.concatenate([ops.zeros_like(sums)[None], of_replicas], axis=0)
        pulled, pushed = ops.unstack(ops.logsumexp(exponents, axis=0), 2, axis=0)

        unknown = ops.logical_not(ops.any(own, axis=-1, keepdims=True))
        membership = ops.cast(ops.concatenate([own, unknown], axis=-1), cosines.dtype)
        counts, _ = gather_candidates(ops.sum(membership, axis=0)[None])
        counts = ops.sum(counts, axis=0)
        sizes, strangers = counts[:-1], counts[-1]
        present = ops.sum(ops.cast(sizes > 0, cosines.dtype))
        share = ops.sum(sizes) / (maximum(present, 1.0) * maximum(sizes, 1.0))
        tightness = masked_sum(ops.broadcast_to(share * pulled, ops.shape(cosines)), own)
        contrastive = ops.broadcast_to(mean(pushed), ops.shape(tightness))
        sound = strangers == 0
        nan = ops.full_like(tightness, float("nan"))
        return ops.where(sound, tightness, nan), ops.where(sound, contrastive, nan)
