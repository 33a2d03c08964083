"""An index of a million items that changes, and ScaNN's options; `experiments.benchmark` starts it.

Each part runs in a process of its own (`python -m experiments.benchmarks.changes PART`), for its
memory, and prints JSON objects.
"""

import functools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from experiments.benchmarks.process import json_rows, resident_megabytes
from experiments.benchmarks.retrieval import (
    MILLION,
    MILLION_DIMENSIONS,
    RECALL_GOAL,
    Row,
    clustered,
)
from experiments.options.child import end_with_parent
from keras_dml.retrieval import ExactIndex, Index, ScannIndex, TreeAH

_THIS = "experiments.benchmarks.changes"
QUERIES, K = 200, 10
# What is tried: ScaNN's own way, and what may save memory or time.
OPTIONS: dict[str, dict[str, object]] = {
    "float32": {},
    "bfloat16": {"reorder_dtype": "bfloat16"},
    "int8": {"reorder_dtype": "int8"},
    "SOAR 1.5": {"soar_lambda": 1.5},
    "SOAR 1.5, int8": {"soar_lambda": 1.5, "reorder_dtype": "int8"},
}
# Searches of so many queries are made while the index changes, by so many threads.
_AT_ONCE, _THREADS = 16, 8
# So long a thread waits before its next search: all of them at once would leave no time to train.
_PAUSE = 0.02  # seconds


def measure(count: int = MILLION) -> Iterator[str]:
    """Yields the lines of two tables."""
    yield f"{f'{count:,} x {MILLION_DIMENSIONS}':<44}{'s':>8}{'recall@10':>11}"
    for row in json_rows(_THIS, "updates", str(count)):
        yield f"{row['what']:<44}{row['s']:>8.2f}{row['recall']:>11.3f}  {row['note']}"
    columns = f"{'build, s':>10}{'MB':>8}{'recall@10':>11}{'leaves':>8}{'queries/s':>11}"
    yield f"{'reordered by':<20}{columns}"
    for name in OPTIONS:
        for row in json_rows(_THIS, "option", str(count), name):
            yield (
                f"{name:<20}{row['build']:>10.0f}{row['mb']:>8.0f}{row['recall']:>11.3f}"
                f"{row['leaves']:>8}{row['queries']:>11,.0f}"
            )


def _clustered(count: int, seed: int, classes: int) -> np.ndarray:
    # One for each class comes with them, and is left out.
    return clustered(count + classes, classes, MILLION_DIMENSIONS, seed)[0][:count]


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _recall(index: Index, queries: np.ndarray) -> float:
    """Of the exact ten nearest among what the index holds now."""
    nearest, _ = ExactIndex(index.embeddings_of(index.ids), ids=index.ids).search(queries, K)
    found, _ = index.search(queries, K)
    return float(np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, nearest)]) / K)


def updates(count: int) -> Iterator[Row]:
    """Seconds and recall of upserts and removals, beside searches and without."""
    classes = max(1, count // 100)
    items, queries = _clustered(count, 1, classes), _clustered(QUERIES, 2, classes)
    generator, percent = np.random.default_rng(0), max(1, count // 100)
    tree = TreeAH(target_recall=RECALL_GOAL)
    start = time.perf_counter()
    index = ScannIndex(items, ids=np.arange(count), tree=tree)

    def row(what: str, seconds: float, note: str = "") -> Row:
        return {"what": what, "s": seconds, "recall": _recall(index, queries), "note": note}

    yield row("built", time.perf_counter() - start)
    there, new = generator.choice(count, percent, replace=False), np.arange(percent) + 2**40
    for what, ids, seed in (("that are there", there, 3), ("that are new", new, 4)):
        others = _clustered(percent, seed, classes)
        # Bound now: the next round has others.
        seconds = _seconds(functools.partial(index.upsert, ids, others))
        yield row(f"upsert of 1 %, ids {what}", seconds)
    yield row("remove of 1 %", _seconds(lambda: index.remove(new)))
    yield row("upsert of one item", _seconds(lambda: index.upsert([0], queries[:1])))
    again = _clustered(percent, 5, classes)

    def change() -> None:
        for part in np.array_split(np.arange(percent), 20):
            index.upsert(there[part], again[part])

    longest, searches, seconds = _beside(index, queries, change)
    note = f"{searches:,} searches of {_AT_ONCE} queries, the longest {longest:.2f} s"
    yield row("1 % in 20 upserts, 8 threads search", seconds, note)
    half = generator.permutation(count)[: count // 2]
    replaced, left = np.array_split(half, 2)
    rows = _clustered(len(half), 6, classes)
    start = time.perf_counter()
    index.upsert(replaced, rows[: len(replaced)])
    index.remove(left)
    index.upsert(left + 2**41, rows[len(replaced) :])
    yield row("half of the items exchanged", time.perf_counter() - start)
    del items, rows
    longest, searches, seconds = _beside(index, queries, index.rebalance)
    note = f"{searches:,} searches of {_AT_ONCE} queries, the longest {longest:.2f} s"
    yield row("rebalance, 8 threads search", seconds, note)
    rows = index.embeddings_of(ids := index.ids)
    start = time.perf_counter()
    index = ScannIndex(rows, ids=ids, tree=tree)
    yield row("built anew of what it holds", time.perf_counter() - start)


def option(count: int, name: str) -> Iterator[Row]:
    """What one of `OPTIONS` comes to; memory: the index's own rows too."""
    classes = max(1, count // 100)
    items, queries = _clustered(count, 1, classes), _clustered(QUERIES, 2, classes)
    before = resident_megabytes()
    tree = TreeAH(target_recall=RECALL_GOAL, **OPTIONS[name])  # type: ignore[arg-type]
    start = time.perf_counter()
    index = ScannIndex(items, tree=tree)
    build, held = time.perf_counter() - start, resident_megabytes() - before
    many = np.tile(queries, (25, 1))
    index.search(queries, K)
    rate = len(many) / _seconds(lambda: index.search(many, K))
    leaves = index.tree.leaves_to_search if index.tree else 0
    yield {"build": build, "mb": held, "recall": _recall(index, queries), "leaves": leaves,
           "queries": rate}  # fmt: skip


def _beside(
    index: Index, queries: np.ndarray, work: Callable[[], object]
) -> tuple[float, int, float]:
    """The longest search while `work` is done, how many there were, and the seconds of `work`."""
    times: list[float] = []
    done = threading.Event()

    def search(place: int) -> None:
        numbers = np.random.default_rng(place)
        while not done.is_set():
            some = queries[numbers.integers(0, len(queries), _AT_ONCE)]
            times.append(_seconds(functools.partial(index.search, some, K)))
            done.wait(_PAUSE)

    threads = [threading.Thread(target=search, args=(place,)) for place in range(_THREADS)]
    for thread in threads:
        thread.start()
    try:
        seconds = _seconds(work)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    return max(times), len(times), seconds


def main(part: str, count: str, *name: str) -> None:
    """Print the rows of a part."""
    rows = updates(int(count)) if part == "updates" else option(int(count), *name)
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    end_with_parent()
    main(*sys.argv[1:])
