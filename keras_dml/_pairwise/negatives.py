"""Distance-weighted negatives: their probabilities, and one random draw for each positive."""

import keras
import numpy as np
from keras import ops

from keras_dml._common.checks import check_number, check_seed
from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import Tensor
from keras_dml._pairwise.arithmetic import cumsum, maximum, minimum

NEAREST, FARTHEST = 0.5, 1.4
# Drawing uses whole tickets, whose float32 sums are exact in any order.
_TICKETS = 2.0**22
_LEFT_OUT = -1e30


def distance_weighted(
    distances: Tensor,
    negative: Tensor,
    dimensions: Tensor | int,
    nearest: float = NEAREST,
    farthest: float = FARTHEST,
) -> Tensor:
    """Compute the probability of each negative under distance-weighted sampling.

    On the sphere in D dimensions, most negatives have a distance near √2 and contribute little to
    training. Weights ∝ 1/q(d), with q the density of distances of uniform points, `log q(d) = (D −
    2) log d + ((D − 3)/2) log(1 − d²/4)`, spread the choice over distances. The weights use `d =
    max(D_aj, nearest)`, so that the few nearest negatives (often mislabeled) do not dominate. 1/q
    increases again beyond d² = 4(D − 2)/(2D − 5). Negatives at `farthest` and beyond have weight 0,
    unless the anchor has no other negatives. Then all its negatives have equal weight.

    Args:
        distances: `[a, c]`, of l2-normalized embeddings.
        negative: bool `[a, c]`.
        dimensions: D, dimensions of the embeddings, a number or a scalar tensor.
        nearest: Distances below this are treated as equal to it, in (0, farthest).
        farthest: Distance from which a negative is excluded, below 2.

    Returns:
        `[a, c]`, without a gradient. Each row sums to 1, or to 0 for an anchor without negatives.

    Raises:
        ValueError: Not 0 < nearest < farthest < 2.

    References: Kemertas et al., "RankMI", CVPR 2020, 4.1; Wu et al., "Sampling Matters in Deep
    Embedding Learning", ICCV 2017, Eq. 2-4; the defaults are from pytorch-metric-learning's
    `DistanceWeightedMiner`.
    """
    nearest, farthest = check_distances(nearest, farthest)
    distances = ops.stop_gradient(ops.convert_to_tensor(distances))
    size = ops.cast(dimensions, distances.dtype)
    squares = ops.square(minimum(maximum(distances, nearest), farthest))
    log_q = (0.5 * size - 1.0) * ops.log(squares) + (0.5 * size - 1.5) * ops.log(
        1.0 - squares / 4.0
    )
    near = ops.logical_and(negative, distances < farthest)
    some_near = ops.any(near, axis=-1, keepdims=True)
    # Without near negatives, all negatives have the same weight.
    exponents = ops.where(some_near, -log_q, 0.0)
    kept = ops.where(some_near, near, negative)
    return ops.where(kept, ops.softmax(ops.where(kept, exponents, _LEFT_OUT), axis=-1), 0.0)


def check_distances(nearest: object, farthest: object) -> tuple[float, float]:
    """Return both as floats if 0 < nearest < farthest < 2, or raise `ValueError`."""
    low, high = check_number("nearest", nearest), check_number("farthest", farthest)
    if not 0 < low < high < 2:
        raise ArgumentError(
            "nearest and farthest must be distances with 0 < nearest < farthest < 2, but got "
            f"nearest={nearest} and farthest={farthest}."
        )
    return low, high


def fixed_noise(shape: tuple[Tensor | int, ...], seed: int, step: Tensor | int = 0) -> Tensor:
    """Return uniform float32 numbers in [0, 1): a pure function of (seed, step, place)."""
    # float32 for every floatx, because half precision has too few numbers between 0 and 1.
    return keras.random.uniform(shape, dtype="float32", seed=_StepSeed(seed, step))


def draw_negatives(
    probabilities: Tensor, seed: int, step: Tensor | int, first_row: Tensor | int = 0
) -> Tensor:
    """Draw a negative for each pair of an anchor: a pure function of (seed, step, anchor, partner).

    Each entry of a row is an independent draw by the row's probabilities, so each positive of an
    anchor gets a separate negative. Inverse transform sampling by bisection costs n² log n time and
    n² memory for any number of positives. Negatives with a probability below 1e-7 are never drawn.

    Args:
        probabilities: `[a, c]`, from `distance_weighted`.
        seed: Whole number from 0 to 2³¹ − 1.
        step: Number of the batch, an integer or an integer tensor.
        first_row: Row of the first anchor among the candidates (`Pairs.first_row`), so that a
            replica draws the same numbers as one device.

    Returns:
        int32 `[a, c]`: for anchor a and its positive i, the candidate to use as its negative.
        Ignore the entries of other pairs and of anchors without negatives. A graph compiled by XLA
        draws different numbers.

    Raises:
        ValueError: `seed` is out of range.
    """
    seed = check_seed("seed", seed)
    anchors, candidates = ops.shape(probabilities)
    noise = fixed_noise((candidates, candidates), seed, step)
    noise = ops.slice(noise, (first_row, 0), (anchors, candidates))

    tickets = ops.cast(ops.round(_TICKETS * ops.stop_gradient(probabilities)), noise.dtype)
    sold = cumsum(tickets)
    winner = ops.floor(noise * sold[:, -1:])
    # The first candidate whose cumulative number of tickets exceeds the winning number.
    last = candidates - 1
    low = ops.zeros_like(winner, dtype="int32")
    high = low + last
    for _ in range(_bisections(probabilities.shape[1])):
        middle = (low + high) // 2
        beyond = ops.take_along_axis(sold, middle, axis=-1) <= winner
        low = ops.where(beyond, minimum(middle + 1, last), low)
        high = ops.where(beyond, high, middle)
    return low


def _bisections(candidates: int | None) -> int:
    # If the number of candidates is known only at run time, 20 steps suffice for a million.
    return 20 if candidates is None else max(int(candidates - 1).bit_length(), 1)


class _StepSeed(keras.random.SeedGenerator):
    """A seed generator of (seed, step), where step can be a tensor, without the hidden counter."""

    def __init__(self, seed: int, step: Tensor | int) -> None:
        if keras.backend.backend() == "torch":
            # Keras adds the two words on PyTorch, so seed 1 at step 7 would equal seed 7 at step 1.
            words = seed, int(ops.convert_to_numpy(step))
            mixed = np.random.SeedSequence(words).generate_state(1, np.uint32)
            self.words = ops.convert_to_tensor([int(mixed[0]), 0], dtype="int64")
            return
        dtype = "uint32" if keras.backend.backend() == "jax" else "int64"
        self.words = ops.stack([ops.cast(seed, dtype), ops.cast(step, dtype)])

    def next(self, ordered: bool = True) -> Tensor:
        return self.words
