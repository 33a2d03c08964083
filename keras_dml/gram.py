"""The Gram matrix of a batch, and the sums of its rows, with gradients of few passes over it."""

from keras import ops

from keras_dml.bounds import at_most
from keras_dml.cells import jax_is_on_cpu
from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.matmul import matmul
from keras_dml.shares import log_sum_exp_and_shares
from keras_dml.types import Tensor

__all__ = [
    "both_places",
    "gram",
    "mirrored",
    "mirrored_gram",
    "mirrored_log_sum_exp",
    "mirrored_sums",
]


@with_gradient
def gram(x: Tensor) -> WithGradient:
    """Inner products `x xᵀ` of the rows of `x` `[n, d]`: `[n, n]`.

    The gradient is `(G + Gᵀ) x` for the upstream `G`: one matrix product, where differentiating
    the product of two separate factors takes two.
    """
    return matmul(x, ops.transpose(x)), lambda upstream: both_places(upstream, x)


def both_places(upstream: Tensor, x: Tensor) -> Tensor:
    """`(G + Gᵀ) x` for an upstream `G` `[n, n]` and `x` `[n, d]`."""

    def together() -> Tensor:
        return matmul(upstream + ops.transpose(upstream), x)

    def apart() -> Tensor:
        return matmul(upstream, x) + matmul(ops.transpose(upstream), x)

    if upstream.shape[0] == 1:
        # Its own transpose; of the condition below TensorFlow's optimizer makes an invalid graph.
        return 2.0 * upstream * x
    if _transposes_slowly(upstream):
        return apart()
    # A condition that always holds while x is finite: XLA computes into a branch nothing that
    # comes before it. Without one it puts the exponentials of a loss into the sum, and takes
    # each of them twice (multi-similarity and SNCA at n = 2,048: 1.5 times as long).
    return ops.cond(ops.all(x[:1, :1] < float("inf")), together, apart)


def _transposes_slowly(matrix: Tensor) -> bool:
    """Whether it and its transpose take longer to add than a product; asked for a graph.

    XLA's on a CPU where they exceed the cache: at n = 2,048 and d = 512 twice as long, at 512 half.
    """
    return jax_is_on_cpu() and matrix.shape[0] >= 1024


def mirrored_gram(x: Tensor, scale: float = 1.0) -> Tensor:
    """`scale · x xᵀ` of the rows of `x` `[n, d]`, where the upstream comes with its mirror image.

    The gradient of `gram` is `(G + Gᵀ) x`. Of what is elementwise up to a sum over each row, G is
    symmetric but for a factor of each row, and so `G + Gᵀ` takes no transposition: `mirrored_sums`
    sends it back, and this takes it as it is. Nothing but such sums may be made of the result, by
    symmetric functions and masks: of anything else the gradient would be wrong.
    """

    @with_gradient
    def product(x: Tensor) -> WithGradient:
        scaled = x if scale == 1.0 else x * scale
        return matmul(scaled, ops.transpose(x)), lambda mirrored: matmul(mirrored, scaled)

    return product(x)


@with_gradient
def mirrored_sums(values: Tensor) -> WithGradient:
    """Row sums `Σ_j v_ij` of a symmetric `[n, n]`: `[n]`, with the gradient `mirrored`."""
    return ops.sum(values, axis=-1), mirrored


@with_gradient
def mirrored_log_sum_exp(values: Tensor) -> WithGradient:
    """`l_i = log Σ_j exp(v_ij)` `[n]` of a symmetric `[n, n]`, for `mirrored_gram`.

    The gradient is `u_i exp(v_ij − l_i) + u_j exp(v_ij − l_j)`: a second exponential costs less
    than a transposition.
    """
    logarithms, shares = log_sum_exp_and_shares(values)

    def gradient(upstream: Tensor) -> Tensor:
        # At most 0, but for what rounding makes of v_ij and v_ji: of large ones a large difference.
        exponents = at_most(values - logarithms[None, :], 0.0)
        of_partners = ops.exp(exponents)
        return upstream[:, None] * shares + upstream[None, :] * of_partners

    return logarithms, gradient


def mirrored(upstream: Tensor) -> Tensor:
    """The gradient `u` `[n]` at row sums, at both places of each pair: `u_i + u_j`, `[n, n]`."""
    return upstream[:, None] + upstream[None, :]
