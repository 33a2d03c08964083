"""Scores by ScaNN's neighbors, and their certificates."""

import logging

import keras
import numpy as np
import pytest
from retrieval_sets import awkward_set, clusters, needs_scann

from keras_dml import relations, retrieval
from keras_dml.callbacks import RetrievalEvaluation
from keras_dml.metrics import evaluate
from keras_dml.metrics.neighbors import engine_of
from keras_dml.metrics.retrieval_scores import approximate_scores
from keras_dml.retrieval import METRICS


@needs_scann
@pytest.mark.parametrize("with_gallery", [False, True])
def test_all_scores_of_a_small_set_equal_the_exact_scores(with_gallery):
    z, labels = awkward_set()
    sets = {}
    if with_gallery:
        sets = {"gallery": z[50:], "gallery_labels": labels[50:]}
        z, labels = z[:50], labels[:50]
    options = {"ks": [1, 3, 20], "clustering": False, **sets}
    exact = evaluate(z, labels, neighbors="exact", **options)
    found = evaluate(z, labels, neighbors="scann", **options)
    assert {key: found[key] for key in exact} == pytest.approx(exact, nan_ok=True)
    certified = {key.rpartition("/")[0] for key in found.keys() - exact.keys()}
    assert certified == {key for key in exact if "/" in key}
    for key in certified:
        # The sample has all queries, so the certificate has the same score.
        assert found[f"{key}/exact"] == pytest.approx(exact[key])
        assert found[f"{key}/exact_low"] <= exact[key] + 1e-9
        assert found[f"{key}/exact_high"] >= exact[key] - 1e-9


@needs_scann
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_the_scores_of_a_tree_are_within_the_intervals_of_the_certificates(metric):
    z, labels = clusters(800, 30, 8, 1.25)
    exact = evaluate(z, labels, [1, 100], metric, clustering=False, neighbors="exact")
    found = evaluate(z, labels, [1, 100], metric, clustering=False, neighbors="scann")
    for key in [f"{name}/{metric}" for name in ("recall@1", "recall@100", "map@r", "r_precision")]:
        low, high = found[f"{key}/exact_low"], found[f"{key}/exact_high"]
        assert low <= exact[key] <= high and low <= found[key] <= high
        assert 0 < high - low < 0.04
    assert found["jensen_shannon"] == pytest.approx(exact["jensen_shannon"], rel=0.02)


@needs_scann
def test_certificates_are_a_function_of_the_seed():
    z, labels = clusters(500, 11, 8, 1.25)
    first, again, other = (
        approximate_scores(z, labels, [1], seed=seed).certificates["recall@1"] for seed in (0, 0, 1)
    )
    assert first == again != other
    assert first.queries == other.queries == 5_000
    assert first.approximate == first.exact  # a small set has no tree


@pytest.mark.slow
@needs_scann
def test_large_classes_have_the_precisions_of_the_sample():
    z, labels = clusters(2, 1_100, 3, 1.25)
    exact = evaluate(z, labels, [1], "l2", clustering=False)
    found = approximate_scores(z, labels, [1], "l2")
    assert found.precision.map_at_r == pytest.approx(exact["map@r/l2"])
    assert found.recall[1] == exact["recall@1/l2"]
    assert np.isnan(found.certificates["map@r"].approximate)


@needs_scann
def test_wilsons_interval_of_a_certificate():
    labels = np.repeat(np.arange(50), 2)
    z = np.eye(50)[labels]
    found = approximate_scores(z, labels, [1]).certificates["recall@1"]
    # n / (n + z²) of n successes in n trials, with z = 1.96
    assert found[:3] == pytest.approx((1, 100 / (100 + 1.959964**2), 1))


@needs_scann
def test_the_engine_is_scann_and_its_tree_from_200_000_images_on():
    many = np.zeros((200_000, 1), "float32")
    assert engine_of("auto", many) == "scann_tree" and engine_of("auto", many[1:]) == "scann"
    assert engine_of("exact", many) == "numpy" and engine_of("scann", many[:5]) == "scann_tree"
    # A few queries in a large gallery do not need a tree.
    assert engine_of("auto", many[:1_000], many) == "scann"


@needs_scann
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["own", "gallery", "grid", "tags", "far"])
def test_scann_and_numpy_give_the_same_numbers(kind, metric):
    generator = np.random.default_rng(1)
    z, labels = awkward_set()
    options = {"clustering": False, "metric": metric}
    most = len(z) - 1
    if kind == "gallery":
        options |= {"gallery": z[30:], "gallery_labels": labels[30:]}
        z, labels, most = z[:30], labels[:30], 50
    elif kind == "grid":  # mostly ties
        z = generator.integers(-1, 2, size=(80, 2))
    elif kind == "tags":
        labels = generator.integers(0, 2, size=(80, 3))
        labels[~labels.any(axis=1), 0] = 1
        options["relation"] = relations.SharesLabel()
    elif kind == "far":  # float32 products cannot tell these rows apart
        z = z * 1e-4 + 100
    # R@K by a search and by counting
    for ks in (range(1, min(most, 60)), [1, most]):
        found, twin = (evaluate(z, labels, ks, neighbors=n, **options) for n in ("auto", "exact"))
        assert found == twin


def test_the_exact_search_is_without_scann(monkeypatch):
    def fails(*args, **more):
        raise AssertionError("ScaNN searches")

    monkeypatch.setattr(retrieval.ScannIndex, "__init__", fails)
    z, labels = awkward_set()
    assert evaluate(z, labels, [1, 79], clustering=False, neighbors="exact")["map@r/l2"] > 0
    tags = np.eye(12)[labels % 12]
    found = evaluate(z, tags, [1], relation=relations.SharesLabel(), neighbors="exact")
    assert found["ndcg@10/cosine"] > 0
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(3)])
    callback = RetrievalEvaluation((z, labels), embedding_model=model, neighbors="exact")
    assert callback.evaluate()["val_map@r"] > 0


def test_without_scann_the_search_is_exact_and_its_time_is_logged_first(monkeypatch, caplog):
    monkeypatch.setattr(retrieval, "scann_loads", lambda: False)
    z, labels = awkward_set()
    with caplog.at_level(logging.WARNING, "keras_dml"):
        found = evaluate(z, labels, [1], clustering=False, neighbors="scann")
    assert "80 images among 80 takes about 0 seconds" in caplog.text
    assert found == evaluate(z, labels, [1], clustering=False, neighbors="exact")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("value", ["faiss", None, 3])
def test_a_wrong_value_is_shown(value):
    z, labels = awkward_set()
    for call in (evaluate, lambda *sets, **more: RetrievalEvaluation(sets, **more)):
        with pytest.raises(ValueError, match=f"neighbors must be .*'scann'.*{value}"):
            call(z, labels, neighbors=value)


@needs_scann
def test_the_callback_logs_the_certificates():
    z, labels = clusters(6, 10, 4, 1.25)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    exact = RetrievalEvaluation((z, labels), embedding_model=model).evaluate()
    by_scann = RetrievalEvaluation((z, labels), embedding_model=model, neighbors="scann")
    found = by_scann.evaluate()
    assert {key: found[key] for key in exact} == pytest.approx(exact)
    for key in exact:
        low, high = found[f"{key}/exact_low"], found[f"{key}/exact_high"]
        assert low <= found[f"{key}/exact"] <= high
