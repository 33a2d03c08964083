"""Relations: which candidates are the positives and the negatives of an anchor.

A loss over pairs needs two masks `[a, c]` for anchors and candidates. A relation computes them from
the labels of the anchors and of the candidates. Pass it to a loss as `relation=`, or to the
functions of `keras_dml.metrics` that compare labels.

| labels | relation |
| --- | --- |
| one class id for each image, `[n]` | `SameClass` |
| several tags for each image, `[n, G]` or `[n, m]` | `SharesLabel` |
| a path of class ids for each image, `[n, levels]` | `Hierarchy` |
| a vector for each image, `[n, d]`, or any labels and a function | `Graded` |
| any | a function `(anchor_labels, candidate_labels) -> (positive, negative)` |

A pair that is neither positive nor negative is ignored.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import keras
import numpy as np
from keras import ops

from keras_dml._backend.configured import ConfiguredValue
from keras_dml._common.checks import check_choice, check_number
from keras_dml._common.errors import ArgumentError, ArgumentTypeError, argument_error, shape_error
from keras_dml._common.types import Config, Tensor, TensorLike
from keras_dml._pairwise.arrays import (
    are_apart,
    as_labels,
    check_width,
    checked_class_ids,
    known_numbers,
    numbers_of,
    of_one_dtype,
    widest_integers,
)
from keras_dml._pairwise.masks import Masks as Masks
from keras_dml._pairwise.masks import checked_masks, same_class

__all__ = [
    "RELATIONS",
    "FunctionOfLabels",
    "Graded",
    "Hierarchy",
    "Masks",
    "Relation",
    "RelationLike",
    "SameClass",
    "SharesLabel",
    "get",
]


class Relation(ConfiguredValue):
    """A map from the labels of anchors and candidates to the masks of a loss over pairs.

    A subclass overrides `masks`, and `checked_labels` if it accepts only some labels.

    Examples:
        >>> class SameParity(Relation):
        ...     def masks(self, anchors, candidates):
        ...         same = keras.ops.equal(anchors[:, None] % 2, candidates[None, :] % 2)
        ...         return same, ~same
        >>> positive, negative = SameParity()(np.array([0, 1]), np.array([2, 4, 5]))
        >>> np.array(positive)
        array([[ True,  True, False],
               [False, False,  True]])
    """

    # Whether labels are class ids, and pairs with equal ids are the positives.
    of_classes = False

    def __call__(self, anchor_labels: TensorLike, candidate_labels: TensorLike) -> Masks:
        """Return the masks of the positives and the negatives, bool `[a, c]` each.

        Args:
            anchor_labels: Labels with a rows.
            candidate_labels: Labels with c rows.

        Raises:
            ValueError: The labels are invalid for this relation, a mask has another shape, or a
                pair is both positive and negative.
        """
        anchors = self.checked_labels(anchor_labels, "anchor_labels")
        candidates = self.checked_labels(candidate_labels, "candidate_labels")
        return self.compare(anchors, candidates)

    def compare(self, anchors: Tensor, candidates: Tensor) -> Masks:
        """Return the result of `masks` for labels from `checked_labels`, after checks of the masks.

        `masks` receives the labels in one dtype that represents both sets.

        Raises:
            ValueError: A mask has another shape, or a pair is both positive and negative.
        """
        shape = anchors.shape[0], candidates.shape[0]
        masks = self.masks(*of_one_dtype(anchors, candidates))
        positive, negative = checked_masks("relation", self, masks, shape)
        both = known_numbers(ops.logical_and(positive, negative))
        if both is not None and both.any():
            anchor, candidate = np.argwhere(both)[0]
            raise ArgumentError(
                "relation must mark no pair as both positive and negative, but got both for anchor "
                f"{anchor} and candidate {candidate} from {self!r}."
            )
        return positive, negative

    def masks(self, anchors: Tensor, candidates: Tensor) -> Masks:
        """Return the masks of the positives and the negatives, bool `[a, c]` each."""
        raise NotImplementedError

    def gains(self, anchors: Tensor, candidates: Tensor) -> Tensor:
        """Return how relevant each candidate is, `[a, c]`, for nDCG. 1 for a positive, else 0."""
        return ops.cast(self.masks(anchors, candidates)[0], "float32")

    def checked_labels(self, labels: TensorLike, name: str = "y_true") -> Tensor:
        """Convert labels to a tensor with a row for each image, or raise `ValueError`."""
        tensor = numbers_of(name, labels, "labels")
        if not tensor.shape:
            raise argument_error(name, "labels with a row for each image", labels)
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        check_width(labels, dtype, name, "labels")
        known = known_numbers(tensor)
        if known is not None and np.isnan(known.astype("float64")).any():
            raise ArgumentError(f"{name} must be numbers, but got NaN.")
        # Replicas exchange labels by sums, which bools do not have.
        return ops.cast(tensor, "int32") if dtype == "bool" else tensor

    def are_valid(self, labels: Tensor) -> Tensor | bool:
        """Return whether checked labels are valid. A compiled graph has NaN losses otherwise."""
        return ops.all(ops.equal(labels, labels))  # NaN is not equal to itself


@keras.saving.register_keras_serializable("keras_dml")
class SameClass(Relation):
    """Positives have the anchor's class id, and negatives another class id.

    Labels are class ids `[n]` or `[n, 1]`.

    Examples:
        >>> positive, negative = SameClass()(np.array([0, 1]), np.array([0, 1, 1]))
        >>> np.array(positive)
        array([[ True, False, False],
               [False,  True,  True]])
    """

    of_classes = True

    def masks(self, anchors: Tensor, candidates: Tensor) -> Masks:
        """Return the masks of the positives and the negatives."""
        return same_class(anchors, candidates)

    def checked_labels(self, labels: TensorLike, name: str = "y_true") -> Tensor:
        """Convert to class ids `[n]`."""
        return checked_class_ids(as_labels(labels, name))

    def are_valid(self, labels: Tensor) -> Tensor | bool:
        """Return whether all class ids are whole numbers that their dtype can represent."""
        return are_apart(labels)


@keras.saving.register_keras_serializable("keras_dml")
class SharesLabel(Relation):
    """Positives share a tag with the anchor, and negatives share none.

    With the overlap `J_ij = |A_i ∩ A_j| / |A_i ∪ A_j|` of the tags (Jaccard):

    - positives: `J_ij > 0` and `J_ij ≥ min_overlap`
    - negatives: `J_ij = 0`

    A pair with a smaller overlap than `min_overlap`, but not 0, is ignored. The gain of a candidate
    for nDCG is the number of shared tags.

    Examples:
        >>> tags = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 1]])
        >>> positive, negative = SharesLabel()(tags, tags)
        >>> np.array(negative)
        array([[False, False,  True],
               [False, False, False],
               [ True, False, False]])
        >>> ids = np.array([[0, 1], [1, 2], [2, -1]])  # the same tags
        >>> np.array(SharesLabel(encoding="ids")(ids[:1], ids)[1])
        array([[False, False,  True]])

    Args:
        min_overlap: Smallest overlap J of positives, from 0 to 1. With 0, one shared tag is enough.
        encoding: `"multi_hot"`: labels `[n, G]` of 0 and 1, a column for each tag. `"ids"`: labels
            `[n, m]` of tag ids, each row padded with −1. A tag counts once in a row.

    Raises:
        ValueError: `min_overlap` is out of range, `encoding` is unknown, the labels are not a
            matrix, a row has no tag, a multi-hot label is neither 0 nor 1, or a tag id is not a
            whole number from −1 on. A compiled graph has NaN losses otherwise.
    """

    def __init__(self, min_overlap: float = 0.0, *, encoding: str = "multi_hot") -> None:
        self.min_overlap = check_number("min_overlap", min_overlap, least=0, most=1)
        self.encoding = check_choice("encoding", encoding, ("multi_hot", "ids"))

    def masks(self, anchors: Tensor, candidates: Tensor) -> Masks:
        """Return the masks of the positives and the negatives."""
        shared = self.gains(anchors, candidates)
        sizes = self._number_of_tags(anchors)[:, None] + self._number_of_tags(candidates)[None, :]
        enough = shared >= self.min_overlap * (sizes - shared) - 1e-6  # rounding of the product
        some = shared > 0.5
        return ops.logical_and(some, enough), ops.logical_not(some)

    def gains(self, anchors: Tensor, candidates: Tensor) -> Tensor:
        """Return the number of shared tags, `[a, c]`."""
        if self.encoding == "multi_hot":
            return ops.matmul(ops.cast(anchors, "float32"), ops.transpose(_floats(candidates)))
        # One position of the anchors at a time, so that memory stays [a, c, m].
        found = [
            ops.logical_and(
                ops.any(ops.equal(tag[:, None, None], candidates[None, :, :]), axis=-1),
                (tag >= 0)[:, None],
            )
            for tag in ops.unstack(anchors, axis=1)
        ]
        return sum((_floats(each) for each in found[1:]), start=_floats(found[0]))

    def checked_labels(self, labels: TensorLike, name: str = "y_true") -> Tensor:
        """Convert to a matrix of tags."""
        ids = self.encoding == "ids"
        tensor = _tag_ids(labels, name) if ids else super().checked_labels(labels, name)
        form = "[n, G], a column for each tag" if self.encoding == "multi_hot" else "[n, m] of ids"
        if len(tensor.shape) != 2:
            raise shape_error(name, f"tags of shape {form}, for SharesLabel", tensor)
        tensor = _once_in_a_row(tensor) if ids else tensor
        known = known_numbers(tensor)
        if known is None:
            return tensor
        if self.encoding == "multi_hot" and not ((known == 0) | (known == 1)).all():
            raise ArgumentError(
                f"{name} must be 0 or 1 for each tag, but got "
                f"{known[(known != 0) & (known != 1)][0]}. For tag ids, use encoding='ids'."
            )
        if ids and (known < -1).any():
            wanted = "tag ids from 0 on, and −1 after the tags of a row"
            raise argument_error(name, wanted, known[known < -1][0])
        empty = np.flatnonzero(ops.convert_to_numpy(self._number_of_tags(tensor)) == 0)
        if len(empty):
            raise ArgumentError(
                f"{name} must have a tag in each row, for SharesLabel, but got {len(empty)} rows "
                f"without a tag, first row {empty[0]}."
            )
        return tensor

    def are_valid(self, labels: Tensor) -> Tensor | bool:
        """Return whether each row has a tag, and the labels are tag ids, or 0 or 1."""
        tagged = ops.all(self._number_of_tags(labels) > 0)
        if self.encoding == "ids":
            sound = ops.logical_and(are_apart(labels), ops.all(labels >= -1))
            return ops.logical_and(tagged, sound)
        return ops.logical_and(tagged, ops.all(ops.equal(labels * (labels - 1), 0)))

    def _number_of_tags(self, labels: Tensor) -> Tensor:
        tags = labels if self.encoding == "multi_hot" else labels >= 0
        return ops.sum(_floats(tags), axis=-1)


@keras.saving.register_keras_serializable("keras_dml")
class Hierarchy(Relation):
    """Positives agree with the anchor down to one level, and negatives differ from another level.

    Labels are class ids `[n, levels]`, coarse to fine. Two images agree at a level if their ids are
    equal there and at all coarser levels, so ids of products may repeat between categories. The
    gain of a candidate for nDCG is the number of levels at which it agrees.

    Examples:
        >>> labels = np.array([[0, 0], [0, 0], [0, 1], [1, 0]])  # category, product
        >>> positive, negative = Hierarchy()(labels[:1], labels)
        >>> np.array(positive), np.array(negative)  # another product of the category is ignored
        (array([[ True,  True, False, False]]), array([[False, False, False,  True]]))

    Args:
        positives: Name of the level at which positives agree.
        negatives: `"other_LEVEL"`: negatives do not agree at that level. It must be the level of
            the positives, or a coarser one.
        levels: Names of the levels, coarse to fine.

    Raises:
        ValueError: A level is unknown, negatives could agree with positives, or the labels are not
            `[n, levels]`.
    """

    def __init__(
        self,
        positives: str = "product",
        negatives: str = "other_category",
        *,
        levels: Sequence[str] = ("category", "product"),
    ) -> None:
        self.levels = tuple(levels)
        self.positives = check_choice("positives", positives, self.levels)
        others = tuple(f"other_{level}" for level in self.levels)
        self.negatives = check_choice("negatives", negatives, others)
        if others.index(self.negatives) > self.levels.index(self.positives):
            coarser = others[: self.levels.index(self.positives) + 1]
            wanted = f"one of {coarser} for positives={positives!r}"
            raise argument_error("negatives", wanted, negatives)

    def masks(self, anchors: Tensor, candidates: Tensor) -> Masks:
        """Return the masks of the positives and the negatives."""
        agree = self._agreements(anchors, candidates)
        differ = agree[self.levels.index(self.negatives.removeprefix("other_"))]
        return agree[self.levels.index(self.positives)], ops.logical_not(differ)

    def gains(self, anchors: Tensor, candidates: Tensor) -> Tensor:
        """Return the number of levels at which a candidate agrees with the anchor, `[a, c]`."""
        agree = [_floats(each) for each in self._agreements(anchors, candidates)]
        return sum(agree[1:], start=agree[0])

    def checked_labels(self, labels: TensorLike, name: str = "y_true") -> Tensor:
        """Convert to class ids `[n, levels]`."""
        tensor = as_labels(labels, name)
        if len(tensor.shape) != 2 or tensor.shape[1] != len(self.levels):
            wanted = f"class ids [n, {len(self.levels)}], one for each level of {self.levels}"
            raise shape_error(name, wanted, tensor)
        return tensor

    def are_valid(self, labels: Tensor) -> Tensor | bool:
        """Return whether all class ids are whole numbers that their dtype can represent."""
        return are_apart(labels)

    def _agreements(self, anchors: Tensor, candidates: Tensor) -> list[Tensor]:
        """Return where pairs agree at each level, bool `[a, c]` each, coarse to fine."""
        agree: list[Tensor] = []
        for level in range(len(self.levels)):
            equal = ops.equal(anchors[:, level, None], candidates[None, :, level])
            agree.append(ops.logical_and(agree[-1], equal) if agree else equal)
        return agree


@keras.saving.register_keras_serializable("keras_dml")
class Graded(Relation):
    """Positives are more similar than a threshold, and negatives less similar than another.

    The similarity `s_ij` is the inner product of the l2-normalized label vectors, or the result of
    a function of the labels:

    - positives: `s_ij > positive_above`
    - negatives: `s_ij < negative_below`

    Other pairs are ignored. The gain of a candidate for nDCG is `max(s_ij, 0)`.

    Examples:
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.4], [0.0, 1.0]])
        >>> positive, negative = Graded(positive_above=0.8, negative_below=0.2)(vectors, vectors)
        >>> np.array(positive)[0], np.array(negative)[0]
        (array([ True,  True, False]), array([False, False,  True]))

    Args:
        positive_above: Similarity above which a candidate is a positive.
        negative_below: Similarity below which it is a negative, at most `positive_above`.
        similarity: `"cosine"`, for labels that are vectors `[n, d]`, or a function from
            `(anchor_labels, candidate_labels)` to similarities `[a, c]`. Keras saves only
            functions that are registered with `keras.saving.register_keras_serializable`.

    Raises:
        TypeError: `similarity` is neither `"cosine"` nor a function.
        ValueError: `negative_below` is above `positive_above`, or the labels are not vectors, which
            are finite and not 0. A compiled graph has NaN losses for the latter.
    """

    def __init__(
        self,
        positive_above: float,
        negative_below: float,
        *,
        similarity: str | Callable[[Tensor, Tensor], Tensor] = "cosine",
    ) -> None:
        self.positive_above = check_number("positive_above", positive_above)
        self.negative_below = check_number("negative_below", negative_below)
        if self.negative_below > self.positive_above:
            wanted = f"at most positive_above={positive_above}, so that no pair is both"
            raise argument_error("negative_below", wanted, negative_below)
        if similarity != "cosine" and not callable(similarity):
            wanted = "'cosine' or a function of the labels"
            raise argument_error("similarity", wanted, similarity, ArgumentTypeError)
        self.similarity = similarity

    def masks(self, anchors: Tensor, candidates: Tensor) -> Masks:
        """Return the masks of the positives and the negatives."""
        similarities = self._similarities(anchors, candidates)
        return similarities > self.positive_above, similarities < self.negative_below

    def gains(self, anchors: Tensor, candidates: Tensor) -> Tensor:
        """Return the similarities, and 0 for negative ones, `[a, c]`."""
        return ops.relu(_floats(self._similarities(anchors, candidates)))

    def checked_labels(self, labels: TensorLike, name: str = "y_true") -> Tensor:
        """Convert to label vectors `[n, d]`, or to any labels for a function."""
        tensor = super().checked_labels(labels, name)
        if self.similarity == "cosine" and len(tensor.shape) != 2:
            raise shape_error(name, "label vectors [n, d], for Graded(similarity='cosine')", tensor)
        known = None if callable(self.similarity) else known_numbers(_have_direction(tensor))
        if known is not None and not known.all():
            raise ArgumentError(
                f"{name} must be label vectors that are finite and not 0, for Graded, but got "
                f"{np.sum(~known)} other rows, first row {known.argmin()}."
            )
        return tensor

    def are_valid(self, labels: Tensor) -> Tensor | bool:
        """Return whether the labels are numbers, and each vector is finite and not 0."""
        if callable(self.similarity):
            return super().are_valid(labels)
        return ops.all(_have_direction(labels))

    def _similarities(self, anchors: Tensor, candidates: Tensor) -> Tensor:
        if callable(self.similarity):
            return ops.convert_to_tensor(self.similarity(anchors, candidates))
        unit = [ops.normalize(_floats(labels), axis=-1) for labels in (anchors, candidates)]
        return ops.matmul(unit[0], ops.transpose(unit[1]))


@keras.saving.register_keras_serializable("keras_dml")
class FunctionOfLabels(Relation):
    """The relation that a function of the labels defines.

    Examples:
        >>> def near(anchors, candidates):
        ...     gap = keras.ops.abs(anchors[:, None] - candidates[None, :])
        ...     return gap < 1.0, gap > 2.0
        >>> relation = FunctionOfLabels(near)
        >>> np.array(relation(np.array([0.0]), np.array([0.5, 1.5, 2.5]))[0])
        array([[ True, False, False]])

    Args:
        function: From `(anchor_labels, candidate_labels)` to bool masks `[a, c]` of the positives
            and of the negatives. Keras saves only functions that are registered with
            `keras.saving.register_keras_serializable`.

    Raises:
        TypeError: `function` is not callable.
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Masks]) -> None:
        if not callable(function):
            wanted = "a function from the labels of anchors and candidates to two masks"
            raise argument_error("function", wanted, function, ArgumentTypeError)
        self.function = function

    def masks(self, anchors: Tensor, candidates: Tensor) -> Masks:
        """Return the masks of the positives and the negatives."""
        return self.function(anchors, candidates)

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", None) or repr(self.function)


RELATIONS: Mapping[str, type[Relation]] = {"hierarchy": Hierarchy, "shares_label": SharesLabel}
"""The relations of images whose classes have a coarse class, by name."""

RelationLike: TypeAlias = Relation | Callable[[Tensor, Tensor], Masks] | Config | None
"""A relation, a function of labels, the configuration of a relation, or None for `SameClass`."""


def get(relation: RelationLike) -> Relation:
    """Return a relation: unchanged, around a function, from a configuration, or `SameClass`.

    Examples:
        >>> get(None)
        SameClass()

    Raises:
        TypeError: `relation` is none of these.
    """
    if relation is None:
        return SameClass()
    if isinstance(relation, Relation):
        return relation
    if isinstance(relation, dict):
        relation = keras.saving.deserialize_keras_object(relation)
        if isinstance(relation, Relation):
            return relation
    elif callable(relation) and not isinstance(relation, type):
        return FunctionOfLabels(relation)
    wanted = (
        "a relation of keras_dml.relations such as SharesLabel(), or a function from "
        "(anchor_labels, candidate_labels) to the masks of the positives and the negatives"
    )
    raise argument_error("relation", wanted, relation, ArgumentTypeError)


def _tag_ids(labels: TensorLike, name: str) -> Tensor:
    """Convert labels to tag ids. They are signed, because −1 fills the rows."""
    tensor = as_labels(labels, name, "tag ids")
    if not keras.backend.is_int_dtype(tensor.dtype):
        return tensor
    whole = widest_integers()
    check_width(labels, whole, name, "tag ids")
    return ops.cast(tensor, whole)


def _once_in_a_row(tags: Tensor) -> Tensor:
    """Sort the tag ids of each row `[n, m]`, and replace a repeated tag by −1."""
    ordered = ops.sort(tags, axis=1)
    again = ops.equal(ordered[:, 1:], ordered[:, :-1])
    rest = ops.where(again, ops.full_like(ordered[:, 1:], -1), ordered[:, 1:])
    return ops.concatenate([ordered[:, :1], rest], axis=1)


def _have_direction(vectors: Tensor) -> Tensor:
    """Return which label vectors `[n, d]` are finite and longer than 1e-6, bool `[n]`."""
    squares = ops.sum(ops.square(_floats(vectors)), axis=-1)
    return ops.logical_and(squares > 1e-12, squares < float("inf"))  # False for NaN


def _floats(tensor: Tensor) -> Tensor:
    return ops.cast(tensor, "float32")
