"""Training against old embeddings or old proxies: value, gradient, saving, and errors."""

import keras
import numpy as np
import oracles
import pytest
from batches import functional

from keras_dml import layers, losses, models
from keras_dml.metrics import InBatchRecall

# The last class has one image, whose only positive is its old embedding.
IDS = np.array([0, 0, 1, 1, 2, 0, 3])
NEW, OLD = np.random.default_rng(0).normal(size=(2, 7, 5)).astype("float32")
OLD = OLD[:, :3]
WEIGHT = 0.5


def untouched(policy=None, name="kept"):
    """A model whose embeddings equal its inputs before the first step."""
    dense = keras.layers.Dense(
        5, use_bias=False, kernel_initializer="identity", dtype=policy, name=name
    )
    return functional((5,), dense)


def old_head(**options):
    """A head of three old classes: the fourth class is new."""
    head = layers.ProxyHead(3, **options)
    head.build((None, 3))
    head.proxies.assign(np.random.default_rng(1).normal(size=(3, 3)))
    return head


def compiled(model, loss, rate=1.0, **arguments):
    # For so few steps, eager mode is faster than a graph; JAX needs the graph.
    eager = keras.backend.backend() == "tensorflow"
    model.compile(keras.optimizers.SGD(rate), loss, run_eagerly=eager, **arguments)
    return model


def step(model, x, y, **more):
    """Train one step and return only its logs."""
    model.reset_metrics()
    return model.train_on_batch(x, y, return_dict=True, **more)


def between(new, old, alpha=2.0, beta=50.0, base=0.5):
    """The multi-similarity loss of new embeddings against the old ones, by loops (Eq. 15)."""
    total = 0.0
    for i, anchor in enumerate(new):
        near, far = 1.0, 1.0
        for j, candidate in enumerate(old):
            cosine = anchor @ candidate / np.linalg.norm(anchor) / np.linalg.norm(candidate)
            if IDS[j] == IDS[i]:
                near += np.exp(-alpha * (cosine - base))
            else:
                far += np.exp(beta * (cosine - base))
        total += np.log(near) / alpha + np.log(far) / beta
    return total / len(new)


def apart(new, old):
    """The cosine distance between each image and its own old embedding, by loops."""
    lengths = [np.linalg.norm(row) * np.linalg.norm(own) for row, own in zip(new, old)]
    return np.array([1 - row @ own / each for row, own, each in zip(new, old, lengths)])


def compatible_part(new, alignment):
    new, old = new[:, :3], OLD.astype(float)
    return between(new, old, beta=10.0) + alignment * apart(new, old).mean()


def pair_loss(new, alignment):
    own = oracles.mean_loss(oracles.multi_similarity, IDS, new, beta=10.0)
    return own + WEIGHT * compatible_part(new, alignment)


def proxy_loss(new, proxies, old_proxies, temperature=0.05):
    """The normalized softmax loss on both heads. A class after the third has no old proxy."""

    def softmax(rows, proxies):
        total = 0.0
        for label, row in zip(IDS, rows):
            if label < len(proxies):
                cosines = [
                    row @ proxy / np.linalg.norm(row) / np.linalg.norm(proxy) for proxy in proxies
                ]
                logits = np.array(cosines) / temperature
                total += np.log(np.exp(logits).sum()) - logits[label]
        return total / len(rows)

    return softmax(new, proxies) + WEIGHT * softmax(new[:, :3], old_proxies)


def numeric_gradient(function, kernel, step=1e-5):
    gradient = np.zeros_like(kernel)
    for place in np.ndindex(kernel.shape):
        moved = np.zeros_like(kernel)
        moved[place] = step
        gradient[place] = (function(kernel + moved) - function(kernel - moved)) / (2 * step)
    return gradient


@pytest.mark.any_backend
@pytest.mark.parametrize("alignment", [0.0, 1.5])
def test_pairs_match_the_loops(alignment):
    model = models.BackwardCompatible(untouched(), 3, weight=WEIGHT, alignment=alignment)
    found = step(compiled(model, losses.MultiSimilarityLoss(beta=10.0)), NEW, (IDS, OLD))
    new = NEW.astype(float)
    assert found["loss"] == pytest.approx(pair_loss(new, alignment), rel=1e-5)
    assert found["compatible_loss"] == pytest.approx(compatible_part(new, alignment), rel=1e-5)
    expected = numeric_gradient(lambda kernel: pair_loss(new @ kernel, alignment), np.eye(5))
    (kernel,) = model.get_weights()[:1]
    np.testing.assert_allclose(np.eye(5) - kernel, expected, atol=1e-4)


@pytest.mark.any_backend
def test_proxies_match_the_loops_and_stay():
    head, classes = old_head(), models.proxy_model(untouched(), 4)
    before = head.get_weights()[0]
    proxies = classes.get_layer("proxy_head").get_weights()[0].astype(float)
    model = models.BackwardCompatible(classes, 3, weight=WEIGHT, old_head=head)
    assert len(model.trainable_variables) == 2
    assert [tuple(each.shape) for each in model(NEW)] == [(7, 4), (7, 3)]
    new, rate = NEW.astype(float), 0.01
    found = step(compiled(model, losses.NormSoftmaxLoss(temperature=0.05), rate), NEW, IDS)
    assert found["loss"] == pytest.approx(proxy_loss(new, proxies, before.astype(float)), rel=1e-4)
    expected = numeric_gradient(
        lambda kernel: proxy_loss(new @ kernel, proxies, before.astype(float)), np.eye(5)
    )
    kernel = classes.get_layer("kept").get_weights()[0]
    np.testing.assert_allclose((np.eye(5) - kernel) / rate, expected, atol=1e-3)
    np.testing.assert_array_equal(head.get_weights()[0], before)


@pytest.mark.any_backend
def test_an_old_head_that_sampled_compares_with_all_classes_and_a_new_head_cannot_sample():
    def loss_of(head, **options):
        classes = models.proxy_model(untouched(), 4, proxies_initializer="ones", **options)
        model = models.BackwardCompatible(classes, 3, old_head=head)
        return step(compiled(model, losses.NormSoftmaxLoss()), NEW, IDS)["loss"]

    expected = loss_of(old_head())
    assert loss_of(old_head(sampled=0.5)) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="sampled must be 1 .* got 0.5.*proxy_model"):
        loss_of(old_head(), sampled=0.5)


@pytest.mark.any_backend
def test_weights_of_anchors_weight_both_parts():
    weights = np.array([1, 0, 2, 1, 0, 1, 3], "float32")
    loss, each = losses.SupConLoss(), losses.SupConLoss(reduction=None)
    model = compiled(models.BackwardCompatible(untouched(), 3, weight=WEIGHT, alignment=1.5), loss)
    found = model.evaluate(
        NEW, (IDS, OLD), sample_weight=weights, batch_size=7, verbose=0, return_dict=True
    )
    both = each(IDS, NEW) + WEIGHT * each.between(IDS, NEW[:, :3], IDS, OLD)
    both = keras.ops.convert_to_numpy(both) + WEIGHT * 1.5 * apart(NEW[:, :3], OLD)
    expected = np.mean(both * weights)
    assert found["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.any_backend
@pytest.mark.parametrize("proxies", [False, True])
def test_a_saved_model_continues(tmp_path, proxies):
    loss, inner, head = losses.SupConLoss(), untouched(), None
    if proxies:
        loss, inner, head = losses.NormSoftmaxLoss(), models.proxy_model(untouched(), 4), old_head()
    given = {"weight": WEIGHT, "alignment": 0.0 if proxies else 1.5, "old_head": head}
    model = compiled(models.BackwardCompatible(inner, 3, **given), loss, 0.01)
    step(model, NEW, (IDS, OLD))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (loaded.weight, loaded.old_dimensions) == (WEIGHT, 3)
    assert len(loaded.trainable_variables) == len(model.trainable_variables)
    for _ in range(2):
        found, expected = (step(each, NEW, (IDS, OLD)) for each in (loaded, model))
        assert found == pytest.approx(expected, rel=1e-6)


def test_metrics_see_the_labels_and_the_new_embeddings():
    model = models.BackwardCompatible(untouched(), 3)
    recall = InBatchRecall(1)
    recall.update_state(IDS, NEW)
    expected = float(recall.result())
    found = step(compiled(model, losses.SupConLoss(), metrics=[InBatchRecall(1)]), NEW, (IDS, OLD))
    assert found[recall.name] == pytest.approx(expected)


def test_chunks_and_half_precision_train_the_same():
    trained = []
    for inner in (
        untouched(),
        models.CachedGradients(untouched(), 3),
        untouched("mixed_bfloat16"),
    ):
        model = models.BackwardCompatible(inner, 3, alignment=1.0)
        model = compiled(model, losses.SupConLoss(), 0.1)
        step(model, NEW, (IDS, OLD))
        trained.append(model.get_weights()[0])
    np.testing.assert_allclose(trained[1], trained[0], atol=1e-6)
    np.testing.assert_allclose(trained[2], trained[0], atol=2e-2)
    assert not np.array_equal(trained[0], np.eye(5))


@pytest.mark.slow
def test_fit_brings_the_new_embeddings_to_the_old_ones():
    """Queries of the trained model find their classes in rows of the old model."""
    rng = np.random.default_rng(0)
    ids = np.arange(120) % 6
    images = np.eye(6)[ids] + 0.1 * rng.normal(size=(120, 6))
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    old = (np.eye(6)[ids] @ turn[:, :4]).astype("float32")
    keras.utils.set_random_seed(0)
    encoder = functional((6,), keras.layers.Dense(8))
    model = models.BackwardCompatible(encoder, 4)
    model.compile(keras.optimizers.Adam(0.05), losses.SupConLoss())

    def found():
        rows = encoder.predict(images, verbose=0)[:, :4]
        unit = old / np.linalg.norm(old, axis=1, keepdims=True)
        return np.mean(ids[(rows @ unit.T).argmax(axis=1)] == ids)

    before = found()
    model.fit(images, (ids, old), batch_size=40, epochs=20, verbose=0)
    assert before < 0.6 and found() == 1.0


def embedding_of(length):
    return functional((5,), keras.layers.Dense(length))


def classes_of(length):
    return models.proxy_model(embedding_of(length), 4)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"model": embedding_of(2)}, "old_dimensions.*at most 2"),
        ({"old_dimensions": 0}, "old_dimensions"),
        ({"weight": -1.0}, "weight"),
        ({"alignment": -1.0}, "alignment"),
        ({"model": classes_of(5), "old_head": old_head(), "alignment": 1.0}, "alignment.*old_head"),
        ({"model": classes_of(5), "old_head": layers.ProxyHead(3)}, "old_head.*not built"),
        ({"model": classes_of(5), "old_head": "proxies"}, "old_head.*ProxyHead"),
        ({"model": classes_of(2), "old_head": old_head()}, "old_dimensions.*at most 2"),
        ({"model": classes_of(5), "old_dimensions": 4, "old_head": old_head()}, "old_head.*3"),
        ({"old_head": old_head()}, "model.*proxy_model"),
        ({"model": "a path"}, "model"),
    ],
)
def test_wrong_arguments(arguments, words):
    given = {"model": embedding_of(5), "old_dimensions": 3, **arguments}
    with pytest.raises((ValueError, TypeError), match=words):
        models.BackwardCompatible(**given)


def test_models_of_two_sets_and_memories_are_refused():
    memory = models.CrossBatchMemory(embedding_of(5), 8, start_step=0)
    dual = models.DualEncoder(embedding_of(5), embedding_of(5))
    for model in (memory, dual, models.BackwardCompatible(embedding_of(5), 3)):
        with pytest.raises(ValueError, match="model"):
            models.BackwardCompatible(model, 3)


@pytest.mark.parametrize(
    "loss, proxies",
    [
        (losses.NormSoftmaxLoss(), False),
        (losses.LiftedStructureLoss(), False),
        (losses.MarginLoss(boundaries=1), False),
        (losses.SupConLoss(), True),
        ("mse", False),
    ],
)
def test_wrong_losses(loss, proxies):
    inner, head = embedding_of(5), None
    if proxies:
        inner, head = models.proxy_model(inner, 4), old_head()
    with pytest.raises(TypeError, match="loss"):
        models.BackwardCompatible(inner, 3, old_head=head).compile("sgd", loss)


def test_wrong_targets():
    model = compiled(models.BackwardCompatible(untouched(), 3), losses.SupConLoss())
    with pytest.raises(ValueError, match="y must be a tuple"):
        step(model, NEW, IDS)
    with pytest.raises(ValueError, match=r"old embeddings \[n, 3\]"):
        step(model, NEW, (IDS, NEW))
    with pytest.raises(ValueError, match="loss_weights"):
        model.compile("sgd", losses.SupConLoss(), loss_weights=[2.0])


def encoder(dimensions, hidden=4):
    """A small encoder. Its statistics are weights that do not train."""
    layers_ = [keras.layers.Dense(hidden), keras.layers.BatchNormalization()]
    return keras.Sequential([keras.Input((5,)), *layers_, keras.layers.Dense(dimensions)])


def test_a_longer_embedding_starts_from_the_old_one():
    old, new = encoder(3), encoder(5)
    for number, weight in enumerate(old.weights):
        weight.assign(np.random.default_rng(number).uniform(0.5, 1, weight.shape))
    kept = [np.array(weight) for weight in new.weights[-2:]]
    models.copy_weights(old, new)
    embeddings = new.predict(NEW, verbose=0)
    np.testing.assert_allclose(embeddings[:, :3], old.predict(NEW, verbose=0), rtol=1e-5)
    for weight, before in zip(new.weights[-2:], kept, strict=True):
        np.testing.assert_array_equal(np.array(weight)[..., 3:], before[..., 3:])
    same = encoder(3)
    models.copy_weights(old, same)
    np.testing.assert_array_equal(same.predict(NEW, verbose=0), old.predict(NEW, verbose=0))


@pytest.mark.parametrize(
    "source, words",
    [
        (lambda: encoder(6), "shape"),
        (lambda: encoder(3, hidden=3), "shape"),
        (lambda: functional((5,), keras.layers.Dense(5)), "2 weights of source"),
        (lambda: keras.Sequential([keras.layers.Dense(5)]), "source must be a built"),
    ],
)
def test_a_start_from_other_layers_is_refused_and_changes_nothing(source, words):
    new = encoder(5)
    before = [np.array(weight) for weight in new.weights]
    with pytest.raises(ValueError, match=words):
        models.copy_weights(source(), new)
    for weight, kept in zip(new.weights, before, strict=True):
        np.testing.assert_array_equal(np.array(weight), kept)
