import numpy as np
import pytest
from sklearn.datasets import load_digits

from pipelines.datasets.registry import load_dataset


def test_each_image_is_on_one_side_with_its_label():
    split = load_dataset("digits")
    levels = np.concatenate([split.train.arrays, split.test.arrays])[..., 0].reshape(-1, 64)
    images, labels = load_digits(return_X_y=True)
    ours = np.concatenate([split.train.labels, split.test.labels])
    both = zip(np.round(levels * (16 / 255)).astype(int).tolist(), ours.tolist())
    assert sorted(both) == sorted(zip(images.astype(int).tolist(), labels.tolist()))
    assert levels.max() == 255 and levels.min() == 0


def test_fifth_of_each_class_is_for_the_test_in_a_fixed_split():
    split, again = load_dataset("digits"), load_dataset("digits")
    assert split.same_classes
    assert split.train.class_names == split.test.class_names == tuple("0123456789")
    train, test = np.bincount(split.train.labels), np.bincount(split.test.labels)
    np.testing.assert_allclose(test / (train + test), 0.2, atol=0.003)
    np.testing.assert_array_equal(split.test.arrays, again.test.arrays)
    # Random images, because the last images of a class are from other writers than the first.
    images, labels = load_digits(return_X_y=True)
    threes = split.test.arrays[split.test.labels == 3].reshape(-1, 64)
    last = images[labels == 3][-len(threes) :]
    assert not np.array_equal(threes, np.round(last * (255 / 16)))


@pytest.mark.parametrize("name", ["data_dir", "train_classes", "test_classes"])
def test_arguments_that_digits_does_not_take(name):
    with pytest.raises(ValueError, match=rf"{name} must not be set with digits.* but got 5"):
        load_dataset("digits", **{name: 5})
