"""One object for each kind of training: a new kind is a file here and its line in `KINDS`."""

from experiments.options import RunOptions
from experiments.options.errors import UsageError
from experiments.training.objectives.alternating import Alternating
from experiments.training.objectives.base import Objective
from experiments.training.objectives.classifier import BesideClassifier, Classifier
from experiments.training.objectives.pairs import OverPairs
from keras_dml import losses

KINDS: dict[str, type[Objective]] = {
    "pairs": OverPairs,
    "classifier": Classifier,
    "beside_classifier": BesideClassifier,
    "statistics_network": Alternating,
}
"""What serves the losses, by what they say of themselves (`EmbeddingLoss.kind`)."""


def objective_of(options: RunOptions) -> Objective:
    """The kind of training that the loss of these options asks for.

    Raises:
        ValueError: unknown loss; dropout before a classifier that there is not.
    """
    kind = KINDS[losses.get(options.loss).kind]
    if options.dropout and not kind.has_classifier:
        named = [name for name, loss in losses.LOSSES.items() if KINDS[loss.kind].has_classifier]
        raise UsageError(
            f"dropout is before the classifier, which only losses {', '.join(named)} have. "
            f"Received: dropout={options.dropout}"
        )
    return kind(options)


__all__ = ["KINDS", "Objective", "objective_of"]
