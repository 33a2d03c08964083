"""Trains on one and on several logical CPU devices and prints what came out as JSON.

`python -m tests.distributed_training DEVICES CASE...`: a program of its own, for
`test_distribute.py`, since logical devices can only be made before TensorFlow starts, and would
stay for every other test.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

from keras_dml import losses, optimizers, pairs
from keras_dml.distribute import gather_candidates
from keras_dml.metrics import LossPart

BATCH, STEPS, SIZE, CLASSES = 24, 5, 6, 4
# Loss, its arguments, recipe of the optimizer.
CASES = {
    "contrastive": ("contrastive", {"margin": 2.0, "pair_reduction": "mean"}, "plain"),
    "multi_similarity": ("multi_similarity", {"beta": 10.0, "epsilon": 0.1}, "plain"),
    "cross_entropy": ("ce", {}, "plain"),
    "spce": ("spce", {}, "plain"),
    "pce": ("pce", {"lam_floor": 0.05}, "plain"),
    "center": ("center", {"normalize": True}, "plain"),
    "snca": ("snca", {"sigma": 0.3}, "plain"),
    "fastap": ("fastap", {}, "plain"),
    "lifted_structure": ("lifted_structure", {}, "plain"),
    "n_pairs": ("n_pairs", {"normalize": True}, "plain"),
    "ice": ("ice", {"scale": 8.0}, "plain"),
    "rankmi": ("rankmi", {"sampling": "distance_weighted"}, "plain"),
    "triplet": ("triplet", {"margin": 0.4}, "plain"),
    "semihard": ("triplet", {"mining": "semihard", "average": "triplets"}, "plain"),
    "hard": ("triplet", {"mining": "hard", "normalize": False}, "plain"),
    "quadruplet": ("quadruplet", {"second_margin": 0.3}, "plain"),
    "sgd": ("multi_similarity", {"beta": 10.0}, "sgd"),
    "adam": ("multi_similarity", {"beta": 10.0}, "adam"),
}
RECIPES = {
    "plain": lambda path: keras.optimizers.SGD(0.05),
    "sgd": lambda path: optimizers.SGD(
        optimizers.WarmCosine(0.05, STEPS, 2),
        momentum=0.9,
        nesterov=True,
        coupled_weight_decay=0.1,
        learning_rate_multipliers={path: 0.1},
    ),
    "adam": lambda path: optimizers.Adam(
        0.01, coupled_weight_decay=0.1, learning_rate_multipliers={path: 0.1}
    ),
}


def batches():
    """Neighbouring rows are of different classes: many positive pairs lie across two replicas."""
    rng = np.random.default_rng(0)
    class_ids = np.stack([rng.permutation(np.arange(BATCH) % CLASSES) for _ in range(STEPS)])
    images = rng.normal(size=(STEPS, BATCH, SIZE, SIZE, 1)).astype("float32")
    images += class_ids[..., None, None, None] / CLASSES
    return images.reshape(-1, SIZE, SIZE, 1), class_ids.reshape(-1)


def train(strategy, loss_name, arguments, recipe, jit_compile=False):
    """Weights and logs after `STEPS` steps of `fit` on the same global batches."""
    images, class_ids = batches()
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((SIZE, SIZE, 1)),
                keras.layers.Conv2D(8, 3, activation="tanh"),
                keras.layers.Flatten(),
                keras.layers.Dense(CLASSES, name="head"),
            ],
            name="net",
        )
        loss = losses.get(loss_name, **arguments)
        model.compile(
            RECIPES[recipe](model.get_layer("head").kernel.path),
            loss,
            metrics=[LossPart(loss, "tightness"), LossPart(loss, "contrastive")],
            jit_compile=jit_compile,
        )
        data = tf.data.Dataset.from_tensor_slices((images, class_ids))
        data = data.batch(BATCH, drop_remainder=True)
        history = model.fit(data, shuffle=False, verbose=0).history
    return {
        "weights": [w.tolist() for w in model.get_weights()],
        "logs": {name: values[-1] for name, values in history.items()},
    }


def gathered(strategy):
    """What each replica gets of rows `[2, 1]` numbered by replica, and the gradient of a sum."""
    replicas = strategy.num_replicas_in_sync

    @tf.function
    def run():
        def replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            mine = tf.cast(number, "float32") * 10.0 + tf.constant([[0.0], [1.0]])
            with tf.GradientTape() as tape:
                tape.watch(mine)
                rows, offset = gather_candidates(mine)
                weights = tf.cast(number + 1, "float32") * tf.range(2.0 * replicas)
                total = tf.reduce_sum(weights * rows[:, 0])
            return rows, offset, tape.gradient(total, mine)

        return strategy.run(replica)

    each = [strategy.experimental_local_results(values) for values in run()]
    return [[np.asarray(value).tolist() for value in values] for values in each]


def train_without_gathering(strategy, case):
    """What comes out if each replica sees the pairs among its own images only."""
    pairs.gather_candidates = lambda x: (x, 0)
    try:
        return train(strategy, *CASES[case])
    finally:
        pairs.gather_candidates = gather_candidates


def main():
    devices, cases = int(sys.argv[1]), sys.argv[2:]
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * devices,
    )
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    one = tf.distribute.get_strategy()
    many = tf.distribute.MirroredStrategy(names)
    results = {
        "devices": many.num_replicas_in_sync,
        "gathered": gathered(many),
        "cases": {
            case: {"one": train(one, *CASES[case]), "many": train(many, *CASES[case])}
            for case in cases
        },
        "not_gathered": train_without_gathering(many, "contrastive"),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
