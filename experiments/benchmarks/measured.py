"""What is measured of a loss: its batch, and the loss of pytorch-metric-learning beside it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.benchmarks.timing import Step
from keras_dml import losses

IMAGES_PER_CLASS = 4
# Those over embeddings: the cost of one over logits or cosines is the classifier's or the head's.
_OVER_CLASSES = ("classifier", "proxies")
PAIRWISE = [name for name, loss in losses.LOSSES.items() if loss.kind not in _OVER_CLASSES]


def _contrastive(theirs: Any, distances: Any, reducers: Any) -> Any:
    return theirs.ContrastiveLoss(0, 1, distance=distances.LpDistance(normalize_embeddings=False))


# As ours are set.
_PEERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "contrastive": _contrastive,
    "snca": lambda theirs, distances, _: theirs.NCALoss(20, distance=distances.CosineSimilarity()),
    "multi_similarity": lambda theirs, *_: theirs.MultiSimilarityLoss(2, 50, 0.5),
    "triplet": lambda theirs, _, reducers: theirs.TripletMarginLoss(
        0.2, reducer=reducers.MeanReducer()
    ),
    "fastap": lambda theirs, *_: theirs.FastAPLoss(10),
    "lifted_structure": lambda theirs, *_: theirs.LiftedStructureLoss(),
    "ice": lambda theirs, *_: theirs.NTXentLoss(1 / 64),
    "nt_xent": lambda theirs, *_: theirs.NTXentLoss(0.07),
    "supcon": lambda theirs, *_: theirs.SupConLoss(0.1),
    "circle": lambda theirs, *_: theirs.CircleLoss(0.4, 80),
}
WITH_PEERS = tuple(_PEERS)
# Whose memory runs out beyond 512 images.
_CUBIC = ("triplet", "lifted_structure", "ice", "nt_xent")


def made_batch(size: int, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Class ids `[size]` and float32 embeddings `[size, dimensions]`, the same in every process."""
    embeddings = np.random.default_rng(0).normal(size=(size, dimensions)).astype("float32")
    return np.arange(size) // IMAGES_PER_CLASS, embeddings


def peer_step(
    name: str, labels: np.ndarray, embeddings: np.ndarray, device: str = "cpu"
) -> Step | None:
    """The peer's step on a device; None where it is not installed or has no such loss."""
    try:
        import torch
        from pytorch_metric_learning import distances, reducers
        from pytorch_metric_learning import losses as theirs
    except ImportError:
        return None
    if name not in _PEERS or (name in _CUBIC and len(labels) > 512):
        return None
    loss = _PEERS[name](theirs, distances, reducers)
    z = torch.tensor(embeddings, device=device, requires_grad=True)
    ids = torch.tensor(labels, device=device)

    def step() -> None:
        z.grad = None
        loss(z, ids).backward()
        if device != "cpu":
            torch.cuda.synchronize()

    return step
