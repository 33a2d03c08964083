"""Benchmark of relations and of two encoders on the Grocery Store Dataset, frozen backbone."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.options import Options, UsageError, option
from keras_dml._files.atomic import replacing

if TYPE_CHECKING:
    import keras

_BATCH, _STEPS, _EMBEDDING = 128, 600, 256
GROUP = "Measured"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelationsOptions(Options):
    """Options of `benchmark relations`."""

    command = "experiments.benchmark relations"
    intro = """Measure tags and photo to catalog on unseen products.

  python -m experiments.benchmark relations --data_dir=FOLDER

Computes the features of a frozen backbone once (a few minutes), trains small heads on the training
classes, and evaluates them on the test classes, with each seed. Intervals are 95 % bootstraps over
the test classes of the mean over the seeds.
"""

    data_dir: str = option("", GROUP, "Folder of the Grocery Store Dataset.")
    image_size: int = option(288, GROUP, "Side of the images in pixels.", lower_bound=32)
    seeds: int = option(3, GROUP, "Number of seeds.", lower_bound=1)
    output_dir: str = option("runs/relations", GROUP, "Folder of the cached features.")


def measure(options: RelationsOptions) -> Iterator[str]:
    """Yield the lines of the tables."""
    if not options.data_dir:
        raise UsageError("--data_dir must be the folder of the Grocery Store Dataset.")
    data = _features(options)
    yield f"{len(data['x'])} photographs, {len(data['catalog'])} products"
    yield from _photo_to_catalog(data, options.seeds)
    yield from _tags(data, options.seeds)


def _photo_to_catalog(data: dict[str, np.ndarray], seeds: int) -> Iterator[str]:
    """Train with photographs as queries and catalog pictures as candidates."""
    from keras_dml import losses, models

    def one_set(seed: int) -> Callable[[np.ndarray], np.ndarray]:
        head = _head(data["x"].shape[1], seed)
        head.compile("adam", losses.NTXentLoss(0.1))
        head.fit(_batches(data, seed, lambda rows: (data["x"][rows], data["y"][rows])), verbose=0)
        return lambda x: head.predict(x, verbose=0)

    def two_sets(seed: int) -> Callable[[np.ndarray], np.ndarray]:
        head = _head(data["x"].shape[1], seed)
        model = models.DualEncoder(head, head)
        model.compile("adam", losses.NTXentLoss(0.1))

        def pairs(rows: np.ndarray) -> Any:
            ids = data["y"][rows]
            return (data["x"][rows], data["catalog"][ids]), ids

        model.fit(_batches(data, seed, pairs), verbose=0)
        return model.encode_queries

    yield "photo to catalog, R@1 on unseen products"
    test = ~data["is_train"]
    for name, train in (
        ("untrained features", lambda seed: lambda x: x),
        ("head trained on photographs", one_set),
        ("head trained on photographs and catalog (DualEncoder)", two_sets),
    ):
        hits = []
        for seed in range(seeds):
            encode = train(seed)
            catalog = np.flatnonzero(~data["train_class"])
            similarities = (
                _unit(encode(data["x"][test])) @ _unit(encode(data["catalog"][catalog])).T
            )
            hits.append(catalog[similarities.argmax(axis=1)] == data["y"][test])
        yield f"  {name}: {_interval(np.mean(hits, axis=0), data['y'][test])}"


def _tags(data: dict[str, np.ndarray], seeds: int) -> Iterator[str]:
    """Train with tags (class, coarse class, and storage), and with classes only."""
    from keras_dml import losses, metrics, relations

    relation = relations.SharesLabel()
    tags = data["tags"]
    test = ~data["is_train"]
    yield "nDCG@10 by the number of shared tags, on unseen products"
    for name, labels, loss in (
        ("fine classes", data["y"], losses.SupConLoss(0.1)),
        ("tags (SharesLabel)", tags[data["y"]], losses.SupConLoss(0.1, relation=relation)),
    ):
        scores = []
        for seed in range(seeds):
            head = _head(data["x"].shape[1], seed)
            head.compile("adam", loss)
            batch = lambda rows, labels=labels: (data["x"][rows], labels[rows])  # noqa: E731
            head.fit(_batches(data, seed, batch), verbose=0)
            embeddings = head.predict(data["x"][test], verbose=0)
            found = metrics.ranking_scores(
                embeddings, tags[data["y"][test]], [10], relation=relation
            )
            scores.append(found["ndcg@10"])
        listed = ", ".join(f"{score:.3f}" for score in scores)
        yield f"  {name}: {np.mean(scores):.3f} (seeds: {listed})"


def _head(width: int, seed: int) -> "keras.Model":
    import keras

    keras.utils.set_random_seed(seed)
    inputs = keras.Input((width,))
    x = keras.layers.Dropout(0.2)(inputs)
    return keras.Model(inputs, keras.layers.Dense(_EMBEDDING)(x))


def _batches(
    data: dict[str, np.ndarray], seed: int, batch: Callable[[np.ndarray], Any]
) -> "keras.utils.PyDataset":
    """Return class-balanced batches of training photographs, a function of their rows each."""
    import keras

    import pipelines

    train = np.flatnonzero(data["is_train"])
    labels = data["y"][train]
    classes = min(32, len(np.unique(labels)))
    sampler = pipelines.BalancedSampler(labels, classes, _BATCH // classes, seed)

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return _STEPS

        def __getitem__(self, step: int) -> Any:
            return batch(train[sampler(step)])

    return Batches()


def _interval(values: np.ndarray, classes: np.ndarray, samples: int = 1000) -> str:
    """Return the mean of values `[n]` with its 95 % interval, by a bootstrap over the classes."""
    ids, places = np.unique(classes, return_inverse=True)
    sums, counts = np.bincount(places, values), np.bincount(places)
    drawn = np.random.default_rng(0).integers(0, len(ids), (samples, len(ids)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return f"{np.mean(values):.3f} [{low:.3f}, {high:.3f}]"


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _features(options: RelationsOptions) -> dict[str, np.ndarray]:
    """Return the features of photographs and catalog pictures, classes, and tags, from a cache."""
    from pipelines.datasets import groceries

    table, catalog, class_ids = groceries.read_groceries(options.data_dir)
    path = pathlib.Path(options.output_dir, f"features_{options.image_size}.npz")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        photos, pictures = _embedded(options.image_size, table, catalog)
        with replacing(path) as temporary, open(temporary, "wb") as stream:
            np.savez(stream, x=photos, catalog=pictures)
    with np.load(path) as stored:
        data = {name: stored[name] for name in ("x", "catalog")}
    train_class = class_ids <= groceries.LAST_TRAIN_CLASS
    return data | {
        "y": table.labels,
        "train_class": train_class,
        "is_train": train_class[table.labels],
        "tags": _tags_of(catalog),
    }


def _tags_of(catalog: Any) -> np.ndarray:
    """Return the tags of each class, `[K, G]`: the class, the coarse class, and the storage.

    The storage is the first folder of the catalog picture: fruit, packages, or vegetables.
    """
    parts = [pathlib.PurePath(path).parts for path in catalog.paths]
    start = max(one.index("iconic-images-and-descriptions") for one in parts) + 1
    storage = np.unique([one[start] for one in parts], return_inverse=True)[1]
    coarse = np.unique(catalog.coarse_ids, return_inverse=True)[1]
    levels = [np.arange(len(parts)), coarse, storage]
    return np.concatenate([np.eye(level.max() + 1, dtype="int32")[level] for level in levels], 1)


def _embedded(size: int, *tables: Any) -> list[np.ndarray]:
    import keras

    import pipelines
    from keras_dml import models

    backbone = models.build_backbone("efficientnet_lite0", size, "packaged")
    model = keras.Model(backbone.input, keras.layers.GlobalAveragePooling2D()(backbone.output))
    transform = pipelines.EvaluationTransform(size, (size, size))
    return [
        model.predict(pipelines.evaluation_batches(table, transform, 32), verbose=0)
        for table in tables
    ]
