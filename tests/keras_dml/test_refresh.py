"""Callbacks that compute the nearest classes and candidates for samplers, on every backend."""

import keras
import numpy as np
import pytest
import tiers
from batches import functional
from oracles import unit

import pipelines
from keras_dml import losses, models
from keras_dml.callbacks import RefreshHardCandidates, RefreshHardClasses
from keras_dml.metrics import nearest_classes

pytestmark = pytest.mark.any_backend

RNG = np.random.default_rng(0)
CLASSES = 9
LABELS = np.repeat(np.arange(CLASSES), 4)
IMAGES = (RNG.normal(size=(CLASSES, 5)).repeat(4, 0) + RNG.normal(size=(36, 5)) / 2).astype("f")
# In eager mode, JAX would compile each operation separately.
QUICKER = {"run_eagerly": keras.backend.backend() != "jax"}


def test_nearest_classes_are_those_of_a_loop_over_means():
    z, names = IMAGES[RNG.permutation(36)] * 3, np.array(list("abcdefghi"))[LABELS]
    for metric in ("cosine", "l2"):
        rows = unit(z) if metric == "cosine" else z.astype(float)
        means = [rows[names == name].mean(0) for name in "abcdefghi"]
        found = nearest_classes(z, names, 3, metric)
        for c, mean in enumerate(means):
            costs = [
                -unit(mean[None])[0] @ unit(other[None])[0]
                if metric == "cosine"
                else np.linalg.norm(mean - other)
                for other in means
            ]
            expected = [o for o in np.argsort(costs, kind="stable") if o != c][:3]
            assert found[c].tolist() == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 9}, "k must be .*8, but got 9"),
        ({"k": 0}, "k must be .*0"),
        ({"labels": LABELS[:5]}, "labels must be 36 labels"),
        ({"labels": LABELS * 0}, "labels must be labels of at least 2 classes, but got 1"),
        ({"embeddings": IMAGES * np.nan}, "embeddings must .*(NaN|finite)"),
        ({"metric": "dot"}, "metric must be"),
    ],
)
def test_mistakes_of_nearest_classes(change, message):
    given = {"embeddings": IMAGES, "labels": LABELS, "k": 2, **change}
    with pytest.raises(ValueError, match=message):
        nearest_classes(**given)


def network():
    keras.utils.set_random_seed(0)
    model = functional((5,), keras.layers.Dense(3))
    # A loss that is quick in eager mode, and depends on the batch.
    model.compile(keras.optimizers.SGD(0.1), lambda y, z: z**2 * (1 + y[:, None]), **QUICKER)
    return model


def hard_classes(**how):
    return pipelines.HardClassSampler(LABELS, 4, 2, hardness=1.0, **how)


TABLE = pipelines.ImageTable.from_arrays(IMAGES, LABELS)


class Watched:
    """A sampler that stores the rows of the batches that train."""

    def __init__(self, sampler):
        self.sampler, self.batch_size = sampler, sampler.batch_size
        self.steps_per_epoch = sampler.steps_per_epoch
        self.drawn = {}

    def __call__(self, step):
        self.drawn[step] = self.sampler(step)
        return self.drawn[step]


class Tables(keras.callbacks.Callback):
    """Computes the tables that `RefreshHardClasses` should have computed."""

    def __init__(self, every):
        super().__init__()
        self.every, self.found = every, {}

    def add(self, step):
        z = keras.ops.convert_to_numpy(self.model.predict_on_batch(IMAGES))
        self.found[step] = nearest_classes(z, LABELS, 6)

    def on_train_begin(self, logs=None):
        self.add(0)

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every == 0:
            self.add((epoch + 1) * CLASSES)


@tiers.parametrize("every", [1, 2], [1])
def test_each_epoch_trains_on_the_classes_that_its_weights_confuse(every):
    sampler, tables = hard_classes(), Tables(every)
    watched, model = Watched(sampler), network()
    refresh = RefreshHardClasses(sampler, IMAGES, every=every, batch_size=7)
    batches = pipelines.BalancedDataset(TABLE, watched)
    model.fit(batches, epochs=4, callbacks=[refresh, tables], verbose=0)
    state = sampler.state()
    assert state["first_steps"].tolist() == list(tables.found)
    for found, expected in zip(state["neighbors"], tables.found.values()):
        np.testing.assert_array_equal(found, expected)
    for step in range(4 * CLASSES):  # each batch was drawn with the table of its step
        np.testing.assert_array_equal(watched.drawn[step], sampler(step))


@pytest.mark.slow
def test_a_resumed_training_has_the_same_weights():
    def fit(model, sampler, start, epochs):
        batches = pipelines.BalancedDataset(TABLE, sampler, start_step=start)
        refresh = RefreshHardClasses(sampler, IMAGES, start_step=start)
        model.fit(batches, epochs=epochs, callbacks=[refresh], verbose=0)
        return sampler

    whole, resumed = network(), network()
    expected = fit(whole, hard_classes(), 0, 4).state()
    state = fit(resumed, hard_classes(), 0, 2).state()
    again = hard_classes()
    again.restore(state)
    found = fit(resumed, again, 2 * CLASSES, 2).state()
    np.testing.assert_equal(found, expected)
    np.testing.assert_equal(resumed.get_weights(), whole.get_weights())


def ahead_of(sampler, steps):
    """Yield batches that are drawn some steps before they train."""
    waiting = [sampler(step) for step in range(steps)]
    for step in range(steps, 1000):
        waiting.append(sampler(step))
        rows = waiting.pop(0)
        yield IMAGES[rows], LABELS[rows]


@pytest.mark.slow
def test_prefetched_batches_need_steps_ahead():
    def fit(ahead):
        sampler = hard_classes()
        sampler.refresh(nearest_classes(IMAGES, LABELS, 6), 0)
        refresh = RefreshHardClasses(sampler, IMAGES, ahead=ahead)
        how = {"steps_per_epoch": CLASSES, "epochs": 3, "shuffle": False, "verbose": 0}
        network().fit(ahead_of(sampler, 3), callbacks=[refresh], **how)
        return sampler.state()["first_steps"].tolist()

    assert fit(ahead=CLASSES) == [0, 18, 27, 36]
    with pytest.raises(ValueError, match="ahead must be .* got 0. The batch of step 9 was"):
        fit(ahead=0)


def test_a_hardness_of_0_embeds_nothing_and_nan_keeps_the_table():
    sampler = pipelines.HardClassSampler(LABELS, 4, 2, hardness=0.0)
    RefreshHardClasses(sampler, None).refresh()
    sampler = hard_classes()
    refresh = RefreshHardClasses(sampler, IMAGES * np.nan)
    refresh.set_model(network())
    with pytest.warns(UserWarning, match="not finite"):
        refresh.refresh()
    assert sampler.num_neighbors is None


def test_mistakes_of_the_callbacks():
    for change, message in (
        ({"every": 0}, "every must be"),
        ({"neighbors": 2}, "neighbors must be .*2"),
        ({"neighbors": 9}, "neighbors must be .*9"),
        ({"images_per_class": 0}, "images_per_class must be"),
        ({"ahead": -1}, "ahead must be"),
        ({"metric": "dot"}, "metric must be"),
        ({"images": IMAGES[:-1]}, "images must be of .* rows"),
    ):
        with pytest.raises(ValueError, match=message):
            RefreshHardClasses(**{"sampler": hard_classes(), "images": IMAGES, **change})
    for images in ({"images": IMAGES}, pipelines.ImageTable.from_arrays(IMAGES, LABELS)):
        with pytest.raises(TypeError, match="images must be an array"):
            RefreshHardClasses(hard_classes(), images)
    for images in (IMAGES.tolist(), keras.ops.convert_to_tensor(IMAGES)):
        np.testing.assert_array_equal(RefreshHardClasses(hard_classes(), images).images, IMAGES)
    with pytest.raises(TypeError, match="sampler must be a pipelines.HardClassSampler"):
        RefreshHardClasses(pipelines.BalancedSampler(LABELS, 4, 2), IMAGES)
    candidates = hard_candidates()
    with pytest.raises(TypeError, match="sampler must be a pipelines.HardClassSampler"):
        RefreshHardClasses(candidates, IMAGES)
    with pytest.raises(TypeError, match="sampler must be a pipelines.HardCandidateSampler"):
        RefreshHardCandidates(hard_classes(), QUERIES, CANDIDATES)
    with pytest.raises(ValueError, match="candidates must be of 12 rows"):
        RefreshHardCandidates(candidates, QUERIES, QUERIES)
    with pytest.raises(ValueError, match="skip must be .*1.5"):
        RefreshHardCandidates(candidates, QUERIES, CANDIDATES, skip=1.5)
    refresh = RefreshHardCandidates(candidates, QUERIES, CANDIDATES)
    refresh.set_model(network())
    with pytest.raises(TypeError, match=r"model must be a keras_dml.models.DualEncoder"):
        refresh.refresh()


# 24 queries of 8 classes, and 12 candidates: the last four classes have one candidate each.
QUERY_LABELS = np.arange(24) % 8
CANDIDATE_LABELS = np.array([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3])
LATENT = RNG.normal(size=(8, 6))
QUERIES = (LATENT[QUERY_LABELS] + RNG.normal(size=(24, 6))).astype("f")
CANDIDATES = (LATENT[CANDIDATE_LABELS] + RNG.normal(size=(12, 6)) / 2).astype("f")


def hard_candidates(per_query=2, **how):
    sampler = pipelines.RandomSampler(24, batch_size=6)
    return pipelines.HardCandidateSampler(sampler, QUERY_LABELS, CANDIDATE_LABELS, per_query, **how)


def dual(**how):
    keras.utils.set_random_seed(3)
    encoders = [functional((6,), keras.layers.Dense(4)) for _ in range(2)]
    model = models.DualEncoder(*encoders, **how)
    model.compile(keras.optimizers.SGD(0.05), losses.NTXentLoss(temperature=0.2))
    return model


def nearest_by_loops(q, c, per_query, skip):
    table = np.full((len(q), per_query), -1)
    for i, query in enumerate(unit(q)):
        cosines = [float(query @ candidate) for candidate in unit(c)]
        own = max(s for s, label in zip(cosines, CANDIDATE_LABELS) if label == QUERY_LABELS[i])
        fits = [
            j
            for j in np.argsort([-s for s in cosines], kind="stable")
            if CANDIDATE_LABELS[j] != QUERY_LABELS[i] and cosines[j] <= min(skip * own, own)
        ]
        table[i, : len(fits[:per_query])] = fits[:per_query]
    return table


# With 11 candidates for each query, every query lacks some: at most 11 are of other classes.
@pytest.mark.parametrize(("skip", "per_query"), [(0.2, 11), (0.95, 2), (1.0, 2)])
def test_the_nearest_candidates_are_those_of_loops(skip, per_query):
    sampler, model = hard_candidates(per_query), dual()
    refresh = RefreshHardCandidates(sampler, QUERIES, CANDIDATES, skip=skip, batch_size=5)
    refresh.set_model(models.CachedGradients(model, 3))
    refresh.refresh()
    z = model.encode_queries(QUERIES), model.encode_candidates(CANDIDATES)
    expected = nearest_by_loops(*z, per_query, skip)
    np.testing.assert_array_equal(sampler.state()["nearest"], [expected])
    assert per_query == 2 or (expected < 0).any()
    for step in range(4):
        rows = pipelines.RandomSampler(24, batch_size=6)(step)
        groups = sampler(step).reshape(6, 1 + per_query)
        assert (CANDIDATE_LABELS[groups[:, 0]] == QUERY_LABELS[rows]).all()
        assert (CANDIDATE_LABELS[groups[:, 1:]] != QUERY_LABELS[rows][:, None]).all()
        chosen = expected[rows]
        np.testing.assert_array_equal(groups[:, 1:][chosen >= 0], chosen[chosen >= 0])


def test_a_candidate_that_is_as_similar_as_the_match_stays_with_a_skip_of_1():
    # Each candidate exists twice, with two labels, so every match has an equal negative.
    rng, labels = np.random.default_rng(0), np.arange(24)
    q, c = rng.normal(size=(2, 24, 67)).astype("f")
    sampler = pipelines.RandomSampler(24, batch_size=6)
    both = np.concatenate([labels, labels + 24])
    sampler = pipelines.HardCandidateSampler(sampler, labels, both, per_query=1)
    encoder = functional((67,), keras.layers.Identity())
    model = models.DualEncoder(encoder, encoder)
    refresh = RefreshHardCandidates(sampler, q, np.concatenate([c, c]), skip=1.0)
    refresh.set_model(model)
    refresh.refresh()
    np.testing.assert_array_equal(sampler.state()["nearest"][0, :, 0], labels + 24)


def test_stored_candidates_of_earlier_tables_are_dropped_after_a_resume():
    table, first = np.full((24, 2), -1), hard_candidates(frozen=True)
    for step in (0, 4):
        first(step)
        first.refresh(table, step, CANDIDATES)
    sampler = hard_candidates(frozen=True)
    sampler.restore(first.state())
    for epoch in range(2, 5):
        for step in range(4 * epoch - 2, 4 * epoch):  # resumed within an epoch
            sampler.stored(step)
        sampler.refresh(table, 4 * epoch, CANDIDATES)
        assert len(sampler.state()["embeddings"]) == 2


PHOTOS = pipelines.ImageTable.from_arrays(QUERIES, QUERY_LABELS)
CATALOG = pipelines.ImageTable.from_arrays(CANDIDATES, CANDIDATE_LABELS)


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
def test_a_dual_encoder_trains_on_the_nearest_candidates_and_resumes(frozen):
    def fit(model, sampler, start, epochs):
        queries = pipelines.RandomSampler(24, batch_size=6)
        batches = pipelines.PairDataset(PHOTOS, CATALOG, queries, sampler, start_step=start)
        refresh = RefreshHardCandidates(sampler, QUERIES, CANDIDATES, start_step=start)
        if frozen and not sampler.has_table:
            refresh.set_model(model)
            refresh.refresh()
        how = {"verbose": 0, "callbacks": [refresh]}
        return model.fit(batches, epochs=epochs, **how).history["loss"]

    whole, resumed, sampler = dual(), dual(), hard_candidates(frozen=frozen)
    values = fit(whole, sampler, 0, 4)
    assert values[-1] < values[0]
    first = hard_candidates(frozen=frozen)
    fit(resumed, first, 0, 2)
    again = hard_candidates(frozen=frozen)
    again.restore(first.state())
    fit(resumed, again, 8, 2)
    np.testing.assert_equal(again.state(), sampler.state())
    np.testing.assert_equal(resumed.get_weights(), whole.get_weights())


def test_stored_candidates_are_negatives_without_a_gradient():
    model = dual(symmetric=False)
    rows, labels = [0, 1, 2, 3], np.arange(4)
    stored = RNG.normal(size=(5, 4)).astype("f")
    of_stored = np.array([4, 5, 6, 7, 0])
    loss = losses.NTXentLoss(temperature=0.2)
    q, c = model.encode_queries(QUERIES[rows]), model.encode_candidates(CANDIDATES[rows])
    together = np.concatenate([labels, of_stored]), np.concatenate([c, stored])
    expected = float(loss.between(labels, q, *together))
    x, y = (QUERIES[rows], CANDIDATES[rows], stored), (labels, labels, of_stored)
    found = model.compute_loss(y=y, y_pred=model(x))
    assert float(found) == pytest.approx(expected, rel=1e-5)
    symmetric = dual()
    back = loss.between(labels, c, labels, q)
    found = symmetric.compute_loss(y=y, y_pred=symmetric(x))
    assert float(found) == pytest.approx(float(expected + back) / 2, rel=1e-5)
    with pytest.raises(ValueError, match="y must be a tuple .* stored labels"):
        model.compute_loss(y=(labels, labels), y_pred=model(x))
    with pytest.raises(ValueError, match="y must be a tuple .* got none"):
        model.compute_loss(y=None, y_pred=model(x))


def test_mistakes_of_the_sampler_of_candidates():
    good = np.full((24, 2), -1)
    for make, message in (
        (lambda: hard_candidates(per_query=0), "per_query must be"),
        (lambda: hard_candidates(frozen=2), "frozen must be"),
        (lambda: hard_candidates().refresh(good[:3], 0), "nearest must be integers of shape"),
        (lambda: hard_candidates().refresh(good + 13, 0), "nearest must be integers from -1 to 11"),
        (lambda: hard_candidates().refresh(good * 0, 0), "nearest must be candidates of other"),
        (lambda: hard_candidates().refresh(good, 0, CANDIDATES), "embeddings must be None"),
        (lambda: hard_candidates(frozen=True).refresh(good, 0), "embeddings must be set"),
        (
            lambda: hard_candidates(frozen=True).refresh(good, 0, CANDIDATES[:3]),
            r"embeddings must be \[12, d\]",
        ),
        (lambda: hard_candidates(frozen=True).stored(0), "step must be a step from a refresh on"),
        (
            lambda: pipelines.HardCandidateSampler(
                pipelines.RandomSampler(2, 1), [0, 0], [0, 0, 0]
            ),
            "candidate_labels must be labels of at least 2 classes",
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            make()
