"""A classifier of the embeddings: alone, in turns, next to a loss, or as the source of p."""

import keras
import numpy as np
import oracles
import pytest
import tensorflow as tf
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from tiny_run import finished_run, history


@pytest.mark.parametrize("name", ["ce", "center"])
def test_the_classifier_concatenates_all_levels(name, tiny, level_names):
    run = tiny(f"--loss={name}")
    assert run.embedding.output_shape == (None, 10)
    assert run.model.get_layer("logits").kernel.shape == (10, 4)
    assert not any(level in str(run.objective.compile_arguments(10)) for level in level_names)


def test_the_loss_of_a_classifier_is_the_cross_entropy(tiny):
    run = tiny("--loss=ce", "--label_smoothing=0")
    logs = run.evaluate()
    # The weights start at 0, so all four classes have the same probability.
    assert logs["loss"] == pytest.approx(np.log(4), rel=1e-5)
    assert logs["tightness"] + logs["contrastive"] == pytest.approx(logs["loss"], rel=1e-5)


def probabilities(run):
    """Give the classifier random weights. Return its softmax in float64."""
    layer = run.model.get_layer("logits")
    layer.kernel.assign(np.random.default_rng(0).normal(size=layer.kernel.shape))
    return softmax(layer(run.embeddings()).numpy().astype("float64"), axis=1)


def cross_entropy(run, p):
    return -np.log(p[np.arange(8), run.class_ids]).mean()


def test_center_loss_and_cross_entropy_without_smoothing_are_weighted(tiny):
    run = tiny("--loss=center", "--center_weight=0.25")
    expected = cross_entropy(run, probabilities(run))
    logs = run.evaluate()
    center = float(run.objective.loss()(run.class_ids, run.embeddings()))
    assert center > 0.01
    assert logs["embeddings_loss"] == pytest.approx(center, rel=1e-4)
    assert logs["logits_loss"] == pytest.approx(expected, rel=1e-4)
    assert logs["loss"] == pytest.approx(0.25 * center + expected, rel=1e-4)
    # The two terms are logged as tightness and contrastive.
    names = {run.objective.log_names.get(name, name) for name in logs}
    assert names == {"loss", "tightness", "contrastive"}


@pytest.fixture
def attached(tiny):
    """Function: flags -> PCE with an attached classifier."""
    words = ["--loss=pce", "--classifier", "--lam_floor=1e-9"]
    return lambda *more: tiny(*words, *more, two_levels=False)


@pytest.mark.slow
def test_pce_takes_p_and_lambda_from_the_attached_classifier(attached):
    run = attached()
    p = probabilities(run)
    logs = run.evaluate()
    z = run.embeddings().astype("float64")
    lam = oracles.smallest_eigenvalue(p, z)
    assert lam > 1e-9  # positive, since eight images exceed five dimensions
    assert logs["embeddings_lambda_of_batch"] == pytest.approx(lam, rel=0.02)
    pce, lam = oracles.pairwise_cross_entropy, logs["embeddings_lambda_of_batch"]
    expected = oracles.mean_loss(pce, run.class_ids, z, lam=lam, p=p)
    assert logs["embeddings_loss"] == pytest.approx(expected, rel=1e-3)
    parts = logs["embeddings_tightness"] + logs["embeddings_contrastive"]
    assert parts == pytest.approx(expected, rel=1e-3)
    assert logs["logits_loss"] == pytest.approx(cross_entropy(run, p), rel=1e-3)
    assert run.objective.log_names["embeddings_lambda_of_batch"] == "lambda_of_batch"


def test_the_attached_classifier_can_have_a_higher_learning_rate(attached):
    run = attached("--classifier_factor=30")
    assert run.objective.rate_factors(run.model) == {"logits/kernel": 30.0, "logits/bias": 30.0}


@pytest.mark.slow
def test_the_attached_classifier_trains_without_a_gradient_to_the_embedding(attached):
    run = attached("--chunk_size=4", "--chunk_statistics")
    with tf.GradientTape() as tape:
        logits = run.model(run.images)["logits"]
        loss = run.objective.cross_entropy()(run.class_ids, logits)
    variables = run.model.trainable_variables
    gradients = tape.gradient(loss, variables)
    reached = [v.path for v, gradient in zip(variables, gradients) if gradient is not None]
    assert sorted(reached) == ["logits/bias", "logits/kernel"] and len(variables) > 2
    before = keras.ops.convert_to_numpy(run.model.get_layer("logits").kernel)
    embeddings = run.embeddings()
    run.fit(3)
    assert (before != run.model.get_layer("logits").kernel.numpy()).any()
    assert (embeddings != run.embeddings()).any()


IN_TURNS = ["--loss=ce", "--label_smoothing=0", "--objective=alternating"]


@pytest.fixture
def in_turns(tiny):
    """Function: flags -> a small embedding, and its `fit` for some epochs of one batch."""

    def build(*words):
        words = (*IN_TURNS, "--weight_decay=0.01", "--frozen_batch_norm", *words)
        run = tiny(*words, two_levels=False)
        callbacks = run.objective.callbacks(lambda side: run.embeddings(), run.class_ids)
        arguments = {"callbacks": callbacks, "shuffle": False, "verbose": 0}
        return run, lambda epochs: run.model.fit(run.batches(), epochs=epochs, **arguments).history

    return build


def test_the_profile_never_rises_and_equals_the_loss_at_its_start(in_turns):
    run, fit = in_turns()
    assert len(run.model.trainable_variables) == len(run.embedding.trainable_variables)
    found = fit(6)
    assert np.all(np.diff(found["profile_ce"]) < 0)
    # One step on all rows in an epoch: Keras logs the loss before the step, with the new θ.
    decay = found["profile_ce"][-1] - found["loss"][-1]
    theta = run.model.get_layer("logits").kernel.numpy()
    assert decay == pytest.approx(0.005 * (theta**2).sum(), rel=1e-3)


@pytest.mark.slow
def test_the_profile_is_that_of_scikit_learn_and_few_iterations_stop_earlier(in_turns):
    run, fit = in_turns()
    z, labels = run.embeddings().astype("float64"), run.class_ids
    other = LogisticRegression(C=1 / (0.01 * len(z)), tol=1e-8, max_iter=1000).fit(z, labels)
    losses = -other.predict_log_proba(z)[np.arange(len(z)), labels]
    expected = losses.mean() + 0.005 * (other.coef_**2).sum()
    assert fit(1)["profile_ce"] == pytest.approx([expected], abs=1e-5)
    _, fit_few = in_turns("--classifier_steps=1")
    assert fit_few(1)["profile_ce"][0] > expected + 1e-4


@pytest.mark.slow
def test_a_run_in_turns(photos, tmp_path):
    more = [*IN_TURNS, "--weight_decay=0.00001", "--class_split=within_classes"]
    more += ["--freeze_backbone", "--cache_features"]
    folder = finished_run(tmp_path / "run", photos, *more)
    profiles = [row["train/profile_ce"] for row in history(folder)]
    assert 0 < profiles[1] < profiles[0]
    assert "profile_ce" in (folder / "report.html").read_text()
