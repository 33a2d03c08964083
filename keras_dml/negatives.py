"""Distance-weighted negatives: how likely each negative is, and drawing one for each positive."""

import keras
import numpy as np
from keras import ops

from keras_dml._pairwise.reductions import maximum, minimum
from keras_dml.checks import check_number, check_seed
from keras_dml.errors import ArgumentError
from keras_dml.matmul import cumsum
from keras_dml.types import Tensor

NEAREST, FARTHEST = 0.5, 1.4
# Drawing counts in whole tickets, exact in float32 in any order of summation.
_TICKETS = 2.0**22
_LEFT_OUT = -1e30


def distance_weighted(
    distances: Tensor,
    negative: Tensor,
    dimensions: Tensor | int,
    nearest: float = NEAREST,
    farthest: float = FARTHEST,
) -> Tensor:
    """The probability of each negative under distance-weighted sampling.

    On the sphere in D dimensions most negatives lie near the distance √2, where they teach nothing.
    Weights ∝ 1/q(d), with q the density of distances of uniform points,
    `log q(d) = (D − 2) log d + ((D − 3)/2) log(1 − d²/4)`, spread the choice over distances. They
    are taken at `d = max(D_aj, nearest)`, which keeps the few nearest (often mislabelled) ones from
    taking all. 1/q rises again beyond d² = 4(D − 2)/(2D − 5): negatives at `farthest` and beyond
    get none, and an anchor that has no others takes all its negatives alike.

    Args:
        distances: `[a, c]`, of l2-normalised embeddings.
        negative: bool `[a, c]`.
        dimensions: D, dimensions of the embeddings, a number or a scalar tensor.
        nearest: smallest distance that is told apart, in (0, farthest).
        farthest: distance from which a negative is left out, below 2.

    Returns:
        `[a, c]`, rows that sum to 1, or to 0 for an anchor without negatives; no gradient.

    Raises:
        ValueError: unless 0 < nearest < farthest < 2.

    References: Kemertas et al., "RankMI", CVPR 2020, 4.1; Wu et al., "Sampling Matters in Deep
    Embedding Learning", ICCV 2017, Eq. 2-4; the defaults are those of pytorch-metric-learning's
    `DistanceWeightedMiner`.
    """
    nearest, farthest = check_distances(nearest, farthest)
    distances = ops.stop_gradient(distances)
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
    """Both as floats, if 0 < nearest < farthest < 2; ValueError otherwise."""
    low, high = check_number("nearest", nearest), check_number("farthest", farthest)
    if not 0 < low < high < 2:
        raise ArgumentError(
            "nearest and farthest must be distances with 0 < nearest < farthest < 2. "
            f"Received: nearest={nearest}, farthest={farthest}"
        )
    return low, high


def fixed_noise(shape: tuple[Tensor | int, ...], seed: int, step: Tensor | int = 0) -> Tensor:
    """Uniform float32 numbers in [0, 1) of this shape: a pure function of (seed, step, place)."""
    # In float32 whatever floatx is: halves have too few numbers between 0 and 1.
    return keras.random.uniform(shape, dtype="float32", seed=_StepSeed(seed, step))


def draw_negatives(
    probabilities: Tensor, seed: int, step: Tensor | int, first_row: Tensor | int = 0
) -> Tensor:
    """A negative for each pair of an anchor: pure function of (seed, step, anchor, partner).

    Each entry of a row is an independent draw by the row's probabilities, so that an anchor's
    positives get negatives of their own. Inverse transform sampling by bisection costs n² log n
    time and n² memory, however many positives there are. Negatives of a probability below 1e-7
    are never drawn.

    Args:
        probabilities: `[a, c]`, as `distance_weighted` gives them.
        seed: whole number from 0 to 2³¹ − 1.
        step: number of the batch, an integer or an integer tensor.
        first_row: row of the first anchor among the candidates (`Pairs.first_row`), so that a
            replica draws what one device would.

    Returns:
        int32 `[a, c]`: for anchor a and its positive i, the candidate to use as its negative.
        Entries of other pairs are draws that nobody needs; those of an anchor without negatives
        mean nothing. A graph compiled by XLA draws other numbers than one that is not.

    Raises:
        ValueError: `seed` out of range.
    """
    seed = check_seed("seed", seed)
    anchors, candidates = ops.shape(probabilities)
    noise = fixed_noise((candidates, candidates), seed, step)
    noise = ops.slice(noise, (first_row, 0), (anchors, candidates))

    tickets = ops.cast(ops.round(_TICKETS * ops.stop_gradient(probabilities)), noise.dtype)
    sold = cumsum(tickets)
    winner = ops.floor(noise * sold[:, -1:])
    # The first candidate by whom more tickets are sold than the winner's number.
    last = candidates - 1
    low = ops.zeros_like(winner, dtype="int32")
    high = low + last
    for _ in range(_bisections(probabilities.shape[1])):
        middle = (low + high) // 2
        beyond = ops.take_along_axis(sold, middle, axis=-1) <= winner
        low = ops.where(beyond, ops.minimum(middle + 1, last), low)
        high = ops.where(beyond, high, middle)
    return low


def _bisections(candidates: int | None) -> int:
    # A number of candidates that is only known when the step runs: enough for a million.
    return 20 if candidates is None else max(int(candidates - 1).bit_length(), 1)


class _StepSeed(keras.random.SeedGenerator):
    """A seed that is (seed, step), step perhaps a tensor, without the usual hidden counter."""

    def __init__(self, seed: int, step: Tensor | int) -> None:
        if keras.backend.backend() == "torch":
            # Keras adds up the two words there: seed 1 would draw at step 7 what 7 does at step 1.
            words = seed, int(ops.convert_to_numpy(step))
            mixed = np.random.SeedSequence(words).generate_state(1, np.uint32)
            self.words = ops.convert_to_tensor([int(mixed[0]), 0], dtype="int64")
            return
        dtype = "uint32" if keras.backend.backend() == "jax" else "int64"
        self.words = ops.stack([ops.cast(seed, dtype), ops.cast(step, dtype)])

    def next(self, ordered: bool = True) -> Tensor:
        return self.words
