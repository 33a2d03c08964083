"""Which losses the shared tests try, against which oracle, with which arguments.

A loss joins by its lines here: its defaults and at least one set of non-default arguments. The
oracles take the same arguments and know the defaults of `spec` names themselves.
"""

import dataclasses
from collections.abc import Callable

import oracles


@dataclasses.dataclass(frozen=True)
class Case:
    """A loss by its name, its oracle, its arguments.

    Attributes:
        pairs: the loss compares images with each other (not logits with a classifier).
        numeric: its gradient is that of its value (not one that it sets itself).
    """

    name: str
    oracle: Callable
    arguments: dict = dataclasses.field(default_factory=dict)
    pairs: bool = True
    numeric: bool = True

    def __str__(self):
        given = ",".join(f"{key}={value}" for key, value in self.arguments.items())
        return f"{self.name}({given})"


CASES = [
    Case("ce", oracles.cross_entropy, pairs=False),
    Case("ce", oracles.cross_entropy, {"epsilon": 0.3}, pairs=False),
    Case("contrastive", oracles.contrastive),
    Case(
        "contrastive",
        oracles.contrastive,
        {"margin": 1.3, "normalize": True, "pair_reduction": "mean"},
    ),
    Case("multi_similarity", oracles.multi_similarity),
    Case(
        "multi_similarity",
        oracles.multi_similarity,
        {"epsilon": 0.1, "base": 0.3, "alpha": 3.0, "beta": 10.0},
    ),
    Case("spce", oracles.simplified_pairwise_cross_entropy),
    Case("center", oracles.center),
    Case("center", oracles.center, {"normalize": True}),
    Case("snca", oracles.snca),
    Case("snca", oracles.snca, {"sigma": 0.3}),
    # Its gradient holds p and λ constant, which central differences of its value do not.
    Case("pce", oracles.pairwise_cross_entropy, numeric=False),
    Case("pce", oracles.pairwise_cross_entropy, {"lam": 0.3}, numeric=False),
    Case("pce", oracles.pairwise_cross_entropy, {"lam_floor": 0.02}, numeric=False),
    Case("fastap", oracles.fastap),
    Case("fastap", oracles.fastap, {"num_bins": 5}),
    Case("lifted_structure", oracles.lifted_structure),
    Case("lifted_structure", oracles.lifted_structure, {"margin": 0.3, "normalize": False}),
    Case("n_pairs", oracles.n_pairs),
    Case("n_pairs", oracles.n_pairs, {"normalize": True}),
    Case("ice", oracles.instance_cross_entropy, numeric=False),
    Case(
        "ice",
        oracles.instance_cross_entropy,
        {"scale": 8.0, "anchor_gradient": True},
        numeric=False,
    ),
    Case(
        "ice",
        oracles.instance_cross_entropy,
        {"scale": 4.0, "reweight": False, "pair_reduction": "mean"},
    ),
    Case("rankmi", oracles.rankmi),
    # Weights of negatives are constants of the gradient, not of the value.
    Case("rankmi", oracles.rankmi, {"sampling": "distance_weighted"}, numeric=False),
    Case("triplet", oracles.triplet),
    Case("triplet", oracles.triplet, {"margin": 0.5, "normalize": False, "average": "triplets"}),
    Case("triplet", oracles.triplet, {"mining": "semihard"}),
    Case(
        "triplet",
        oracles.triplet,
        {"mining": "semihard", "margin": 0.4, "normalize": False, "average": "triplets"},
    ),
    Case("triplet", oracles.triplet, {"mining": "hard", "average": "triplets"}),
    Case("quadruplet", oracles.quadruplet),
    Case(
        "quadruplet",
        oracles.quadruplet,
        {"margin": 0.3, "second_margin": 0.6, "normalize": False},
    ),
]
