"""Mining: which of a batch's pairs a loss sees.

A strategy narrows the positives and the negatives of each anchor, by how similar they are. Losses
over pairs take one as `mining=`, or a list of them, each of which sees what those before it left:
easy positives against semi-hard negatives are `[EasyPositive(), SemiHard()]`. What a strategy drops
is no pair of the loss any more: means over anchors or pairs count those that are left.

A function of one's own is a strategy too: from the similarities, and bool masks of the positives
and of the negatives, each `[a, c]` (anchors by candidates), to the two masks of those that stay.
What was no positive or negative before does not become one by it. Similarities are cosines, or
`1 − D²/2` for a loss on embeddings that it does not normalise, which for unit vectors is the same;
they are constants for the gradient. Each anchor has its row: on several devices a strategy sees
the rows of its own anchors, and gives what one device would.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias

import keras
from keras import ops

from keras_dml._pairwise.pairs import Pairs
from keras_dml._pairwise.reductions import count, maximum
from keras_dml._pairwise.search import next_larger
from keras_dml.checks import check_number, check_seed, shown
from keras_dml.distribute import place_among_replicas
from keras_dml.errors import ArgumentError, ArgumentTypeError
from keras_dml.negatives import (
    FARTHEST,
    NEAREST,
    check_distances,
    distance_weighted,
    fixed_noise,
)
from keras_dml.types import Config, Tensor

__all__ = [
    "STRATEGIES",
    "DistanceWeighted",
    "EasyPositive",
    "Hard",
    "Mining",
    "MultiSimilarity",
    "SemiHard",
    "Strategy",
    "check_mining",
    "informative",
    "mined",
    "mining_from_config",
]

INFINITY = float("inf")

Masks: TypeAlias = tuple[Tensor, Tensor]
"""Bool `[a, c]`: which pairs are positives, and which are negatives."""


class Mining:
    """A strategy: which pairs a loss sees. Subclasses override `masks`.

    Examples:
        >>> class Near(Mining):
        ...     def masks(self, similarities, pairs):
        ...         return pairs.positive, pairs.negative & (similarities > 0.5)
    """

    def masks(self, similarities: Tensor, pairs: Pairs) -> Masks:
        """The positives and the negatives that stay.

        Args:
            similarities: `[a, c]`, without a gradient.
            pairs: with the masks `positive` and `negative`, bool `[a, c]`.
        """
        raise NotImplementedError

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """The strategy of this configuration."""
        return cls(**config)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({given})"


Strategy: TypeAlias = Mining | Callable[[Tensor, Tensor, Tensor], Masks]
"""A `Mining`, or a function (similarities, positive, negative) -> (positive, negative)."""


@keras.saving.register_keras_serializable("keras_dml")
class Hard(Mining):
    """Of each anchor the least similar positive and the most similar negative; ties all stay.

    Examples:
        >>> loss = keras_dml.losses.ContrastiveLoss(normalize=True, mining=Hard())
        >>> round(float(loss(np.array([0, 0, 1, 1]), np.eye(4, dtype="float32"))), 3)
        2.0

    Reference: Hermans et al., "In Defense of the Triplet Loss for Person Re-Identification",
    arXiv:1703.07737, Eq. 5.
    """

    def masks(self, similarities: Tensor, pairs: Pairs) -> Masks:
        """As the class says."""
        positive, negative = pairs.positive, pairs.negative
        return (
            ops.logical_and(positive, similarities <= _least(similarities, positive)),
            ops.logical_and(negative, similarities >= _most(similarities, negative)),
        )


@keras.saving.register_keras_serializable("keras_dml")
class SemiHard(Mining):
    """Every positive; of the negatives those that are the semi-hard one of some positive.

    That is the most similar negative strictly less similar than the positive or, where there is
    none, the least similar negative. Ties all stay; an anchor without positives has no negatives.
    (The pairs of the triplets of `keras_dml.losses.TripletLoss(mining="semihard")`: that each
    positive meets its own negative alone, only a loss over triplets can say.)

    Examples:
        >>> loss = keras_dml.losses.ContrastiveLoss(normalize=True, mining=SemiHard())
        >>> round(float(loss(np.array([0, 0, 1, 1]), np.eye(4, dtype="float32"))), 3)
        2.0

    Reference: Schroff et al., "FaceNet", CVPR 2015, 3.2; the fallback is tensorflow-addons'.
    """

    def masks(self, similarities: Tensor, pairs: Pairs) -> Masks:
        """As the class says."""
        positive, negative = pairs.positive, pairs.negative
        # The next more similar pair of a semi-hard negative is a positive.
        next_positive = next_larger(similarities, similarities, positive)
        next_negative = next_larger(similarities, similarities, negative)
        semi_hard = ops.logical_and(next_positive <= next_negative, next_positive < INFINITY)
        least = _least(similarities, negative)
        fallback = ops.logical_and(similarities <= least, _least(similarities, positive) <= least)
        return positive, ops.logical_and(negative, ops.logical_or(semi_hard, fallback))


@keras.saving.register_keras_serializable("keras_dml")
class EasyPositive(Mining):
    """Of each anchor the most similar positive (ties all stay), and every negative.

    Classes then need not become one spot each. With `Hard()` after it the negatives are the hardest
    ones, with `SemiHard()` the semi-hard ones of the easy positive.

    Examples:
        >>> loss = keras_dml.losses.ContrastiveLoss(normalize=True, mining=EasyPositive())
        >>> round(float(loss(np.array([0, 0, 1, 1]), np.eye(4, dtype="float32"))), 3)
        2.0

    Reference: Xuan et al., "Improved Embeddings with Easy Positive Triplet Mining", WACV 2020.
    """

    def masks(self, similarities: Tensor, pairs: Pairs) -> Masks:
        """As the class says."""
        positive = pairs.positive
        easy = ops.logical_and(positive, similarities >= _most(similarities, positive))
        return easy, pairs.negative


@keras.saving.register_keras_serializable("keras_dml")
class MultiSimilarity(Mining):
    """The pairs that still tell something, by the margin ε of the multi-similarity loss.

    A positive stays if it is less similar than the most similar negative plus ε, a negative if it
    is more similar than the least similar positive minus ε.

    Examples:
        >>> loss = keras_dml.losses.ContrastiveLoss(normalize=True, mining=MultiSimilarity())
        >>> round(float(loss(np.array([0, 0, 1, 1]), np.eye(4, dtype="float32"))), 3)
        2.0

    Args:
        epsilon: ε, at least 0.

    Raises:
        ValueError: `epsilon` below 0.

    Reference: Wang et al., "Multi-Similarity Loss With General Pair Weighting for Deep Metric
    Learning", CVPR 2019, Eq. 11-12.
    """

    def __init__(self, epsilon: float = 0.1) -> None:
        self.epsilon = check_number("epsilon", epsilon, least=0)

    def masks(self, similarities: Tensor, pairs: Pairs) -> Masks:
        """As the class says."""
        return informative(similarities, pairs.positive, pairs.negative, self.epsilon)


@keras.saving.register_keras_serializable("keras_dml")
class DistanceWeighted(Mining):
    """Every positive, and about as many negatives, spread over all distances.

    Negative j of an anchor with |P| positives stays with the probability `min(1, |P| w_j)`, w being
    its weight under `keras_dml.negatives.distance_weighted`; an anchor without positives has no
    negatives. What decides is a number that is a pure function of the seed and of the two slots in
    the batch, the same in every step and on any number of devices: it is the images in the slots
    that change from step to step. For unit embeddings.

    Examples:
        >>> loss = keras_dml.losses.ContrastiveLoss(normalize=True, mining=DistanceWeighted())
        >>> round(float(loss(np.array([0, 0, 1, 1]), np.eye(4, dtype="float32"))), 3)
        2.0

    Args:
        seed: a whole number from 0 to 2³¹ − 1. XLA, and another backend, draw other numbers by it.
        nearest: smallest distance that is told apart, in (0, farthest).
        farthest: distance from which a negative is left out, below 2.

    Raises:
        ValueError: `seed` out of range, or unless 0 < nearest < farthest < 2.

    Reference: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, Eq. 2-4.
    """

    def __init__(self, seed: int = 0, nearest: float = NEAREST, farthest: float = FARTHEST) -> None:
        self.seed = check_seed("seed", seed)
        self.nearest, self.farthest = check_distances(nearest, farthest)

    def masks(self, similarities: Tensor, pairs: Pairs) -> Masks:
        """As the class says."""
        distances = ops.sqrt(maximum(2.0 - 2.0 * similarities, 0.0))
        dimensions = ops.shape(pairs.anchors)[-1]
        weights = distance_weighted(
            distances, pairs.negative, dimensions, self.nearest, self.farthest
        )
        wanted = weights * count(pairs.positive, weights.dtype)[:, None]
        anchors, candidates = ops.shape(similarities)
        replica, replicas = place_among_replicas()
        noise = fixed_noise((replicas * anchors, candidates), self.seed)
        noise = ops.slice(noise, (replica * anchors, 0), (anchors, candidates))
        return pairs.positive, ops.logical_and(
            pairs.negative, ops.cast(noise, wanted.dtype) < wanted
        )


STRATEGIES: dict[str, type[Mining]] = {
    "hard": Hard,
    "semi_hard": SemiHard,
    "easy_positive": EasyPositive,
    "multi_similarity": MultiSimilarity,
    "distance_weighted": DistanceWeighted,
}
"""The strategies by the names that a command line knows them by."""


def informative(similarities: Tensor, positive: Tensor, negative: Tensor, epsilon: float) -> Masks:
    """The masks that `MultiSimilarity(epsilon)` leaves of `positive` and `negative` `[a, c]`.

    Examples:
        >>> similarities = np.array([[0.9, 0.2, 0.8]], "float32")
        >>> positive = np.array([[True, True, False]])
        >>> np.array(informative(similarities, positive, ~positive, epsilon=0.1)[0])
        array([[ True,  True, False]])
    """
    return (
        ops.logical_and(positive, similarities < _most(similarities, negative) + epsilon),
        ops.logical_and(negative, similarities > _least(similarities, positive) - epsilon),
    )


def check_mining(mining: Strategy | Sequence[Strategy] | None) -> tuple[Strategy, ...]:
    """The strategies in their order; none for None.

    Examples:
        >>> len(check_mining([EasyPositive(), Hard()]))
        2

    Raises:
        TypeError: what is neither a `Mining` nor a function, nor a list of them.
    """
    if mining is None:
        return ()
    strategies = tuple(mining) if isinstance(mining, (list, tuple)) else (mining,)
    for strategy in strategies:
        if isinstance(strategy, Mining) or (
            callable(strategy) and not isinstance(strategy, (type, keras.losses.Loss))
        ):
            continue
        raise ArgumentTypeError(
            "mining must be a strategy of keras_dml.mining, as in mining=Hard(), a function from "
            "(similarities, positive, negative) to the masks of the positives and the negatives "
            f"that stay, or a list of these. Received: mining={shown(mining)}"
        )
    return strategies


def mining_from_config(config: Any) -> Any:
    """What `get_config` of a loss says of its mining, as objects again; other words stay.

    Examples:
        >>> config = keras.saving.serialize_keras_object([Hard()])
        >>> type(mining_from_config(config)[0]).__name__
        'Hard'
    """
    if isinstance(config, (list, tuple)):
        return tuple(keras.saving.deserialize_keras_object(each) for each in config)
    return config


def mined(pairs: Pairs, strategies: Sequence[Strategy], unit: bool) -> Pairs:
    """The pairs that the strategies leave, one after the other.

    Examples:
        >>> embeddings = keras.ops.eye(4)
        >>> pairs = Pairs.of_batch(keras.ops.convert_to_tensor([0, 0, 1, 1]), embeddings)
        >>> tuple(mined(pairs, [Hard()], unit=True).positive.shape)
        (4, 4)

    Args:
        pairs: of a batch, or of a batch against a memory.
        strategies: as `check_mining` gives them.
        unit: whether the embeddings have length 1.

    Raises:
        ValueError: a function that gives no two masks of the shape `[a, c]`.
    """
    if not strategies:
        return pairs
    similarities = pairs.similarities() if unit else 1.0 - 0.5 * pairs.squared_distances()
    similarities = ops.stop_gradient(similarities)
    for strategy in strategies:
        if isinstance(strategy, Mining):
            masks = strategy.masks(similarities, pairs)
        else:
            masks = strategy(similarities, pairs.positive, pairs.negative)
        positive, negative = _checked(masks, similarities, strategy)
        pairs = dataclasses.replace(
            pairs,
            positive=ops.logical_and(pairs.positive, positive),
            negative=ops.logical_and(pairs.negative, negative),
        )
    return pairs


def _checked(masks: Any, similarities: Tensor, strategy: Strategy) -> Masks:
    shape = tuple(similarities.shape)
    if isinstance(masks, (list, tuple)) and len(masks) == 2:
        given = [ops.convert_to_tensor(mask) for mask in masks]
        if all(_may_be(tuple(mask.shape), shape) for mask in given):
            return ops.cast(given[0], "bool"), ops.cast(given[1], "bool")
        received: Any = f"masks of the shapes {', '.join(str(tuple(m.shape)) for m in given)}"
    else:
        received = type(masks).__name__
    raise ArgumentError(
        "mining must give two masks, of the positives and of the negatives that stay, each of the "
        f"shape {shape} of the similarities. Received: mining={strategy!r}, which gave {received}"
    )


def _may_be(shape: tuple[int | None, ...], other: tuple[int | None, ...]) -> bool:
    return len(shape) == len(other) and all(
        None in sizes or sizes[0] == sizes[1] for sizes in zip(shape, other)
    )


def _least(similarities: Tensor, mask: Tensor) -> Tensor:
    """The least similarity of each row under a mask, `[a, 1]`; infinity where none is."""
    return ops.min(ops.where(mask, similarities, INFINITY), axis=-1, keepdims=True)


def _most(similarities: Tensor, mask: Tensor) -> Tensor:
    """The greatest similarity of each row under a mask, `[a, 1]`; minus infinity where none is."""
    return ops.max(ops.where(mask, similarities, -INFINITY), axis=-1, keepdims=True)
