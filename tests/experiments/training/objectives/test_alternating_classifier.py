"""Alternating training of a classifier and the embedding."""

import keras
import numpy as np
import pytest
from tiny_run import finished_run, history

from experiments.options import RunOptions, parse
from experiments.options.errors import UsageError
from experiments.training.objectives import objective_of

WORDS = ["--loss=ce", "--label_smoothing=0", "--objective=alternating"]


def objective(*words):
    return objective_of(parse(RunOptions, ["run", *WORDS, *words]))


class Turns:
    """A linear embedding of 90 rows in 3 classes, trained in turns with its classifier."""

    def __init__(self, *words):
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(90, 5)).astype("float32")
        self.labels = (self.x[:, :2] > 0).sum(axis=1)
        one = objective("--weight_decay=0.01", *words)
        keras.utils.set_random_seed(0)
        inputs = keras.Input((5,))
        self.embedding = keras.Model(inputs, keras.layers.Dense(3, use_bias=False)(inputs))
        self.model = one.training_model(self.embedding, 3)
        self.layer = self.model.get_layer("logits")
        self.model.compile(keras.optimizers.SGD(0.2), **one.compile_arguments(6))
        self.callbacks = one.callbacks(lambda side: self.embeddings(), self.labels)

    def embeddings(self):
        return keras.ops.convert_to_numpy(self.embedding(self.x))

    def fit(self, epochs):
        words = {"batch_size": 90, "epochs": epochs, "callbacks": self.callbacks, "verbose": 0}
        return self.model.fit(self.x, self.labels, **words).history


def test_the_profile_never_rises_and_equals_the_loss_at_its_start():
    turns = Turns()
    found = turns.fit(6)
    assert np.all(np.diff(found["profile_ce"]) < 0)
    # One step on all rows in an epoch: Keras logs the loss before the step, with the new θ.
    decay = found["profile_ce"][-1] - found["loss"][-1]
    theta = keras.ops.convert_to_numpy(turns.layer.kernel)
    assert decay == pytest.approx(0.005 * (theta**2).sum(), rel=1e-3)


def test_the_profile_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    turns = Turns()
    z = turns.embeddings().astype("float64")
    other = LogisticRegression(C=1 / (0.01 * len(z)), tol=1e-8, max_iter=1000).fit(z, turns.labels)
    losses = -other.predict_log_proba(z)[np.arange(len(z)), turns.labels]
    expected = losses.mean() + 0.005 * (other.coef_**2).sum()
    assert turns.fit(1)["profile_ce"] == pytest.approx([expected], abs=1e-5)


def test_a_turn_of_few_iterations_stops_early():
    assert Turns("--classifier_steps=1").fit(1)["profile_ce"] > Turns().fit(1)["profile_ce"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--label_smoothing=0.1"], "label_smoothing must be 0 with objective=alternating"),
        (["--objective=turns"], "objective must be"),
    ],
)
def test_combinations_without_turns_are_refused(words, message):
    with pytest.raises(UsageError, match=message):
        objective(*words).compile_arguments(1)


@pytest.mark.slow
def test_a_run_in_turns(photos, tmp_path):
    more = [*WORDS, "--weight_decay=0.00001", "--class_split=within_classes"]
    more += ["--freeze_backbone", "--cache_features"]
    folder = finished_run(tmp_path / "run", photos, *more)
    profiles = [row["train/profile_ce"] for row in history(folder)]
    assert 0 < profiles[1] < profiles[0]
    assert "profile_ce" in (folder / "report.html").read_text()
