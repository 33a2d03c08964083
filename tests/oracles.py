"""The losses as plain loops over float64 numbers, written from the papers' formulas.

Slow and literal on purpose: nothing here is shared with the library. Each gives, for each anchor,
the tightness and the contrastive part. `numeric_gradient` differentiates by central differences.
"""

import math

import numpy as np


def cross_entropy(class_ids, logits, epsilon=0.1):
    tightness, contrastive = [], []
    for y, row in zip(class_ids, logits):
        num_classes = len(row)
        on_targets = 0.0
        for k in range(num_classes):
            target = 1 - epsilon if k == y else epsilon / (num_classes - 1)
            on_targets += target * row[k]
        tightness.append(-on_targets)
        contrastive.append(math.log(sum(math.exp(a) for a in row)))
    return np.array(tightness), np.array(contrastive)


def contrastive(class_ids, z, margin=1.0, normalize=False, pair_reduction="sum"):
    z = unit(z) if normalize else z
    tightness, contrastive = [], []
    for i in range(len(z)):
        together, apart = [], []
        for j in range(len(z)):
            distance = math.sqrt(sum((z[i] - z[j]) ** 2))
            if j != i and class_ids[j] == class_ids[i]:
                together.append(distance**2)
            elif class_ids[j] != class_ids[i]:
                apart.append(max(0.0, margin - distance) ** 2)
        divide = pair_reduction == "mean"
        tightness.append(sum(together) / (len(together) if divide and together else 1))
        contrastive.append(sum(apart) / (len(apart) if divide and apart else 1))
    return np.array(tightness), np.array(contrastive)


def multi_similarity(class_ids, z, alpha=2.0, beta=50.0, base=0.5, epsilon=None):
    f = unit(z)
    tightness, contrastive = [], []
    for i in range(len(f)):
        positives = [
            float(f[i] @ f[j]) for j in range(len(f)) if j != i and class_ids[j] == class_ids[i]
        ]
        negatives = [float(f[i] @ f[j]) for j in range(len(f)) if class_ids[j] != class_ids[i]]
        if epsilon is not None:
            hardest, easiest = max(negatives, default=-9.0), min(positives, default=9.0)
            positives = [s for s in positives if s < hardest + epsilon]
            negatives = [s for s in negatives if s > easiest - epsilon]
        tightness.append(
            math.log(1 + sum(math.exp(-alpha * (s - base)) for s in positives)) / alpha
        )
        contrastive.append(math.log(1 + sum(math.exp(beta * (s - base)) for s in negatives)) / beta)
    return np.array(tightness), np.array(contrastive)


def unit(z):
    return z / np.sqrt((z**2).sum(axis=1, keepdims=True))


def mean_loss(oracle, class_ids, z, **arguments):
    return float(np.mean(np.sum(oracle(class_ids, z, **arguments), axis=0)))


def numeric_gradient(oracle, class_ids, z, step=1e-6, **arguments):
    """Gradient of the mean loss with respect to every number of `z`, by central differences."""
    gradient = np.zeros_like(z)
    for index in np.ndindex(*z.shape):
        values = []
        for sign in (1, -1):
            moved = z.copy()
            moved[index] += sign * step
            values.append(mean_loss(oracle, class_ids, moved, **arguments))
        gradient[index] = (values[0] - values[1]) / (2 * step)
    return gradient
