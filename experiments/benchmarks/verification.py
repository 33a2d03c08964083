"""Thresholds over all pairs beside scikit-learn's ROC; `experiments.benchmark` starts it.

In a process of its own (`python -m experiments.benchmarks.verification`), for its memory.
"""

import json
import time
from collections.abc import Iterator

import numpy as np

from experiments.benchmarks.process import json_rows, peak_megabytes, resident_megabytes
from experiments.benchmarks.retrieval import SOP_CLASSES, SOP_DIMENSIONS, SOP_IMAGES, clustered
from experiments.options.child import end_with_parent

# Rows whose pairs, 4.5 million, scikit-learn's curve takes at once.
SAMPLE = 3_000
RATE = 1e-3


def measure() -> Iterator[str]:
    """Yields the lines of a table."""
    yield f"{'':<36}{'s':>8}"
    for row in json_rows("experiments.benchmarks.verification"):
        yield f"{row['what']:<36}{row['s']:>8.1f}  {row['note']}"


def main() -> None:
    """Print a JSON object for each measurement."""
    from sklearn.metrics import roc_curve

    from keras_dml._common.types import METRICS
    from keras_dml.metrics import verification

    rows, labels = clustered(SAMPLE, SOP_CLASSES // 20, SOP_DIMENSIONS, seed=1)
    start = time.perf_counter()
    scores = (rows @ rows.T)[np.triu_indices(SAMPLE, 1)]
    same = (labels[:, None] == labels)[np.triu_indices(SAMPLE, 1)]
    false, true, _ = roc_curve(same, scores, drop_intermediate=False)
    theirs = true[np.flatnonzero(false <= RATE)[-1]]
    _print(f"roc_curve, {SAMPLE:,} rows", start, f"TMR {100 * theirs:.4f} % at FMR {RATE:g}")
    for replicates in (0, 500):
        start = time.perf_counter()
        ours = verification(rows, labels, [RATE], replicates=replicates).points[0].true_match_rate
        note = f"TMR {100 * ours:.4f} %, {replicates or 'no'} drawings"
        _print(f"verification, {SAMPLE:,} rows", start, note)
    embeddings, labels = clustered(SOP_IMAGES, SOP_CLASSES, SOP_DIMENSIONS, seed=1)
    before = resident_megabytes()
    for metric in METRICS:
        start = time.perf_counter()
        found = verification(embeddings, labels, metric=metric)
        note = f"of {found.negative_pairs + found.positive_pairs:,} pairs (goal 60 s), "
        note += f"{peak_megabytes() - before:,.0f} MB beyond the embeddings"
        _print(f"verification, {SOP_IMAGES:,} x {SOP_DIMENSIONS}, {metric}", start, note)


def _print(what: str, start: float, note: str) -> None:
    print(json.dumps({"what": what, "s": time.perf_counter() - start, "note": note}), flush=True)


if __name__ == "__main__":
    end_with_parent()
    main()
