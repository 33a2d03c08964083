"""A head that trains on a sample of the classes: the sample, one step, resuming, and errors."""

import keras
import numpy as np
import pytest
import tiers
from batches import functional

from keras_dml import callbacks, layers, losses, metrics, models

pytestmark = pytest.mark.any_backend

CLASSES, SAMPLE = 20, 8
RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 8)).astype("float32")
# 6 classes in each batch of 12.
Y = np.concatenate([np.repeat(RNG.permutation(CLASSES)[:6], 2) for _ in range(4)])


def embedding(**options):
    """Return a small embedding model with fixed initial weights."""
    keras.utils.set_random_seed(2)
    return functional((8,), keras.layers.Dense(12, "tanh"), keras.layers.Dense(4), **options)


def sampled_model(sampled=SAMPLE / CLASSES, seed=3, **head):
    return models.proxy_model(embedding(), CLASSES, sampled=sampled, seed=seed, **head)


def compiled(model, loss=None, **arguments):
    model.compile(
        keras.optimizers.SGD(0.5, momentum=0.9), loss or losses.ArcFaceLoss(8), **arguments
    )
    return model


def fitted(model, first=0, last=4):
    """Train on batches, in order."""
    some = slice(12 * first, 12 * last)
    model.fit(X[some], Y[some], batch_size=12, shuffle=False, verbose=0)
    return model


def weights(model):
    return [each for each in model.get_weights() if each.dtype.kind == "f"]


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def drawn_classes(head, class_ids):
    """Return the classes of the next sample, from proxies that name their classes."""
    angles = np.arange(CLASSES) * 2 * np.pi / CLASSES
    if not head.built:
        head.build((None, 2))
    head.proxies.assign(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    z = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype("float32")[class_ids]
    ids, cosines = map(numpy, head.sampled_cosines(keras.ops.convert_to_tensor(z), class_ids))
    assert cosines.shape == (len(class_ids), head.sample_size)
    classes = [
        next(
            k
            for k in range(CLASSES)
            if np.allclose(
                cosines[:, j], [np.cos(angles[k] - angles[c]) for c in class_ids], atol=1e-5
            )
        )
        for j in range(head.sample_size)
    ]
    assert [classes[place] for place in ids] == list(class_ids)
    return classes


def test_a_sample_has_the_classes_of_the_batch_and_others_once():
    def samples(seed, steps=3):
        head = layers.ProxyHead(CLASSES, sampled=0.4, seed=seed)
        return [drawn_classes(head, np.array([7, 3, 7, 12, 3])) for _ in range(steps)]

    found = samples(0)
    for classes in found:
        assert {3, 7, 12} <= set(classes) and len(set(classes)) == len(classes) == SAMPLE
        assert classes == sorted(classes)
    assert found == samples(0) and found != samples(1) and found[0] != found[1]
    # Over steps, every class is drawn.
    assert set(np.ravel(samples(0, steps=25))) == set(range(CLASSES))


@tiers.slow_on_tensorflow
@pytest.mark.parametrize("centers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_step_equals_the_step_of_a_head_of_the_sampled_classes_only(centers):
    head = {"centers": centers, "pooling": "soft"}
    model = compiled(sampled_model(**head), metrics=["accuracy"])
    proxies = np.array(numpy(model.get_layer("proxy_head").proxies)).reshape(CLASSES, centers, 4)
    classes = drawn_classes(layers.ProxyHead(CLASSES, sampled=0.4, seed=3), Y[:12])
    small = compiled(models.proxy_model(embedding(), SAMPLE, **head), metrics=["accuracy"])
    small.get_layer("proxy_head").proxies.assign(proxies[classes].reshape(-1, 4))
    ids = np.array([classes.index(each) for each in Y[:12]])
    found, expected = model.train_on_batch(X[:12], Y[:12]), small.train_on_batch(X[:12], ids)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    after = weights(model)
    trained = after[-1].reshape(CLASSES, centers, 4)
    for one, other in zip(after[:-1], weights(small)[:-1]):
        np.testing.assert_allclose(one, other, atol=1e-6)
    np.testing.assert_allclose(trained[classes].reshape(-1, 4), weights(small)[-1], atol=1e-6)
    others = np.setdiff1d(np.arange(CLASSES), classes)
    np.testing.assert_array_equal(trained[others], proxies[others])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="sparse only on TensorFlow")
def test_the_gradient_of_the_proxies_is_sparse():
    import tensorflow as tf

    model = compiled(sampled_model())
    with tf.GradientTape() as tape, model.sampling_head.deferred():
        loss = model.compute_loss(X[:12], Y[:12], model(X[:12], training=True))
    gradient = tape.gradient(loss, model.get_layer("proxy_head").proxies.value)
    assert isinstance(gradient, tf.IndexedSlices) and gradient.values.shape == (SAMPLE, 4)


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [1.0, 0.99])
def test_a_sample_of_all_classes_equals_the_full_head(sampled):
    full = fitted(compiled(models.proxy_model(embedding(), CLASSES)))
    for one, other in zip(weights(full), weights(fitted(compiled(sampled_model(sampled))))):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_predict_and_evaluate_use_all_proxies():
    loss = losses.ArcFaceLoss(8)
    model = fitted(compiled(sampled_model(), loss, metrics=[metrics.LossPart(loss, "tightness")]))
    cosines = model.predict(X, verbose=0)
    assert cosines.shape == (48, CLASSES)
    value, part = model.evaluate(X, Y, verbose=0)
    assert value == pytest.approx(float(loss(Y, cosines)), rel=1e-5)
    assert part == pytest.approx(float(np.mean(numpy(loss.parts(Y, cosines)[0]))), rel=1e-5)


@pytest.mark.slow
def test_a_loaded_model_resumes_with_the_same_samples(tmp_path):
    whole = fitted(compiled(sampled_model()))
    fitted(compiled(sampled_model()), 0, 2).save(tmp_path / "half.keras")
    resumed = fitted(keras.models.load_model(tmp_path / "half.keras"), 2, 4)
    assert resumed.get_layer("proxy_head").sampled == SAMPLE / CLASSES
    for one, other in zip(weights(whole), weights(resumed)):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_chunks_train_on_the_same_sample():
    loss = losses.NormSoftmaxLoss()
    whole = fitted(compiled(sampled_model(), loss, metrics=["accuracy"]))
    chunks = fitted(
        compiled(models.CachedGradients(sampled_model(), 5), loss, metrics=["accuracy"])
    )
    for one, other in zip(weights(whole), weights(chunks)):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_embeddings_in_half_precision_have_cosines_in_float32():
    keras.utils.set_random_seed(2)
    net = functional((8,), keras.layers.Dense(4, dtype="mixed_bfloat16"))
    model = compiled(models.proxy_model(net, CLASSES, sampled=0.4))
    assert np.isfinite(model.train_on_batch(X[:12], Y[:12]))
    head = model.get_layer("proxy_head")
    z = keras.ops.cast(keras.ops.convert_to_tensor(X[:12, :4]), "bfloat16")
    _, cosines = head.sampled_cosines(z, Y[:12])
    assert keras.backend.standardize_dtype(cosines.dtype) == "float32"


def test_a_sampled_head_in_another_model_names_proxy_model():
    inputs = keras.Input((8,))
    other = compiled(keras.Model(inputs, layers.ProxyHead(CLASSES, sampled=0.4)(inputs)))
    assert other.predict(X[:2], verbose=0).shape == (2, CLASSES)
    layers_of, inner = sampled_model(), sampled_model()
    around = compiled(keras.Model(layers_of.input, layers_of.output))
    # Without an error, the outer model would take the embeddings for cosines.
    nested = compiled(keras.Sequential([keras.Input((8,)), inner]))
    assert nested.predict(X[:2], verbose=0).shape == (2, CLASSES)
    memory = models.CrossBatchMemory(models.CachedGradients(sampled_model(), 6), 48, start_step=0)
    memory.compile(keras.optimizers.SGD(0.1), losses.ContrastiveLoss())
    for model in (other, around, nested, memory):
        with pytest.raises(ValueError, match="sampled must be 1 .* got 0.4.*proxy_model"):
            model.train_on_batch(X[:12], Y[:12])


def test_bad_values():
    for sampled in (0, -0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="sampled must be .* got"):
            layers.ProxyHead(CLASSES, sampled=sampled)
    with pytest.raises(ValueError, match="seed must be .* got -1"):
        layers.ProxyHead(CLASSES, sampled=0.5, seed=-1)
    head = layers.ProxyHead(CLASSES, sampled=0.1)
    head.build((None, 4))
    z = np.ones((4, 4), "float32")
    with pytest.raises(ValueError, match="sampled must be at least 0.2.* got 0.1"):
        head.sampled_cosines(z, np.arange(4))
    assert layers.ProxyHead(100, sampled=0.07).sample_size == 7
    large = layers.ProxyHead(100_000, sampled=0.01)
    with pytest.raises(ValueError, match="sampled must be at least 0.124, .* 12345 classes"):
        large.check_room(np.arange(12_345))
    with pytest.raises(ValueError, match="class ids from 0 to 19, but got 20"):
        head.sampled_cosines(z, np.array([0, 0, 1, 20]))
    with pytest.raises(ValueError, match="sampled must be below 1"):
        layers.ProxyHead(CLASSES).sampled_cosines(z, np.arange(4))


@pytest.mark.slow
def test_too_many_classes_of_a_batch_in_fit_have_a_cause():
    model = compiled(sampled_model(sampled=0.1))
    stop = callbacks.StopAtNaN((X, Y), batch_size=12)
    try:
        model.fit(X, Y, batch_size=12, callbacks=[stop], verbose=0)
    except ValueError as error:  # eager backends raise at once
        assert "sampled must be at least 0.3" in str(error)
    else:
        assert "sampled must be at least 0.3" in stop.cause
