"""RankMI's estimator of the divergence between positive and negative distances."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from keras_dml._common.checks import check_seed, check_whole
from keras_dml._common.errors import ArgumentError
from keras_dml._common.types import Float32Array, Int64Array
from keras_dml.metrics.relevance import unit_embeddings

if TYPE_CHECKING:
    import keras

    from keras_dml._common.types import Tensor

# Pairs per step. The last step's estimate depends on its pairs, so the result averages batches.
_PAIRS = 4096


@dataclasses.dataclass(frozen=True)
class InformationBound:
    """The result of `mutual_information_bound`.

    Examples:
        >>> labels = np.repeat(np.arange(30), 4)
        >>> z = np.eye(30)[labels] + 0.2 * np.random.default_rng(0).normal(size=(120, 30))
        >>> found = mutual_information_bound(z, labels, steps=2)
        >>> tuple(found.network(np.array([[0.5]], "float32")).shape)
        (1, 1)

    Attributes:
        nats: The lower bound on `2 JSD`, on pairs that did not fit V.
        beta: The distance between 0 and 2 where V is 0. None if V is not 0 there.
        network: The fitted V.
    """

    nats: float
    beta: float | None
    network: keras.Layer


def mutual_information_bound(
    embeddings: npt.ArrayLike,
    labels: npt.ArrayLike,
    network: keras.Layer | None = None,
    steps: int = 1000,
    seed: int = 0,
) -> InformationBound:
    """Fit a statistics network to an embedding's distances and return the bound that it reaches.

    With the distances D of l2-normalized embeddings, p⁺ their distribution over positive pairs, and
    p⁻ over negative pairs, the bound is minus the RankMI loss:

    `2 log 2 − E⁺[softplus(−V(D))] − E⁻[softplus(V(D))] ≤ 2 JSD(p⁺, p⁻) ≤ 2 log 2`

    The best V reaches the Jensen-Shannon divergence. Adam (rate 1e-3, falling to 0) fits V on the
    pairs within a random half of the images. The result is computed on the pairs within the other
    half, so it does not reward memorized pairs.

    The bound is not in general a bound on the mutual information I(X; Y) between images and
    classes. That step takes the approximations of Eq. 4 and 5, which replace independent pairs by
    pairs of different classes. With few classes it fails: for two well-separated classes of equal
    size the bound comes near 2 log 2 = 1.386 nats, and I(X; Y) is at most H(Y) = log 2 = 0.693.

    Examples:
        >>> labels = np.repeat(np.arange(30), 4)
        >>> z = np.eye(30)[labels] + 0.2 * np.random.default_rng(0).normal(size=(120, 30))
        >>> found = mutual_information_bound(z, labels, steps=2)
        >>> bool(found.nats < 2 * np.log(2))
        True

    Args:
        embeddings: Numbers `[n, d]`.
        labels: Class of each row, `[n]`. Each half must contain a class with two images.
        network: V, a built Keras layer such as `models.StatisticsNetwork` (the default). The
            function trains it.
        steps: Number of steps, each with 4,096 positive and 4,096 negative pairs drawn by (seed,
            step).
        seed: Seed of the halves, the pairs, and the weights of V.

    Returns:
        `InformationBound`.

    Raises:
        ValueError: Shapes are wrong, or a half has no positive pairs or no negative pairs.

    Reference: Kemertas et al., "RankMI", CVPR 2020, Eq. 3, 6 and 7.
    """
    import keras
    from keras import ops

    from keras_dml._backend.steps import compiled, gradients
    from keras_dml.losses.rankmi import negative_costs, positive_costs
    from keras_dml.models.statistics_network import (
        StatisticsNetwork,
        check_statistics_network,
        estimate_beta,
    )
    from keras_dml.optimizers import WarmCosine

    steps, seed = check_whole("steps", steps, least=1), check_seed("seed", seed)
    z, classes = unit_embeddings(embeddings, labels)
    network = network or StatisticsNetwork(seed=seed)
    check_statistics_network(network)
    halves = [_Pairs(z[rows], classes[rows]) for rows in random_halves(len(z), seed)]
    optimizer = keras.optimizers.Adam(WarmCosine(1e-3, steps, warmup_steps=1))
    optimizer.build(network.trainable_variables)

    def loss(positive: Tensor, negative: Tensor) -> Tensor:
        values = network(ops.concatenate([positive, negative])[:, None])[:, 0]
        costs = positive_costs(values[:_PAIRS]), negative_costs(values[_PAIRS:])
        return ops.mean(costs[0]) + ops.mean(costs[1])

    variables = [*network.variables, *optimizer.variables]

    def update(positive: Tensor, negative: Tensor) -> Tensor:
        value, _, found, _ = gradients(
            lambda: (loss(positive, negative), ()), network.trainable_variables, states=variables
        )
        optimizer.apply(found, network.trainable_variables)
        return value

    def draw(half: _Pairs, rng: np.random.Generator) -> list[Tensor]:
        return [ops.convert_to_tensor(distances) for distances in half.draw(rng)]

    step, evaluate = compiled(update, variables), compiled(loss, variables)
    for number in range(steps):
        step(*draw(halves[0], np.random.default_rng([seed, 1, number])))
    rng = np.random.default_rng([seed, 2])
    held_back = [-float(evaluate(*draw(halves[1], rng))) for _ in range(64)]
    start = ops.ones((), dtype=network.compute_dtype)
    beta, found = estimate_beta(network, start)
    return InformationBound(
        nats=float(np.mean(held_back)),
        beta=float(ops.convert_to_numpy(beta)) if found else None,
        network=network,
    )


def random_halves(rows: int, seed: int) -> tuple[Int64Array, Int64Array]:
    """Return the numbers of the rows that fit V, and of the rows that score it."""
    order = np.random.default_rng([seed, 0]).permutation(rows)
    return order[::2], order[1::2]


class _Pairs:
    """Distances of pairs drawn at random from a set of l2-normalized embeddings."""

    def __init__(self, z: Float32Array, labels: np.ndarray) -> None:
        self.z = z
        # Rows in the order of their classes, so that a class is a contiguous range.
        self.order = np.argsort(labels, kind="stable")
        _, first, sizes = np.unique(labels[self.order], return_index=True, return_counts=True)
        if sizes.max() < 2 or len(sizes) < 2:
            raise ArgumentError(
                "labels must give each half of the images two classes, one of them with two "
                f"images, but got {len(labels)} images of {len(sizes)} classes in a half."
            )
        self.first, self.sizes = np.repeat(first, sizes), np.repeat(sizes, sizes)
        # The number of positive (negative) pairs of an anchor is its number of partners.
        self.positives = np.cumsum(self.sizes - 1)
        self.negatives = np.cumsum(len(labels) - self.sizes)

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return distances of 4,096 positive and 4,096 negative pairs, float32 `[4096]` each."""
        anchors = np.searchsorted(
            self.positives, rng.integers(self.positives[-1], size=_PAIRS), side="right"
        )
        own, size, first = anchors - self.first[anchors], self.sizes[anchors], self.first[anchors]
        partners = first + (own + 1 + rng.integers(size - 1)) % size
        positive = self._distances(anchors, partners)
        anchors = np.searchsorted(
            self.negatives, rng.integers(self.negatives[-1], size=_PAIRS), side="right"
        )
        # The rows after the anchor's class, wrapping around at the end.
        beyond = rng.integers(len(self.order) - self.sizes[anchors])
        partners = (self.first[anchors] + self.sizes[anchors] + beyond) % len(self.order)
        return positive, self._distances(anchors, partners)

    def _distances(self, anchors: np.ndarray, partners: np.ndarray) -> np.ndarray:
        a, b = (self.z[self.order[rows]] for rows in (anchors, partners))
        return np.linalg.norm(a - b, axis=1)
