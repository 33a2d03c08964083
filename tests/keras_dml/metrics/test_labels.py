"""Labels of every kind in every metric: all metrics accept the same kinds and refuse the others."""

import numpy as np
import pytest

from keras_dml import losses, metrics
from keras_dml._common.labels import joined_labels

Z = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
IDS = np.array([0, 0, 1, 1, 2, 2, 0, 1])
NEIGHBORS, _ = metrics.nearest_neighbors(Z, k=2)
TEXTS = np.array(["a", "b", "c"])[IDS]

TAKEN = {
    "floats": IDS + 3.0,
    "half": IDS.astype("float16"),
    "objects": IDS.astype(object),
    "neighbors beyond 2^40": np.array([2**40, 2**40 + 1, 2**40 - 1])[IDS],
    "unsigned": IDS.astype("uint64") + 2**63,
    "strings": TEXTS,
    "a list of strings": TEXTS.tolist(),
    "objects of str": TEXTS.astype(object),
    "bytes": TEXTS.astype("S"),
    "objects of bytes": TEXTS.astype("S").astype(object),
}
if hasattr(np.dtypes, "StringDType"):  # NumPy 2 only
    TAKEN["StringDType"] = TEXTS.astype(np.dtypes.StringDType())

REFUSED = {
    "a fraction": (IDS + np.eye(8)[3] / 2, "whole numbers .* but got 1.5 in row 3"),
    "NaN": (np.where(IDS, IDS, np.nan), "whole numbers .* but got nan in row 0"),
    "infinity": (np.where(IDS, IDS, np.inf), "whole numbers .* but got inf in row 0"),
    "2^53": (IDS + 2.0**53, "below 9007199254740992 in float64"),
    "beyond 64 bits": ([2**70] * 8, "a number beyond 64 bits"),
    "masked": (np.ma.array(IDS, mask=IDS == 2), "without masked entries"),
    "numbers and strings": (["a", 1] * 4, "1 next to 'a'"),
    "bytes and strings": (["a", b"a"] * 4, "b'a' next to 'a'"),
    "None": ([None] * 8, "but got None"),
    "dates": (np.array(["2020-01-01"] * 8, "M8[D]"), "dtype datetime64"),
    "complex": (IDS * 1j, "dtype complex128"),
}
FUNCTIONS = {
    "recall": lambda labels: metrics.recall_at_k(Z, labels, [1, 2]),
    "precision": lambda labels: metrics.precision_at_r(Z, labels),
    "histograms": lambda labels: metrics.distance_histograms(Z, labels).divergence(),
    "verification": lambda labels: metrics.verification(Z, labels, [0.3]).equal_error_rate,
    "identification": lambda labels: metrics.identification(Z, labels, [0.5]).points[0].threshold,
    "clustering": lambda labels: metrics.clustering_scores(Z, labels),
    "accuracy": lambda labels: metrics.class_mean_accuracy(Z, labels, Z, labels),
    "evaluate": lambda labels: metrics.evaluate(Z, labels, [1], gallery=Z, gallery_labels=labels),
    "votes": lambda labels: metrics.label_votes(labels, NEIGHBORS).self_confidence.tolist(),
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_kind_of_label_gives_the_same_result(function):
    # In this order the first class has the lowest label, too.
    expected = FUNCTIONS[function](IDS)
    for kind in TAKEN.keys() - {"neighbors beyond 2^40"}:
        assert FUNCTIONS[function](TAKEN[kind]) == expected, kind


@pytest.mark.parametrize(
    ("function", "kind"),
    [*(("recall", kind) for kind in REFUSED), *((function, "NaN") for function in FUNCTIONS)],
)
def test_invalid_labels_are_refused_with_the_argument_name(function, kind):
    labels, message = REFUSED[kind]
    with pytest.raises(ValueError, match=f"labels must .*{message}"):
        FUNCTIONS[function](labels)


STRINGS = [kind for kind in TAKEN if "str" in kind.lower()]


@pytest.mark.parametrize("kind", STRINGS)
def test_queries_and_gallery_of_strings_of_any_kind(kind):
    expected = metrics.recall_at_k(Z, IDS, [1, 3], gallery=Z[2:], gallery_labels=IDS[2:])
    for other in STRINGS:
        found = metrics.recall_at_k(
            Z, TAKEN[kind], [1, 3], gallery=Z[2:], gallery_labels=TAKEN[other][2:]
        )
        assert found == expected
    for other in ("floats", "objects", "bytes", "objects of bytes"):
        with pytest.raises(ValueError, match="labels and gallery_labels must be of one kind"):
            metrics.recall_at_k(Z, TAKEN[kind], [1], gallery=Z, gallery_labels=TAKEN[other])


def test_signed_and_unsigned_integers_stay_distinct():
    ids = 2**60 + IDS  # these numbers are equal in float64, NumPy's common type
    joined = joined_labels([("labels", ids), ("gallery_labels", ids.astype("uint64"))])
    np.testing.assert_array_equal(joined[8:], ids)
    joined = joined_labels([("labels", ids), ("gallery_labels", IDS.astype("uint64") + 2**63)])
    assert len(np.unique(joined)) == 6


def test_masked_embeddings_and_ragged_labels():
    gaps = "must be an array without masked entries or ragged rows"
    with pytest.raises(ValueError, match=f"embeddings {gaps}"):
        metrics.recall_at_k(np.ma.masked_where(Z > 1, Z), IDS, [1])
    tf = pytest.importorskip("tensorflow")
    with pytest.raises(ValueError, match=f"labels {gaps}"):
        metrics.recall_at_k(Z, tf.ragged.constant([[0], [1, 2]]), [1])
    with pytest.raises(TypeError, match="y_pred must be .* masked entries"):
        losses.ContrastiveLoss()(IDS, np.ma.masked_where(Z > 1, Z))
