"""Where the positives of each anchor stand, for what looks at these by themselves.

Of a batch's n × n pairs few are positives: four images of a class each have three. What takes long
for a pair, as a softplus does, or has to do with each positive in turn, then looks at these alone,
gathered into `[n, k]`.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import keras
from keras import ops

from keras_dml.bounds import at_least, at_most
from keras_dml.cells import look_up
from keras_dml.class_ids import widest_integers
from keras_dml.gradients import WithGradient, with_gradient
from keras_dml.types import Tensor

__all__ = [
    "FEW_POSITIVES",
    "Positives",
    "at_columns",
    "cond",
    "find_positives",
    "of_partners",
    "positives_of_classes",
    "spread",
    "sums_over",
]

FEW_POSITIVES = 32
VERY_FEW_POSITIVES = 4
# Of a mask in one number, exact in float32.
_BITS = 16

Some = TypeVar("Some")


@dataclasses.dataclass(frozen=True)
class Positives:
    """A mask of positives, and where the positives of each row stand, if these are few.

    Attributes:
        mask: bool `[a, c]`.
        number: int32 `[a]`, how many positives a row has, and most: in one row, int32.
        columns: of a number m up to `FEW_POSITIVES` the columns of m positives of each row, int32
            `[a, m]`, or c of them if that is less. What a row does not have stands behind, in any
            column.
    """

    mask: Tensor
    number: Tensor
    most: Tensor
    columns: Callable[[int], Tensor]

    def are_few(self) -> Tensor | bool:
        """Whether no row has more than `FEW_POSITIVES`."""
        return self.are_within(FEW_POSITIVES)

    def are_within(self, number: int) -> Tensor | bool:
        """Whether no row has more than a `number` of at most `FEW_POSITIVES`."""
        width = self.mask.shape[1]
        return True if width is not None and width <= number else self.most <= number

    def few(self, number: int | None = None) -> tuple[Tensor, Tensor]:
        """The columns of a `number` of positives, by default of all there may be if they are few.

        And bool of the same shape, which of them there are: the first ones of each row.
        """
        columns = self.columns(FEW_POSITIVES if number is None else number)
        slots = ops.arange(ops.shape(columns)[1], dtype="int32")
        return columns, slots < self.number[:, None]

    def by_width(self, of: Callable[[Tensor | None, Tensor], Some]) -> Some:
        """`of(columns, present)` of as few columns as hold all positives, else `of(None, mask)`.

        The fewer, the faster what is done with them. No gradient may pass through `of`: where the
        graph does not know the batch's size, XLA gives a wrong one.
        """
        very_few = min(FEW_POSITIVES, VERY_FEW_POSITIVES)
        return cond(
            self.are_within(very_few),
            lambda: of(*self.few(very_few)),
            lambda: cond(
                self.are_few(),
                lambda: of(*self.few()),
                lambda: of(None, self.mask),
            ),
        )


def find_positives(positive: Tensor) -> Positives:
    """Up to `FEW_POSITIVES` positives of each row of a mask `[a, c]`.

    The mask is packed, 16 columns in a number, and the numbers that are not 0 are brought to the
    front. Then one positive of every row after the other is read off them. So the mask is passed
    over once, where `top_k` would look at all of its entries one by one.
    """
    rows, width = positive.shape[0], positive.shape[1]
    rows = ops.shape(positive)[0] if rows is None else rows
    columns = ops.shape(positive)[1] if width is None else width
    words = (columns + _BITS - 1) // _BITS if width is None else max(1, -(-width // _BITS))
    least = ops.minimum if width is None else min
    k, kept = least(FEW_POSITIVES, columns), least(FEW_POSITIVES, words)
    numbers = ops.cast(positive, "float32")
    if width is None or width != words * _BITS:
        numbers = ops.pad(numbers, ((0, 0), (0, words * _BITS - columns)))
    # Sums of different powers of 2, and of ones: a product is exact, and quicker than sums.
    packing = ops.convert_to_tensor([[2**bit, 1] for bit in range(_BITS)], dtype="float32")
    packed = ops.matmul(ops.reshape(numbers, (rows * words, _BITS)), packing)
    packed = ops.reshape(packed, (rows, words, 2))
    number = ops.cast(ops.sum(packed[..., 1], axis=-1), "int32")
    most = ops.max(number, initial=0)
    filled, at = ops.top_k(packed[..., 0], kept)
    filled, at = (ops.reshape(ops.cast(each, "int32"), (-1,)) for each in (filled, at))
    starts = ops.arange(rows, dtype="int32") * kept
    ends = starts + (kept - 1)
    slots = ops.arange(k, dtype="int32")[None, :]

    def read_off(slot: Tensor, place: Tensor, word: Tensor, found: Tensor) -> tuple[Tensor, ...]:
        lowest = word & -word
        bit = ops.log2(ops.cast(at_least(lowest, 1), "float32")) + 0.5
        column = look_up(at, place) * _BITS + ops.cast(bit, "int32")
        found = ops.where(slots == slot, column[:, None], found)
        rest = word - lowest
        place = ops.where(rest > 0, place, ops.minimum(place + 1, ends))
        return slot + 1, place, ops.where(rest > 0, rest, look_up(filled, place)), found

    start = (ops.zeros((), "int32"), starts, look_up(filled, starts), ops.zeros((rows, k), "int32"))
    found = ops.while_loop(
        lambda slot, *_: ops.logical_and(slot < most, slot < k), read_off, start
    )[-1]
    return Positives(positive, number, most, lambda wanted: found[:, :wanted])


def positives_of_classes(class_ids: Tensor, mask: Tensor, and_itself: bool = False) -> Positives:
    """`find_positives` of class ids `[n]`, where each image has all others of its class.

    Sorted by class, the positives of an image stand side by side: nothing of n × n is looked at.

    Args:
        class_ids: `[n]`, numbers of any dtype.
        mask: bool `[n, n]`, where they are equal, without the diagonal.
        and_itself: with the diagonal, each image one of its own positives.
    """
    if "int" not in keras.backend.standardize_dtype(class_ids.dtype):
        class_ids = ops.cast(class_ids, widest_integers())  # NaN, too, has a place in an order
    size = ops.shape(class_ids)[0]
    order = ops.cast(ops.argsort(class_ids), "int32")
    in_order, slots = look_up(class_ids, order), ops.arange(size, dtype="int32")
    begin, end = (
        ops.cast(ops.searchsorted(in_order, class_ids, side=side), "int32")
        for side in ("left", "right")
    )
    number = end - begin if and_itself else end - begin - 1
    place = ops.scatter(order[:, None], slots, (size,))

    def columns(wanted: int) -> Tensor:
        places = begin[:, None] + slots[None, :wanted]
        if not and_itself:
            places = ops.where(places < place[:, None], places, places + 1)
        return look_up(order, at_most(places, size - 1))

    return Positives(mask, number, ops.max(number, initial=0), columns)


def sums_over(positives: Positives, values: Tensor, mirrored: bool = False) -> Tensor:
    """`Σ_{j∈P_i} v_ij` `[a]` of values `[a, c]`, by the positives alone where these are few.

    `mirrored`: of symmetric values, with a gradient for `keras_dml.gram.mirrored_gram`.
    """

    @with_gradient
    def sums(values: Tensor) -> WithGradient:
        def total(columns: Tensor | None, present: Tensor) -> Tensor:
            return ops.sum(ops.where(present, at_columns(columns, values), 0.0), axis=-1)

        def gradient(upstream: Tensor) -> Tensor:
            def back(columns: Tensor | None, present: Tensor) -> Tensor:
                both = upstream[:, None]
                if mirrored:
                    both = both + of_partners(columns, upstream)
                return spread(columns, ops.where(present, both, 0.0), values)

            return positives.by_width(back)

        return positives.by_width(total), gradient

    return sums(values)


def cond(condition: Tensor | bool, one: Callable[[], Some], other: Callable[[], Some]) -> Some:
    """`ops.cond`, or `one()` alone where the shapes already say that the condition is true."""
    return one() if condition is True else ops.cond(condition, one, other)


def at_columns(columns: Tensor | None, values: Tensor) -> Tensor:
    """`values` `[a, c]` at the `columns` `[a, k]` of their row; None: all of them."""
    return values if columns is None else ops.take_along_axis(values, columns, axis=-1)


def of_partners(columns: Tensor | None, values: Tensor) -> Tensor:
    """`values` `[c]`, one of each candidate, at the `columns` `[a, k]` of each row; None: all."""
    return values[None, :] if columns is None else look_up(values, columns)


def spread(columns: Tensor | None, values: Tensor, like: Tensor) -> Tensor:
    """Zeros in the shape of `like` `[a, c]`, plus `values` `[a, k]` at the `columns` of their row.

    So what sends a gradient back through `at_columns`, and with a permutation of each row as
    columns its inverse.
    """
    if columns is None:
        return values
    rows, width = ops.shape(like)[0], ops.shape(like)[1]
    places = ops.arange(rows, dtype="int32")[:, None] * width + ops.cast(columns, "int32")
    places, values = ops.reshape(places, (-1, 1)), ops.reshape(values, (-1,))
    return ops.reshape(ops.scatter(places, values, (rows * width,)), (rows, width))
