"""The Proxy-NCA and Proxy-NCA++ losses."""

from typing import Literal, Unpack

from keras import ops

from keras_dml._common.checks import check_choice, check_positive
from keras_dml._common.types import Parts, Tensor
from keras_dml._pairwise.arithmetic import log_sum_exp, masked_sum
from keras_dml.losses.base import LossOptions
from keras_dml.losses.proxy_loss import ProxyLoss
from keras_dml.losses.registry import register


@register("proxy_nca")
class ProxyNCALoss(ProxyLoss):
    """Proxy-NCA(++): an image's proxy closer than the other proxies, by squared distances.

    With cosines `c_ik`, squared distances `D²_ik = 2 − 2 c_ik`, and an image's class y:

    - tightness `T_i = D²_iy / t`
    - contrastive `C_i = log Σ_k exp(−D²_ik / t)`

    `partition` selects the classes in the sum. `"all"` is Proxy-NCA++, which equals NormSoftmax at
    σ = t / 2. `"negatives"` (k ≠ y) is Proxy-NCA as printed. The latter is not bounded by 0 (with
    every image on its proxy and orthogonal proxies it is −2 / t + log(K − 1)), so its value is hard
    to interpret.

    Examples:
        >>> labels, cosines = np.array([0, 1]), np.array([[0.5, 0.4], [0.6, 0.3]], "float32")
        >>> loss = ProxyNCALoss()
        >>> round(float(loss(labels, cosines)), 3)
        2.779

    Args:
        temperature: t, above 0. Vectors scaled by 3, as in the authors' code, are t = 1/9.
        partition: The classes in the sum, `"all"` or `"negatives"`, as above.
        reduction, name, dtype: As in `EmbeddingLoss`.

    Raises:
        ValueError: `temperature` is not above 0, `partition` is unknown, or as in
            `keras_dml.losses.ProxyLoss`.

    References: Movshovitz-Attias et al., "No Fuss Distance Metric Learning using Proxies", ICCV
    2017, Eq. 4; Teh et al., "ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component
    Analysis", ECCV 2020, Eq. 6.
    """

    def __init__(
        self,
        temperature: float = 0.1111111111111111,
        *,
        partition: Literal["all", "negatives"] = "all",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.temperature = check_positive("temperature", temperature)
        self.partition = check_choice("partition", partition, ("all", "negatives"))

    def compute_cosine_parts(self, own: Tensor, cosines: Tensor) -> Parts:
        """Compute the two parts `[n]`."""
        exponents = self._exponents(cosines)
        if self.partition == "all":
            contrastive = ops.logsumexp(exponents, axis=-1)
        else:
            contrastive = log_sum_exp(exponents, ops.logical_not(own))
        return -masked_sum(exponents, own), contrastive

    def compute_cosine_loss(self, own: Tensor, cosines: Tensor) -> Tensor:
        """Compute the loss `[n]` without the cancellation of its parts."""
        exponents = self._exponents(cosines)
        gap = log_sum_exp(exponents, ops.logical_not(own)) - masked_sum(exponents, own)
        return ops.softplus(gap) if self.partition == "all" else gap

    def _exponents(self, cosines: Tensor) -> Tensor:
        return (2.0 * cosines - 2.0) / self.temperature
