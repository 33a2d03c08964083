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
]
