"""The optimizers against NumPy loops in float64 and PyTorch, and in Keras' saving and training."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from batches import functional
from peers import torch_sgd as peer

from keras_dml import optimizers

STEPS = 6
DECAY = 0.3


def layer_with_variables(seed=0):
    """Return a model with a nonzero kernel, bias, scale, and offset."""
    rng = np.random.default_rng(seed)
    inputs = keras.Input((3,))
    x = keras.layers.Dense(4, name="dense")(inputs)
    model = keras.Model(inputs, keras.layers.BatchNormalization(name="norm")(x))
    model.set_weights([rng.normal(size=w.shape).astype("float32") for w in model.get_weights()])
    return model


def gradients(variables, seed=1):
    """Return the gradients of each step for each variable."""
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=v.shape).astype("float32") for v in variables] for _ in range(STEPS)]


def run(optimizer, variables, steps):
    for step in steps:
        optimizer.apply([tf.constant(g) for g in step], variables)
    return [v.numpy() for v in variables]


def moved(optimizer, scale=1, variables=None):
    """Return the gradients of all steps, and the variables before and after them."""
    variables = variables or layer_with_variables().trainable_variables
    before, steps = [v.numpy() for v in variables], gradients(variables)
    after = run(optimizer, variables, [[g * scale for g in step] for step in steps])
    return steps, before, after


def check(found, loop, *rates, **arguments):
    """Compare each variable with its loop, in which only the first variable, the kernel, decays."""
    steps, before, after = found
    for i, rate in enumerate(rates * 4 if len(rates) == 1 else rates):
        own = [g[i] for g in steps]
        expected = loop(before[i], own, rate, 0.0 if i else DECAY, **arguments)
        np.testing.assert_allclose(after[i], expected, rtol=1e-5, atol=1e-6)


def sgd_loop(w, gradients, rate, decay, momentum=0.0, nesterov=False):
    w = w.astype("float64")
    velocity = np.zeros_like(w)
    for g in gradients:
        g = g.astype("float64") + decay * w
        velocity = momentum * velocity - rate * g
        w = w + (momentum * velocity - rate * g if nesterov else velocity)
    return w


def adam_loop(w, gradients, rate, decay, decoupled=False):
    w = w.astype("float64")
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        g = g.astype("float64")
        if decoupled:
            w = w - rate * decay * w
        else:
            g = g + decay * w
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        scale = rate * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        w = w - scale * m / (np.sqrt(v) + 1e-7)
    return w


@pytest.mark.parametrize(
    ("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True), (0.99, True)]
)
def test_sgd_matches_the_loop_and_decays_only_kernels(momentum, nesterov):
    own = {"momentum": momentum, "nesterov": nesterov}
    check(moved(optimizers.SGD(0.1, coupled_weight_decay=DECAY, **own)), sgd_loop, 0.1, **own)


def test_adam_matches_the_loop_and_decays_only_kernels():
    check(moved(optimizers.Adam(0.01, coupled_weight_decay=DECAY)), adam_loop, 0.01)


def test_adamw_decays_only_kernels_at_their_rates():
    factors = {"dense/kernel": 0.25}
    optimizer = optimizers.AdamW(
        0.02, decoupled_weight_decay=DECAY, learning_rate_multipliers=factors
    )
    check(moved(optimizer), adam_loop, 0.005, 0.02, 0.02, 0.02, decoupled=True)


@pytest.mark.parametrize(
    ("make", "loop"), [(optimizers.SGD, sgd_loop), (optimizers.Adam, adam_loop)]
)
def test_a_multiplier_is_a_separate_learning_rate(make, loop):
    factors = {"dense/kernel": 0.25, "dense/bias": 0.0, "norm/gamma": 3.0}  # none for norm/beta
    optimizer = make(0.02, coupled_weight_decay=DECAY, learning_rate_multipliers=factors)
    steps, before, after = moved(optimizer)
    check((steps, before, after), loop, 0.005, 0.0, 0.06, 0.02)
    np.testing.assert_array_equal(after[1], before[1])


def test_convolution_kernels_of_every_kind_are_decayed():
    layers = [keras.layers.Conv2D(4, 3), keras.layers.DepthwiseConv2D(3)]
    layers += [keras.layers.SeparableConv2D(4, 3), keras.layers.LayerNormalization()]
    variables = keras.Sequential([keras.Input((8, 8, 3)), *layers]).trainable_variables
    for variable in variables:
        variable.assign(np.ones(variable.shape))
    zeros = [[np.zeros(v.shape, "float32") for v in variables]]
    after = run(optimizers.SGD(0.5, coupled_weight_decay=0.2), variables, zeros)
    decayed = {v.name: float(w.flat[0]) for v, w in zip(variables, after)}
    kernels = dict.fromkeys(("kernel", "depthwise_kernel", "pointwise_kernel"), 0.9)
    assert decayed == pytest.approx(kernels | {"bias": 1.0, "gamma": 1.0, "beta": 1.0})


@pytest.mark.parametrize(
    ("make", "ours", "theirs"),
    [
        ("SGD", *({"momentum": 0.9, "nesterov": True, "clipnorm": 1.0},) * 2),
        ("AdamW", {"decoupled_weight_decay": DECAY, "decayed": "all"}, {"weight_decay": DECAY}),
    ],
)
def test_without_own_arguments_it_equals_keras(make, ours, theirs):
    schedule = optimizers.WarmCosine(0.05, STEPS, 2)
    _, _, after = moved(getattr(optimizers, make)(schedule, **ours))
    _, _, expected = moved(getattr(keras.optimizers, make)(schedule, **theirs))
    for a, b in zip(after, expected):
        np.testing.assert_allclose(a, b, *((0, 0) if make == "SGD" else (1e-5, 1e-6)))


def test_multipliers_of_a_nested_backbone_before_and_after_saving(tmp_path):
    backbone = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="pretrained")])
    model = functional((3,), backbone, keras.layers.Dense(2, name="new"))
    factors = optimizers.multipliers(backbone, 0.0)
    model.compile(optimizers.SGD(0.1, learning_rate_multipliers=factors), "mse")
    model.save(tmp_path / "model.keras")
    for trained in (model, keras.models.load_model(tmp_path / "model.keras")):
        before = trained.get_weights()
        trained.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
        moved = [not np.array_equal(a, b) for a, b in zip(before, trained.get_weights())]
        assert moved == [False, False, True, True]


def test_warm_cosine_matches_the_formula():
    rate, total, warmup = 0.02, 500, 100
    schedule = optimizers.WarmCosine(rate, total)
    for i in (0, 1, 50, 98, 99, 100, 101, 250, 499):
        expected = rate * min((i + 1) / warmup, (1 + math.cos(math.pi * i / total)) / 2)
        assert float(schedule(i)) == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert float(schedule(0)) == pytest.approx(rate / 100)
    assert [float(schedule(step)) for step in (total, total + 1, 10**9)] == [0.0, 0.0, 0.0]


def test_a_loaded_optimizer_clips_and_accumulates_on_one_device():
    """With one replica, Keras' methods work."""
    for arguments in ({"global_clipnorm": 0.5}, {"gradient_accumulation_steps": 2}):
        found = []
        for made in (keras.optimizers.SGD, optimizers.SGD):
            saved = keras.saving.serialize_keras_object(made(0.1, **arguments))
            optimizer = keras.saving.deserialize_keras_object(saved)
            weights = keras.Variable(np.arange(4.0), dtype="float32")
            for step in range(1, 5):
                optimizer.apply([keras.ops.ones(4) * step], [weights])
            found.append(weights.numpy())
        np.testing.assert_array_equal(*found)
        assert not np.array_equal(found[0], np.arange(4.0))


def test_it_works_inside_a_loss_scale_optimizer():
    """Gradients are unscaled before the decay; a step with an infinite one changes nothing."""
    inner = optimizers.SGD(
        0.1, coupled_weight_decay=DECAY, learning_rate_multipliers={"dense/bias": 0.5}
    )
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0)
    variables = layer_with_variables().trainable_variables
    check(moved(scaled, 1024, variables), sgd_loop, 0.1, 0.05, 0.1, 0.1)
    before = [v.numpy() for v in variables]
    infinite = [np.full(v.shape, np.inf, "float32") for v in before]
    for a, b in zip(run(scaled, variables, [infinite]), before):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "argument", [{"weight_decay": 0.01}, {"learning_rate_multipliers": {"a/kernel": -1.0}}]
)
def test_invalid_arguments_are_named(argument):
    with pytest.raises(ValueError, match=f"^{next(iter(argument))}.* must be"):
        optimizers.SGD(0.1, **argument)


def test_a_factor_for_an_unknown_variable():
    model = layer_with_variables()
    optimizer = optimizers.SGD(0.1, learning_rate_multipliers={"dens/kernel": 0.1})
    message = "must name trainable variables .*'dense/kernel', but got 'dens/kernel'.* none"
    with pytest.raises(ValueError, match=message):
        optimizer.build(model.trainable_variables)


def test_rmsprop_equals_keras_plus_coupled_decay():
    ours = optimizers.RMSprop(0.01, momentum=0.5, coupled_weight_decay=DECAY)
    steps, _, after = moved(ours)
    stock, theirs = keras.optimizers.RMSprop(0.01, momentum=0.5), layer_with_variables()
    for step in steps:
        variables = theirs.trainable_variables
        decays = [DECAY * (v.name == "kernel") for v in variables]
        decayed = [g + decay * v.numpy() for g, decay, v in zip(step, decays, variables)]
        stock.apply([tf.constant(g) for g in decayed], variables)
    for a, b in zip(after, theirs.trainable_variables):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_averaged_weights_replace_the_weights_at_the_end_of_fit():
    model = layer_with_variables()
    steps = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps.append([v.numpy() for v in self.model.trainable_variables])

    model.compile(optimizers.AdamW(0.1, use_ema=True, ema_momentum=0.75), "mse")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=(12, 4))
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[Watch()])
    average = steps[0]
    for weights in steps[1:]:
        average = [0.75 * a + 0.25 * w for a, w in zip(average, weights)]
    for expected, variable, last in zip(average, model.trainable_variables, steps[-1]):
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, atol=1e-6)
        assert np.abs(last - expected).max() > 1e-4


def test_without_an_update_the_weights_stay_unchanged():
    model = layer_with_variables()
    before = model.get_weights()
    optimizer = optimizers.SGD(0.1, use_ema=True)
    optimizer.build(model.trainable_variables)
    optimizer.finalize_variable_values(model.trainable_variables)
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)


@tiers.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"], ["AdamW"])
def test_an_optimizer_tracks_the_same_variables_as_keras(name):
    """It must not track the model's variables: they would be saved twice, and break checkpoints."""
    held = []
    for module in (optimizers, keras.optimizers):
        keras.backend.clear_session()  # restart the numbering of names
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)], name="model")
        optimizer = getattr(module, name)(0.01)
        optimizer.build(model.trainable_variables)
        held.append([variable.path.split("/", 1)[1] for variable in optimizer.variables])
    assert held[0] == held[1]


def trained(optimizer, variables, steps):
    """Return the weights after each step."""
    reached = []
    for gradients in steps:
        gradients = [keras.ops.convert_to_tensor(g.astype("float32")) for g in gradients]
        optimizer.apply(gradients, variables)
        reached.append([keras.ops.convert_to_numpy(variable) for variable in variables])
    return reached


@pytest.fixture(scope="module")
def golden():
    with np.load(peer.FILE) as arrays:
        return dict(arrays)


@pytest.mark.any_backend
@pytest.mark.parametrize("case", peer.CASES)
def test_the_weights_match_pytorch_with_warm_up_decay_and_a_factor(case, golden):
    layer = keras.layers.Dense(4)
    layer.build((None, 3))
    layer.set_weights([golden["kernel"], golden["bias"]])
    optimizer = optimizers.SGD(
        optimizers.WarmCosine(peer.RATE, peer.STEPS, peer.WARMUP),
        **peer.CASES[case],
        velocity="torch",
        coupled_weight_decay=peer.DECAY,
        learning_rate_multipliers={layer.bias.path: peer.BIAS_FACTOR},
    )
    steps = zip(golden["kernel_gradients"], golden["bias_gradients"])
    reached = trained(optimizer, [layer.kernel, layer.bias], steps)
    for i, name in enumerate(("kernel", "bias")):
        ours = np.stack([weights[i] for weights in reached])
        np.testing.assert_allclose(ours, golden[f"{case}/{name}"], rtol=1e-5, atol=1e-5)


@pytest.mark.any_backend
def test_the_velocity_defaults_to_keras():
    optimizer = optimizers.SGD(0.1, momentum=0.9, velocity="torch")
    saved = keras.saving.serialize_keras_object(optimizer)
    # Versions without this argument saved configurations without it.
    del saved["config"]["velocity"]
    assert keras.saving.deserialize_keras_object(saved).velocity == "keras"
    assert optimizers.SGD(0.1).velocity == "keras"
