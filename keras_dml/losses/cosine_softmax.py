"""Cross-entropies of class cosines: NormSoftmax, CosFace, ArcFace, Sub-center, SoftTriple."""

import math
from typing import Unpack

from keras import ops

from keras_dml._common.checks import check_number, check_positive
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import log_sum_exp, masked_sum, maximum
from keras_dml._pairwise.pairs import safe_sqrt
from keras_dml.losses.base import LossOptions
from keras_dml.losses.proxy_loss import ProxyLoss
from keras_dml.losses.registry import register


class _CosineSoftmax(ProxyLoss):
    """Cross-entropy of logits `s c_k`, with `s ψ(c_y)` for an image's class y.

    Subclasses set `scale` and define ψ.
    """

    scale: float

    def compute_cosine_parts(self, own: Tensor, cosines: Tensor) -> Parts:
        """Compute the two parts `[n]`."""
        target = self._target(own, cosines)
        logits = ops.where(own, target[:, None], self.scale * cosines)
        return -target, ops.logsumexp(logits, axis=-1)

    def compute_cosine_loss(self, own: Tensor, cosines: Tensor) -> Tensor:
        """Compute the loss `[n]` without the cancellation of its parts."""
        others = log_sum_exp(self.scale * cosines, ops.logical_not(own))
        return ops.softplus(others - self._target(own, cosines))

    def _target(self, own: Tensor, cosines: Tensor) -> Tensor:
        return self.scale * self.target_cosine(masked_sum(cosines, own))

    def target_cosine(self, cosine: Tensor) -> Tensor:
        """Compute ψ, which replaces the cosine `[n]` of each image to its class."""
        return cosine


@register("norm_softmax")
class NormSoftmaxLoss(_CosineSoftmax):
    """NormSoftmax: cross-entropy of the cosines to one proxy per class, divided by a temperature.

    With cosines `c_ik` to K classes and an image's class `y`:

    - tightness `T_i = −c_iy / σ`
    - contrastive `C_i = log Σ_k exp(c_ik / σ)`, over all classes including y

    Examples:
        >>> labels, cosines = np.array([0, 1]), np.array([[0.5, 0.4], [0.6, 0.3]], "float32")
        >>> loss = NormSoftmaxLoss(temperature=0.1)
        >>> round(float(loss(labels, cosines)), 3)
        1.681

    Args:
        temperature: σ, above 0.
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        ValueError: `temperature` is not above 0, or as in `keras_dml.losses.ProxyLoss`.

    Reference: Zhai and Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC
    2019, Eq. 2.
    """

    def __init__(self, temperature: float = 0.05, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.temperature = check_positive("temperature", temperature)
        self.scale = 1.0 / self.temperature


@register("cosface")
class CosFaceLoss(_CosineSoftmax):
    """CosFace: cross-entropy of scaled cosines, with a margin on the cosine to an image's class.

    - tightness `T_i = −s (c_iy − m)`
    - contrastive `C_i = log(exp(s (c_iy − m)) + Σ_{k≠y} exp(s c_ik))`

    At m = 0 it is NormSoftmax with σ = 1 / s.

    Examples:
        >>> labels, cosines = np.array([0, 1]), np.array([[0.5, 0.4], [0.6, 0.3]], "float32")
        >>> loss = CosFaceLoss(scale=16, margin=0.35)
        >>> round(float(loss(labels, cosines)), 3)
        7.209

    Args:
        scale: s, above 0.
        margin: m, at least 0, on the cosine.
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        ValueError: `scale` is not above 0, `margin` is below 0, or as in
            `keras_dml.losses.ProxyLoss`.

    Reference: Wang et al., "CosFace: Large Margin Cosine Loss for Deep Face Recognition", CVPR
    2018, Eq. 4.
    """

    def __init__(
        self, scale: float = 64.0, *, margin: float = 0.35, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(**options)
        self.scale = check_positive("scale", scale)
        self.margin = check_number("margin", margin, least=0)

    def target_cosine(self, cosine: Tensor) -> Tensor:
        """Compute `c − m`."""
        return cosine - self.margin


@register("soft_triple")
class SoftTripleLoss(CosFaceLoss):
    """SoftTriple: CosFace on a head with several softly pooled centers per class.

    With the class cosines of `keras_dml.layers.ProxyHead(centers=10, pooling="soft")`, values and
    parts equal `CosFaceLoss`. To merge superfluous centers, give the head the regularizer
    `keras_dml.layers.CenterRegularizer`.

    Examples:
        >>> labels, cosines = np.array([0, 1]), np.array([[0.5, 0.4], [0.6, 0.3]], "float32")
        >>> loss = SoftTripleLoss(scale=20)
        >>> round(float(loss(labels, cosines)), 3)
        3.178

    Args:
        scale: λ, above 0.
        margin: δ, at least 0, on the cosine.
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        ValueError: As in `CosFaceLoss`.

    Reference: Qian et al., "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling", ICCV
    2019, Eq. 6 to 8.
    """

    def __init__(
        self, scale: float = 20.0, *, margin: float = 0.01, **options: Unpack[LossOptions]
    ) -> None:
        super().__init__(scale, margin=margin, **options)


@register("arcface")
class ArcFaceLoss(_CosineSoftmax):
    """ArcFace: cross-entropy of scaled cosines, with a margin on the angle to an image's class.

    `ψ(c) = cos(θ + m)` for the angle θ of the cosine c, if θ + m < π. Beyond π, where cos(θ + m)
    would increase again, `ψ(c) = c − m sin m`, which decreases with θ up to m = 2.33. With
    `easy_margin`, ψ is `cos(θ + m)` for c > 0, and c otherwise.

    - tightness `T_i = −s ψ(c_iy)`
    - contrastive `C_i = log(exp(s ψ(c_iy)) + Σ_{k≠y} exp(s c_ik))`

    At m = 0 it is NormSoftmax with σ = 1 / s. The computation uses neither arccos nor clipping, so
    an image on its proxy has a finite gradient. ψ drops at θ + m = π, by 0.117 for m = 0.5.

    Examples:
        >>> labels, cosines = np.array([0, 1]), np.array([[0.5, 0.4], [0.6, 0.3]], "float32")
        >>> loss = ArcFaceLoss(scale=16, margin=0.5)
        >>> round(float(loss(labels, cosines)), 3)
        9.365

    Args:
        scale: s, above 0.
        margin: m in radians, in [0, π).
        easy_margin: Whether images at more than a right angle from their class have no margin.
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        ValueError: `scale` is not above 0, `margin` is outside [0, π), or as in
            `keras_dml.losses.ProxyLoss`.

    Reference: Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR
    2019, Eq. 3; beyond π the authors' code.
    """

    def __init__(
        self,
        scale: float = 64.0,
        *,
        margin: float = 0.5,
        easy_margin: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.scale = check_positive("scale", scale)
        self.margin = check_number("margin", margin, least=0, below=math.pi)
        self.easy_margin = bool(easy_margin)

    def target_cosine(self, cosine: Tensor) -> Tensor:
        """Compute `cos(θ + m)`, or its replacement beyond π."""
        cosine_of_margin, sine_of_margin = math.cos(self.margin), math.sin(self.margin)
        # Rounding can move c beyond ±1. The root is then 0, without a gradient.
        sine = safe_sqrt(maximum((1.0 - cosine) * (1.0 + cosine), 0.0))
        farther = cosine * cosine_of_margin - sine * sine_of_margin
        if self.easy_margin:
            return ops.where(cosine > 0, farther, cosine)
        beyond = cosine - self.margin * sine_of_margin
        return ops.where(cosine > -cosine_of_margin, farther, beyond)


@register("subcenter_arcface")
class SubCenterArcFaceLoss(ArcFaceLoss):
    """Sub-center ArcFace: ArcFace on a head with several centers per class, of the nearest center.

    With the class cosines of `keras_dml.layers.ProxyHead(centers=3, pooling="max")`, values and
    parts equal `ArcFaceLoss`. An image trains only the nearest center of each class, so mislabeled
    images gather at separate centers. `keras_dml.models.dominant_centers` returns the center of
    each class that has the most images.

    Examples:
        >>> labels, cosines = np.array([0, 1]), np.array([[0.5, 0.4], [0.6, 0.3]], "float32")
        >>> loss = SubCenterArcFaceLoss(scale=16)
        >>> round(float(loss(labels, cosines)), 3)
        9.365

    Args:
        scale: s, above 0.
        margin: m in radians, in [0, π).
        easy_margin: Whether images at more than a right angle from their class have no margin.
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        ValueError: As in `ArcFaceLoss`.

    Reference: Deng et al., "Sub-center ArcFace: Boosting Face Recognition by Large-scale Noisy Web
    Faces", ECCV 2020, Eq. 3.
    """
