"""Any loss over embeddings, summed over prefixes of the embeddings."""

import functools
import operator
from collections.abc import Sequence

import keras

from keras_dml._common.checks import check_number, check_wholes
from keras_dml._common.errors import ArgumentTypeError, argument_error
from keras_dml._common.types import Parts, Tensor, TensorLike
from keras_dml._pairwise.pairs import Candidates
from keras_dml.losses.base import EmbeddingLoss


@keras.saving.register_keras_serializable("keras_dml")
class MatryoshkaLoss(EmbeddingLoss):
    """Matryoshka: a loss summed over prefixes of the embedding, so that each is an embedding.

    With prefix lengths `m_1 < … < m_L`, where `m_L` is d, and weights `w_l`, the loss is
    `Σ_l w_l L(y, z[:, :m_l])`. Its parts are the sums of the parts. A loss that normalizes its
    embeddings normalizes each prefix. Search with a short normalized prefix takes proportionally
    less memory and time, and the full embedding can re-score its results.

    Examples:
        >>> loss = MatryoshkaLoss(keras_dml.losses.MultiSimilarityLoss(), dims=(32, 64, 128))
        >>> model.compile("adam", loss)  # of a model with embeddings [n, 128]

    Args:
        loss: A loss over embeddings. Losses on logits or class cosines, losses with learned
            boundaries, and RankMI are not supported. Its `reduction` is not used.
        dims: The lengths, increasing. The last is d.
        weights: w, a number of at least 0 for each length. None sets all weights to 1.
        reduction, name: As in `EmbeddingLoss`.
        dtype: As in `EmbeddingLoss`. None is the dtype of `loss`.

    Raises:
        TypeError: `loss` is not a supported loss.
        ValueError: `dims` is empty, below 1, not increasing, or (when called) does not end with d.
            Also if the number of weights differs from the number of lengths, or a weight is below
            0.

    Reference: Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022, Eq. 1.
    """

    def __init__(
        self,
        loss: EmbeddingLoss,
        dims: Sequence[int],
        *,
        weights: Sequence[float] | None = None,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "matryoshka",
        dtype: str | None = None,
    ) -> None:
        if (
            not isinstance(loss, EmbeddingLoss)
            or loss.kind not in ("pairs", "beside_classifier")
            or loss.boundaries
        ):
            wanted = "a keras_dml.losses.EmbeddingLoss over only embeddings"
            raise argument_error("loss", wanted, loss, ArgumentTypeError)
        super().__init__(reduction=reduction, name=name, dtype=dtype or loss.dtype)
        self.loss = loss
        self.dims = check_wholes("dims", dims, least=1)
        if list(self.dims) != sorted(set(self.dims)):
            raise argument_error("dims", "increasing lengths of prefixes", self.dims)
        given = [1.0] * len(self.dims) if weights is None else list(weights)
        if len(given) != len(self.dims):
            wanted = f"one number for each of dims={self.dims}"
            raise argument_error("weights", wanted, tuple(given))
        self.weights = tuple(
            check_number(f"weights[{number}]", weight, least=0)
            for number, weight in enumerate(given)
        )

    def checked_labels(self, y_true: TensorLike) -> Tensor:
        """Convert the labels as the inner loss does."""
        return self.loss.checked_labels(y_true)

    def are_valid(self, labels: Tensor) -> Tensor | bool:
        """Return whether the labels are valid for the inner loss."""
        return self.loss.are_valid(labels)

    def check_candidates(self) -> None:
        """Raise the error of the inner loss."""
        self.loss.check_candidates()

    def check_memory(self) -> None:
        """Raise the error of the inner loss."""
        self.loss.check_memory()

    def compute_loss(
        self, class_ids: Tensor, embeddings: Tensor, *candidates: Candidates
    ) -> Tensor:
        """Compute the loss `[n]` of the prefixes."""
        prefixes = self._prefixes(embeddings)
        return _sum([w * self.loss.compute_loss(class_ids, z, *candidates) for w, z in prefixes])

    def compute_parts(
        self, class_ids: Tensor, embeddings: Tensor, *candidates: Candidates
    ) -> Parts:
        """Compute the two parts `[n]` of the loss of `compute_loss`."""
        prefixes = self._prefixes(embeddings)
        parts = [(w, self.loss.compute_parts(class_ids, z, *candidates)) for w, z in prefixes]
        return _sum([w * both[0] for w, both in parts]), _sum([w * both[1] for w, both in parts])

    def _prefixes(self, embeddings: Tensor) -> list[tuple[float, Tensor]]:
        """Return the weight and the prefix of each length."""
        dimensions = embeddings.shape[1]
        if dimensions is not None and dimensions != self.dims[-1]:
            wanted = f"lengths that end with d = {dimensions}, the length of the embeddings"
            raise argument_error("dims", wanted, self.dims)
        return [(w, embeddings[:, :length]) for w, length in zip(self.weights, self.dims)]


def _sum(values: list[Tensor]) -> Tensor:
    return functools.reduce(operator.add, values)
