"""Save models that train on this backend, or continue the training of files from any backend.

`python -m tests.support.backend_files FOLDER KIND:OPTIMIZER...` saves `FOLDER/KIND:OPTIMIZER/
BACKEND.keras`, or if it exists loads all files there and prints the weights after one more epoch
as JSON, by kind, optimizer, and the backend that saved the file.
"""

import json
import pathlib
import sys

import keras
import numpy as np

from keras_dml import losses, models, optimizers

RNG = np.random.default_rng(0)
CLASS_IDS = np.tile(np.repeat(np.arange(4), 3), 2)
FEATURES = RNG.normal(size=(24, 6)).astype("float32") + CLASS_IDS[:, None]


def tower(name=None):
    inputs = keras.Input((6,))
    return keras.Model(inputs, keras.layers.Dense(4)(inputs), name=name)


def rankmi():
    network = models.StatisticsNetwork(hidden=4, depth=0, seed=1)
    return models.RankMI(tower(), statistics_network=network, sampling="all")


def around(cls):
    model = tower()
    return cls(model.input, model.output)


KINDS = {
    "rankmi": rankmi,
    "distributed": lambda: around(models.DistributedModel),
    "memory": lambda: models.CrossBatchMemory(tower(), 24),
    "chunks": lambda: models.CachedGradients(tower(), 6),
    "dual": lambda: models.DualEncoder(tower("queries"), tower("candidates")),
}
OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "sgd": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, clipnorm=1.0),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), 1024.0),
    "ours": lambda: optimizers.LayerwiseAdamW(0.01),
    "name": lambda: "adam",
}


def compiled(kind, optimizer):
    keras.utils.set_random_seed(0)
    model, create = KINDS[kind](), OPTIMIZERS[optimizer]
    if kind == "rankmi":
        model.compile(create(), create())
    else:
        model.compile(create(), losses.NTXentLoss())
    return model


def fit(model):
    x = (FEATURES, FEATURES + 0.1) if isinstance(model, models.DualEncoder) else FEATURES
    model.fit(x, CLASS_IDS, batch_size=12, epochs=1, shuffle=False, verbose=0)


def main(folder, *cases):
    found = {}
    for case in cases:
        place = pathlib.Path(folder, case.replace(":", "-"))
        place.mkdir(parents=True, exist_ok=True)
        own = place / f"{keras.backend.backend()}.keras"
        if not own.exists():
            model = compiled(*case.split(":"))
            fit(model)
            model.save(own)
            continue
        for path in sorted(place.iterdir()):
            model = keras.saving.load_model(path)
            assert model.get_compile_config()["jit_compile"] == "auto"
            fit(model)
            weights = [float(x) for weight in model.get_weights() for x in np.ravel(weight)]
            found.setdefault(case, {})[path.stem] = weights
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
