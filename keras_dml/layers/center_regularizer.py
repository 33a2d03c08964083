"""The regularizer of a head with several proxies per class."""

import keras
import numpy as np
from keras import ops

from keras_dml._backend.configured import ConfiguredValue
from keras_dml._common.checks import check_number, check_whole
from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import Tensor
from keras_dml._pairwise.arithmetic import matmul
from keras_dml._pairwise.pairs import normalize


@keras.saving.register_keras_serializable("keras_dml")
class CenterRegularizer(ConfiguredValue, keras.regularizers.Regularizer):
    """SoftTriple's regularizer: merges superfluous centers of a class.

    `τ / (K C (C − 1)) Σ_k Σ_{t<u} √(2 + 1e-5 − 2 p_kt · p_ku)` over the l2-normalized centers of
    each of K classes. It is 0 for one center per class. The 1e-5 keeps the gradient of coincident
    centers finite.

    Examples:
        >>> merging = CenterRegularizer(4)
        >>> head = keras_dml.layers.ProxyHead(3, centers=4, proxies_regularizer=merging)

    Args:
        centers: C, the number of proxies per class, as in the `ProxyHead` with this regularizer.
        weight: τ, at least 0.

    Raises:
        ValueError: A number is out of range, or the number of rows of the proxies is not a multiple
            of `centers`.

    Reference: Qian et al. 2019, Eq. 9; τ = 0.2 is the authors'.
    """

    def __init__(self, centers: int, weight: float = 0.2) -> None:
        self.centers = check_whole("centers", centers, least=1)
        self.weight = check_number("weight", weight, least=0)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the regularizer of proxies `[K·C, d]`."""
        rows, dimensions = x.shape
        if rows % self.centers:
            raise ArgumentError(
                f"centers must divide the number of proxies, but got {self.centers} for {rows} "
                "proxies. Set the centers of the head."
            )
        if self.centers == 1:
            return ops.zeros((), dtype=x.dtype)
        classes = rows // self.centers
        p = ops.reshape(normalize(ops.copy(x)), (classes, self.centers, dimensions))
        cosines = matmul(p, ops.transpose(p, (0, 2, 1)))
        above = np.triu(np.ones((self.centers, self.centers), dtype=bool), k=1)
        # Replace masked entries with 1, whose square root has a finite gradient.
        squares = ops.where(above[None], 2.0 + 1e-5 - 2.0 * cosines, ops.ones_like(cosines))
        roots = ops.where(above[None], ops.sqrt(squares), ops.zeros_like(cosines))
        return self.weight / (rows * (self.centers - 1)) * ops.sum(roots)
