"""The built-in datasets: characters and digits."""

import unicodedata

import numpy as np
import pytest
from sklearn.datasets import load_digits

from pipelines.datasets import glyphs as module
from pipelines.datasets.glyphs import glyphs
from pipelines.datasets.registry import load_dataset


@pytest.fixture
def undistorted(monkeypatch):
    for name, value in {"ROTATION": 0, "SCALE": 1, "SHIFT": 0, "CONTRAST": 1}.items():
        monkeypatch.setattr(module, name, (value, value))
    monkeypatch.setattr(module, "NOISE", 0)
    return monkeypatch


def test_twelve_images_of_each_class_and_fewer_classes_are_the_first_classes():
    hundred, fifty = glyphs(100), glyphs(50)
    assert hundred.arrays.shape == (1200, 32, 32, 1)
    assert hundred.arrays.dtype == np.uint8
    assert hundred.paths is None
    np.testing.assert_array_equal(hundred.labels, np.arange(1200) // 12)
    assert hundred.num_classes == len(set(hundred.class_names)) == 100
    for name in hundred.class_names:
        code_point, character = name.split(" ", 1)
        assert code_point == f"U+{ord(character):04X}"
    np.testing.assert_array_equal(fifty.arrays, hundred.arrays[:600])
    assert fifty.class_names == hundred.class_names[:50]


def test_classes_are_printable_and_about_two_thousand():
    classes = module._characters()
    assert 2000 <= len(classes) <= 2400
    for character in classes:
        assert character.isprintable() and not character.isspace()
        assert not unicodedata.combining(character)


def test_homoglyphs_are_one_class_under_the_lowest_code_point():
    classes = set(module._characters())
    common = set(module._common_characters())
    for latin, greek, cyrillic in ("AΑА", "OΟО", "TΤТ", "oοо"):
        assert {latin, greek, cyrillic} <= common
        assert latin in classes
        assert greek not in classes and cyrillic not in classes
    # They differ by a fraction of a pixel, or by their side of the em square.
    assert set("Ăò▌") <= classes and not classes & set("Ӑὸ▐")
    # Characters that are equal in some fonts, or except for an accent, are different classes.
    assert set("Il1|0ObßṀḾŎǑèė") <= classes


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("ROTATION", 90, lambda image: np.rot90(image, -1)),
        ("SHIFT", 2, lambda image: np.roll(image, (2, 2), axis=(0, 1))),
        ("CONTRAST", 0.6, lambda image: 127.5 + 0.6 * (image - 127.5)),
    ],
)
def test_each_distortion_has_its_effect(undistorted, name, value, expected):
    fonts = module._fonts()
    plain = module._class_images(fonts, "R").astype(np.float64)
    undistorted.setattr(module, name, (value, value))
    for image, before in zip(module._class_images(fonts, "R"), plain):
        np.testing.assert_allclose(image, expected(before), atol=1)


def test_noise_has_its_standard_deviation(undistorted):
    undistorted.setattr(module, "CONTRAST", (0, 0))
    undistorted.setattr(module, "NOISE", 10)
    images = module._class_images(module._fonts(), "R").astype(np.float64)
    assert abs(images.mean() - 127.5) < 0.5
    assert abs(images.std() - 10) < 0.3


@pytest.mark.parametrize("num_classes", [0, -1, 100_000, 2.5, "all"])
def test_bad_num_classes(num_classes):
    count = len(module._characters())
    with pytest.raises(ValueError, match=f"num_classes must be .* from 1 to {count}, but got "):
        glyphs(num_classes)


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
