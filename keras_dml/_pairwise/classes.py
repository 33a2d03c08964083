"""Sums of a batch's embeddings over each class, without knowing how many classes it has."""

import dataclasses

from keras import ops

from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.types import Tensor
from keras_dml._pairwise.arithmetic import matmul


@dataclasses.dataclass(frozen=True)
class ClassSums:
    """The classes of the global batch. Each candidate stands for its class.

    Class ids are arbitrary numbers, and shapes must not depend on them. So a sum over the K classes
    is a sum over the c candidates, each divided by the number of images of its class:
    `Σ_k f(k) = Σ_j f(y_j) / n_{y_j}`.

    Attributes:
        anchors: Embeddings of this replica `[a, d]`.
        candidates: Embeddings of all replicas `[c, d]`.
        anchor_members: `[a, c]`, 1 where a candidate is of the anchor's class (itself included).
        members: `[c, c]`, the same for candidates.
        sizes: `[c]`, the number of images of each candidate's class.
        first: Bool `[c]`, the first candidate of each class.
        number: n, the images of the global batch, in the embeddings' dtype.
    """

    anchors: Tensor
    candidates: Tensor
    anchor_members: Tensor
    members: Tensor
    sizes: Tensor
    first: Tensor
    number: Tensor

    @classmethod
    def of_batch(cls, class_ids: Tensor, embeddings: Tensor) -> "ClassSums":
        """Collect class ids `[n]` and embeddings `[n, d]` of all replicas."""
        candidates, _ = gather_candidates(embeddings)
        candidate_ids, _ = gather_candidates(class_ids)

        def same_class(ids: Tensor) -> Tensor:
            return ops.cast(ops.equal(ids[:, None], candidate_ids[None, :]), embeddings.dtype)

        members = same_class(candidate_ids)
        # TensorFlow has no argmax of an empty row, as of a batch without images.
        padded = ops.pad(members, ((0, 0), (0, 1)), constant_values=1)
        return cls(
            anchors=embeddings,
            candidates=candidates,
            anchor_members=members if candidates is embeddings else same_class(class_ids),
            members=members,
            sizes=ops.sum(members, axis=-1),
            first=ops.equal(ops.argmax(padded, axis=-1), ops.arange(ops.shape(members)[0])),
            number=ops.cast(ops.shape(candidates)[0], embeddings.dtype),
        )

    def of_anchors(self) -> Tensor:
        """Sum the embeddings of each anchor's class, `[a, d]`."""
        return matmul(self.anchor_members, self.candidates)

    def of_candidates(self) -> Tensor:
        """Sum the embeddings of each candidate's class, `[c, d]`."""
        return matmul(self.members, self.candidates)

    def log_sum_exp(self, scores: Tensor) -> Tensor:
        """Compute `log Σ_k exp(s_ik)` `[n]` over the classes, from scores `[n, c]`."""
        return ops.logsumexp(scores - ops.log(self.sizes), axis=-1)

    def softmax(self, scores: Tensor) -> Tensor:
        """Compute the softmax over the classes of scores `[n, c]`, `[n, c]`."""
        return ops.exp(scores - self.log_sum_exp(scores)[:, None])
