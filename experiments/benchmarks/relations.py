"""Benchmark of relations and of two encoders on the Grocery Store Dataset."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from experiments.options import Options, option
from keras_dml._common.rows import normalized
from pipelines.read_table import csv_columns

if TYPE_CHECKING:
    import keras

    import pipelines

_BATCH, _STEPS, _EMBEDDING, _TOKENS = 128, 600, 256, 128
# Of the training of the whole network: photographs in a step, side of images, learning rate.
_PHOTOS, _SIDE, _RATE = 32, 256, 0.0004


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelationsOptions(Options):
    """Options of `benchmark relations`.

    Attributes:
        data_dir: Folder of the Grocery Store Dataset.
        text_encoder: hub:NAME or hub:FOLDER of a text encoder, such as hub:all_minilm_l6_v2_en.
            Default: no text.
        image_size: Side of the images of the frozen backbone.
        epochs: Epochs of the whole network. 0 trains only heads on frozen features.
        seeds: Number of seeds.
    """

    group = "Measured"

    command = "experiments.benchmark relations"
    intro = """Measure tags, text to photo, and photo to catalog on unseen products.

  keras-dml benchmark relations --data_dir=FOLDER

Computes the features of a frozen backbone once (a few minutes), trains small heads on the training
classes, and evaluates them on the test classes, with each seed. Tags have their own test classes:
every third product. Intervals are 95 % bootstraps over the test classes of the mean over the seeds.
With --epochs=3, the whole network trains with photographs and catalog pictures instead, 10 to 20
minutes for each seed on 2 cores.
"""

    data_dir: str = option(None, required=True)
    text_encoder: str | None = option(None)
    image_size: int = option(288, lower_bound=32)
    epochs: int = option(0, lower_bound=0)
    seeds: int = option(3, lower_bound=1)


def measure(options: RelationsOptions) -> Iterator[str]:
    """Yield the lines of the tables."""
    if options.epochs:
        from pipelines.datasets import load_dataset

        split = load_dataset("groceries", data_dir=options.data_dir)
        hits = [_hits_of_network(split, options.epochs, seed) for seed in range(options.seeds)]
        yield _row("photo to catalog, R@1 on unseen products", hits, split.test.labels)
        return
    data = _features(options)
    yield f"{len(data['x'])} photographs, {len(data['train_class'])} products"
    yield from _tags(data, options.seeds)
    if options.text_encoder:
        yield from _text_to_photo(
            data, _text_features(options, data["names"].tolist()), options.seeds
        )


def _hits_of_network(data: "pipelines.Split", epochs: int, seed: int) -> np.ndarray:
    """Train with photographs as queries and catalog pictures as candidates.

    Returns:
        For each test image whether its nearest picture is right.
    """
    import keras
    import tensorflow as tf

    import pipelines
    from keras_dml import losses, models, optimizers

    keras.utils.set_random_seed(seed)
    pictures = cast("pipelines.ImageTable", data.training_catalog)
    test, catalog = data.test, data.tables["catalog"]
    backbone = models.build_backbone(
        "efficientnet_lite0", _SIDE, "packaged", frozen_batch_norm=True
    )
    encoder = models.embedding_model(backbone)
    transform = pipelines.TrainTransform(_SIDE, (_SIDE, _SIDE), area=(0.35, 1.0))
    sides = []
    for table, number in ((data.train, _PHOTOS), (pictures, len(pictures))):
        sampler = pipelines.RandomSampler(len(table), number, seed)
        sides.append(pipelines.training_batches(table, sampler, transform, seed))
    batches = tf.data.Dataset.zip(*sides).map(
        lambda photos, catalog: ((photos[0], catalog[0]), (photos[1], catalog[1]))
    )
    steps = epochs * (len(data.train) // _PHOTOS)
    model = models.DualEncoder(encoder, encoder)
    rate = optimizers.WarmCosine(_RATE, steps, 30)
    model.compile(keras.optimizers.Adam(rate), losses.NTXentLoss(0.05))
    model.fit(batches, steps_per_epoch=steps, verbose=0)
    exact = pipelines.EvaluationTransform(_SIDE, (_SIDE, _SIDE))

    def embedded(table: "pipelines.ImageTable") -> np.ndarray:
        return normalized(
            encoder.predict(pipelines.evaluation_batches(table, exact, 32), verbose=0)
        )

    # Photographs and catalog pictures have different means, which say nothing about the product.
    queries = embedded(test) - embedded(data.train).mean(axis=0)
    candidates = embedded(catalog) - embedded(pictures).mean(axis=0)
    return catalog.labels[_nearest(queries, candidates)] == test.labels


def _tags(data: dict[str, np.ndarray], seeds: int) -> Iterator[str]:
    """Train with tags (class, coarse class, and storage), and with classes only.

    Every third product is unseen, so that most categories of the unseen products are known.
    """
    from keras_dml import losses, relations

    x, y, catalog = data["x"], data["y"], data["catalog"]
    tags = data["tags"]
    known = np.arange(len(tags)) % 3 != 1
    test = ~known[y]
    half = relations.SharesLabel(min_overlap=0.5)
    yield f"nDCG@10 by shared tags, photographs of {np.sum(~known)} unseen products as queries"
    shared = relations.SharesLabel()
    for name, labels, loss in (
        ("features without training", y, None),
        ("fine classes", y, losses.SupConLoss(0.1)),
        ("tags (SharesLabel)", tags[y], losses.SupConLoss(0.1, relation=shared)),
        ("half of the tags (0.5)", tags[y], losses.SupConLoss(0.1, relation=half)),
    ):
        of_catalog, of_photos = [], []
        for seed in range(seeds if loss else 1):
            photos, pictures = x[test], catalog[known]
            if loss:
                head = _head(x.shape[1], seed)
                batch = lambda rows, labels=labels: (x[rows], labels[rows])  # noqa: E731
                _fit(head, loss, {**data, "is_train": ~test}, seed, batch)
                photos, pictures = (head.predict(part, verbose=0) for part in (photos, pictures))
            of_catalog.append(ndcg_at_10(photos, tags[y[test]], pictures, tags[known]))
            of_photos.append(ndcg_at_10(photos, tags[y[test]]))
        yield _row(f"{name}, in the catalog of the known products", of_catalog, y[test])
        yield _row(f"{name}, among the photographs", of_photos, y[test])


def ndcg_at_10(
    queries: np.ndarray,
    query_tags: np.ndarray,
    items: np.ndarray | None = None,
    item_tags: np.ndarray | None = None,
) -> np.ndarray:
    """Return nDCG@10 of each query, with the number of shared tags as the gain.

    Without items, each query searches among the other queries.
    """
    similarities = normalized(queries) @ normalized(queries if items is None else items).T
    gains = (query_tags @ (query_tags if item_tags is None else item_tags).T).astype("float64")
    if items is None:
        np.fill_diagonal(similarities, -np.inf)
        np.fill_diagonal(gains, 0)
    discounts = 1 / np.log2(np.arange(2, 12))
    found = np.take_along_axis(gains, np.argsort(-similarities, axis=1)[:, :10], axis=1)
    best = -np.sort(-gains, axis=1)[:, :10]
    return (found @ discounts) / (best @ discounts)


def _text_features(options: RelationsOptions, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the features of the description and of the name of each class, `[K, d]`."""
    import pipelines
    from keras_dml import models

    root = pathlib.Path(options.data_dir)
    columns = csv_columns(root / "classes.csv", "data_dir")
    paths = columns["Class Name (str)"], columns["Product Description Path (str)"]
    # The paths start with a slash, but are relative to the dataset's folder.
    files = {name: root / path.lstrip("/") for name, path in zip(*paths, strict=True)}
    texts = {
        "description": [files[name].read_text() for name in names],
        "class name": [name.replace("-", " ") for name in names],
    }
    preset = str(options.text_encoder)
    encoder = models.text_backbone(preset, _TOKENS)
    transform = models.TextTransform(preset, _TOKENS)
    features = {}
    for kind, each in texts.items():
        table = pipelines.ImageTable.from_encoded([text.encode() for text in each], names)
        features[kind] = encoder.predict(pipelines.evaluation_batches(table, transform), verbose=0)
    return features


def _text_to_photo(
    data: dict[str, np.ndarray], text: dict[str, np.ndarray], seeds: int
) -> Iterator[str]:
    """Train a head on image features and a head on text features."""
    from keras_dml import losses, models

    unseen = np.flatnonzero(~data["train_class"])
    test = ~data["is_train"]
    yield f"text to photo, R@1 on {len(unseen)} unseen products"
    for name, features in text.items():
        hits = []
        for seed in range(seeds):
            queries = _head(features.shape[1], seed)
            photos = _head(data["x"].shape[1], seed + 1000)
            model = models.DualEncoder(queries, photos, scale=10.0)

            def pairs(rows: np.ndarray, features: np.ndarray = features) -> Any:
                ids = data["y"][rows]
                return (features[ids], data["x"][rows]), ids

            _fit(model, losses.NTXentLoss(1.0), data, seed, pairs)
            candidates = model.encode_candidates(data["x"][test])
            nearest = _nearest(model.encode_queries(features[unseen]), candidates)
            hits.append(data["y"][test][nearest] == unseen)
        yield _row(name, hits, unseen)
    yield f"  chance: {1 / len(unseen):.3f}"


def _head(width: int, seed: int) -> "keras.Model":
    import keras

    keras.utils.set_random_seed(seed)
    inputs = keras.Input((width,))
    x = keras.layers.Dropout(0.2)(inputs)
    return keras.Model(inputs, keras.layers.Dense(_EMBEDDING)(x))


def _fit(
    model: "keras.Model",
    loss: "keras.Loss",
    data: dict[str, np.ndarray],
    seed: int,
    batch: Callable[[np.ndarray], Any],
) -> None:
    """Train on class-balanced batches of training photographs, a function of their rows each."""
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

    model.compile("adam", loss)
    model.fit(Batches(), verbose=0)


def _nearest(queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return the number of the most similar candidate of each query."""
    return np.argmax(normalized(queries) @ normalized(candidates).T, axis=1)


def _row(name: str, values: Sequence[np.ndarray], classes: np.ndarray) -> str:
    """Return a line: the mean over seeds and images, its 95 % interval, and the mean of each seed.

    Args:
        name: Name of the line.
        values: Values `[n]` of each seed.
        classes: Class ids `[n]`, which the bootstrap draws 1,000 times.
    """
    mean = np.mean(values, axis=0)
    ids, places = np.unique(classes, return_inverse=True)
    sums, counts = np.bincount(places, mean), np.bincount(places)
    drawn = np.random.default_rng(0).integers(0, len(ids), (1000, len(ids)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    listed = ", ".join(f"{np.mean(found):.3f}" for found in values)
    return f"  {name}: {np.mean(mean):.3f} [{low:.3f}, {high:.3f}] (seeds: {listed})"


def _features(options: RelationsOptions) -> dict[str, np.ndarray]:
    """Return the features of photographs and catalog pictures, the classes, and their tags."""
    import pipelines
    from keras_dml import models
    from pipelines.datasets import groceries

    loaded: Any = groceries.load(options.data_dir)
    size = options.image_size
    model = models.feature_extractor("efficientnet_lite0", size, "packaged")
    transform = pipelines.EvaluationTransform(size, (size, size))
    x, catalog = (
        model.predict(pipelines.evaluation_batches(table, transform, 32), verbose=0)
        for table in (loaded.table, loaded.catalog)
    )
    train_class = loaded.class_ids <= groceries.LAST_TRAIN_CLASS
    return {
        "x": x,
        "catalog": catalog,
        "y": loaded.table.labels,
        "train_class": train_class,
        "is_train": train_class[loaded.table.labels],
        "tags": _tags_of(loaded.catalog),
        "names": np.array(loaded.table.class_names),
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
