"""Runs whose loss has a relation of coarse classes and classes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.options import RunOptions, UsageError, parse
from experiments.options.data import paths_of_classes
from experiments.options.data import relation as relation_of
from experiments.options.together import check_together
from keras_dml import losses, relations
from pipelines import ImageTable

# Classes 0 and 2 have the coarse class 7, and classes 1 and 3 the coarse class 5.
CLASSES = ImageTable(
    np.arange(4),
    tuple("abcd"),
    arrays=np.zeros((4, 2), "float32"),
    coarse_ids=np.array([7, 5, 7, 5]),
)


def test_each_class_has_a_label_of_its_coarse_class_and_one_of_its_own():
    assert paths_of_classes(CLASSES).tolist() == [[1, 2], [0, 3], [1, 4], [0, 5]]


@pytest.mark.parametrize(
    ("flags", "relation"),
    [
        (["--relation=hierarchy"], relations.Hierarchy()),
        (
            ["--relation=hierarchy", "--relation_positives=category"],
            relations.Hierarchy("category"),
        ),
        (["--relation=shares_label"], relations.SharesLabel(encoding="ids")),
        (
            ["--relation=shares_label", "--relation_min_overlap=0.5"],
            relations.SharesLabel(0.5, encoding="ids"),
        ),
    ],
)
def test_the_loss_has_the_relation_of_the_flags(objective, flags, relation):
    made = objective("--loss=supcon", *flags)
    assert relation_of(made.options).get_config() == relation.get_config()
    z = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    labels = paths_of_classes(CLASSES)[np.repeat(np.arange(4), 2)]
    expected = losses.SupConLoss(relation=relation)(labels, z)
    assert float(made.loss()(labels, z)) == float(expected)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--memory_size=20", "--memory_start_step=0"]])
def test_a_step_with_a_relation_has_the_loss_of_the_relation(tiny, more):
    flags = ["--loss=supcon", "--relation=hierarchy", "--batch_size=8"]
    run = tiny(*flags, *more, two_levels=False)
    batches = tf.data.Dataset.from_tensors((run.images, run.class_ids))
    [(_, labels)] = run.objective.targets(batches, CLASSES)
    expected = losses.SupConLoss(relation=relations.Hierarchy())(labels, run.embeddings())
    logs = run.model.evaluate(run.objective.targets(batches, CLASSES), verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx(float(expected), rel=1e-4)
    assert logs["positives_per_anchor"] == 1
    before = keras.tree.map_structure(np.copy, run.embedding.get_weights())
    run.model.fit(run.objective.targets(batches, CLASSES), verbose=0)
    assert any((a != b).any() for a, b in zip(before, run.embedding.get_weights()))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--relation=cousins"], "relation.*hierarchy.*cousins"),
        (
            ["--relation=hierarchy", "--relation_min_overlap=0.5"],
            "relation must be shares_label with --relation_min_overlap",
        ),
        (["--relation_min_overlap=0.5"], "relation_min_overlap must be unset without --relation"),
        (["--relation=hierarchy", "--relation_positives=shelf"], "relation_positives must be"),
        (["--relation=hierarchy", "--also=tcm"], "relation must be unset with --also"),
    ],
)
def test_invalid_relations_are_refused(objective, flags, message):
    with pytest.raises(ValueError, match=message):
        check_together(parse(RunOptions, ["run", "--loss=supcon", *flags]))
        objective("--loss=supcon", *flags).loss()


def test_a_dataset_without_coarse_classes_is_refused():
    with pytest.raises(UsageError, match="dataset must have coarse classes with --relation"):
        paths_of_classes(ImageTable.from_arrays(np.zeros((4, 2)), np.arange(4)))
