"""The optimizers against Keras' and PyTorch's, and in Keras' saving and training."""

import functools
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


def layer_with_variables():
    """Return a model with a nonzero kernel, bias, scale, and offset."""
    rng = np.random.default_rng(0)
    layers = keras.layers.Dense(4, name="dense"), keras.layers.BatchNormalization(name="norm")
    model = functional((3,), *layers)
    model.set_weights([rng.normal(size=w.shape).astype("float32") for w in model.get_weights()])
    return model


def gradients(variables):
    """Return the gradients of each step for each variable."""
    rng = np.random.default_rng(1)
    return [[rng.normal(size=v.shape).astype("float32") for v in variables] for _ in range(STEPS)]


def run(optimizer, variables, steps):
    """Return the weights after each step."""
    reached = []
    for step in steps:
        optimizer.apply([keras.ops.convert_to_tensor(g) for g in step], variables)
        reached.append([keras.ops.convert_to_numpy(variable) for variable in variables])
    return reached


def moved(optimizer, scale=1, variables=None):
    """Return the variables after all steps, whose gradients are multiplied by `scale`."""
    variables = variables or layer_with_variables().trainable_variables
    return run(optimizer, variables, [[g * scale for g in s] for s in gradients(variables)])[-1]


def moved_by_keras(make, factors):
    """Return the variables after all steps of an optimizer of Keras for each variable.

    Each has the rate 0.02 times the variable's factor. Only the gradient of the kernel gets the
    decay.
    """
    variables = layer_with_variables().trainable_variables
    for i, variable in enumerate(variables):
        optimizer = make(0.02 * factors.get(variable.path, 1))
        decay = DECAY if variable.path == "dense/kernel" else 0
        for step in gradients(variables):
            optimizer.apply([tf.constant(step[i]) + decay * variable], [variable])
    return [variable.numpy() for variable in variables]


def adamw_of_kernels(rate):
    optimizer = keras.optimizers.AdamW(rate, weight_decay=DECAY)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


FACTORS = {"dense/kernel": 0.25, "dense/bias": 0.0, "norm/gamma": 3.0}  # none for norm/beta


@pytest.mark.parametrize("factors", [{}, FACTORS], ids=["one rate", "multipliers"])
@pytest.mark.parametrize(
    ("make", "stock", "own"),
    [
        (optimizers.CoupledSGD, keras.optimizers.SGD, {}),
        (optimizers.CoupledSGD, keras.optimizers.SGD, {"momentum": 0.9}),
        (optimizers.CoupledSGD, keras.optimizers.SGD, {"momentum": 0.9, "nesterov": True}),
        (optimizers.CoupledAdam, keras.optimizers.Adam, {}),
        (optimizers.CoupledRMSprop, keras.optimizers.RMSprop, {"momentum": 0.5}),
        (
            functools.partial(optimizers.LayerwiseAdamW, decoupled_weight_decay=DECAY),
            adamw_of_kernels,
            {},
        ),
    ],
)
def test_kernels_decay_and_a_multiplier_is_a_separate_learning_rate(make, stock, own, factors):
    ours = make(0.02, coupled_weight_decay=DECAY, learning_rate_multipliers=factors, **own)
    expected = moved_by_keras(functools.partial(stock, **own), factors)
    for a, b in zip(moved(ours), expected):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_convolution_kernels_of_every_kind_are_decayed():
    layers = [keras.layers.Conv2D(4, 3), keras.layers.DepthwiseConv2D(3)]
    layers += [keras.layers.SeparableConv2D(4, 3), keras.layers.LayerNormalization()]
    variables = keras.Sequential([keras.Input((8, 8, 3)), *layers]).trainable_variables
    for variable in variables:
        variable.assign(np.ones(variable.shape))
    zeros = [[np.zeros(v.shape, "float32") for v in variables]]
    (after,) = run(optimizers.CoupledSGD(0.5, coupled_weight_decay=0.2), variables, zeros)
    decayed = {v.name: float(w.flat[0]) for v, w in zip(variables, after)}
    kernels = dict.fromkeys(("kernel", "depthwise_kernel", "pointwise_kernel"), 0.9)
    assert decayed == pytest.approx(kernels | {"bias": 1.0, "gamma": 1.0, "beta": 1.0})


def test_multipliers_of_a_nested_backbone_before_and_after_saving(tmp_path):
    backbone = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="pretrained")])
    model = functional((3,), backbone, keras.layers.Dense(2, name="new"))
    factors = optimizers.multipliers(backbone, 0.0)
    model.compile(optimizers.CoupledSGD(0.1, learning_rate_multipliers=factors), "mse")
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
    assert [float(schedule(step)) for step in (total, total + 1, 10**9)] == [0.0, 0.0, 0.0]


def test_a_loaded_optimizer_clips_and_accumulates_on_one_device():
    """With one replica, Keras' methods work."""
    for arguments in ({"global_clipnorm": 0.5}, {"gradient_accumulation_steps": 2}):
        found = []
        for made in (keras.optimizers.SGD, optimizers.CoupledSGD):
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
    arguments = {"coupled_weight_decay": DECAY, "learning_rate_multipliers": FACTORS}
    scaled = keras.optimizers.LossScaleOptimizer(optimizers.CoupledSGD(0.02, **arguments), 1024.0)
    variables = layer_with_variables().trainable_variables
    after = moved(scaled, 1024, variables)
    for a, b in zip(after, moved_by_keras(keras.optimizers.SGD, FACTORS)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    infinite = [np.full(v.shape, np.inf, "float32") for v in after]
    (again,) = run(scaled, variables, [infinite])
    np.testing.assert_equal(again, after)


def test_an_invalid_multiplier_and_an_unknown_variable():
    with pytest.raises(ValueError, match="^learning_rate_multipliers.* must be"):
        optimizers.CoupledSGD(0.1, learning_rate_multipliers={"a/kernel": -1.0})
    model = layer_with_variables()
    optimizer = optimizers.CoupledSGD(0.1, learning_rate_multipliers={"dens/kernel": 0.1})
    message = "must name trainable variables .*'dense/kernel', but got 'dens/kernel'.* none"
    with pytest.raises(ValueError, match=message):
        optimizer.build(model.trainable_variables)


@pytest.mark.slow
def test_averaged_weights_replace_the_weights_at_the_end_of_fit():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=(12, 4))
    averages = {"use_ema": True, "ema_momentum": 0.75}
    found = []
    for optimizer in (
        optimizers.LayerwiseAdamW(0.1, decayed="all", **averages),
        keras.optimizers.AdamW(0.1, **averages),
    ):
        model = layer_with_variables()
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        found.append([variable.numpy() for variable in model.trainable_variables])
    for ours, expected in zip(*found):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_without_an_update_the_weights_stay_unchanged():
    model = layer_with_variables()
    before = model.get_weights()
    optimizer = optimizers.CoupledSGD(0.1, use_ema=True)
    optimizer.build(model.trainable_variables)
    optimizer.finalize_variable_values(model.trainable_variables)
    np.testing.assert_equal(model.get_weights(), before)


# The key is the lower-case name in Keras.
@tiers.parametrize("name", optimizers.OPTIMIZERS, ["adamw"])
def test_an_optimizer_tracks_the_same_variables_as_keras(name):
    """It must not track the model's variables: they would be saved twice, and break checkpoints."""
    held = []
    for made in (optimizers.OPTIMIZERS[name], type(keras.optimizers.get(name))):
        keras.backend.clear_session()  # restart the numbering of names
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)], name="model")
        optimizer = made(0.01)
        optimizer.build(model.trainable_variables)
        held.append([variable.path.split("/", 1)[1] for variable in optimizer.variables])
    assert held[0] == held[1]


@pytest.mark.any_backend
@pytest.mark.parametrize("case", peer.CASES)
def test_the_weights_match_pytorch_with_warm_up_decay_and_a_factor(case):
    golden, layer = np.load(peer.FILE), keras.layers.Dense(4)
    layer.build((None, 3))
    layer.set_weights([golden["kernel"], golden["bias"]])
    optimizer = optimizers.CoupledSGD(
        optimizers.WarmCosine(peer.RATE, peer.STEPS, peer.WARMUP),
        **peer.CASES[case],
        velocity="torch",
        coupled_weight_decay=peer.DECAY,
        learning_rate_multipliers={layer.bias.path: peer.BIAS_FACTOR},
    )
    steps = zip(*(golden[f"{name}_gradients"].astype("float32") for name in ("kernel", "bias")))
    reached = run(optimizer, [layer.kernel, layer.bias], steps)
    for i, name in enumerate(("kernel", "bias")):
        ours = np.stack([weights[i] for weights in reached])
        np.testing.assert_allclose(ours, golden[f"{case}/{name}"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_a_former_name_warns_and_its_files_load(name):
    with pytest.warns(DeprecationWarning, match=f"optimizers.{name} is deprecated. Use"):
        former = getattr(optimizers, name)
    assert former in optimizers.OPTIMIZERS.values()
    config = {"learning_rate": 0.5, "coupled_weight_decay": 0.25}
    of_file = {
        "module": "keras_dml.optimizers",
        "class_name": name,
        "config": config,
        "registered_name": f"keras_dml>{name}",
    }
    loaded = keras.optimizers.deserialize(of_file)
    assert type(loaded) is former
    assert keras.optimizers.serialize(loaded)["registered_name"] == f"keras_dml>{name}"
