"""The kinds of training. A new kind is a file here and a line in `KINDS`."""

import inspect
from collections.abc import Callable
from typing import TypeAlias

from experiments.options import RunOptions, loss_flags
from experiments.options.declared import shown, value_of
from experiments.options.errors import UsageError
from experiments.training.objectives.alternating import Alternating
from experiments.training.objectives.base import Objective
from experiments.training.objectives.classifier import (
    AlternatingClassifier,
    AttachedClassifier,
    BesideClassifier,
    Classifier,
)
from experiments.training.objectives.joint import Joint, JointClassifier
from experiments.training.objectives.pairs import OverCatalog, OverPairs
from experiments.training.objectives.proxies import OverProxies
from keras_dml import losses

KINDS: dict[str, type[Objective]] = {
    "pairs": OverPairs,
    "proxies": OverProxies,
    "classifier": Classifier,
    "beside_classifier": BesideClassifier,
    "statistics_network": Alternating,
}
"""The kinds of training by `EmbeddingLoss.kind`."""


_Rule: TypeAlias = Callable[[type[losses.EmbeddingLoss], type[Objective]], bool]


def _takes(argument: str) -> _Rule:
    return lambda loss, kind: argument in inspect.signature(loss).parameters


# The losses, and their kinds of training, that take a flag or the flags of a prefix.
_TAKEN_WITH: dict[str, _Rule] = {
    "classifier": _takes("classifier"),
    "objective": lambda loss, kind: kind is Classifier,
    "mining": _takes("mining"),
    "relation": _takes("relation"),
    "dropout": lambda loss, kind: kind.has_classifier,
    "matryoshka": lambda loss, kind: kind in (OverPairs, BesideClassifier),
    "chunk_size": lambda loss, kind: kind is not Alternating,
    "compatible_with": lambda loss, kind: kind is OverPairs and loss.takes_memory,
    loss_flags.MEMORY: lambda loss, kind: kind is OverPairs and loss.takes_memory,
    loss_flags.PROXIES: lambda loss, kind: kind is OverProxies,
}


def objective_of(options: RunOptions) -> Objective:
    """Create the kind of training for the loss of the options.

    Raises:
        ValueError: The loss is unknown, or an option is set that the loss does not support.
    """
    loss = losses.get(options.loss)
    kind = AttachedClassifier if options.classifier else KINDS[loss.kind]
    for name, value in ((name, value_of(options, name)) for name in sorted(options.given)):
        rule = _TAKEN_WITH.get(name) or _TAKEN_WITH.get(f"{name.partition('_')[0]}_")
        # 0, the default of --dropout, changes nothing.
        if rule is None or value in (None, False) or rule(type(loss), kind):
            continue
        takers = [each for each, taker in losses.LOSSES.items() if rule(taker, KINDS[taker.kind])]
        raise UsageError(
            f"loss must be one of {', '.join(takers)} with {name}={shown(value)}, but got "
            f"{options.loss}."
        )
    if options.candidates == "catalog":
        kind = OverCatalog
    elif options.objective is not None:
        kind = AlternatingClassifier
    elif options.also is not None:
        kind = JointClassifier if kind is Classifier else Joint
    objective = kind(options)
    objective.check()
    _check_positives(options)
    return objective


def _check_positives(options: RunOptions) -> None:
    """Raise `UsageError` if a loss over pairs trains on batches without two images of a class."""
    over_pairs = losses.LOSSES[options.loss].kind in ("pairs", "statistics_network")
    elsewhere = options.candidates == "catalog" or options.memory or options.relation is not None
    if not options.batches_by_class or elsewhere or not (over_pairs or options.also):
        return
    if options.of_samplers["images_per_class"] == 1:
        raise UsageError(
            f"images_per_class must be at least 2 for loss={options.also or options.loss}, but got "
            "1. A loss over pairs needs two images of a class in a batch."
        )
