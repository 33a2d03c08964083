"""The tightness and the contrastive part of losses on embeddings (Boudiaf et al. 2020, Table 2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from keras import ops

from experiments.evaluation.labeled_embeddings import EmbeddedSet
from experiments.evaluation.result import Findings
from experiments.options.errors import UsageError
from experiments.options.loss_flags import naming_flags
from keras_dml import losses

# The losses compare all images with each other.
_MOST_IMAGES = 5_000


def check_loss_parts(names: Sequence[str], images: int) -> None:
    """Raise an error for losses that `loss_parts_findings` cannot evaluate.

    Raises:
        UsageError: There are too many images, or a loss has another input than embeddings.
        ArgumentError: A name is not the name of a loss.
    """
    if names and images > _MOST_IMAGES:
        raise UsageError(
            f"loss_parts must be unset for more than {_MOST_IMAGES:,} images, but got {images:,}. "
            "Evaluate fewer classes, for example with --test_classes."
        )
    for name in names:
        with naming_flags({"loss": "loss_parts"}):
            loss = losses.get(name)
        if loss.kind not in ("pairs", "beside_classifier") or loss.boundaries:
            raise UsageError(
                f"loss_parts must be losses over embeddings, such as snca, but got {name}."
            )


def loss_parts_findings(embedded: EmbeddedSet, names: Sequence[str]) -> Findings:
    """Return the mean parts of each loss, with the default arguments of the loss."""
    class_ids = np.unique(embedded.labels, return_inverse=True)[1]
    embeddings = np.asarray(embedded.embeddings, np.float64)
    found: dict[str, dict[str, float]] = {}
    for name in names:
        parts = losses.get(name, dtype="float64").parts(class_ids, embeddings)
        tightness, contrastive = (float(ops.mean(part)) for part in parts)
        found[name] = {"tightness": tightness, "contrastive": contrastive}
    return Findings(
        lines=[
            (name, f"tightness {part['tightness']:.4g}, contrastive {part['contrastive']:.4g}")
            for name, part in found.items()
        ],
        result={"loss_parts": found} if found else {},
    )
