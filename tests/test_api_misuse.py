"""Nonsensical arguments of the public functions: a right answer, or an error with the name.

The constructors of the losses have their tests in `keras_dml/_common/test_checks.py`.
"""

import contextlib
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from trials import Tally

from keras_dml import addons, export, layers, losses, metrics, mining, models, retrieval
from keras_dml._common.errors import ArgumentError
from keras_dml.callbacks import RetrievalEvaluation
from keras_dml.losses import LOSSES
from pipelines import (
    BalancedSampler,
    EvaluationTransform,
    HardCandidateSampler,
    HardClassSampler,
    ImageTable,
    RandomSampler,
    Split,
    TrainTransform,
    balanced,
    evaluation_batches,
    find_bad_images,
    load_dataset,
    split_by_class,
    table_from_dataset,
    training_batches,
)

IDS = np.repeat(np.arange(3), 4)
Z = np.random.default_rng(0).normal(size=(12, 8)).astype("float32")
IMAGES = np.zeros((12, 4, 4, 3), np.uint8)
TABLE = ImageTable.from_arrays(IMAGES, IDS)
DATASET = tf.data.Dataset.from_tensor_slices((Z, IDS))
PIXELS = keras.Input((4, 4, 3))
BACKBONE = keras.Model(PIXELS, keras.layers.Conv2D(5, 3)(PIXELS))
MODEL = keras.Model(PIXELS, keras.layers.Dense(8)(keras.layers.Flatten()(PIXELS)))
SETS = {"embeddings": Z, "labels": IDS}


def search(queries, k):
    return retrieval.ExactIndex(Z).search(queries, k)


def add(embeddings, ids=None):
    retrieval.ExactIndex(Z, ids=IDS + 12 * np.arange(12)).add(embeddings, ids)


def save(path):
    retrieval.ExactIndex(Z).save(path)


EXAMPLES = {
    metrics.recall_at_k: {**SETS, "ks": [1, 2]},
    metrics.precision_at_r: SETS,
    metrics.evaluate: {**SETS, "clustering": False, "gallery_labels": None},
    metrics.clustering_scores: SETS,
    metrics.class_mean_accuracy: {**SETS, "train_embeddings": Z, "train_labels": IDS},
    metrics.nearest_classes: {"embeddings": Z, "labels": IDS, "k": 1},
    metrics.nearest_neighbors: {"embeddings": Z, "k": 2},
    metrics.distance_histograms: SETS,
    metrics.LossPart: {"loss": losses.SNCALoss(), "part": "contrastive"},
    addons.contrastive_loss: {"y_true": IDS % 2, "y_pred": Z[:, 0] ** 2},
    addons.lifted_struct_loss: {"labels": IDS, "embeddings": Z},
    addons.npairs_loss: {"y_true": IDS, "y_pred": Z @ Z.T},
    addons.npairs_multilabel_loss: {"y_true": np.eye(3)[IDS], "y_pred": Z @ Z.T},
    addons.triplet_hard_loss: {"y_true": IDS, "y_pred": Z},
    addons.triplet_semihard_loss: {"y_true": IDS, "y_pred": Z},
    addons.TripletHardLoss: {},
    mining.DistanceWeighted: {},
    mining.MultiSimilarity: {},
    retrieval.ExactIndex: {"embeddings": Z},
    retrieval.PrefixIndex: {"embeddings": Z, "length": 4, "candidates": 5},
    retrieval.TreeAH: {},
    retrieval.expand_queries: {"queries": Z, "items": Z, "k": 2, "alpha": 3.0},
    retrieval.augment_items: {"items": Z, "k": 2, "alpha": 3.0},
    retrieval.k_reciprocal_distances: {"queries": Z, "gallery": Z, "k1": 3, "k2": 2},
    retrieval.load_index: {"path": "no/such/folder"},
    search: {"queries": Z, "k": 2},
    add: {"embeddings": Z, "ids": np.arange(200, 212)},
    save: {"path": "no/such/folder"},
    RetrievalEvaluation: {"dataset": (IMAGES, IDS)},
    export.export_saved_model: {
        "model": MODEL, "path": "no/such/folder", "preprocessing": EvaluationTransform(4),
        "index": retrieval.ExactIndex(Z), "neighbors": 2,
    },
    layers.ProxyHead: {"num_classes": 3, "sampled": 0.5},
    models.CrossBatchMemory: {"model": MODEL, "memory_size": 24},
    models.CachedGradients: {"model": MODEL, "chunk_size": 4},
    models.embedding_model: {"backbone": BACKBONE},
    models.classifier_model: {"embedding": MODEL, "num_classes": 3},
    models.build_backbone: {"name": "no_such_net", "image_size": 32},
    models.small_convnet: {"filters": (2,)},
    RandomSampler: {"num_images": 12, "batch_size": 4},
    BalancedSampler: {"labels": IDS, "classes_per_batch": 2, "images_per_class": 2},
    HardClassSampler: {
        "labels": IDS, "classes_per_batch": 2, "images_per_class": 2, "neighbors": [[1], [2], [0]],
    },
    HardCandidateSampler: {
        "sampler": RandomSampler(12, 4), "labels": IDS, "candidate_labels": [0, 1, 2],
    },
    ImageTable: {"labels": IDS, "class_names": ("a", "b", "c"), "arrays": IMAGES},
    ImageTable.from_arrays: {"arrays": IMAGES, "labels": IDS},
    ImageTable.from_paths: {"paths": [str(n) for n in range(12)], "labels": IDS},
    ImageTable.from_encoded: {"encoded": [b"x"] * 12, "labels": IDS},
    TABLE.select: {"rows": [0, 1]},
    TABLE.select_classes: {"class_numbers": [0, 2]},
    split_by_class: {"table": TABLE},
    Split: {"train": TABLE, "test": TABLE},
    EvaluationTransform: {"image_size": 4},
    TrainTransform: {"image_size": 4},
    training_batches: {
        "table": TABLE, "sampler": RandomSampler(12, 4), "transform": TrainTransform(4),
        "num_steps": 1,
    },
    evaluation_batches: {"table": TABLE, "transform": EvaluationTransform(4)},
    balanced: {"dataset": DATASET, "classes_per_batch": 2, "images_per_class": 2},
    table_from_dataset: {"dataset": DATASET},
    find_bad_images: {"table": TABLE},
    load_dataset: {"name": "no_such_dataset"},
}  # fmt: skip
"""For each callable that is tried: valid arguments, or a name that is looked up later."""

WRONG = {
    "None": None, "a string": "x", "nan": np.nan, "infinity": np.inf, "a bool": True, "-1": -1,
    "2^70": 2**70, "1.5": 1.5, "an empty list": [],
    "a ragged list": [[1, 2], [3]], "a dict": {"a": 1}, "strings": list("aaaabbbbcccc"),
    "a scalar array": np.array(3.0), "3 axes": np.zeros((2, 3, 4)), "one row": Z[:1],
    "no rows": Z[:0], "no columns": Z[:, :0], "NaN in it": np.full((12, 8), np.nan, "float32"),
    "infinity in it": np.full((12, 8), np.inf), "whole numbers": (10 * Z).astype(int),
    "objects": np.array([object()] * 12), "complex": Z.astype(complex), "11 ids": IDS[:11],
    "ids of 2^62": IDS + 2**62, "ids of -1": -1 - IDS, "bytes": b"x", "a set": {1, 2},
    "1,000 numbers": list(range(1_000)), "a sparse tensor": tf.sparse.from_dense(Z),
}  # fmt: skip
NOT_FINITE = ("nan", "infinity", "NaN in it", "infinity in it", "2^70", "ids of 2^62")
"""Inputs for which an infinite answer is right, such as margins with squares beyond float32."""

LEFT_OUT = ("name", "reduction", "dtype", "kwargs", "input_context")


def numbers_in(value):
    """Return the floats of an answer of any structure."""
    found = []
    for part in keras.tree.flatten(value):
        with contextlib.suppress(TypeError, ValueError):
            found += [] if part is None else np.asarray(part, float).ravel().tolist()
    return found


def fault_of(function, right, name, wrong):
    """Call with a wrong argument; return the end of the call, and the fault in it or None."""
    try:
        answer = function(**{**right, name: WRONG[wrong]})
    except ArgumentError as error:
        said = " ".join(str(error).split())
        return "refused", None if 15 < len(str(error)) < 2000 else f"said {said[:300]!r}"
    except Exception as error:
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    if wrong not in NOT_FINITE and not np.isfinite(numbers_in(answer)).all():
        return None, "an answer that is not finite"
    return "taken", None


def check(cases, what, capsys):
    tally = Tally(what)
    for function, right, name, wrong in cases:
        end, fault = fault_of(function, right, name, wrong)
        if fault:
            called = getattr(function, "__qualname__", type(function).__qualname__)
            tally.fail(0, f"{called}({name}={wrong}): {fault}")
        else:
            tally.add(end)
    tally.check(capsys)


@pytest.mark.parametrize("shape", [(7,), (8, 3), (2, 8), (1, 8), (8, 1, 1), (0,)])
def test_weights_with_a_wrong_shape(shape):
    said = rf"sample_weight must be .* but got .*{shape[0]}.* for 8 images"
    with pytest.raises(ArgumentError, match=said):
        losses.ContrastiveLoss()(IDS[:8], Z[:8], sample_weight=np.ones(shape))


@pytest.mark.parametrize("shape", [(), (1,), (8,), (8, 1)])
def test_weights_with_a_valid_shape(shape):
    loss = losses.ContrastiveLoss()
    doubled = float(loss(IDS[:8], Z[:8], sample_weight=np.full(shape, 2.0)))
    assert doubled == pytest.approx(2 * float(loss(IDS[:8], Z[:8])))


def test_a_variable_works_like_its_value_and_has_a_gradient():
    loss, variable = losses.ContrastiveLoss(), keras.Variable(Z)
    with tf.GradientTape() as tape:
        value = loss(IDS, variable)
    assert value == loss(IDS, Z)
    assert np.abs(tape.gradient(value, variable.value)).max() > 0


# A prime, so that the sample includes every kind of wrong value and every function.
steps = pytest.mark.parametrize(
    "step",
    [23, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.thorough])],
    ids=["some", "all"],
)


@steps
def test_nonsensical_arguments(step, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an index is saved as "x"
    cases = [
        (function, right, name, wrong)
        for function, right in EXAMPLES.items()
        for name in inspect.signature(function).parameters
        if name in right or name not in LEFT_OUT
        for wrong in WRONG
    ]
    check(cases[::step], "calls with a wrong argument", capsys)


@steps
def test_nonsensical_targets_of_losses(step, capsys):
    given = {"y_true": IDS, "y_pred": Z, "sample_weight": np.arange(12.0)}
    pair_losses = [kind() for kind in LOSSES.values() if issubclass(kind, losses.PairLoss)]
    cases = [
        (loss, given, name, wrong)
        for loss in [*pair_losses, addons.TripletHardLoss(), addons.LiftedStructLoss()]
        for name in given
        for wrong in WRONG
    ]
    check(cases[::step], "calls of losses with wrong targets or embeddings", capsys)
