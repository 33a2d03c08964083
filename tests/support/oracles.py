"""The losses in float64, anchor by anchor, written from the papers' formulas.

Literal on purpose: the library is not used here. For each anchor, an oracle returns the tightness
and the contrastive part. `numeric_gradient` differentiates by central differences.

The decorator of an oracle registers a loss for the tests. It gets the loss's name and, if the loss
has arguments, at least one set of non-default arguments.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
from scipy.special import expit, logsumexp, softmax

CASES = []
"""Each loss with its defaults, and with each set of non-default arguments."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A loss with its name, its oracle, and its arguments.

    Attributes:
        pairs: the loss compares images with each other (not logits with a classifier).
        numeric: its gradient is the derivative of its value (it does not set another one).
        quick: the quick tests compile its training, too.
    """

    name: str
    oracle: Callable
    arguments: dict
    pairs: bool
    numeric: bool
    quick: bool

    def __str__(self):
        given = ",".join(f"{key}={value}" for key, value in self.arguments.items())
        return f"{self.name}({given})"


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
        for given in ({}, *arguments):
            CASES.append(Case(loss, function, given, pairs, not sets_gradient(given), quick))
        return function

    return add


def positives_of(i, class_ids):
    """Return the other images of the class of image i."""
    return [j for j in range(len(class_ids)) if j != i and class_ids[j] == class_ids[i]]


def negatives_of(i, class_ids):
    """Return the images of other classes."""
    return [j for j in range(len(class_ids)) if class_ids[j] != class_ids[i]]


def by_anchor(values, class_ids, complete=False):
    """Yield for each anchor the values of its positives and of its negatives.

    Args:
        values: `[n, n]`, for example similarities.
        class_ids: `[n]`.
        complete: whether an anchor without positives or without negatives has no pairs.
    """
    for i, row in enumerate(values):
        positives, negatives = positives_of(i, class_ids), negatives_of(i, class_ids)
        if complete and not (positives and negatives):
            positives = negatives = []
        yield row[positives], row[negatives]


def averaged(parts):
    """Return both parts `[n]`, whose means are the means over the anchors that are not None."""
    kept = sum(both is not None for both in parts)
    return len(parts) / max(kept, 1) * np.transpose([both or (0.0, 0.0) for both in parts])


def averaged_over_pairs(terms):
    """Return both parts `[n]`, whose means are the means over the terms of all pairs.

    `terms` has for each anchor two arrays: the terms of the tightness and of the contrastive part.
    """
    sums = np.array([[np.sum(each) for each in both] for both in terms])
    numbers = np.sum([[len(each) for each in both] for both in terms], axis=0)
    return len(terms) * sums.T / np.maximum(numbers, 1)[:, None]


def unit(z):
    return z / np.sqrt((z**2).sum(axis=1, keepdims=True))


def similarities(z):
    f = unit(z)
    return f @ f.T


def distances(z):
    return np.sqrt(((z[:, None] - z[None]) ** 2).sum(axis=2))


def mean_loss(oracle, class_ids, z, **arguments):
    return float(np.mean(np.sum(oracle(class_ids, z, **arguments), axis=0)))


def numeric_gradient(oracle, class_ids, z, step=1e-6, **arguments):
    """Compute the gradient of the mean loss with respect to `z` by central differences."""
    gradient = np.zeros_like(z)
    for index in np.ndindex(*z.shape):
        moved = np.zeros_like(z)
        moved[index] = step
        ahead = mean_loss(oracle, class_ids, z + moved, **arguments)
        behind = mean_loss(oracle, class_ids, z - moved, **arguments)
        gradient[index] = (ahead - behind) / (2 * step)
    return gradient


@oracle("ce", {"label_smoothing": 0.3}, pairs=False, quick=True)
def cross_entropy(class_ids, logits, label_smoothing=0.1):
    parts = []
    for y, row in zip(class_ids, logits):
        targets = np.full(len(row), label_smoothing / (len(row) - 1))
        targets[y] = 1 - label_smoothing
        parts.append((-targets @ row, logsumexp(row)))
    return np.transpose(parts)


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
    parts = []
    for positives, negatives in by_anchor(distances(unit(z) if normalize else z), class_ids):
        together = np.maximum(0.0, positives - positive_margin) ** power
        apart = np.maximum(0.0, margin - negatives) ** power
        divide = pair_reduction == "mean"
        tightness = together.sum() / (len(together) if divide and len(together) else 1)
        parts.append((tightness, apart.sum() / (len(apart) if divide and len(apart) else 1)))
    return np.transpose(parts)


@oracle("multi_similarity", {"epsilon": 0.1, "base": 0.3, "alpha": 3.0, "beta": 10.0})
def multi_similarity(class_ids, z, alpha=2.0, beta=50.0, base=0.5, epsilon=None):
    parts = []
    for positives, negatives in by_anchor(similarities(z), class_ids):
        if epsilon is not None:
            hardest, easiest = negatives.max(initial=-9.0), positives.min(initial=9.0)
            positives = positives[positives < hardest + epsilon]
            negatives = negatives[negatives > easiest - epsilon]
        tightness = math.log(1 + np.exp(-alpha * (positives - base)).sum()) / alpha
        parts.append((tightness, math.log(1 + np.exp(beta * (negatives - base)).sum()) / beta))
    return np.transpose(parts)


@oracle("center", {"normalize": True})
def center(class_ids, z, normalize=False):
    z = unit(z) if normalize else z
    centers = [z[class_ids == class_id].mean(axis=0) for class_id in class_ids]
    return 0.5 * ((z - centers) ** 2).sum(axis=1), np.zeros(len(z))


@oracle("pairwise_sigmoid", {"scale": 4.0, "bias": -2.0})
def pairwise_sigmoid(class_ids, z, scale=10.0, bias=-10.0):
    parts = []
    for positives, negatives in by_anchor(scale * similarities(z) + bias, class_ids):
        tightness = np.log(1 + np.exp(-positives)).sum()
        parts.append((tightness, np.log(1 + np.exp(negatives)).sum()))
    return np.transpose(parts)


@oracle("snca", {"temperature": 0.3})
def snca(class_ids, z, temperature=0.05):
    parts = []
    for positives, negatives in by_anchor(similarities(z) / temperature, class_ids):
        near, everyone = np.exp(positives).sum(), np.exp([*positives, *negatives]).sum()
        parts.append((-math.log(near), math.log(everyone)) if len(positives) else None)
    return averaged(parts)


def group_scores(members, z):
    """Return the products of each row with the rows of each group, summed and over n, `[n, K]`."""
    return np.array([[sum(z[group] @ row) / len(z) for group in members.T] for row in z])


@oracle("spce")
def simplified_pairwise_cross_entropy(labels, z):
    """`labels` has a class id for each image, or a row of 0 and 1 that marks its groups."""
    labels = np.asarray(labels)
    members = labels.astype(bool) if labels.ndim > 1 else labels[:, None] == np.unique(labels)
    members = members[:, members.any(axis=0)]
    parts = []
    for row, own in zip(group_scores(members, z), members):
        parts.append((-row[own].mean(), logsumexp(row)) if own.any() else (0.0, 0.0))
    return np.transpose(parts)


def simplified_assignments(class_ids, z):
    """Return p `[n, K]` over the classes in ascending order: the softmax of the scores above."""
    return softmax(group_scores(class_ids[:, None] == np.unique(class_ids), z), axis=1)


def smallest_eigenvalue(p, z):
    """The paper's Eq. 25, without a floor."""
    matrices = [(z.T * variances) @ z / len(z) for variances in (p - p**2).T]
    return np.linalg.eigvalsh(matrices).min()


# The gradient treats p and λ as constants.
@oracle("pce", {"lam": 0.3}, {"lam_floor": 0.02}, sets_gradient=lambda given: True)
def pairwise_cross_entropy(class_ids, z, lam=None, lam_floor=1e-3, p=None, frozen=None):
    n, fixed = len(z), z if frozen is None else frozen
    p = simplified_assignments(class_ids, fixed) if p is None else p
    lam = max(smallest_eigenvalue(p, fixed), lam_floor) if lam is None else lam
    soft_means = p.T @ z / n
    constant = (soft_means**2).sum() / (2 * lam)
    parts = []
    for i in range(n):
        together = sum(z[class_ids == class_ids[i]] @ z[i])
        partition = logsumexp(soft_means @ z[i] / lam)
        parts.append((-together / (2 * lam * n), partition - constant))
    return np.transpose(parts)


@oracle("fastap", {"num_bins": 5})
def fastap(class_ids, z, num_bins=10):
    nodes, width = np.linspace(0, 4, num_bins + 1), 4.0 / num_bins
    parts = []
    for positives, negatives in by_anchor(distances(unit(z)) ** 2, class_ids):
        if not len(positives):
            parts.append(None)
            continue
        near, far = (
            np.maximum(0.0, 1.0 - abs(squared[:, None] - nodes) / width).sum(axis=0)
            for squared in (positives, negatives)
        )
        up_to, all_up_to = np.cumsum(near), np.cumsum(near + far)
        filled = near > 0
        shares, up_to, all_up_to = near[filled] / len(positives), up_to[filled], all_up_to[filled]
        tightness = -sum(shares * np.log(up_to / (len(z) - 1)))
        parts.append((tightness, 1.0 - sum(shares * up_to / all_up_to) - tightness))
    return averaged(parts)


@oracle("lifted_structure", {"margin": 0.3, "normalize": False})
def lifted_structure(class_ids, z, margin=1.0, normalize=True):
    d = distances(unit(z) if normalize else z)
    pushed = [np.exp(margin - negatives).sum() for _, negatives in by_anchor(d, class_ids)]
    terms = []
    for i in range(len(z)):
        pulled, contrastive = [], []
        for j in positives_of(i, class_ids):
            # Without negatives, the hinge is closed.
            away = math.log(max(pushed[i] + pushed[j], 1e-300))
            hinge = max(0.0, away + d[i, j])
            pulled.append(hinge * d[i, j] / 2)
            contrastive.append(hinge * away / 2)
        terms.append((pulled, contrastive))
    return averaged_over_pairs(terms)


@oracle("n_pairs", {"normalize": True}, {"positives": "one"})
def n_pairs(class_ids, z, normalize=False, positives="all"):
    f = unit(z) if normalize else z
    parts = []
    if positives == "one":
        first, second = {}, {}
        for i, class_id in enumerate(class_ids):
            if class_id not in first:
                first[class_id] = i
            elif class_id not in second:
                second[class_id] = i
        for i, class_id in enumerate(class_ids):
            if first[class_id] != i or class_id not in second or len(second) < 2:
                parts.append(None)
                continue
            to_positives = [f[i] @ f[j] for j in second.values()]
            parts.append((-f[i] @ f[second[class_id]], logsumexp(to_positives)))
        return averaged(parts)
    for i, row in enumerate(f @ f.T):
        same = class_ids == class_ids[i]
        both = (-row[same].mean(), logsumexp(row))
        parts.append(both if 1 < same.sum() < len(f) else (0.0, 0.0))
    return np.transpose(parts)


@oracle(
    "ice",
    {"scale": 8.0, "anchor_gradient": True},
    {"scale": 4.0, "reweight": False, "pair_reduction": "mean"},
    sets_gradient=lambda given: given.get("reweight", True),
)
def instance_cross_entropy(
    class_ids, z, scale=64.0, reweight=True, anchor_gradient=False, pair_reduction="sum"
):
    parts = []
    for positives, negatives in by_anchor(scale * similarities(z), class_ids, complete=True):
        divide = max(len(positives), 1) if pair_reduction == "mean" else 1
        partitions = np.log(np.exp(positives) + np.exp(negatives).sum())
        parts.append((-positives.sum() / divide, partitions.sum() / divide))
    return np.transpose(parts)


def reweighted_gradient(class_ids, z, of_anchors, scale=64.0, anchor_gradient=False):
    """The gradient that ICE sets (Eq. 11-15), weighted by anchors, through the normalization."""
    f, n = unit(z), len(z)
    gradient = np.zeros_like(f)
    for a, row in enumerate(np.exp(scale * similarities(z))):
        positives, negatives = positives_of(a, class_ids), negatives_of(a, class_ids)
        if not positives or not negatives:
            continue
        partitions = row[positives] + row[negatives].sum()
        weights = np.zeros(n)
        weights[positives] = -row[negatives].sum() / partitions
        weights[negatives] = [sum(row[j] / partitions) for j in negatives]
        weights *= of_anchors[a] / (n * sum(abs(weights)))
        gradient += np.outer(weights, f[a])
        if anchor_gradient:
            gradient[a] += weights @ f
    along = (gradient * f).sum(axis=1, keepdims=True)
    return (gradient - along * f) / np.linalg.norm(z, axis=1, keepdims=True)


def fixed_statistics(x):
    """Eq. 13 of RankMI."""
    return -math.log(math.exp(x) - 1) if x > 0 else math.log(math.exp(-x) - 1)


def distance_weighted(distances, dimensions):
    """The probabilities of an anchor's negatives at these distances."""
    d = np.clip(distances, 0.5, 1.4)
    weights = (d < 1.4) / (d ** (dimensions - 2) * (1 - d**2 / 4) ** ((dimensions - 3) / 2))
    weights = weights if weights.any() else np.ones(len(d))
    return weights / weights.sum()


# The gradient treats the negatives' weights as constants.
@oracle(
    "rankmi",
    {"sampling": "distance_weighted"},
    sets_gradient=lambda given: given.get("sampling") == "distance_weighted",
)
def rankmi(class_ids, z, sampling="all", statistics=fixed_statistics, frozen=None):
    sums, numbers = [], np.zeros(2)
    of_weights = distances(unit(z if frozen is None else frozen))
    pairs = by_anchor(distances(unit(z)), class_ids), by_anchor(of_weights, class_ids)
    for (positives, negatives), (_, fixed) in zip(*pairs):
        draws = np.ones(len(negatives))
        if sampling == "distance_weighted":
            draws = len(positives) * distance_weighted(fixed, z.shape[1])
        together = [math.log(1 + math.exp(-statistics(d))) - math.log(2) for d in positives]
        apart = [math.log(1 + math.exp(statistics(d))) - math.log(2) for d in negatives]
        sums.append((sum(together), draws @ apart))
        numbers += len(positives), draws.sum()
    return len(z) * np.transpose(sums) / np.maximum(numbers, 1e-9)[:, None]


@oracle(
    "triplet",
    {"margin": 0.5, "normalize": False, "average": "triplets"},
    {"triplets": "semihard"},
    {"triplets": "semihard", "margin": 0.4, "normalize": False, "average": "triplets"},
    {"triplets": "hard", "average": "triplets"},
)
def triplet(class_ids, z, margin=0.2, triplets="all", normalize=True, average="anchors"):
    n, chosen = len(z), []
    d = distances(unit(z) if normalize else z)
    for positives, negatives in by_anchor(d, class_ids, complete=True):
        if triplets == "semihard":
            farther = [min(negatives[negatives > p], default=max(negatives)) for p in positives]
            chosen.append(list(zip(positives, farther)))
        elif triplets == "hard" and len(positives):
            chosen.append([(max(positives), min(negatives))])
        else:
            chosen.append(list(itertools.product(positives, negatives)))
    kept, total = sum(map(bool, chosen)), sum(map(len, chosen))
    parts = np.zeros((2, n))
    for i, of_anchor in enumerate(chosen):
        for positive, negative in of_anchor:
            weight = n / total if average == "triplets" else n / kept / len(of_anchor)
            if positive - negative + margin > 0:
                parts[:, i] += weight * positive, weight * (margin - negative)
    return parts


@oracle("quadruplet", {"margin": 0.3, "second_margin": 0.6, "normalize": False})
def quadruplet(class_ids, z, margin=0.2, second_margin=0.1, normalize=True):
    pairs = list(by_anchor(distances(unit(z) if normalize else z), class_ids))
    apart = np.concatenate([negatives for _, negatives in pairs])
    terms = []
    for positives, _ in pairs:
        pulled, pushed = np.meshgrid(positives, second_margin - apart)
        is_open = pulled + pushed > 0
        terms.append(((pulled * is_open).ravel(), (pushed * is_open).ravel()))
    return triplet(class_ids, z, margin, normalize=normalize) + averaged_over_pairs(terms)


@oracle("supcon", {"temperature": 0.3})
def supcon(class_ids, z, temperature=0.1):
    parts = []
    for positives, negatives in by_anchor(similarities(z) / temperature, class_ids):
        everyone = np.exp([*positives, *negatives]).sum()
        parts.append((-positives.mean(), math.log(everyone)) if len(positives) else None)
    return averaged(parts)


@oracle("nt_xent", {"temperature": 0.2})
def nt_xent(class_ids, z, temperature=0.07):
    terms = []
    for positives, negatives in by_anchor(similarities(z) / temperature, class_ids, complete=True):
        terms.append((-positives, np.log(np.exp(positives) + np.exp(negatives).sum())))
    return averaged_over_pairs(terms)


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
    terms = []
    for positives, negatives in by_anchor(similarities(z), class_ids):
        together = positive_margin - positives[positives <= positive_margin]
        apart = negatives[negatives >= negative_margin] - negative_margin
        terms.append((positive_weight * together, negative_weight * apart))
    return averaged_over_pairs(terms)


# The gradient treats the weights of the similarities as constants.
@oracle("circle", {"margin": 0.25, "scale": 20.0}, sets_gradient=lambda given: True)
def circle(class_ids, z, margin=0.4, scale=80.0, frozen=None):
    s, fixed = similarities(z), similarities(z if frozen is None else frozen)
    parts = []
    pull = -scale * np.maximum(0, 1 + margin - fixed) * (s - 1 + margin)
    push = scale * np.maximum(0, fixed + margin) * (s - margin)
    both = (by_anchor(exponents, class_ids, complete=True) for exponents in (pull, push))
    for (pulled, _), (_, pushed) in zip(*both):
        near, far = np.exp(pulled).sum(), np.exp(pushed).sum()
        parts.append((math.log(near), math.log(1 / near + far)) if len(pulled) else None)
    return averaged(parts)


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
    betas = np.full(len(z), beta)
    if boundaries:
        betas = [row[-1] if boundaries == 1 else row[class_ids[i] - boundaries]
                 for i, row in enumerate(z)]  # fmt: skip
        z = z[:, :-boundaries]
    parts, opened = [], 0.0
    of_weights = distances(unit(z if frozen is None else frozen))
    pairs = (by_anchor(d, class_ids, complete=True) for d in (distances(unit(z)), of_weights))
    for boundary, (positives, negatives), (_, fixed) in zip(betas, *pairs):
        times, shares = 1.0, distance_weighted(fixed, z.shape[1])
        if sampling == "all":
            times, shares = len(negatives), np.ones(len(negatives))
        far = np.maximum(0.0, margin + positives - boundary)
        near = np.maximum(0.0, margin + boundary - negatives)
        uses = len(positives) * shares
        parts.append((times * sum(far + nu * boundary), uses @ near))
        opened += times * sum(far > 0) + uses @ (near > 0)
    return np.transpose(parts) * (len(z) / opened if opened else 0.0)


def smooth_ranks(ranked, database, temperature):
    """Return the smooth ranks in a database, from one query's similarities.

    Each ranked similarity is in the database, too, where it counts one half.
    """
    return [0.5 + sum(expit((database - s) / temperature)) for s in ranked]


@oracle("smooth_ap", {"temperature": 0.2, "query_in_database": True}, {"temperature": 0.05})
def smooth_ap(class_ids, z, temperature=0.01, query_in_database=False):
    parts, s = [], similarities(z)
    for q, (positives, negatives) in enumerate(by_anchor(s, class_ids)):
        if not len(positives):
            parts.append(None)
            continue
        positives = np.append(positives, [s[q, q]] * query_in_database)
        database = np.append(positives, negatives)
        within = np.array(smooth_ranks(positives, positives, temperature))
        ranks = smooth_ranks(positives, database, temperature)
        tightness = -np.mean(np.log(within / len(database)))
        parts.append((tightness, 1 - np.mean(within / ranks) - tightness))
    return averaged(parts)


@oracle(
    "recall_at_k",
    {"temperature": 0.5, "rank_temperature": 0.1, "query_in_database": True},
    {"rank_temperature": 0.05},
)
def recall_at_k(
    class_ids, z, ks=(1, 2, 4, 8, 16), temperature=1.0, rank_temperature=0.01,
    query_in_database=False,
):  # fmt: skip
    parts, s = [], similarities(z)
    for q, (positives, negatives) in enumerate(by_anchor(s, class_ids)):
        if not len(positives):
            parts.append(None)
            continue
        others = np.append(positives, negatives)
        missed = []
        for database in (positives, np.append(others, [s[q, q]] * query_in_database)):
            ranks, recall = smooth_ranks(positives, database, rank_temperature), 0.0
            for k in np.minimum(ks, 1 + len(others)):
                found = sum(expit((k - ranks) / temperature))
                recall += min(k, found) / min(k, len(positives)) / len(ks)
            missed.append(1 - recall)
        parts.append((missed[0], missed[1] - missed[0]))
    return averaged(parts)


def cross_entropy_of_cosines(class_ids, cosines, scale, target):
    """Parts of the cross-entropy of s·c, with s·target(c) for the anchor's class."""
    parts = []
    for y, row in zip(class_ids, cosines):
        logits = scale * row
        logits[y] = scale * target(row[y])
        parts.append((-logits[y], logsumexp(logits)))
    return np.transpose(parts)


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
    "subcenter_arcface",
    {"scale": 8.0, "margin": 0.3, "easy_margin": True},
    pairs=False,
)
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


@oracle("proxy_nca", {"temperature": 0.5, "partition": "negatives"}, pairs=False)
def proxy_nca(class_ids, cosines, temperature=1 / 9, partition="all"):
    parts = []
    for y, row in zip(class_ids, cosines):
        squares = (2 - 2 * row) / temperature
        summed = squares if partition == "all" else np.delete(squares, y)
        parts.append((squares[y], logsumexp(-summed)))
    return np.transpose(parts)


@oracle("proxy_anchor", {"scale": 5.0, "margin": 0.3}, pairs=False)
def proxy_anchor(class_ids, cosines, scale=32.0, margin=0.1):
    n, pulled, pushed = len(cosines), {}, []
    for k, column in enumerate(cosines.T):
        own, others = column[class_ids == k], column[class_ids != k]
        if len(own):
            pulled[k] = math.log(1 + np.exp(-scale * (own - margin)).sum()) / len(own)
        pushed.append(math.log(1 + np.exp(scale * (others + margin)).sum()))
    tightness = [n / len(pulled) * pulled[y] for y in class_ids]
    return np.array(tightness), np.full(n, np.mean(pushed))


@oracle("angular", {"angle": 36.0})
def angular(class_ids, z, angle=45.0):
    s, tangent, terms = similarities(z), math.tan(math.radians(angle)) ** 2, []
    for i in range(len(z)):
        apart = negatives_of(i, class_ids)
        together = positives_of(i, class_ids) if apart else []
        pulled = 2 * (1 + tangent) * s[i, together]
        pushed = [np.exp(4 * tangent * (s[i, apart] + s[j, apart])).sum() for j in together]
        terms.append((-pulled, np.log(np.exp(pulled) + pushed)))
    return averaged_over_pairs(terms)


@oracle("binomial_deviance", {"scale": 3.0, "base": 0.2, "negative_cost": 4.0})
def binomial_deviance(class_ids, z, scale=2.0, base=0.5, negative_cost=25.0):
    terms = []
    for positives, negatives in by_anchor(similarities(z) - base, class_ids):
        together = np.log(1 + np.exp(-scale * positives))
        terms.append((together, np.log(1 + np.exp(scale * negative_cost * negatives))))
    return averaged_over_pairs(terms)


@oracle("histogram", {"num_bins": 9})
def histogram(class_ids, z, num_bins=150):
    pairs = list(by_anchor(similarities(z), class_ids))

    def counts(values):
        nodes = 2 * np.arange(num_bins + 1) / num_bins - 1
        return np.maximum(1 - abs(values[:, None] - nodes) * num_bins / 2, 0)

    positive = np.concatenate([positives for positives, _ in pairs])
    reached = np.cumsum(counts(positive).sum(axis=0)) / max(len(positive), 1)
    terms = [((1 - positives) / 2, counts(negatives) @ reached) for positives, negatives in pairs]
    tightness, loss = averaged_over_pairs(terms)
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
    of_weights = distances(unit(z if frozen is None else frozen))
    pairs = by_anchor(distances(unit(z)), class_ids), by_anchor(of_weights, class_ids)
    parts = []
    for (positives, negatives), (_, fixed) in zip(*pairs):
        far, near = positives - (negative_margin - margin), negative_margin - negatives
        far, weights = far[far > 0], np.where(near > 0, np.exp(-temperature * fixed), 0.0)
        pulled = far.mean() if len(far) else 0.0
        pushed = weights @ near / weights.sum() if weights.any() else 0.0
        parts.append(((1 - balance) * pulled, balance * pushed))
    return np.transpose(parts)
