"""Random trials: the first seed and the count, which only this module reads, and a summary.

Trial number n of every suite depends only on n. A failure prints its number. To repeat only that
trial, run the test with `KERAS_DML_FUZZ_SEED=n KERAS_DML_FUZZ_COUNT=1`.
"""

import collections
import os

_SEED, _COUNT = "KERAS_DML_FUZZ_SEED", "KERAS_DML_FUZZ_COUNT"


def seeds(count):
    """Return the seeds of a suite's trials: `count`, unless the environment sets another count."""
    first = int(os.environ.get(_SEED, "0"))
    return range(first, first + int(os.environ.get(_COUNT, count)))


class Tally:
    """The results of a suite's trials: a count for each allowed end, and all failures.

    Args:
        what: what the suite tries, in the plural: "damaged indexes".
    """

    def __init__(self, what):
        self.what = what
        self.ends = collections.Counter()
        self.failures = []

    def add(self, end):
        """Count a trial with an allowed end."""
        self.ends[end] += 1

    def fail(self, seed, why):
        """Record the failure of trial `seed`."""
        self.failures.append(f"{_SEED}={seed}: {why}")

    def __str__(self):
        ends = ", ".join(f"{count} {end}" for end, count in self.ends.most_common())
        total = self.ends.total() + len(self.failures)
        return f"{total} {self.what}: {ends}; {len(self.failures)} failed"

    def check(self, capsys):
        """Print the counts despite pytest's capturing, and fail if a trial failed."""
        with capsys.disabled():
            print(f"\n{self}")
        assert not self.failures, "\n".join([str(self), *self.failures])
        assert self.ends, f"no {self.what} were tried"
