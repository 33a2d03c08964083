"""Properties of the triplet and quadruplet losses: mining, ties, and unknown batch size."""

import keras
import numpy as np
import oracles
import pytest
from backend import compiled, value_and_gradient
from batches import batch

from keras_dml import losses

pytestmark = pytest.mark.any_backend

SEVERAL = [
    losses.TripletLoss(margin=0.4, dtype="float64"),
    losses.TripletLoss(margin=0.4, average="triplets", normalize=False, dtype="float64"),
    losses.TripletLoss(margin=0.4, triplets="semihard", dtype="float64"),
    losses.QuadrupletLoss(margin=0.3, second_margin=0.5, dtype="float64"),
]


@pytest.mark.slow_on_jax
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("mining", ["all", "semihard", "hard"])
def test_triplets_match_the_loops(mining):
    ids, z = batch(seed=4, sizes=(8, 5, 1, 7), dimensions=4)
    loss = losses.TripletLoss(0.3, triplets=mining, dtype="float64")
    value, gradient = value_and_gradient(loss, ids, z)
    arguments = {"margin": 0.3, "triplets": mining}
    assert value == pytest.approx(oracles.mean_loss(oracles.triplet, ids, z, **arguments), 1e-10)
    expected = oracles.numeric_gradient(oracles.triplet, ids, z, **arguments)
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


@pytest.mark.slow_on_jax
def test_quadruplets_with_weights_match_the_loops():
    ids, z = batch(seed=4, sizes=(4, 3, 1, 2), dimensions=4)
    weights = np.linspace(0.5, 2, len(ids))
    loss = losses.QuadrupletLoss(second_margin=0.4, dtype="float64")

    def weighted(ids, z):
        return [weights * part for part in oracles.quadruplet(ids, z, second_margin=0.4)]

    value, gradient = value_and_gradient(loss, ids, z, sample_weight=weights)
    assert value == pytest.approx(oracles.mean_loss(weighted, ids, z), 1e-10)
    expected = oracles.numeric_gradient(weighted, ids, z)
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_negatives_at_the_same_distance_share_the_gradient():
    # Two negatives at the same point are equally near, so both are pushed equally.
    z = np.array([[0.0, 0.0], [0.3, 0.0], [0.0, 0.5], [0.0, 0.5]])
    loss = losses.TripletLoss(triplets="semihard", normalize=False, dtype="float64")
    value, gradient = value_and_gradient(loss, np.array([0, 0, 1, 2]), z)
    assert np.isfinite(value)
    assert np.abs(gradient[2]).max() > 0.01
    np.testing.assert_allclose(gradient[2], gradient[3])


def test_a_positive_at_the_distance_of_a_negative_is_not_semihard():
    # From the anchor at 0: a positive and a negative at 1, a negative at 3. Only 3 is farther.
    z = np.array([[0.0], [1.0], [-1.0], [3.0]])
    loss = losses.TripletLoss(
        2.5, triplets="semihard", normalize=False, reduction=None, dtype="float64"
    )
    each = np.asarray(loss(np.array([0, 0, 1, 2]), z))
    assert each[0] == pytest.approx((1.0 - 3.0 + 2.5) * 4 / 2)


def test_anchors_without_a_triplet_are_left_out_of_the_mean():
    ids, z = np.array([0, 0, 1]), np.array([[0.0, 1.0], [0.6, 0.8], [1.0, 0.0]])
    near, far = np.sqrt(0.4), np.sqrt(2.0)
    between = np.sqrt(0.8)
    expected = (max(0, near - far + 0.9) + max(0, near - between + 0.9)) / 2
    assert float(losses.TripletLoss(0.9)(ids, z)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    "loss",
    [
        losses.TripletLoss(0.4, triplets="hard", dtype="float64"),
        *(pytest.param(loss, marks=pytest.mark.slow) for loss in SEVERAL),
    ],
)
def test_xla_gives_the_same_value(loss):
    if keras.backend.backend() == "jax":
        import jax

        by_xla = jax.jit(loss)
    else:
        import tensorflow as tf

        by_xla = tf.function(loss, jit_compile=True)
    for sizes in ((5, 3, 2), (9, 30, 60)):  # positives to compare, positives to sort
        ids, z = batch(sizes=sizes)
        assert float(by_xla(ids, z)) == pytest.approx(float(loss(ids, z)), rel=1e-9)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX knows every shape")
@pytest.mark.parametrize("by_xla", [False, True])
def test_a_batch_size_that_the_graph_does_not_know(by_xla):
    import tensorflow as tf

    signature = [tf.TensorSpec([None], "int64"), tf.TensorSpec([None, 6], "float64")]
    for loss in SEVERAL:

        @tf.function(input_signature=signature, jit_compile=by_xla)
        def step(ids, z, loss=loss):
            with tf.GradientTape() as tape:
                tape.watch(z)
                value = loss(ids, z)
            return value, tape.gradient(value, z)

        for sizes in ((5, 3, 2), (4, 1)):
            ids, z = batch(sizes=sizes)
            value, gradient = step(tf.constant(ids), tf.constant(z))
            expected, expected_gradient = value_and_gradient(loss, ids, z)
            assert float(value) == pytest.approx(expected, rel=1e-9)
            np.testing.assert_allclose(gradient, expected_gradient, atol=1e-12)


@pytest.mark.quick_cases(2)
@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    "loss",
    [
        losses.TripletLoss(),
        losses.TripletLoss(triplets="semihard"),
        losses.TripletLoss(triplets="hard"),
        losses.QuadrupletLoss(),
    ],
)
def test_float32_is_exact_with_hundreds_of_images(loss):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 64)) + 1.5
    precise = losses.get(loss.name, **{**loss.get_config(), "dtype": "float64"})
    for classes in (75, 2):
        ids = np.arange(300) % classes
        value, gradient = value_and_gradient(loss, ids, z.astype("float32"), "float32")
        exact, exact_gradient = value_and_gradient(precise, ids, z)
        assert value == pytest.approx(exact, rel=2e-5)
        # Rounding may swap negatives at almost the same distance in a few rows, not in the whole.
        error = np.linalg.norm(gradient - exact_gradient) / np.linalg.norm(exact_gradient)
        assert error < 0.03


@pytest.mark.parametrize("factor", [1e4, 1e8, 1e10])
@pytest.mark.parametrize("name", ["triplet", "quadruplet"])
def test_a_far_row_does_not_round_the_other_rows(name, factor):
    """The sum of all hinges is never below 0, and far distances do not absorb near ones."""
    ids, z = batch(seed=4, sizes=(4, 4, 4), dimensions=4)
    z[0] *= factor
    z = z.astype("float32")
    each = keras.ops.convert_to_numpy(losses.get(name, normalize=False, reduction=None)(ids, z))
    exact = sum(getattr(oracles, name)(ids, z.astype("float64"), normalize=False))
    assert (each >= 0).all()
    # Differences of the far row's distances are below the resolution of float32.
    np.testing.assert_allclose(each[1:], exact[1:], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.slow_on_jax
def test_a_graph_does_not_hide_nan_embeddings():
    ids, z = batch()
    z[3, 1] = np.nan
    for loss in SEVERAL:
        assert np.isnan(float(compiled(loss)(ids, z)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.TripletLoss(margin=0), "margin must be a number above 0.*margin=0"),
        (
            lambda: losses.TripletLoss(triplets="easy"),
            "triplets must be one of 'all'.*'easy'",
        ),
        (lambda: losses.TripletLoss(average="pairs"), "average must be one of.*average='pairs'"),
        (lambda: losses.QuadrupletLoss(margin=-1), "margin must be a number above 0.*margin=-1"),
        (lambda: losses.QuadrupletLoss(second_margin=0), "second_margin must be .*second_margin=0"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
