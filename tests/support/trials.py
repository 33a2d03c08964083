"""Random trials: from which seed and how many, read from the environment here alone; their end.

Trial number n of every suite is a function of n and nothing else. A failure names its number:
`KERAS_DML_FUZZ_SEED=n KERAS_DML_FUZZ_COUNT=1` and the test's name repeat that one alone.
"""

import collections
import os

_SEED, _COUNT = "KERAS_DML_FUZZ_SEED", "KERAS_DML_FUZZ_COUNT"


def seeds(count):
    """The numbers of a suite's trials: `count` of them unless the environment says how many."""
    first = int(os.environ.get(_SEED, "0"))
    return range(first, first + int(os.environ.get(_COUNT, count)))


class Tally:
    """What came of a suite's trials: how often each allowed end, and all that must not be.

    Args:
        what: what was tried, in the plural: "damaged indexes".
    """

    def __init__(self, what):
        self.what = what
        self.ends = collections.Counter()
        self.failures = []

    def add(self, end):
        """One trial has ended as it may."""
        self.ends[end] += 1

    def fail(self, seed, why):
        """Trial `seed` has ended as none may."""
        self.failures.append(f"{_SEED}={seed}: {why}")

    def __str__(self):
        ends = ", ".join(f"{count} {end}" for end, count in self.ends.most_common())
        total = self.ends.total() + len(self.failures)
        return f"{total} {self.what}: {ends}; {len(self.failures)} failed"

    def check(self, capsys):
        """Print the counts, whatever pytest captures, and fail if a trial has."""
        with capsys.disabled():
            print(f"\n{self}")
        assert not self.failures, "\n".join([str(self), *self.failures])
        assert self.ends, f"no {self.what} were tried"
