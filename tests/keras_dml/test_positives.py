"""Where positives stand, by a mask and by the class ids."""

import numpy as np
import pytest
from backend import compiled
from keras import ops

from keras_dml.class_ids import as_labels, widest_integers
from keras_dml.losses import SNCALoss
from keras_dml.positives import FEW_POSITIVES, find_positives, positives_of_classes

pytestmark = pytest.mark.any_backend

RNG = np.random.default_rng(0)
SORTED = np.repeat([3, 5, 4, 9], [1, 4, 2, 3])
BIG = 2**40 if widest_integers() == "int64" else 2**20
WANTED = (None, 1, 4)
CLASS_IDS = {
    "some alone": np.array([7, -2, 7, 0, 5, 7, -2]),
    "none of a kind": np.arange(9)[::-1],
    "one class": np.zeros(5, int),
    "one image": np.array([4]),
    "two": np.array([1, 1]),
    "sorted": SORTED,
    "shuffled": RNG.permutation(SORTED),
    "as many as are few": RNG.permutation([2] * (FEW_POSITIVES + 1) + [1] * FEW_POSITIVES),
    "more": RNG.permutation([2] * (FEW_POSITIVES + 2) + [1]),
    "many": RNG.integers(0, 3, 300),
    "large": BIG + RNG.integers(-3, 3, 40),
    "floats": RNG.integers(0, 4, 20).astype("float32"),
    "halves": RNG.integers(0, 4, 20).astype("float16"),
    "unsigned": RNG.integers(0, 4, 20).astype("uint8"),
    "truths": RNG.integers(0, 2, 20).astype(bool),
}


def check(find, mask, *given):
    """That `find(*given)` finds the positives of a mask, all of them or as many as are wanted."""

    def everything(*given):
        found = find(*given)
        return (found.mask, found.number, found.most), [found.few(wanted) for wanted in WANTED]

    (found, number, most), columns = compiled(everything)(*given)
    counts = mask.sum(axis=1)
    np.testing.assert_array_equal(ops.convert_to_numpy(found), mask)
    np.testing.assert_array_equal(ops.convert_to_numpy(number), counts)
    assert int(most) == counts.max()
    for wanted, tensors in zip(WANTED, columns, strict=True):
        columns, present = (ops.convert_to_numpy(tensor) for tensor in tensors)
        wanted = min(wanted or FEW_POSITIVES, mask.shape[1])
        assert columns.shape == present.shape == (len(mask), wanted)
        assert columns.min() >= 0 and columns.max() < mask.shape[1]
        for row, its_columns, its_present in zip(mask, columns, present, strict=True):
            own = set(its_columns[its_present])
            assert len(own) == its_present.sum() == min(row.sum(), wanted)
            assert own <= set(np.flatnonzero(row))
            assert not its_present[len(own) :].any()


@pytest.mark.parametrize(
    ("shape", "share"),
    [((1, 1), 1.0), ((5, 16), 0.0), ((40, 160), 0.05), ((9, 31), 0.9), ((30, 700), 0.04)],
)
def test_few_positives_of_a_mask_are_all_found_and_of_many_some(shape, share):
    mask = RNG.uniform(size=shape) < share
    check(find_positives, mask, ops.convert_to_tensor(mask))


@pytest.mark.parametrize("and_itself", [False, True])
@pytest.mark.parametrize("batch", CLASS_IDS)
def test_class_ids_say_what_their_mask_does(batch, and_itself):
    class_ids = CLASS_IDS[batch]
    mask = class_ids[:, None] == class_ids[None, :]
    if not and_itself:
        mask = mask & ~np.eye(len(class_ids), dtype=bool)

    def found(*given):
        return positives_of_classes(*given, and_itself=and_itself)

    check(found, mask, as_labels(class_ids), ops.convert_to_tensor(mask))


def test_pairs_ask_the_class_ids_only_where_no_pair_is_left_out():
    class_ids = as_labels(CLASS_IDS["some alone"])
    z = ops.convert_to_tensor(RNG.normal(size=(7, 3)), dtype="float32")

    def mining(similarities, positive, negative):
        return ops.logical_and(positive, ops.arange(7)[None, :] > 2), negative

    for strategy in (None, mining):
        pairs = SNCALoss(mining=strategy).pairs_of(class_ids, z)
        check(pairs.positives, ops.convert_to_numpy(pairs.positive))
    assert int(pairs.positives().most) == 1
