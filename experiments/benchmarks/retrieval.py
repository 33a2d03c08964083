"""Evaluation and search beside faiss on made-up embeddings; `experiments.benchmark` starts it.

Each engine runs in a process of its own (`python -m experiments.benchmarks.retrieval ENGINE`), for
its memory, and prints JSON objects.
"""

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

import numpy as np

from experiments.benchmarks.process import json_rows, peak_megabytes, resident_megabytes
from experiments.options.child import end_with_parent

_THIS = "experiments.benchmarks.retrieval"

Result = TypeVar("Result")
# A measurement: its name and its numbers, as JSON takes them.
Row: TypeAlias = dict[str, Any]

# Stanford Online Products' test set.
SOP_IMAGES, SOP_CLASSES, SOP_DIMENSIONS = 60_502, 11_316, 512
ROUNDS = 3
MILLION, MILLION_DIMENSIONS, QUERIES = 1_000_000, 128, 2_000
RECALL_GOAL = 0.95
# What each kind of faiss index is tried with until its recall reaches ours.
EFFORTS = {"ivf": (4, 8, 16, 32, 64, 128, 256), "hnsw": (16, 32, 64, 128, 256, 512, 1024)}


def measure(size: str) -> Iterator[str]:
    """Yields the lines of a table; size: "sop" or "million"."""
    if size == "sop":
        yield f"{'60,502 x 512':<36}{'s':>8}"
        for part in ("sop", "evaluation"):
            for row in json_rows(_THIS, part):
                yield f"{row['what']:<36}{row['s']:>8.1f}  {row['note']}"
        return
    columns = f"{'build, s':>10}{'MB':>8}{'recall@10':>11}{'queries/s':>11}"
    yield f"{'1,000,000 x 128':<36}{columns}"
    ours = None
    for engine in ("scann", "ivf", "hnsw"):
        for row in json_rows(_THIS, engine, *([] if ours is None else [str(ours["recall"])])):
            ours = ours or row
            yield (
                f"{row['what']:<36}{row['build']:>10.0f}{row['mb']:>8.0f}{row['recall']:>11.3f}"
                f"{row['queries']:>11,.0f}"
            )


def clustered(rows: int, classes: int, dimensions: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings as of a trained net, and labels: classes around centers, the centers in groups.

    Everything varies in 64 directions and a little in all, since trained embeddings fill few of
    their dimensions.

    Returns:
        (float32 `[rows, dimensions]` of length 1, class numbers `[rows]`).
    """
    rng = np.random.default_rng(seed)
    numbers = np.concatenate([np.arange(classes), rng.integers(0, classes, rows - classes)])
    labels = rng.permutation(numbers)
    # From a seed of their own, so that queries and items of two calls share classes.
    shared = np.random.default_rng(0)
    groups = shared.normal(size=(max(1, classes // 20), 64))
    centers = groups[shared.integers(0, len(groups), classes)]
    centers = (centers + 0.8 * shared.normal(size=(classes, 64))).astype(np.float32)
    basis = (shared.normal(size=(64, dimensions)) / 8).astype(np.float32)
    z = np.empty((rows, dimensions), np.float32)
    for start in range(0, rows, 100_000):
        block = labels[start : start + 100_000]
        inner = centers[block] + 1.1 * rng.standard_normal((len(block), 64), np.float32)
        part = inner @ basis + 0.1 * rng.standard_normal((len(block), dimensions), np.float32)
        z[start : start + len(block)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return z, labels


def _seconds(function: Callable[[], Result]) -> tuple[float, Result]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def sop() -> Iterator[Row]:
    """Recall and search of a set the size of Stanford Online Products' test set."""
    import faiss

    from keras_dml.metrics import recall_at_k
    from keras_dml.retrieval import ScannIndex, TreeAH

    z, labels = clustered(SOP_IMAGES, SOP_CLASSES, SOP_DIMENSIONS, seed=1)
    flat = faiss.IndexFlatIP(SOP_DIMENSIONS)
    flat.add(z)
    calls = {
        "faiss IndexFlatIP, k = 1,001": lambda: flat.search(z, 1001)[0].shape,
        "R@1, 10, 100, 1000, exact": lambda: recall_at_k(z, labels, [1, 10, 100, 1000]),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    # In turns, so that a machine that slows down slows both.
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(_seconds(call)[0])
    peer, ours = (statistics.median(seconds) for seconds in times.values())
    notes = ("", f"{ours / peer:.2f} of faiss (goal 0.55)")
    for name, seconds, note in zip(calls, (peer, ours), notes):
        yield {"what": name, "s": seconds, "note": note}
    seconds, _ = _seconds(lambda: flat.search(z, 10))
    yield {"what": "faiss IndexFlatIP, k = 10", "s": seconds, "note": ""}
    flat.reset()
    indexes: dict[str, Callable[[], ScannIndex]] = {
        "ScannIndex, exact, k = 10": lambda: ScannIndex(z),
        "ScannIndex, tree-AH, k = 10": lambda: ScannIndex(z, tree=TreeAH()),
    }
    exact = None
    for name, make in indexes.items():
        build, index = _seconds(make)
        index.search(z[:100], 10)
        seconds, (rows, _) = _seconds(functools.partial(index.search, z, 10))
        # The nearest other row.
        nearest = np.where(rows[:, 0] == np.arange(len(z)), rows[:, 1], rows[:, 0])
        hits = 100 * np.mean(labels[nearest] == labels)
        note = f"R@1 {hits:.2f} %, built in {build:.1f} s"
        if exact:
            note += f", {exact[0] / seconds:.1f}x as fast (goal 5)"
        exact = exact or (seconds, hits)
        yield {"what": name, "s": seconds, "note": note}


def evaluation() -> Iterator[Row]:
    """The rest of `metrics.evaluate` on the same set, and its memory."""
    from keras_dml import metrics
    from keras_dml._common.types import METRICS

    z, labels = clustered(SOP_IMAGES, SOP_CLASSES, SOP_DIMENSIONS, seed=1)
    before = resident_megabytes()
    for metric in METRICS:
        seconds, found = _seconds(functools.partial(metrics.precision_at_r, z, labels, metric))
        note = f"MAP@R {100 * found.map_at_r:.1f} %"
        yield {"what": f"MAP@R and R-precision, {metric}", "s": seconds, "note": note}
    seconds, nats = _seconds(lambda: metrics.distance_histograms(z, labels).divergence())
    yield {"what": "Jensen-Shannon divergence", "s": seconds, "note": f"{nats:.3f} nats"}
    seconds, scores = _seconds(lambda: metrics.clustering_scores(z, labels))
    note = f"{scores.nmi:.3f} and {scores.ami:.3f} (goal 300 s)"
    yield {"what": f"NMI and AMI, {SOP_CLASSES:,} clusters", "s": seconds, "note": note}
    seconds, _ = _seconds(lambda: metrics.recall_at_k(z, labels, [1, 1000], "l2"))
    note = f"all of these: {peak_megabytes() - before:,.0f} MB beyond the embeddings (goal 2,000)"
    yield {"what": "R@1, 1000, exact, l2", "s": seconds, "note": note}


def _million() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    import faiss

    items, _ = clustered(MILLION, MILLION // 100, MILLION_DIMENSIONS, seed=1)
    queries, _ = clustered(QUERIES + MILLION // 100, MILLION // 100, MILLION_DIMENSIONS, seed=2)
    queries = queries[:QUERIES]
    flat = faiss.IndexFlatIP(MILLION_DIMENSIONS)
    flat.add(items)
    nearest = flat.search(queries, 10)[1]
    flat.reset()
    return items, queries, nearest


def _recall(retrieved: np.ndarray, nearest: np.ndarray) -> float:
    return float(np.mean([len(np.intersect1d(a, b)) for a, b in zip(retrieved, nearest)]) / 10)


def _timed_search(
    search: Callable[[np.ndarray], Result], queries: np.ndarray
) -> tuple[float, Result]:
    search(queries[:100])
    times = [_seconds(lambda: search(queries)) for _ in range(ROUNDS)]
    return len(queries) / statistics.median(seconds for seconds, _ in times), times[-1][1]


def million(engine: str, goal: float = 0.0) -> Iterator[Row]:
    """Build, memory, recall of the exact ten nearest, and queries a second of one engine."""
    items, queries, nearest = _million()
    before = resident_megabytes()
    if engine == "scann":
        from keras_dml.retrieval import ScannIndex, TreeAH

        tree = TreeAH(target_recall=RECALL_GOAL)
        build, index = _seconds(lambda: ScannIndex(items, tree=tree))
        rate, (found, _) = _timed_search(lambda rows: index.search(rows, 10), queries)
        yield _row("ScannIndex, tree-AH", build, before, found, nearest, rate)
        return
    import faiss

    kind = {"ivf": "IVF4096,Flat", "hnsw": "HNSW32,Flat"}[engine]
    index = faiss.index_factory(MILLION_DIMENSIONS, kind, faiss.METRIC_INNER_PRODUCT)

    def build_index() -> None:
        if not index.is_trained:
            index.train(items[np.random.default_rng(0).permutation(len(items))[:200_000]])
        index.add(items)

    build, _ = _seconds(build_index)
    for effort in EFFORTS[engine]:
        if engine == "ivf":
            index.nprobe = effort
        else:
            index.hnsw.efSearch = effort
        rate, (_, found) = _timed_search(lambda rows: index.search(rows, 10), queries)
        row = _row(f"faiss {kind}, {effort}", build, before, found, nearest, rate)
        if row["recall"] >= goal:
            break
    yield row


def _row(
    what: str,
    build: float,
    before: float,
    retrieved: np.ndarray,
    nearest: np.ndarray,
    rate: float,
) -> Row:
    return {
        "what": what,
        "build": build,
        "mb": peak_megabytes() - before,
        "recall": _recall(retrieved, nearest),
        "queries": rate,
    }


def main(engine: str, *goal: str) -> None:
    """Print the engine's rows."""
    whole = {"sop": sop, "evaluation": evaluation}
    rows = whole[engine]() if engine in whole else million(engine, *map(float, goal))
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    end_with_parent()
    main(*sys.argv[1:])
