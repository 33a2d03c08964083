"""Losses that a run evaluates on fixed batches after each epoch, without training on them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import keras
import numpy as np
from scipy.special import logsumexp

from experiments.evaluation.evaluators import (
    Arrays,
    EvaluatedRun,
    Evaluator,
    Findings,
    Finished,
)
from experiments.evaluation.figures import tracked_figures
from experiments.evaluation.measurement import Measurement
from experiments.options.errors import UsageError
from experiments.options.loss_flags import loss_names, parsed_arguments
from keras_dml import losses
from pipelines import Split

# Batches of the training, from the first. They stay the same over all epochs.
_BATCHES = 8
# The rows of `proposition_1`, which takes K·n·d² time.
_MOST_ROWS = 4096
_KINDS = ("pairs", "beside_classifier")
#: Terms of Proposition 1 -> their names in `metrics.jsonl` after "track/gap_".
TERMS = ("ce", "pce", "lambda", "a1", "a2", "b")


class TrackedLosses(Evaluator):
    """The values and parts of losses on fixed batches of training images.

    Args:
        names: Names of losses.
        flags: Arguments of the losses, `NAME/ARGUMENT=VALUE`.
        has_classifier: Whether the fitted model has a layer "logits". Without it, "ce" is left out.

    Raises:
        UsageError: A loss is unknown, or needs a head or a network.
    """

    def __init__(self, names: Sequence[str], flags: Sequence[str], has_classifier: bool) -> None:
        self.has_classifier = has_classifier
        self.names = [name for name in names if has_classifier or name != "ce"]
        for name in names:
            if name not in losses.LOSSES:
                known = ", ".join(loss_names())
                raise UsageError(f"track must be of {known}, but got {name}.")
            kind = losses.LOSSES[name].kind
            if kind not in _KINDS and name != "ce":
                raise UsageError(
                    f"track must be of losses over embeddings, but got {name}, which needs "
                    f"{'proxies' if kind == 'proxies' else 'a network'}."
                )
        arguments = parsed_arguments("track_flags", flags, names)
        self.losses = {
            name: losses.get(name, **arguments.get(name, {}), dtype="float64")
            for name in self.names
        }

    def sides(self, data: Split) -> Sequence[str]:
        """Return the name of the training images."""
        return ("training",)

    def measure(
        self, run: EvaluatedRun, model: keras.Model, embeddings: Arrays
    ) -> list[Measurement]:
        """Return the means over the batches, and the terms of Proposition 1 with "pce"."""
        found: dict[str, float] = {}
        batches = [run.sampler(step) for step in range(_BATCHES)]
        z, labels = embeddings["training"], run.data.train.labels
        layer = model.get_layer("logits") if self.has_classifier else None
        for name, loss in self.losses.items():
            inputs = keras.ops.convert_to_numpy(layer(z)) if layer and name == "ce" else z
            parts = [
                [float(np.mean(part)) for part in _parts(loss, labels[rows], inputs[rows])]
                for rows in batches
            ]
            tightness, contrastive = np.mean(parts, axis=0)
            found[name] = tightness + contrastive
            found |= {f"{name}_tightness": tightness, f"{name}_contrastive": contrastive}
        if "pce" in self.losses and layer is not None:
            theta = keras.ops.convert_to_numpy(layer.kernel).T
            terms = proposition_1(z[:_MOST_ROWS], labels[:_MOST_ROWS], theta)
            found |= {f"gap_{key}": value for key, value in terms.items() if math.isfinite(value)}
        return [Measurement(name, value, side="track") for name, value in found.items()]

    def finish(self, run: EvaluatedRun, end: Finished) -> Findings:
        """Return the figures."""
        return Findings(figures=tracked_figures({"": end.history}))


def _parts(loss: losses.EmbeddingLoss, labels: np.ndarray, inputs: np.ndarray) -> list[np.ndarray]:
    found = loss.parts(labels, inputs.astype(np.float64))
    return [keras.ops.convert_to_numpy(part) for part in found]


def proposition_1(
    embeddings: np.ndarray, labels: np.ndarray, theta: np.ndarray
) -> dict[str, float]:
    """Compute CE, PCE, λ, and the terms of `CE − PCE = A₁ − A₂ − B` in float64.

    The logits have no bias. λ is Eq. 25, the smallest eigenvalue over the classes. It is 0 if the
    embeddings do not span all dimensions, for example with fewer rows. PCE is then not finite, and
    the result has CE and λ only.

    Args:
        embeddings: `[n, d]`.
        labels: Class numbers, `[n]`.
        theta: Rows of the classifier, `[K, d]`.

    Reference: Boudiaf et al. 2020, Proposition 1 and supplement A.2.
    """
    z, theta = embeddings.astype(np.float64), theta.astype(np.float64)
    n, classes = len(z), np.arange(len(theta))
    logits = z @ theta.T
    p = np.exp(logits - logsumexp(logits, axis=1)[:, None])
    h, c = ((labels[:, None] == classes).T @ z / n, p.T @ z / n)
    curvatures = [np.linalg.eigvalsh((z.T * (q - q * q)) @ z / n) for q in p.T]
    lam = min(float(values[0]) for values in curvatures)
    # The rounding error of an eigenvalue is relative to the largest one.
    error = z.shape[1] * np.finfo(float).eps * max(float(values[-1]) for values in curvatures)
    lam = lam if lam > error else 0.0
    ce = float(logsumexp(logits, axis=1).mean() - (theta * h).sum())
    if lam == 0:
        return {"ce": ce, "lambda": 0.0}
    center = c / lam
    of_center = float(logsumexp(z @ center.T, axis=1).mean())
    pce = of_center - float((h * h).sum() + (c * c).sum()) / (2 * lam)
    a1, a2 = (lam / 2 * float(((theta - each / lam) ** 2).sum()) for each in (h, c))
    b = of_center - float(logsumexp(logits, axis=1).mean() + (c * (center - theta)).sum())
    return dict(zip(TERMS, (ce, pce, lam, a1, a2, b)))
