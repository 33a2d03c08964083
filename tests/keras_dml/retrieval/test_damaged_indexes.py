"""Randomly damaged indexes: either the same answers or a one-line error, never a crash."""

import json
import pathlib
import shutil
import sys

import numpy as np
import pytest
from damage import damage
from trial_process import run_trials, trials_of_this_process
from trials import Tally, seeds

from keras_dml._common.errors import ArgumentError
from keras_dml.retrieval import (
    ExactIndex,
    PrefixIndex,
    ScannIndex,
    TreeAH,
    load_index,
    scann_loads,
)

QUERIES, K = 5, 3


def save_indexes(folder):
    """Save an index of every kind and return the names of their folders."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(400, 8)).astype(np.float32)
    ids = [f"item {number}" for number in range(len(rows))]
    indexes = {"exact": ExactIndex(rows, "l2", ids), "prefix": PrefixIndex(rows, length=4)}
    if scann_loads():
        tree = TreeAH(num_leaves=20, leaves_to_search=10)
        many = generator.normal(size=(2_000, 4)).astype(np.float32)
        indexes |= {
            "scann": ScannIndex(rows, "cosine", ids),
            "tree": ScannIndex(many, "l2", None, tree),
            # The mean is long enough to be subtracted.
            "lifted": ScannIndex(many + 50, "cosine", np.arange(len(many)) + 7, tree),
        }
    for name, index in indexes.items():
        index.save(folder / name)
    return sorted(indexes)


def answers(folder):
    """Return the search results of the index in a folder, and its measured recall."""
    index = load_index(folder)
    queries = np.random.default_rng(1).normal(size=(QUERIES, index.dimensions))
    ids, scores = index.search(queries.astype(np.float32), K)
    return [ids.tolist(), scores.tolist(), getattr(index, "measured_recall", None)]


def end_of_a_trial(folder, expected, seed):
    """Load a damaged copy of an index; return `(the damage, an end, a failure)`."""
    generator = np.random.default_rng(seed)
    name = sorted(expected)[generator.integers(len(expected))]
    copy = folder / "damaged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / name, copy)
    how = f"{name}: {damage(copy, generator)}"
    if generator.random() < 0.2:
        how += f"; {damage(copy, generator)}"
    try:
        found = answers(copy)
    except ArgumentError as error:
        if str(copy) not in str(error) or "\n" in str(error):
            return how, None, f"a line that does not name it: {error!r}"
        return how, "refused in one line", None
    except Exception as error:
        return how, None, repr(error)
    if found != expected[name]:
        return how, None, "other answers, and no word"
    return how, "answered as before", None


@pytest.mark.slow
@pytest.mark.parametrize(
    "count", [30, pytest.param(1_500, marks=pytest.mark.thorough)], ids=["few", "many"]
)
def test_damaged_indexes(count, tmp_path, capsys):
    tally = Tally("damaged indexes")
    expected = json.dumps({name: answers(tmp_path / name) for name in save_indexes(tmp_path)})
    (tmp_path / "expected.json").write_text(expected)
    run_trials(__file__, tmp_path, seeds(count), tally)
    tally.check(capsys)


if __name__ == "__main__":
    ROOT = pathlib.Path(sys.argv[1])
    EXPECTED = json.loads((ROOT / "expected.json").read_text())
    trials_of_this_process(lambda seed: end_of_a_trial(ROOT, EXPECTED, seed), sys.argv[2:])
