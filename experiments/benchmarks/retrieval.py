"""Benchmark of search next to faiss, and of the scores of a million embeddings."""

import dataclasses
import functools
import importlib.util
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from experiments.benchmarks import measuring
from experiments.options import Options, UsageError, option
from keras_dml._common.types import Neighbors

# Images, classes, and embedding size: the test set of Stanford Online Products, and a large index.
SOP = (60_502, 11_316, 512)
MILLION = (1_000_000, 10_000, 128)
QUERIES, ROUNDS = 2_000, 3
# The number of these embeddings that exact search scores too.
EXACT_IMAGES = 100_000
TARGET_RECALL = 0.95
# Search settings of the faiss indexes, from fast to accurate. The benchmark uses the first one with
# the recall of `ScannIndex`.
EFFORTS: dict[str, list[str]] = {
    "ScannIndex": [],
    "IVF4096,Flat": [f"nprobe={2**power}" for power in range(2, 9)],
    "HNSW32,Flat": [f"efSearch={2**power}" for power in range(4, 11)],
}


SCORES = ("recall@1", "recall@10", "map@r", "r_precision")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrievalOptions(Options):
    """Options of `benchmark retrieval`.

    Attributes:
        size: Number of embeddings. sop: 60,502, as Stanford Online Products. million: 1,000,000.
            scores: retrieval scores of 1,000,000, without faiss.
    """

    group = "Measured"

    command = "experiments.benchmark retrieval"
    intro = """Measure recall@K, exact search, and ScaNN next to faiss on synthetic embeddings.

Also measure the scores of a million embeddings by ScaNN, with their certificates.

  python -m experiments.benchmark retrieval [--size=sop|million|scores|all]

faiss is in pip install 'keras-dml[benchmark]'.
"""

    size: str = option("all", choices=("sop", "million", "scores", "all"))


def measure(options: RetrievalOptions) -> Iterator[str]:
    """Yield the lines of the tables."""
    if options.size != "scores" and importlib.util.find_spec("faiss") is None:
        raise UsageError("retrieval needs faiss: pip install 'keras-dml[benchmark]'")
    if options.size in ("sop", "all"):
        yield f"{f'{SOP[0]:,} x {SOP[2]}':<36}{'s':>8}"
        for row in measuring.child_rows(measure_search, *SOP):
            yield f"{row['what']:<36}{row['s']:>8.1f}  {row['note']}"
    if options.size in ("million", "all"):
        columns = f"{'build, s':>10}{'MB':>8}{'recall@10':>11}{'queries/s':>11}"
        yield f"{f'{MILLION[0]:,} x {MILLION[2]}':<36}{columns}"
        recall = 0.0
        for kind, efforts in EFFORTS.items():
            for row in measuring.child_rows(
                measure_index, kind, efforts, recall, QUERIES, *MILLION
            ):
                recall = recall or row["recall"]
                yield (
                    f"{row['what']:<36}{row['build']:>10.0f}{row['MB']:>8.0f}{row['recall']:>11.3f}"
                    f"{row['queries']:>11,.0f}"
                )
    if options.size in ("scores", "all"):
        heads = [f"{name:>12}" for name in SCORES]
        yield f"{'scores, cosine':<36}{'s':>8}{'MB':>8}{''.join(heads)}"
        many, few = MILLION[0], EXACT_IMAGES
        for count, neighbors in ((many, "scann"), (few, "scann"), (few, "exact")):
            for row in measuring.child_rows(measure_scores, count, neighbors, *MILLION):
                values = [f"{100 * row[name]:>12.2f}" for name in SCORES]
                yield f"{row['what']:<36}{row['s']:>8}{row['MB']:>8}{''.join(values)}"


def clustered(rows: int, classes: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Create embeddings like the embeddings of a trained network.

    The class centers form groups. The embeddings vary mostly in 64 directions. The centers do not
    depend on the seed, so that two calls share their classes.

    Returns:
        Unit float32 embeddings `[rows, size]`, and class numbers `[rows]`.
    """
    rng, shared = np.random.default_rng(seed), np.random.default_rng(0)
    others = rng.integers(0, classes, max(0, rows - classes))
    labels = rng.permutation(np.append(np.arange(classes), others))[:rows]
    groups = shared.normal(size=(max(1, classes // 20), 64))
    centers = groups[shared.integers(0, len(groups), classes)]
    centers = (centers + 0.8 * shared.normal(size=(classes, 64))).astype(np.float32)
    basis = (shared.normal(size=(64, size)) / 8).astype(np.float32)
    z = np.empty((rows, size), np.float32)
    for start in range(0, rows, 100_000):
        block = labels[start : start + 100_000]
        inner = centers[block] + 1.1 * rng.standard_normal((len(block), 64), np.float32)
        part = inner @ basis + 0.1 * rng.standard_normal((len(block), size), np.float32)
        z[start : start + len(block)] = part / np.linalg.norm(part, axis=1, keepdims=True)
    return z, labels


def measure_search(images: int, classes: int, size: int) -> Iterator[measuring.Row]:
    """Yield the rows of recall@K and of the search for 10 neighbors."""
    import faiss

    from keras_dml.metrics import recall_at_k
    from keras_dml.retrieval import ScannIndex, TreeAH

    z, labels = clustered(images, classes, size, seed=1)
    ks = [k for k in (1, 10, 100, 1000) if k < images]
    flat = faiss.IndexFlatIP(size)
    flat.add(z)
    calls: dict[str, Callable[[], Any]] = {
        f"faiss IndexFlatIP, k = {ks[-1] + 1:,}": lambda: flat.search(z, ks[-1] + 1),
        f"R@{', '.join(map(str, ks))}, exact": lambda: recall_at_k(z, labels, ks),
    }
    # In turns, so that a slow phase of the machine slows both.
    rounds = [[measuring.seconds_of(call)[0] for call in calls.values()] for _ in range(ROUNDS)]
    peer, ours = (statistics.median(taken) for taken in zip(*rounds))
    for name, seconds in zip(calls, (peer, ours)):
        note = f"{ours / peer:.2f} of faiss (goal 0.55)" if seconds is ours else ""
        yield {"what": name, "s": seconds, "note": note}
    seconds, _ = measuring.seconds_of(lambda: flat.search(z, 10))
    yield {"what": "faiss IndexFlatIP, k = 10", "s": seconds, "note": ""}
    flat.reset()
    for name, tree in (("exact", None), ("tree-AH", TreeAH())):
        build, index = measuring.seconds_of(functools.partial(ScannIndex, z, tree=tree))
        index.search(z[:100], 10)
        seconds, (rows, _) = measuring.seconds_of(functools.partial(index.search, z, 10))
        nearest_other = np.where(rows[:, 0] == np.arange(len(z)), rows[:, 1], rows[:, 0])
        hits = 100 * np.mean(labels[nearest_other] == labels)
        note = f"R@1 {hits:.2f} %, built in {build:.1f} s"
        yield {"what": f"ScannIndex, {name}, k = 10", "s": seconds, "note": note}


def measure_index(
    kind: str, efforts: Sequence[str], goal: float, count: int, images: int, classes: int, size: int
) -> Iterator[measuring.Row]:
    """Yield the row of one approximate index.

    Args:
        kind: `"ScannIndex"`, or a factory string of faiss.
        efforts: Search settings of the faiss index, with rising recall.
        goal: Recall of the exact 10 nearest that a faiss index must reach.
        count: Number of queries.
        images, classes, size: As in `clustered`.
    """
    import faiss

    from keras_dml.retrieval import ScannIndex, TreeAH

    items, _ = clustered(images, classes, size, seed=1)
    queries, _ = clustered(count, classes, size, seed=2)
    flat = faiss.IndexFlatIP(size)
    flat.add(items)
    nearest = flat.search(queries, 10)[1]
    flat.reset()
    before = measuring.resident_megabytes()

    def row(what: str, build: float, search: Callable[[np.ndarray], np.ndarray]) -> measuring.Row:
        search(queries[:100])
        times = [measuring.seconds_of(lambda: search(queries)) for _ in range(ROUNDS)]
        rate = count / statistics.median(seconds for seconds, _ in times)
        hits = [len(np.intersect1d(*pair)) for pair in zip(times[-1][1], nearest)]
        memory = measuring.peak_megabytes() - before
        numbers = {"build": build, "MB": memory, "recall": np.mean(hits) / 10, "queries": rate}
        return {"what": what, **numbers}

    if kind == "ScannIndex":
        tree = TreeAH(target_recall=TARGET_RECALL)
        build, index = measuring.seconds_of(lambda: ScannIndex(items, tree=tree))
        yield row("ScannIndex, tree-AH", build, lambda rows: index.search(rows, 10)[0])
        return
    index = faiss.index_factory(size, kind, faiss.METRIC_INNER_PRODUCT)
    space: Any = faiss.ParameterSpace()
    shuffled = np.random.default_rng(0).permutation(images)[:200_000]
    build, _ = measuring.seconds_of(lambda: (index.train(items[shuffled]), index.add(items)))
    for effort in efforts:
        space.set_index_parameters(index, effort)
        found = row(f"faiss {kind}, {effort}", build, lambda rows: index.search(rows, 10)[1])
        if found["recall"] >= goal:
            break
    yield found


def measure_scores(
    count: int, neighbors: Neighbors, images: int, classes: int, size: int
) -> Iterator[measuring.Row]:
    """Yield the row of the scores, and by ScaNN the rows of their certificates.

    Args:
        count: Number of embeddings to score, at most `images`.
        neighbors: "exact" or "scann".
        images, classes, size: As in `clustered`.
    """
    from keras_dml.metrics import evaluate

    z, labels = (array[:count] for array in clustered(images, classes, size, seed=1))
    before = measuring.resident_megabytes()
    seconds, found = measuring.seconds_of(
        lambda: evaluate(z, labels, [1, 10], "cosine", clustering=False, neighbors=neighbors)
    )
    memory = measuring.peak_megabytes() - before
    numbers = {"s": f"{seconds:.0f}", "MB": f"{memory:.0f}"}
    scores = {name: found[f"{name}/cosine"] for name in SCORES}
    yield {"what": f"{count:,} x {size}, {neighbors}", **numbers, **scores}
    for key, what in (("exact", "exact on a sample"), ("exact_low", "from"), ("exact_high", "to")):
        if neighbors == "scann":
            exact = {name: found[f"{name}/cosine/{key}"] for name in SCORES}
            yield {"what": f"  {what}", "s": "", "MB": "", **exact}
