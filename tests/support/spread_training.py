"""Train on one and on several JAX devices, and print the results, for `test_backends.py`.

`python -m tests.support.spread_training CASE...` with `KERAS_BACKEND=jax` and `XLA_FLAGS` that
split the CPU, because JAX counts its devices only once.
"""

import contextlib
import functools
import json
import pathlib
import sys

import keras

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import distributed_training as programs

from keras_dml import models


class OneProcess:
    """A stand-in for a TensorFlow strategy: on JAX, the process sets the distribution."""

    scope = staticmethod(contextlib.nullcontext)


OTHERS = {
    "rankmi": programs.train_rankmi,
    "dropout": programs.train_dropout,
    "proxies": programs.train_proxies,
    "chunks": functools.partial(programs.train_chunks, chunk_size=5),
    "memory": programs.train_memory,
}
"""Cases that train in another way than a loss in `fit`."""


def trained(case):
    """Return weights and logs of a loss's case, or of a case in `OTHERS`."""
    strategy = OneProcess()
    if case in OTHERS:
        return OTHERS[case](strategy)
    loss, arguments, recipe = programs.CASES[case]
    return programs.train(strategy, loss, arguments, recipe, models.DistributedModel)


def main(cases):
    found = {}
    for case in cases:
        found[case] = []
        for distribution in (None, keras.distribution.DataParallel(auto_shard_dataset=False)):
            keras.distribution.set_distribution(distribution)
            found[case].append(trained(case))
    print(json.dumps({"devices": len(keras.distribution.list_devices()), "cases": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
