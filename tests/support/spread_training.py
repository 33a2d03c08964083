"""Trains on one device and on several of JAX's and prints what came out, for `test_backends.py`.

`python -m tests.support.spread_training CASE...` with `KERAS_BACKEND=jax` and `XLA_FLAGS` that
split the CPU: JAX counts its devices once.
"""

import contextlib
import json
import pathlib
import sys

import keras

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import distributed_training as programs

from keras_dml import models


class OneProcess:
    """Stands for a strategy of TensorFlow's: on JAX the distribution is that of the process."""

    scope = staticmethod(contextlib.nullcontext)


def trained(case):
    """Weights and logs of a loss's case, or of "rankmi", "dropout", "chunks" and "memory"."""
    strategy = OneProcess()
    if case == "rankmi":
        return programs.train_rankmi(strategy)
    if case == "dropout":
        return programs.train_dropout(strategy)
    if case in ("chunks", "memory"):
        wrapped = {
            "chunks": lambda *net, name: models.CachedGradients(keras.Model(*net, name=name), 5),
            "memory": lambda *net, name: models.CrossBatchMemory(
                keras.Model(*net, name=name), 60, start_step=1
            ),
        }
        return programs.train(strategy, "contrastive", {}, "plain", wrapped[case])
    loss, arguments, recipe = programs.CASES[case]
    return programs.train(strategy, loss, arguments, recipe, models.DistributedModel)


def main(cases):
    found = {}
    for case in cases or ["rankmi", "dropout", "chunks", "memory", *programs.CASES]:
        found[case] = []
        for distribution in (None, keras.distribution.DataParallel(auto_shard_dataset=False)):
            keras.distribution.set_distribution(distribution)
            found[case].append(trained(case))
    print(json.dumps({"devices": len(keras.distribution.list_devices()), "cases": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
