"""RankMI's statistics network V, and the distance β where it is zero."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_dml._backend.configured import Configured
from keras_dml._backend.steps import gradients
from keras_dml._common.checks import check_distance, check_number, check_seed, check_whole
from keras_dml._common.errors import ArgumentError, argument_error
from keras_dml._common.types import Tensor
from keras_dml._pairwise.divergence import check_statistics_values

# Range of the distances of l2-normalized embeddings.
LOWEST, HIGHEST = 0.0, 2.0
_NEWTON_STEPS = 5
# Bisections of [0, 2] until the interval has the resolution of float32.
_BISECTIONS = 25


@keras.saving.register_keras_serializable("keras_dml")
class StatisticsNetwork(Configured, keras.Layer):
    """RankMI's statistics network: `V(x) = MLP(x) − x`, one number from one distance.

    The MLP is: dense 1 → hidden, leaky ReLU, `depth` times (dense hidden → hidden, leaky ReLU),
    dense hidden → 1. Weights are Glorot uniform. The last bias is initialized such that
    `V(zero_at) = 0`. With a zero bias, V(x) ≈ −x, and the margins around the zero of V would drop
    nearly all negative pairs.

    Computes in float32 under any precision policy (`dtype="float64"` is possible).

    Examples:
        >>> network = StatisticsNetwork(hidden=16, depth=1, seed=0)
        >>> tuple(network(np.array([[0.5], [1.5]], "float32")).shape)
        (2, 1)

    Args:
        hidden: H, the width of the hidden layers.
        depth: L, the number of hidden-to-hidden layers, at least 0.
        slope: Slope of the leaky ReLU below 0, in [0, 1).
        residual: Whether to subtract the distance, so that V decreases from the start. False is
            MLP(x).
        zero_at: β₀, distance in (0, 2) where V starts at 0.
        seed: Seed of the weights. None uses the global seed of Keras.

    Call arguments:
        distances: `[m, 1]`.

    Returns:
        V, `[m, 1]`.

    Raises:
        ValueError: An argument is out of range.

    Reference: Kemertas et al., "RankMI", CVPR 2020, Eq. 10 and 14 (H = 128, L = 2, slope 0.1).
    """

    def __init__(
        self,
        hidden: int = 128,
        *,
        depth: int = 2,
        slope: float = 0.1,
        residual: bool = True,
        zero_at: float = 1.0,
        seed: int | None = None,
        name: str = "statistics_network",
        dtype: str = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype, **kwargs)
        self.hidden = check_whole("hidden", hidden, least=1)
        self.depth = check_whole("depth", depth, least=0)
        self.slope = check_number("slope", slope, least=0, below=1)
        self.residual = bool(residual)
        self.zero_at = check_distance("zero_at", zero_at)
        self.seed = None if seed is None else check_seed("seed", seed)
        self.dense = []
        for number, width in enumerate([self.hidden] * (self.depth + 1) + [1]):
            glorot = keras.initializers.GlorotUniform(
                None if self.seed is None else self.seed + number
            )
            layer = keras.layers.Dense(
                width, kernel_initializer=glorot, name=f"dense_{number}", dtype=self.dtype_policy
            )
            layer.build((None, 1 if number == 0 else self.hidden))
            self.dense.append(layer)
        start = self.call(ops.full((1, 1), self.zero_at, dtype=self.compute_dtype))
        self.dense[-1].bias.assign(-start[0])
        self.built = True

    def call(self, distances: Tensor) -> Tensor:
        """Compute V of distances `[m, 1]`."""
        x = distances
        for layer in self.dense[:-1]:
            x = ops.leaky_relu(layer(x), negative_slope=self.slope)
        value = self.dense[-1](x)
        return value - distances if self.residual else value


def estimate_beta(network: Callable[[Tensor], Tensor], beta: Tensor) -> tuple[Tensor, Tensor]:
    """Find the distance β in [0, 2] where V is 0, and positive and negative pairs cost the same.

    The search takes a few Newton steps from the last β. It falls back to bisection of [0, 2] if
    Newton's method leaves the interval, reaches a point where V does not decrease, or does not
    converge. The paper describes its procedure in a supplement that is not public, so this
    procedure is ours.

    Args:
        network: V, from `[m, 1]` to `[m, 1]`.
        beta: The last β, a scalar tensor.

    Returns:
        `(beta, found)`. If V does not change its sign between 0 and 2, the last β and False.
    """

    def value(distance: Tensor) -> Tensor:
        return ops.reshape(network(ops.reshape(distance, (1, 1))), ())

    beta = ops.stop_gradient(ops.convert_to_tensor(beta))
    guess, step, well = beta, ops.zeros_like(beta), ops.convert_to_tensor(True, dtype="bool")
    for _ in range(_NEWTON_STEPS):
        height, _, _, (slope,) = gradients(lambda at: (value(at), ()), tensors=[guess])
        slope = ops.zeros_like(guess) if slope is None else slope
        falls = slope < 0
        slope = ops.where(falls, slope, -ops.ones_like(slope))
        step = ops.where(falls, height / slope, ops.zeros_like(height))
        guess = guess - step
        well = well & falls & (guess >= LOWEST) & (guess <= HIGHEST)
    settled = ops.abs(step) <= 1e-4

    def bisected() -> tuple[Tensor, Tensor]:
        low, high = (ops.full_like(beta, end) for end in (LOWEST, HIGHEST))
        at_low = value(low)
        changes = at_low * value(high) < 0
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            same_side = value(middle) * at_low > 0
            low = ops.where(same_side, middle, low)
            high = ops.where(same_side, high, middle)
        return ops.stop_gradient(ops.where(changes, (low + high) / 2, beta)), changes

    return ops.cond(
        well & settled, lambda: (guess, ops.convert_to_tensor(True, dtype="bool")), bisected
    )


def check_statistics_network(network: object) -> None:
    """Raise `ValueError` unless `estimate_beta` and RankMI can use `network` as V."""
    if not isinstance(network, keras.Layer) or not network.built:
        wanted = "a built Keras layer, such as StatisticsNetwork()"
        raise argument_error("statistics_network", wanted, network)
    if network.compute_dtype not in ("float32", "float64"):
        raise ArgumentError(
            "statistics_network must compute in float32 or float64, but got "
            f"{network.compute_dtype}. Half precision merges distances."
        )
    check_statistics_values(network(ops.ones((2, 1), dtype=network.compute_dtype)))
