"""The kinds of training. A new kind is a file here and a line in `KINDS`."""

import inspect

from experiments.options import RunOptions, loss_flags
from experiments.options.errors import UsageError
from experiments.training.objectives.alternating import Alternating
from experiments.training.objectives.base import Objective
from experiments.training.objectives.classifier import (
    AttachedClassifier,
    BesideClassifier,
    Classifier,
)
from experiments.training.objectives.joint import Joint, JointClassifier
from experiments.training.objectives.pairs import OverPairs
from experiments.training.objectives.proxies import OverProxies
from keras_dml import losses, mining

KINDS: dict[str, type[Objective]] = {
    "pairs": OverPairs,
    "proxies": OverProxies,
    "classifier": Classifier,
    "beside_classifier": BesideClassifier,
    "statistics_network": Alternating,
}
"""The kinds of training by `EmbeddingLoss.kind`."""


def objective_of(options: RunOptions) -> Objective:
    """Create the kind of training for the loss of the options.

    Raises:
        ValueError: The loss is unknown, or an option is set that the loss does not support.
    """
    kind = KINDS[losses.get(options.loss).kind]
    if options.classifier:
        takers = _taking("classifier")
        if options.loss not in takers:
            raise UsageError(
                f"classifier must be given with loss {', '.join(takers)} only, but got "
                f"loss={options.loss}."
            )
        kind = AttachedClassifier
    if options.dropout and not kind.has_classifier:
        named = [name for name, loss in losses.LOSSES.items() if KINDS[loss.kind].has_classifier]
        raise UsageError(
            f"dropout is before the classifier, which only losses {', '.join(named)} have. "
            f"Received: dropout={options.dropout}"
        )
    if options.matryoshka is not None and kind not in (OverPairs, BesideClassifier):
        raise UsageError(
            f"matryoshka is only for losses over embeddings, and {options.loss} is another one. "
            f"Received: matryoshka={','.join(options.matryoshka)}"
        )
    if options.chunk_size is not None and kind is Alternating:
        raise UsageError(
            f"chunk_size is for one network, and loss {options.loss} trains two in turns. "
            f"Received: chunk_size={options.chunk_size}"
        )
    if options.chunk_statistics and options.chunk_size is None:
        raise UsageError("chunk_statistics is for --chunk_size=N. Received: chunk_statistics=True")
    of_memory = {f"{loss_flags.MEMORY}{name}": value for name, value in options.memory.items()}
    of_proxies = {
        **{f"{loss_flags.PROXIES}{name}": value for name, value in options.proxies.items()},
        **{name: getattr(options, name) for name in ("proxies_factor", "proxies_merging")},
    }
    for name, value in of_proxies.items():
        if value is not None and kind is not OverProxies:
            named = [
                name for name, loss in losses.LOSSES.items() if KINDS[loss.kind] is OverProxies
            ]
            raise UsageError(
                f"{name} is of the proxies, which only losses {', '.join(named)} have. "
                f"Received: {name}={value}"
            )
    for name, value in of_memory.items():
        if kind is not OverPairs:
            named = [name for name, loss in losses.LOSSES.items() if loss.takes_memory]
            raise UsageError(
                f"{name} is of a memory of earlier batches, which only losses {', '.join(named)} "
                f"take. Received: {name}={value} with loss={options.loss}"
            )
        if "size" not in options.memory:
            raise UsageError(f"{name} is for --memory_size=N. Received: {name}={value}")
    if options.mining is not None:
        _check_mining(options)
    if options.also is None:
        return kind(options)
    joint = (JointClassifier if kind is Classifier else Joint)(options)
    joint.check()
    return joint


def _check_mining(options: RunOptions) -> None:
    words = options.mining or ()
    given = f"Received: mining={','.join(words)}"
    if not words or not set(words) <= set(mining.STRATEGIES):
        raise UsageError(f"mining must be of {', '.join(mining.STRATEGIES)}. {given}")
    takers = _taking("mining")
    if options.loss not in takers:
        raise UsageError(
            f"mining is for losses over pairs ({', '.join(takers)}), not for {options.loss}. "
            f"{given}"
        )


def _taking(argument: str) -> list[str]:
    return [
        name
        for name, loss in losses.LOSSES.items()
        if argument in inspect.signature(loss).parameters
    ]


__all__ = ["KINDS", "Objective", "objective_of"]
