"""Indexes damaged at random: the answers of before, or one line; never the end of the process."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from damage import damage
from trials import Tally, seeds

from keras_dml.errors import ArgumentError
from keras_dml.retrieval import (
    ExactIndex,
    PrefixIndex,
    ScannIndex,
    TreeAH,
    load_index,
    scann_loads,
)

QUERIES, K = 5, 3
_LONGEST = 120.0  # seconds without an end of a trial


def save_indexes(folder):
    """An index of every kind, by its name in the folder."""
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
            # With a mean so long that it is taken off.
            "lifted": ScannIndex(many + 50, "cosine", np.arange(len(many)) + 7, tree),
        }
    for name, index in indexes.items():
        index.save(folder / name)
    return sorted(indexes)


def answers(folder):
    """What the index in a folder finds, and says of itself."""
    index = load_index(folder)
    queries = np.random.default_rng(1).normal(size=(QUERIES, index.dimensions))
    ids, scores = index.search(queries.astype(np.float32), K)
    return [ids.tolist(), scores.tolist(), getattr(index, "measured_recall", None)]


def end_of_a_trial(folder, names, expected, seed):
    """What a damaged copy of an index comes to: `(how it was damaged, an end, a failure)`."""
    generator = np.random.default_rng(seed)
    name = names[generator.integers(len(names))]
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


def main(folder, *numbers):
    """Trials in this process, which one of them may end: a line of JSON for each."""
    folder = pathlib.Path(folder)
    expected = json.loads((folder / "expected.json").read_text())
    for seed in map(int, numbers):
        print(json.dumps([seed, *end_of_a_trial(folder, sorted(expected), expected, seed)]))
        sys.stdout.flush()


def run_trials(folder, numbers, tally):
    """All trials, in processes of their own; one that ends its process is a failure."""
    names = save_indexes(folder)
    # JSON knows no float32: compared as it is read again.
    expected = json.dumps({name: answers(folder / name) for name in names})
    (folder / "expected.json").write_text(expected)
    left = list(numbers)
    while left:
        words = [sys.executable, __file__, str(folder), *map(str, left)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, check=False,
            timeout=_LONGEST + len(left),
        )  # fmt: skip
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        for seed, how, end, failure in lines:
            if failure:
                tally.fail(seed, f"{how}: {failure}")
            else:
                tally.add(end)
        left = left[len(lines) :]
        if left:
            tally.fail(left.pop(0), f"ended the process ({done.returncode}): {done.stderr[-500:]}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "count", [30, pytest.param(1_500, marks=pytest.mark.thorough)], ids=["few", "many"]
)
def test_damaged_indexes(count, tmp_path, capsys):
    tally = Tally("damaged indexes")
    run_trials(tmp_path, seeds(count), tally)
    tally.check(capsys)


if __name__ == "__main__":
    main(*sys.argv[1:])
