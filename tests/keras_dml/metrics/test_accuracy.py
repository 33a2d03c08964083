import numpy as np
import pytest

from keras_dml.metrics import class_mean_accuracy


def naive_accuracy(train_embeddings, train_labels, embeddings, labels):
    right = 0
    for z, label in zip(embeddings, labels):
        best, chosen = None, None
        for k in sorted(set(train_labels)):
            members = [row for row, y in zip(train_embeddings, train_labels) if y == k]
            mean = [sum(row[i] for row in members) / len(members) for i in range(len(z))]
            score = sum(a * b for a, b in zip(z, mean))
            if best is None or score > best:
                best, chosen = score, k
        right += chosen == label
    return right / len(labels)


@pytest.mark.parametrize("seed", range(2))
def test_agrees_with_a_naive_loop(seed):
    """Classes of unequal size and length, one missing in training, one missing in the test set."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(6, 4)) * generator.uniform(0.5, 3, size=(6, 1))
    train_labels = generator.choice([0, 1, 2, 4, 7], 60, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    labels = generator.choice([0, 1, 3, 4, 7], 40)
    train = centres[train_labels % 6] + generator.normal(size=(60, 4))
    test = centres[labels % 6] + generator.normal(size=(40, 4))
    ours = class_mean_accuracy(train, train_labels, test, labels)
    assert ours == naive_accuracy(train.tolist(), train_labels.tolist(), test.tolist(), labels)
    assert 0 < ours < 1


def test_large_float32_sums_are_exact():
    train = np.full((3000, 1), 1.1, np.float32)
    train[1500:] = 1.1000001
    assert class_mean_accuracy(train, np.arange(3000) // 1500, train[:1], [1]) == 1.0


def test_bad_input():
    with pytest.raises(ValueError, match=r"train_labels must be of shape \[1\].*\(2,\)"):
        class_mean_accuracy([[1.0]], [0, 1], [[1.0]], [0])
    with pytest.raises(ValueError, match=r"same width.*\(1, 1\) and \(1, 2\)"):
        class_mean_accuracy([[1.0]], [0], [[1.0, 2.0]], [0])
