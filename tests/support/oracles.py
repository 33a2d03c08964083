"""The losses as plain loops over float64 numbers, written from the papers' formulas.

Slow and literal on purpose: the library is not used here. For each anchor, an oracle returns the
tightness and the contrastive part. `numeric_gradient` differentiates by central differences.

The decorator of an oracle registers a loss for the tests. It gets the loss's name and, if the loss
has arguments, at least one set of non-default arguments. `loss_cases` turns these into test cases.
"""

import math

import numpy as np

ORACLES = []
"""The arguments of each decorator, as keywords."""


def oracle(loss, *arguments, pairs=True, sets_gradient=lambda given: False, quick=False):
    """Register the oracle of a loss, whose parameters repeat the loss's defaults.

    Args:
        loss: name of the loss.
        arguments: sets of non-default arguments to try, in addition to the defaults.
        pairs: the loss compares images with each other (not logits with a classifier).
        sets_gradient: function of a set of arguments: whether the loss then sets its own
            gradient, which central differences of its value would not match. If the gradient only
            treats some weights as constants, the oracle has the parameter `frozen`, the embeddings
            that set these weights (None: the embeddings of the value).
        quick: the quick tests compile its training too (`fit`, two devices), which takes seconds;
            the longer checks do so with every loss.
    """

    def add(function):
        ORACLES.append(
            {"loss": loss, "oracle": function, "arguments": arguments, "pairs": pairs,
             "sets_gradient": sets_gradient, "quick": quick}
        )  # fmt: skip
        return function

    return add


@oracle("ce", {"label_smoothing": 0.3}, pairs=False, quick=True)
def cross_entropy(class_ids, logits, label_smoothing=0.1):
    tightness, contrastive = [], []
    for y, row in zip(class_ids, logits):
        num_classes = len(row)
        on_targets = 0.0
        for k in range(num_classes):
            target = 1 - label_smoothing if k == y else label_smoothing / (num_classes - 1)
            on_targets += target * row[k]
        tightness.append(-on_targets)
        contrastive.append(math.log(sum(math.exp(a) for a in row)))
    return np.array(tightness), np.array(contrastive)


@oracle(
    "contrastive",
    {
        "margin": 1.3,
        "normalize": True,
        "pair_reduction": "mean",
        "positive_margin": 0.6,
        "power": 1,
    },
    quick=True,
)
def contrastive(
    class_ids, z, margin=1.0, normalize=False, pair_reduction="sum", positive_margin=0.0, power=2
):
    z = unit(z) if normalize else z
    tightness, contrastive = [], []
    for i in range(len(z)):
        d = distances_to(i, z)
        together = [max(0.0, d[j] - positive_margin) ** power for j in positives_of(i, class_ids)]
        apart = [max(0.0, margin - d[j]) ** power for j in negatives_of(i, class_ids)]
        divide = pair_reduction == "mean"
        tightness.append(sum(together) / (len(together) if divide and together else 1))
        contrastive.append(sum(apart) / (len(apart) if divide and apart else 1))
    return np.array(tightness), np.array(contrastive)


@oracle("multi_similarity", {"epsilon": 0.1, "base": 0.3, "alpha": 3.0, "beta": 10.0})
def multi_similarity(class_ids, z, alpha=2.0, beta=50.0, base=0.5, epsilon=None):
    f = unit(z)
    tightness, contrastive = [], []
    for i in range(len(f)):
        positives = [float(f[i] @ f[j]) for j in positives_of(i, class_ids)]
        negatives = [float(f[i] @ f[k]) for k in negatives_of(i, class_ids)]
        if epsilon is not None:
            hardest, easiest = max(negatives, default=-9.0), min(positives, default=9.0)
            positives = [s for s in positives if s < hardest + epsilon]
            negatives = [s for s in negatives if s > easiest - epsilon]
        tightness.append(
            math.log(1 + sum(math.exp(-alpha * (s - base)) for s in positives)) / alpha
        )
        contrastive.append(math.log(1 + sum(math.exp(beta * (s - base)) for s in negatives)) / beta)
    return np.array(tightness), np.array(contrastive)


def positives_of(i, class_ids):
    """Return the other images of the class of image i."""
    return [j for j in range(len(class_ids)) if j != i and class_ids[j] == class_ids[i]]


def negatives_of(i, class_ids):
    """Return the images of other classes."""
    return [j for j in range(len(class_ids)) if class_ids[j] != class_ids[i]]


def others_of(i, class_ids):
    """Return the positives and negatives of image i."""
    return sorted(positives_of(i, class_ids) + negatives_of(i, class_ids))


def distances_to(i, z):
    return np.array([math.sqrt(sum((z[i] - z[j]) ** 2)) for j in range(len(z))])


def unit(z):
    return z / np.sqrt((z**2).sum(axis=1, keepdims=True))


def mean_loss(oracle, class_ids, z, **arguments):
    return float(np.mean(np.sum(oracle(class_ids, z, **arguments), axis=0)))


def numeric_gradient(oracle, class_ids, z, step=1e-6, **arguments):
    """Compute the gradient of the mean loss with respect to `z` by central differences."""
    gradient = np.zeros_like(z)
    for index in np.ndindex(*z.shape):
        values = []
        for sign in (1, -1):
            moved = z.copy()
            moved[index] += sign * step
            values.append(mean_loss(oracle, class_ids, moved, **arguments))
        gradient[index] = (values[0] - values[1]) / (2 * step)
    return gradient


@oracle("center", {"normalize": True})
def center(class_ids, z, normalize=False):
    z = unit(z) if normalize else z
    tightness = []
    for i in range(len(z)):
        members = [z[j] for j in range(len(z)) if class_ids[j] == class_ids[i]]
        center = sum(members) / len(members)
        tightness.append(0.5 * sum((z[i] - center) ** 2))
    return np.array(tightness), np.zeros(len(z))


@oracle("pairwise_sigmoid", {"scale": 4.0, "bias": -2.0})
def pairwise_sigmoid(class_ids, z, scale=10.0, bias=-10.0):
    f, n = unit(z), len(z)
    tightness, contrastive = np.zeros(n), np.zeros(n)
    for i in range(n):
        logits = [scale * float(f[i] @ f[j]) + bias for j in range(n)]
        tightness[i] = sum(math.log(1 + math.exp(-logits[j])) for j in positives_of(i, class_ids))
        contrastive[i] = sum(math.log(1 + math.exp(logits[k])) for k in negatives_of(i, class_ids))
    return tightness, contrastive


@oracle("snca", {"temperature": 0.3})
def snca(class_ids, z, temperature=0.05):
    f, n = unit(z), len(z)
    tightness, contrastive, kept = [], [], 0
    for i in range(n):
        positives, others = positives_of(i, class_ids), others_of(i, class_ids)
        if positives:
            kept += 1
            tightness.append(-math.log(sum(math.exp(f[i] @ f[j] / temperature) for j in positives)))
            contrastive.append(math.log(sum(math.exp(f[i] @ f[k] / temperature) for k in others)))
        else:
            tightness.append(0.0)
            contrastive.append(0.0)
    return np.array(tightness) * n / max(kept, 1), np.array(contrastive) * n / max(kept, 1)


@oracle("spce")
def simplified_pairwise_cross_entropy(labels, z):
    """`labels` has a class id for each image, or a row of 0 and 1 that marks its groups."""
    n = len(z)
    groups_of = [
        {g for g in range(len(label)) if label[g]} if np.ndim(label) else {label.item()}
        for label in np.asarray(labels)
    ]
    groups = set().union(*groups_of)
    tightness, contrastive = [], []
    for i in range(n):
        scores = {
            k: sum(float(z[i] @ z[j]) for j in range(n) if k in groups_of[j]) / n for k in groups
        }
        own = [scores[k] for k in groups_of[i]]
        tightness.append(-sum(own) / len(own) if own else 0.0)
        contrastive.append(math.log(sum(math.exp(s) for s in scores.values())) if own else 0.0)
    return np.array(tightness), np.array(contrastive)


def simplified_assignments(class_ids, z):
    """Return p `[n, K]` over the classes in ascending order: the softmax of the scores above."""
    n, classes = len(z), sorted(set(np.asarray(class_ids).tolist()))
    p = np.zeros((n, len(classes)))
    for i in range(n):
        scores = [
            sum(float(z[i] @ z[j]) for j in range(n) if class_ids[j] == k) / n for k in classes
        ]
        for k in range(len(classes)):
            p[i, k] = 1 / sum(math.exp(score - scores[k]) for score in scores)
    return p


def smallest_eigenvalue(p, z):
    """The paper's Eq. 25, without a floor."""
    n, eigenvalues = len(z), []
    for k in range(p.shape[1]):
        a = sum((p[i, k] - p[i, k] ** 2) * np.outer(z[i], z[i]) for i in range(n)) / n
        eigenvalues += np.linalg.eigvalsh(a).tolist()
    return min(eigenvalues)


# The gradient treats p and λ as constants.
@oracle("pce", {"lam": 0.3}, {"lam_floor": 0.02}, sets_gradient=lambda given: True)
def pairwise_cross_entropy(class_ids, z, lam=None, lam_floor=1e-3, p=None, frozen=None):
    n, fixed = len(z), z if frozen is None else frozen
    p = simplified_assignments(class_ids, fixed) if p is None else p
    lam = max(smallest_eigenvalue(p, fixed), lam_floor) if lam is None else lam
    soft_means = [sum(p[i, k] * z[i] for i in range(n)) / n for k in range(p.shape[1])]
    constant = sum(sum(c**2) for c in soft_means) / (2 * lam)
    tightness, contrastive = [], []
    for i in range(n):
        together = sum(float(z[i] @ z[j]) for j in range(n) if class_ids[j] == class_ids[i])
        tightness.append(-together / (2 * lam * n))
        exponents = [
            sum(p[j, k] * float(z[i] @ z[j]) for j in range(n)) / (lam * n)
            for k in range(p.shape[1])
        ]
        peak = max(exponents)
        partition = math.log(sum(math.exp(e - peak) for e in exponents)) + peak
        contrastive.append(partition - constant)
    return np.array(tightness), np.array(contrastive)


@oracle("fastap", {"num_bins": 5})
def fastap(class_ids, z, num_bins=10):
    f, width = unit(z), 4.0 / num_bins
    tightness, values = np.zeros(len(f)), np.zeros(len(f))
    ranked = 0
    for i in range(len(f)):
        near, everyone, num_positives = [0.0] * (num_bins + 1), [0.0] * (num_bins + 1), 0
        for j in others_of(i, class_ids):
            squared = float(sum((f[i] - f[j]) ** 2))
            num_positives += int(class_ids[j] == class_ids[i])
            for b in range(num_bins + 1):
                weight = max(0.0, 1.0 - abs(squared - b * width) / width)
                everyone[b] += weight
                near[b] += weight if class_ids[j] == class_ids[i] else 0.0
        if num_positives == 0:
            continue
        ranked += 1
        precision = 0.0
        for b in range(num_bins + 1):
            up_to, all_up_to = sum(near[: b + 1]), sum(everyone[: b + 1])
            if all_up_to > 0:
                precision += near[b] * up_to / all_up_to / num_positives
            if near[b] > 0:
                tightness[i] -= near[b] / num_positives * math.log(up_to / (len(f) - 1))
        values[i] = 1.0 - precision
    weight = len(f) / max(ranked, 1)
    return weight * tightness, weight * (values - tightness)


@oracle("lifted_structure", {"margin": 0.3, "normalize": False})
def lifted_structure(class_ids, z, margin=1.0, normalize=True):
    z = unit(z) if normalize else z
    n = len(z)
    d = [distances_to(i, z) for i in range(n)]
    tightness, contrastive, num_pairs = np.zeros(n), np.zeros(n), 0
    for i in range(n):
        for j in positives_of(i, class_ids):
            num_pairs += 1
            pushed = sum(math.exp(margin - d[i][k]) for k in negatives_of(i, class_ids))
            pushed += sum(math.exp(margin - d[j][k]) for k in negatives_of(j, class_ids))
            if pushed > 0:
                hinge = max(0.0, math.log(pushed) + d[i][j])
                tightness[i] += hinge * d[i][j] / 2
                contrastive[i] += hinge * math.log(pushed) / 2
    weight = n / max(num_pairs, 1)
    return weight * tightness, weight * contrastive


@oracle("n_pairs", {"normalize": True})
def n_pairs(class_ids, z, normalize=False):
    f = unit(z) if normalize else z
    n = len(f)
    tightness, contrastive = np.zeros(n), np.zeros(n)
    for i in range(n):
        same = [j for j in range(n) if class_ids[j] == class_ids[i]]
        if len(same) == 1 or len(same) == n:
            continue
        tightness[i] = -sum(float(f[i] @ f[j]) for j in same) / len(same)
        contrastive[i] = math.log(sum(math.exp(f[i] @ f[j]) for j in range(n)))
    return tightness, contrastive


@oracle(
    "ice",
    {"scale": 8.0, "anchor_gradient": True},
    {"scale": 4.0, "reweight": False, "pair_reduction": "mean"},
    sets_gradient=lambda given: given.get("reweight", True),
)
def instance_cross_entropy(
    class_ids, z, scale=64.0, reweight=True, anchor_gradient=False, pair_reduction="sum"
):
    f = unit(z)
    tightness, contrastive = np.zeros(len(f)), np.zeros(len(f))
    for a in range(len(f)):
        rivals = [math.exp(scale * float(f[a] @ f[j])) for j in negatives_of(a, class_ids)]
        positives = positives_of(a, class_ids)
        if not rivals or not positives:
            continue
        divide = len(positives) if pair_reduction == "mean" else 1
        for i in positives:
            logit = scale * float(f[a] @ f[i])
            tightness[a] -= logit / divide
            contrastive[a] += math.log(math.exp(logit) + sum(rivals)) / divide
    return tightness, contrastive


def reweighted_gradient(class_ids, z, weights, scale=64.0, anchor_gradient=False):
    """The gradient that ICE sets (Eq. 11-15), weighted by anchors, through the normalization."""
    f, n = unit(z), len(z)
    gradient = np.zeros_like(f)
    for a in range(n):
        positives, negatives = positives_of(a, class_ids), negatives_of(a, class_ids)
        if not positives or not negatives:
            continue
        rivals = sum(math.exp(scale * float(f[a] @ f[j])) for j in negatives)
        weight = {i: rivals / (math.exp(scale * float(f[a] @ f[i])) + rivals) for i in positives}
        for j in negatives:
            weight[j] = 0.0
            for i in positives:
                partition = math.exp(scale * float(f[a] @ f[i])) + rivals
                weight[j] += math.exp(scale * float(f[a] @ f[j])) / partition
        total = sum(weight.values())
        for j in weight:
            towards = -weights[a] if j in positives else weights[a]
            gradient[j] += towards * weight[j] / (n * total) * f[a]
            if anchor_gradient:
                gradient[a] += towards * weight[j] / (n * total) * f[j]
    return np.array(
        [(gradient[i] - (gradient[i] @ f[i]) * f[i]) / math.sqrt(sum(z[i] ** 2)) for i in range(n)]
    )


def fixed_statistics(x):
    """Eq. 13 of RankMI."""
    return -math.log(math.exp(x) - 1) if x > 0 else math.log(math.exp(-x) - 1)


def distance_weighted(distances, dimensions):
    """The probabilities of an anchor's negatives at these distances."""
    weights = []
    for distance in distances:
        d = max(distance, 0.5)
        density = d ** (dimensions - 2) * (1 - d**2 / 4) ** ((dimensions - 3) / 2) if d < 1.4 else 0
        weights.append(1 / density if density else 0.0)
    if sum(weights) == 0:
        weights = [1.0] * len(weights)
    return [weight / sum(weights) for weight in weights]


# The gradient treats the negatives' weights as constants.
@oracle(
    "rankmi",
    {"sampling": "distance_weighted"},
    sets_gradient=lambda given: given.get("sampling") == "distance_weighted",
)
def rankmi(class_ids, z, sampling="all", statistics=fixed_statistics, frozen=None):
    f, fixed = unit(z), unit(z if frozen is None else frozen)
    n = len(f)
    tightness, contrastive = np.zeros(n), np.zeros(n)
    num_positives = num_negatives = 0
    for i in range(n):
        together, apart = positives_of(i, class_ids), negatives_of(i, class_ids)
        to = distances_to(i, f)
        for j in together:
            tightness[i] += math.log(1 + math.exp(-statistics(to[j]))) - math.log(2)
        draws = [1.0] * len(apart)
        if sampling == "distance_weighted" and apart:
            shares = distance_weighted(distances_to(i, fixed)[apart], z.shape[1])
            draws = [len(together) * share for share in shares]
        for k, times in zip(apart, draws):
            contrastive[i] += times * (math.log(1 + math.exp(statistics(to[k]))) - math.log(2))
        num_positives += len(together)
        num_negatives += sum(draws)
    return n / max(num_positives, 1) * tightness, n / max(num_negatives, 1e-9) * contrastive


@oracle(
    "triplet",
    {"margin": 0.5, "normalize": False, "average": "triplets"},
    {"triplets": "semihard"},
    {"triplets": "semihard", "margin": 0.4, "normalize": False, "average": "triplets"},
    {"triplets": "hard", "average": "triplets"},
)
def triplet(class_ids, z, margin=0.2, triplets="all", normalize=True, average="anchors"):
    z = unit(z) if normalize else z
    n = len(z)
    distance = [distances_to(i, z) for i in range(n)]
    all_triplets = []
    for i in range(n):
        positives, negatives = positives_of(i, class_ids), negatives_of(i, class_ids)
        of_anchor = []
        if triplets == "all":
            of_anchor = [(j, k) for j in positives for k in negatives]
        elif triplets == "semihard" and negatives:
            for j in positives:
                farther = [k for k in negatives if distance[i][k] > distance[i][j]]
                if farther:
                    of_anchor.append((j, min(farther, key=lambda k: distance[i][k])))
                else:
                    of_anchor.append((j, max(negatives, key=lambda k: distance[i][k])))
        elif triplets == "hard" and positives and negatives:
            farthest = max(positives, key=lambda j: distance[i][j])
            of_anchor = [(farthest, min(negatives, key=lambda k: distance[i][k]))]
        all_triplets.append(of_anchor)
    kept = sum(1 for of_anchor in all_triplets if of_anchor)
    total = sum(len(of_anchor) for of_anchor in all_triplets)
    tightness, contrastive = np.zeros(n), np.zeros(n)
    for i, of_anchor in enumerate(all_triplets):
        for j, k in of_anchor:
            weight = n / total if average == "triplets" else n / kept / len(of_anchor)
            if distance[i][j] - distance[i][k] + margin > 0:
                tightness[i] += weight * distance[i][j]
                contrastive[i] += weight * (margin - distance[i][k])
    return tightness, contrastive


@oracle("quadruplet", {"margin": 0.3, "second_margin": 0.6, "normalize": False})
def quadruplet(class_ids, z, margin=0.2, second_margin=0.1, normalize=True):
    tightness, contrastive = triplet(class_ids, z, margin, normalize=normalize)
    z = unit(z) if normalize else z
    n = len(z)
    distance = [distances_to(i, z) for i in range(n)]
    positives = [(i, j) for i in range(n) for j in positives_of(i, class_ids)]
    apart = [distance[k][m] for k in range(n) for m in negatives_of(k, class_ids)]
    for i, j in positives:
        for negative in apart:
            if distance[i][j] - negative + second_margin > 0:
                weight = n / (len(positives) * len(apart))
                tightness[i] += weight * distance[i][j]
                contrastive[i] += weight * (second_margin - negative)
    return tightness, contrastive


@oracle("supcon", {"temperature": 0.3})
def supcon(class_ids, z, temperature=0.1):
    f, n = unit(z), len(z)
    tightness, contrastive, kept = np.zeros(n), np.zeros(n), 0
    for i in range(n):
        positives = positives_of(i, class_ids)
        if not positives:
            continue
        kept += 1
        tightness[i] = -sum(f[i] @ f[j] / temperature for j in positives) / len(positives)
        everyone = sum(math.exp(f[i] @ f[j] / temperature) for j in others_of(i, class_ids))
        contrastive[i] = math.log(everyone)
    return tightness * n / max(kept, 1), contrastive * n / max(kept, 1)


@oracle("nt_xent", {"temperature": 0.2})
def nt_xent(class_ids, z, temperature=0.07):
    f, n = unit(z), len(z)
    tightness, contrastive, num_pairs = np.zeros(n), np.zeros(n), 0
    for i in range(n):
        negatives = negatives_of(i, class_ids)
        for p in positives_of(i, class_ids) if negatives else []:
            num_pairs += 1
            logit = f[i] @ f[p] / temperature
            rivals = sum(math.exp(f[i] @ f[k] / temperature) for k in negatives)
            tightness[i] -= logit
            contrastive[i] += math.log(math.exp(logit) + rivals)
    return tightness * n / max(num_pairs, 1), contrastive * n / max(num_pairs, 1)


@oracle(
    "tcm",
    {
        "positive_margin": 0.7,
        "negative_margin": 0.2,
        "positive_weight": 0.5,
        "negative_weight": 2.0,
    },
)
def threshold_consistent_margin(
    class_ids, z, positive_margin=0.9, negative_margin=0.5, positive_weight=1.0, negative_weight=1.0
):
    f, n = np.array([row / max(np.linalg.norm(row), 1e-30) for row in z]), len(z)
    sums, numbers = np.zeros((2, n)), [0, 0]
    for i in range(n):
        together = [float(f[i] @ f[j]) for j in positives_of(i, class_ids)]
        apart = [float(f[i] @ f[k]) for k in negatives_of(i, class_ids)]
        open_pairs = (
            [positive_margin - s for s in together if s <= positive_margin],
            [s - negative_margin for s in apart if s >= negative_margin],
        )
        for kind, gaps in enumerate(open_pairs):
            sums[kind, i] = sum(gaps)
            numbers[kind] += len(gaps)
    weights = positive_weight, negative_weight
    return tuple(w * n * part / max(m, 1) for w, part, m in zip(weights, sums, numbers))


# The gradient treats the weights of the similarities as constants.
@oracle("circle", {"margin": 0.25, "scale": 20.0}, sets_gradient=lambda given: True)
def circle(class_ids, z, margin=0.4, scale=80.0, frozen=None):
    f, fixed, n = unit(z), unit(z if frozen is None else frozen), len(z)
    tightness, contrastive, kept = np.zeros(n), np.zeros(n), 0
    for i in range(n):
        together = [
            -scale * max(0, 1 + margin - fixed[i] @ fixed[j]) * (f[i] @ f[j] - 1 + margin)
            for j in positives_of(i, class_ids)
        ]
        apart = [
            scale * max(0, fixed[i] @ fixed[k] + margin) * (f[i] @ f[k] - margin)
            for k in negatives_of(i, class_ids)
        ]
        if together and apart:
            kept += 1
            tightness[i] = math.log(sum(math.exp(e) for e in together))
            apart = sum(math.exp(e) for e in apart)
            contrastive[i] = math.log(math.exp(-tightness[i]) + apart)
    return tightness * n / max(kept, 1), contrastive * n / max(kept, 1)


# The gradient treats the negatives' weights as constants.
@oracle(
    "margin",
    {"sampling": "all", "margin": 0.3, "beta": 1.0, "nu": 0.5},
    {"sampling": "all", "boundaries": 1},
    sets_gradient=lambda given: given.get("sampling") != "all",
)
def margin(
    class_ids, z, margin=0.2, beta=1.2, nu=0.0, sampling="distance_weighted", boundaries=0,
    frozen=None,
):  # fmt: skip
    n = len(z)
    betas = [beta] * n
    if boundaries:
        betas = [row[-1] if boundaries == 1 else row[class_ids[i] - boundaries]
                 for i, row in enumerate(z)]  # fmt: skip
        z = z[:, :-boundaries]
    f, fixed = unit(z), unit(z if frozen is None else frozen)
    tightness, contrastive, opened = np.zeros(n), np.zeros(n), 0.0
    for i in range(n):
        to = distances_to(i, f)
        together, apart = positives_of(i, class_ids), negatives_of(i, class_ids)
        if not together or not apart:
            continue
        times, shares = 1.0, distance_weighted(distances_to(i, fixed)[apart], z.shape[1])
        if sampling == "all":
            times, shares = len(apart), [1.0] * len(apart)
        for j in together:
            hinge = max(0.0, margin + to[j] - betas[i])
            tightness[i] += times * (hinge + nu * betas[i])
            opened += times * (hinge > 0)
        for k, share in zip(apart, shares):
            hinge = max(0.0, margin + betas[i] - to[k])
            contrastive[i] += len(together) * share * hinge
            opened += len(together) * share * (hinge > 0)
    weight = n / opened if opened else 0.0
    return weight * tightness, weight * contrastive


def smooth_rank(i, candidates, similarities, temperature):
    """The smooth rank of candidate i among others, from one query's similarities."""
    return 1 + sum(
        1 / (1 + math.exp((similarities[i] - similarities[j]) / temperature))
        for j in candidates
        if j != i
    )


@oracle("smooth_ap", {"temperature": 0.2, "query_in_database": True}, {"temperature": 0.05})
def smooth_ap(class_ids, z, temperature=0.01, query_in_database=False):
    f, n = unit(z), len(z)
    tightness, values, kept = np.zeros(n), np.zeros(n), 0
    for q in range(n):
        database = others_of(q, class_ids) + [q] * query_in_database
        positives = [j for j in database if j == q or class_ids[j] == class_ids[q]]
        if not [j for j in positives if j != q]:
            continue
        kept += 1
        s = [float(f[q] @ f[j]) for j in range(n)]
        within = [smooth_rank(i, positives, s, temperature) for i in positives]
        ranks = [smooth_rank(i, database, s, temperature) for i in positives]
        values[q] = 1 - np.mean([one / other for one, other in zip(within, ranks)])
        tightness[q] = -np.mean([math.log(one / len(database)) for one in within])
    weight = n / max(kept, 1)
    return weight * tightness, weight * (values - tightness)


@oracle(
    "recall_at_k",
    {"temperature": 0.5, "rank_temperature": 0.1, "query_in_database": True},
    {"rank_temperature": 0.05},
)
def recall_at_k(
    class_ids, z, ks=(1, 2, 4, 8, 16), temperature=1.0, rank_temperature=0.01,
    query_in_database=False,
):  # fmt: skip
    f, n = unit(z), len(z)
    tightness, values, kept = np.zeros(n), np.zeros(n), 0
    for q in range(n):
        positives = positives_of(q, class_ids)
        database = others_of(q, class_ids) + [q] * query_in_database
        if not positives:
            continue
        kept += 1
        s = [float(f[q] @ f[j]) for j in range(n)]
        for result, among in ((tightness, positives), (values, database)):
            recall = 0.0
            for k in ks:
                k = min(k, 1 + len(others_of(q, class_ids)))
                found = sum(
                    1
                    / (1 + math.exp((smooth_rank(i, among, s, rank_temperature) - k) / temperature))
                    for i in positives
                )
                recall += min(k, found) / min(k, len(positives)) / len(ks)
            result[q] = 1 - recall
    weight = n / max(kept, 1)
    return weight * tightness, weight * (values - tightness)


def cross_entropy_of_cosines(class_ids, cosines, scale, target):
    """Parts of the cross-entropy of s·c, with s·target(c) for the anchor's class."""
    tightness, contrastive = [], []
    for y, row in zip(class_ids, cosines):
        logits = [scale * (target(c) if k == y else c) for k, c in enumerate(row)]
        tightness.append(-logits[y])
        contrastive.append(math.log(sum(math.exp(a) for a in logits)))
    return np.array(tightness), np.array(contrastive)


@oracle("norm_softmax", {"temperature": 0.3}, pairs=False)
def norm_softmax(class_ids, cosines, temperature=0.05):
    return cross_entropy_of_cosines(class_ids, cosines, 1 / temperature, lambda c: c)


@oracle("cosface", {"scale": 10.0, "margin": 0.2}, pairs=False)
def cosface(class_ids, cosines, scale=64.0, margin=0.35):
    return cross_entropy_of_cosines(class_ids, cosines, scale, lambda c: c - margin)


@oracle("soft_triple", {"scale": 10.0, "margin": 0.2}, pairs=False)
def soft_triple(class_ids, cosines, scale=20.0, margin=0.01):
    return cosface(class_ids, cosines, scale, margin)


@oracle(
    "arcface",
    {"scale": 8.0, "margin": 1.6},
    {"scale": 8.0, "easy_margin": True},
    pairs=False,
)
def arcface(class_ids, cosines, scale=64.0, margin=0.5, easy_margin=False):
    def target(c):
        angle = math.acos(min(max(c, -1), 1))
        # Outside ±1, no cosine exists: the value is the formula's continuation without arccos.
        added = math.cos(angle + margin) if abs(c) < 1 else c * math.cos(margin)
        if easy_margin:
            return added if c > 0 else c
        return added if angle + margin < math.pi else c - margin * math.sin(margin)

    return cross_entropy_of_cosines(class_ids, cosines, scale, target)


@oracle(
    "subcenter_arcface",
    {"scale": 8.0, "margin": 0.3, "easy_margin": True},
    pairs=False,
)
def subcenter_arcface(class_ids, cosines, scale=64.0, margin=0.5, easy_margin=False):
    return arcface(class_ids, cosines, scale, margin, easy_margin)


@oracle("proxy_nca", {"temperature": 0.5, "partition": "negatives"}, pairs=False)
def proxy_nca(class_ids, cosines, temperature=1 / 9, partition="all"):
    tightness, contrastive = [], []
    for y, row in zip(class_ids, cosines):
        squares = [2 - 2 * c for c in row]
        tightness.append(squares[y] / temperature)
        summed = [d for k, d in enumerate(squares) if partition == "all" or k != y]
        contrastive.append(math.log(sum(math.exp(-d / temperature) for d in summed)))
    return np.array(tightness), np.array(contrastive)


@oracle("proxy_anchor", {"scale": 5.0, "margin": 0.3}, pairs=False)
def proxy_anchor(class_ids, cosines, scale=32.0, margin=0.1):
    n, num_classes = cosines.shape
    pulled, pushed = {}, []
    for k in range(num_classes):
        of_class = [i for i in range(n) if class_ids[i] == k]
        if of_class:
            near = sum(math.exp(-scale * (cosines[i, k] - margin)) for i in of_class)
            pulled[k] = math.log(1 + near) / len(of_class)
        others = [i for i in range(n) if class_ids[i] != k]
        pushed.append(math.log(1 + sum(math.exp(scale * (cosines[i, k] + margin)) for i in others)))
    tightness = [n / len(pulled) * pulled[y] for y in class_ids]
    return np.array(tightness), np.full(n, sum(pushed) / num_classes)


@oracle("angular", {"angle": 36.0})
def angular(class_ids, z, angle=45.0):
    f, tangent = unit(z), math.tan(math.radians(angle)) ** 2
    tightness, contrastive, num_pairs = np.zeros(len(f)), np.zeros(len(f)), 0
    for i in range(len(f)):
        apart = negatives_of(i, class_ids)
        for j in positives_of(i, class_ids) if apart else []:
            num_pairs += 1
            pulled = 2 * (1 + tangent) * float(f[i] @ f[j])
            pushed = sum(math.exp(4 * tangent * float((f[i] + f[j]) @ f[k])) for k in apart)
            tightness[i] -= pulled
            contrastive[i] += math.log(math.exp(pulled) + pushed)
    weight = len(f) / max(num_pairs, 1)
    return weight * tightness, weight * contrastive


@oracle("binomial_deviance", {"scale": 3.0, "base": 0.2, "negative_cost": 4.0})
def binomial_deviance(class_ids, z, scale=2.0, base=0.5, negative_cost=25.0):
    f, n = unit(z), len(z)
    sums, numbers = np.zeros((2, n)), [0, 0]
    for i in range(n):
        for kind, pairs, slope in (
            (0, positives_of(i, class_ids), -scale),
            (1, negatives_of(i, class_ids), scale * negative_cost),
        ):
            costs = [math.log(1 + math.exp(slope * (float(f[i] @ f[j]) - base))) for j in pairs]
            sums[kind, i] = sum(costs)
            numbers[kind] += len(costs)
    return tuple(n * part / max(number, 1) for part, number in zip(sums, numbers))


@oracle("histogram", {"num_bins": 9})
def histogram(class_ids, z, num_bins=150):
    f, n = unit(z), len(z)
    positive = [(i, j) for i in range(n) for j in positives_of(i, class_ids)]
    negative = [(i, k) for i in range(n) for k in negatives_of(i, class_ids)]

    def counts(i, j):
        nodes = 2 * np.arange(num_bins + 1) / num_bins - 1
        return np.maximum(1 - abs(float(f[i] @ f[j]) - nodes) * num_bins / 2, 0)

    together = sum((counts(i, j) for i, j in positive), np.zeros(num_bins + 1))
    reached = np.cumsum(together) / max(len(positive), 1)
    tightness, loss = np.zeros(n), np.zeros(n)
    for i, j in positive:
        tightness[i] += (1 - float(f[i] @ f[j])) / 2 * n / len(positive)
    for i, k in negative:
        loss[i] += sum(counts(i, k) * reached) * n / len(negative)
    return tightness, loss - tightness


@oracle(
    "ranked_list",
    {"negative_margin": 1.5, "margin": 0.9, "temperature": 3.0, "balance": 0.3},
    {"temperature": 0.0},
    sets_gradient=lambda given: given.get("temperature") != 0.0,
)
def ranked_list(
    class_ids, z, negative_margin=1.2, margin=0.4, temperature=10.0, balance=0.5, frozen=None
):
    f, fixed = unit(z), unit(z if frozen is None else frozen)
    tightness, contrastive = np.zeros(len(f)), np.zeros(len(f))
    for i in range(len(f)):
        to, positive_margin = distances_to(i, f), negative_margin - margin
        far = [to[j] - positive_margin for j in positives_of(i, class_ids)]
        far = [gap for gap in far if gap > 0]
        near = [k for k in negatives_of(i, class_ids) if to[k] < negative_margin]
        if far:
            tightness[i] = (1 - balance) * sum(far) / len(far)
        if near:
            weights = np.exp(temperature * (negative_margin - distances_to(i, fixed)[near]))
            contrastive[i] = balance * sum(weights * (negative_margin - to[near])) / sum(weights)
    return tightness, contrastive
