"""Train with clipped gradients on several devices and print the weights, for `test_clipping.py`.

Needs its own process for the reason in `distributed_training.py`: the CPU must be split before
TensorFlow starts.
"""

import json
import pathlib
import re
import sys

import keras
import numpy as np
import tensorflow as tf

import keras_dml
from keras_dml import losses, models, optimizers
from tests.support import distributed_training as shared

# Small enough to clip every step, and to clip the parts of two replicas differently.
CLIPPINGS = {"clipnorm": 0.05, "global_clipnorm": 0.1, "clipvalue": 0.01}


def ours(path, **clipping):
    """Return our SGD with momentum, coupled decay, and a separate learning rate for the head."""
    factors = {path: 0.1}
    return optimizers.SGD(
        0.5,
        momentum=0.9,
        coupled_weight_decay=0.01,
        learning_rate_multipliers=factors,
        **clipping,
    )


def plain(path, **clipping):
    """Return Keras' SGD."""
    return keras.optimizers.SGD(0.5, **clipping)


def several_optimizers(path, **clipping):
    """Return optimizers that Keras assigns variable by variable at build time."""
    found = {"kernel": keras.optimizers.SGD(0.5, **clipping), "bias": keras.optimizers.SGD(0.1)}
    return keras.optimizers.MultiOptimizer(lambda variable: found[variable.name])


def scaled(path, **clipping):
    """Return an optimizer for gradients scaled by 1,024, as in mixed precision."""
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.5, **clipping), initial_scale=1024.0, dynamic_growth_steps=2
    )


def decoupled(path, **clipping):
    """Return an optimizer with Keras' decoupled decay."""
    return keras.optimizers.AdamW(0.01, weight_decay=0.1, **clipping)


# Class of the model, optimizer.
CASES = {
    "ours": (keras.Model, ours),
    "keras_sgd": (models.DistributedModel, plain),
    "keras_adamw": (models.DistributedModel, decoupled),
    "keras_scaled": (models.DistributedModel, scaled),
    "keras_several": (models.DistributedModel, several_optimizers),
    "rankmi": (models.RankMI, plain),
    "stock": (keras.Model, plain),
}
REFUSED = (
    "jit_compile",
    "jit_compile_later",
    "accumulation",
    "accumulation_scaled",
    "accumulation_ours",
    "accumulation_rankmi",
)
WITH_ALL = ("ours", "keras_sgd")


def clippings(case):
    """Return the clippings to try; one is enough where all use the same code path."""
    return [*CLIPPINGS] if case in WITH_ALL else ["global_clipnorm"]


def train(strategy, case, **clipping):
    """Return the weights after some steps of `fit`."""
    cls, optimizer = CASES[case]
    with strategy.scope():
        keras.utils.set_random_seed(1)
        if cls is models.RankMI:
            model = rankmi_model()
            model.compile(optimizer(None, **clipping), optimizer(None, **clipping))
        else:
            model = cls(*shared.network(), name="net")
            path = model.get_layer("head").kernel.path
            model.compile(optimizer(path, **clipping), losses.MultiSimilarityLoss(beta=10.0))
    return shared.fitted(model)["weights"]


def refusals(strategy):
    """Return the errors of `compile` and `fit` for unsupported cases on several replicas."""
    accumulating = {"gradient_accumulation_steps": 2}
    sgd = keras.optimizers.SGD
    tried = {
        "jit_compile": lambda: compiled(models.DistributedModel, "sgd", jit_compile=True),
        "accumulation": lambda: compiled(models.DistributedModel, sgd(**accumulating)),
        "accumulation_scaled": lambda: compiled(
            models.DistributedModel, keras.optimizers.LossScaleOptimizer(sgd(**accumulating))
        ),
        "accumulation_ours": lambda: shared.fitted(
            compiled(keras.Model, optimizers.SGD(**accumulating))
        ),
        "jit_compile_later": lambda: shared.fitted(
            changed(compiled(models.DistributedModel, "sgd"), jit_compile=True)
        ),
        "accumulation_rankmi": lambda: rankmi_model().compile("sgd", sgd(**accumulating)),
    }
    found = {}
    for name in REFUSED:
        attempt = tried[name]
        with strategy.scope():
            try:
                attempt()
                found[name] = "nothing"
            except Exception as error:  # any exception: the test checks it
                found[name] = f"{type(error).__name__}: {error}"
    return found


def compiled(cls, optimizer, **arguments):
    model = cls(*shared.network(), name="net")
    model.compile(optimizer, losses.MultiSimilarityLoss(), **arguments)
    return model


def changed(model, **attributes):
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def rankmi_model():
    statistics = models.StatisticsNetwork(hidden=8, depth=1, seed=2)
    return models.RankMI(
        keras.Model(*shared.network(), name="net"), statistics_network=statistics, alpha=1.0
    )


def overflow(strategy):
    """Return the weights after a step whose gradient is infinite only on the last replica."""
    with strategy.scope():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((2,))
        model = models.DistributedModel(inputs, keras.layers.Dense(1, name="head")(inputs))
        scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, clipvalue=1.0))
        model.compile(scaling, "mean_squared_error")
    before = [w.tolist() for w in model.get_weights()]
    images = np.ones((8, 2), "float32")
    images[-1] = 1e36
    data = tf.data.Dataset.from_tensor_slices((images, np.ones((8, 1), "float32"))).batch(8)
    model.fit(data, verbose=0)
    return {
        "before": before,
        "after": [w.tolist() for w in model.get_weights()],
        "scale": float(model.optimizer.dynamic_scale.numpy()),
    }


def custom_loop(strategy, text):
    """Return the weights and the losses after the training loop of the guide to devices."""
    with strategy.scope():
        keras.utils.set_random_seed(1)
        names = {"model": keras.Model(*shared.network(), name="net")}
    names |= {"strategy": strategy, "keras_dml": keras_dml, "tf": tf}
    names["batches"] = strategy.experimental_distribute_dataset(shared.batches())
    exec(text, names)
    return {"weights": [w.tolist() for w in names["model"].get_weights()], "loss": names["values"]}


def custom_loop_text():
    """Return the text of the custom training loop in the guide to devices."""
    text = (pathlib.Path(__file__).parents[2] / "docs/pages/guides/devices.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (found,) = [block for block in blocks if "GradientTape" in block]
    return found


def main(devices):
    """Return all results on `devices` devices as JSON; if that is 2, on one device, too."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * devices,
    )
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategies = {devices: tf.distribute.MirroredStrategy(names)}
    if devices == 2:
        strategies[1] = tf.distribute.get_strategy()
    found = {}
    for count, strategy in strategies.items():
        runs = {}
        for case in CASES:
            for clipping in clippings(case):
                value = {clipping: CLIPPINGS[clipping]}
                runs[f"{case} {clipping}"] = train(strategy, case, **value)
        if count == 1:
            runs |= {f"{case} none": train(strategy, case) for case in WITH_ALL}
        loop = custom_loop(strategy, custom_loop_text())
        found[count] = {"runs": runs, "loop": loop, "overflow": overflow(strategy)}
    if devices == 2:
        # Last, because an error during a step consumes the strategy's messages.
        found["refusals"] = refusals(strategies[2])
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
