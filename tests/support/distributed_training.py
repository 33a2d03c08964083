"""Train on one device and on several, and print the results as JSON, for `test_distribute.py`.

`python -m tests.support.distributed_training DEVICES` splits the CPU into logical devices. The
split must happen before TensorFlow starts, and would affect all other tests, so it needs a process.
With `TF_CONFIG`, the process is one of several workers with one device each. `more` trains the
cases that the quick tests leave out. On JAX, the arguments are the cases, and `XLA_FLAGS` splits
the CPU (`test_backends.py`).
"""

import contextlib
import functools
import json
import os
import pathlib
import re
import sys

import keras
import numpy as np
import tensorflow as tf

import keras_dml
import pipelines
from experiments.evaluation.embed import TableEmbedder
from keras_dml import layers, losses, models, optimizers, relations
from keras_dml._backend.replicas import gather_candidates
from keras_dml.metrics import LossPart

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from loss_cases import NON_DEFAULT

BATCH, STEPS, SIZE, CLASSES = 24, 5, 6, 4
ON_JAX = keras.backend.backend() == "jax"


def sgd(path, velocity="keras"):
    return optimizers.CoupledSGD(
        optimizers.WarmCosine(0.05, STEPS, 2),
        momentum=0.9,
        nesterov=True,
        velocity=velocity,
        coupled_weight_decay=0.1,
        learning_rate_multipliers={path: 0.1},
    )


def several_optimizers(path):
    """Return optimizers that Keras assigns variable by variable at build time."""
    found = {
        "kernel": keras.optimizers.SGD(0.5, global_clipnorm=0.1),
        "bias": keras.optimizers.SGD(0.1),
    }
    return keras.optimizers.MultiOptimizer(lambda variable: found[variable.name])


# The thresholds clip every step, and the parts of two replicas differently.
RECIPES = {
    "plain": lambda path: keras.optimizers.SGD(0.05),
    "sgd": sgd,
    "velocity": lambda path: sgd(path, "torch"),
    "adam": lambda path: optimizers.CoupledAdam(
        0.01, coupled_weight_decay=0.1, learning_rate_multipliers={path: 0.1}
    ),
    "clipped": lambda path: optimizers.CoupledSGD(0.5, global_clipnorm=0.1),
    "clipnorm": lambda path: optimizers.CoupledSGD(0.5, clipnorm=0.05),
    "clipvalue": lambda path: optimizers.CoupledSGD(0.5, clipvalue=0.01),
    "keras_sgd": lambda path: keras.optimizers.SGD(0.5, global_clipnorm=0.1),
    "keras_adamw": lambda path: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.1),
    "keras_scaled": lambda path: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.5, global_clipnorm=0.1), initial_scale=1024.0, dynamic_growth_steps=2
    ),
    "keras_several": several_optimizers,
    "averaged": lambda path: optimizers.LayerwiseAdamW(
        0.01,
        decoupled_weight_decay=0.1,
        learning_rate_multipliers={path: 0.1},
        use_ema=True,
        ema_momentum=0.5,
    ),
}
# A `keras.Model` trains on the devices of one TensorFlow process only.
MODEL = models.DistributedModel if ON_JAX or "TF_CONFIG" in os.environ else keras.Model
# Losses whose parts are recorded, too.
WITH_PARTS = ("contrastive", "ce", "quadruplet")
# Images to embed: no batch size and no number of replicas divides this number.
IMAGES = 23


def batches():
    """Return batches in which neighboring rows differ in class: positive pairs span replicas."""
    rng = np.random.default_rng(0)
    class_ids = np.stack([rng.permutation(np.arange(BATCH) % CLASSES) for _ in range(STEPS)])
    images = rng.normal(size=(STEPS, BATCH, SIZE, SIZE, 1)).astype("float32")
    images += class_ids[..., None, None, None] / CLASSES
    data = tf.data.Dataset.from_tensor_slices(
        (images.reshape(-1, SIZE, SIZE, 1), class_ids.reshape(-1))
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.batch(BATCH, drop_remainder=True).with_options(options)


def network(*more):
    """Return input and output of a small net; `more` layers come after its convolution."""
    inputs = keras.Input((SIZE, SIZE, 1))
    x = keras.layers.Conv2D(8, 3, activation="tanh")(inputs)
    for layer in (*more, keras.layers.Flatten(), keras.layers.Dense(CLASSES, name="head")):
        x = layer(x)
    return inputs, x


def fitted(model, data=None):
    """Return weights and logs after `STEPS` steps of `fit`."""
    data = batches() if data is None else data
    history = model.fit(data, shuffle=False, verbose=0).history
    return {
        "weights": [w.tolist() for w in model.get_weights() if w.dtype.kind == "f"],
        "logs": {name: float(values[-1]) for name, values in history.items()},
    }


@contextlib.contextmanager
def building(strategy):
    """Build models with the same initial weights in the scope of a strategy."""
    with strategy.scope():
        keras.utils.set_random_seed(1)
        yield


def train(strategy, build, **named):
    """Train the model that `build` returns in the strategy's scope, on its data if it has any."""
    with building(strategy):
        model, *data = build(**named)
    return fitted(model, *data)


def of_loss(loss_name, arguments, recipe="plain"):
    """Build a model with a loss."""
    loss = losses.get(loss_name, **arguments)
    inputs, x = network()
    if loss.kind == "proxies":  # which compare cosines
        x = keras.layers.Activation("tanh")(x)
    # These optimizers clip each replica's part in a `keras.Model`.
    cls = models.DistributedModel if recipe.startswith("keras_") else MODEL
    model = cls(inputs, x, name="net")
    parts = ("tightness", "contrastive") if loss_name in WITH_PARTS else ()
    metrics = [LossPart(loss, part) for part in parts]
    model.compile(RECIPES[recipe](model.get_layer("head").kernel.path), loss, metrics=metrics)
    return (model,)


def small_rankmi():
    statistics = models.StatisticsNetwork(hidden=8, depth=1, seed=2)
    return models.RankMI(
        keras.Model(*network(), name="net"), statistics_network=statistics, alpha=1.0
    )


def rankmi(steps_per_execution=1, **clipping):
    """Build RankMI's alternation."""
    model = small_rankmi()
    rates = (keras.optimizers.SGD(0.05, **clipping), keras.optimizers.Adam(0.01, **clipping))
    model.compile(*rates, steps_per_execution=steps_per_execution)
    return (model,)


def dropout_classifier():
    embedding = keras.Model(*network(), name="net")
    return embedding, models.classifier_model(embedding, CLASSES, dropout=0.5, seed=3)


def dropout():
    """Build a classifier with dropout."""
    _, classifier = dropout_classifier()
    model = models.DistributedModel(classifier.input, classifier.output)
    model.compile(keras.optimizers.SGD(0.5), losses.get("ce"))
    return (model,)


def proxies():
    """Build a loss that exchanges sums, with centers, a regularizer, and a faster proxy rate."""
    embedding = keras.Model(*network(), name="net")
    regularizer = layers.CenterRegularizer(2)
    classes = models.proxy_model(
        embedding, CLASSES, centers=2, pooling="soft", proxies_regularizer=regularizer
    )
    model = models.DistributedModel(classes.input, classes.output)
    faster = optimizers.multipliers(classes.get_layer("proxy_head"), 10)
    optimizer = optimizers.CoupledSGD(0.01, learning_rate_multipliers=faster)
    model.compile(optimizer, losses.ProxyAnchorLoss(scale=8.0))
    return (model,)


def sampled_proxies():
    """Build a head that samples the classes, half of its 12, after replicas wait for each other."""
    norm = keras.layers.BatchNormalization(synchronized=True)
    embedding = keras.Model(*network(norm), name="net")
    model = models.proxy_model(embedding, 12, sampled=0.5, seed=3)
    model.compile(optimizers.CoupledSGD(0.1, momentum=0.9), losses.ArcFaceLoss(8.0))
    return (model,)


def memory(steps_per_execution=1):
    """Build a memory of two and a half batches, filled from an empty start.

    Several steps per execution are also tried in chunks.
    """
    model = keras.Model(*network(), name="net")
    if steps_per_execution > 1:
        model = in_chunks(model)
    model = models.CrossBatchMemory(model, 60, weight=0.5, start_step=1)
    loss = losses.SupConLoss()
    parts = [LossPart(loss, "tightness"), LossPart(loss, "contrastive")]
    model.compile(
        optimizers.CoupledAdam(0.01), loss, metrics=parts, steps_per_execution=steps_per_execution
    )
    return (model,)


def in_chunks(model):
    """Return a model for chunks of each replica's part of the batch; unchanged on one device."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return models.CachedGradients(model, 5) if replicas > 1 or ON_JAX else model


def chunks():
    """Build a classifier with dropout, in chunks or at once."""
    embedding, classifier = dropout_classifier()
    outputs = {"embeddings": embedding.output, "logits": classifier.output}
    model = in_chunks(models.DistributedModel(classifier.input, outputs))
    both = {"embeddings": losses.SupConLoss(), "logits": losses.get("ce")}
    model.compile(optimizers.CoupledSGD(0.1, global_clipnorm=1.0), both)
    return model, batches().map(lambda x, ids: (x, dict.fromkeys(both, ids)))


def dual(labeled=False):
    """Build two encoders with a learned scale: against a memory if labeled, or else in chunks."""
    encoders = [keras.Model(*network(), name=name) for name in ("queries", "candidates")]
    model = models.DualEncoder(*encoders, scale=5.0)
    model = models.CrossBatchMemory(model, 60, start_step=1) if labeled else in_chunks(model)
    model.compile(keras.optimizers.SGD(0.05), losses.NTXentLoss(temperature=1.0))

    def both(images, class_ids):
        sets = (images, images[:, ::-1])
        return (sets, class_ids) if labeled else (sets,)

    return model, batches().map(both)


def compatible(proxies=False):
    """Build a model that is compared with old embeddings, or with old proxies of three classes."""
    model = keras.Model(*network(), name="net")
    head, loss = None, losses.MultiSimilarityLoss(beta=10.0)
    if proxies:
        head, loss = layers.ProxyHead(3), losses.NormSoftmaxLoss()
        head.build((None, 3))
        model = models.proxy_model(model, CLASSES)
    alignment = 0.0 if proxies else 1.5
    model = models.BackwardCompatible(model, 3, weight=0.5, alignment=alignment, old_head=head)
    model.compile(keras.optimizers.SGD(0.05), loss)
    return model, batches().map(lambda x, ids: (x, (ids, x[:, 0, :3, 0])))


def tags():
    """Build a model with a relation: two tags of each image, its class and the next class."""
    model = models.DistributedModel(*network(), name="net")
    loss = losses.SupConLoss(relation=relations.SharesLabel())
    model.compile(keras.optimizers.SGD(0.05), loss)

    def two_tags(images, class_ids):
        return images, tf.one_hot(class_ids, CLASSES) + tf.one_hot((class_ids + 1) % 4, CLASSES)

    return model, batches().map(two_tags)


class Masked(keras.layers.Layer):
    """A layer whose mask keeps the images with a positive first number."""

    supports_masking = True

    def call(self, x):
        return x

    def compute_mask(self, inputs, previous_mask=None):
        return inputs[:, 0] > 0


def weighted(masked=False):
    """Build a mean over weights, or over the images that a mask keeps, which replicas share
    unequally."""
    inputs, x = network()
    model = MODEL(inputs, Masked()(x) if masked else x)
    reduction = "mean" if masked else "mean_with_sample_weight"
    loss = losses.MultiSimilarityLoss(beta=10.0, reduction=reduction)
    model.compile(keras.optimizers.SGD(0.05), loss)
    return model, batches().map(lambda x, ids: (x, ids, tf.cast(ids**2, "float32")))


# Functions that build: each loss as its oracle declares it, the other recipes, wrappers, and heads.
CASES = {
    **{str(case): functools.partial(of_loss, case.name, case.arguments) for case in NON_DEFAULT},
    **{
        recipe: functools.partial(of_loss, "multi_similarity", {"beta": 10.0}, recipe)
        for recipe in RECIPES
        if recipe != "plain"
    },
    "rankmi_model": rankmi,
    "proxies": proxies,
    "sampled_proxies": sampled_proxies,
    "memory": memory,
    "chunks": chunks,
    "dropout": dropout,
    "dual": dual,
    "dual_memory": functools.partial(dual, labeled=True),
    "compatible": compatible,
    "compatible_proxies": functools.partial(compatible, proxies=True),
    "tags": tags,
    "rankmi_clipped": functools.partial(rankmi, global_clipnorm=0.1),
    "weighted": weighted,
    "masked": functools.partial(weighted, masked=True),
}
QUICK = [*(str(case) for case in NON_DEFAULT if case.quick), "rankmi_model", "weighted", "masked"]
"""The cases of the quick tests: losses whose oracle is marked as quick, RankMI's model, and means
over weights."""
MORE = [case for case in CASES if case not in QUICK]
"""The cases that only the longer checks train."""
ON_WORKERS = [case for case in QUICK if not case.startswith(("contrastive", "masked"))]
"""The quick cases of two workers: a classifier, RankMI's model, and a weighted loss over pairs."""


def train_batch_norm(strategy, synchronized):
    """Return batch norm's moving mean per replica of this worker, before and after averaging."""
    with building(strategy):
        norm = keras.layers.BatchNormalization(momentum=0.5, synchronized=synchronized)
        model = models.DistributedModel(*network(norm))
        model.compile(keras.optimizers.SGD(0.05), losses.get("ce"))
    found = fitted(model)
    for when in ("before", "after"):
        values = strategy.experimental_local_results(norm.moving_mean.value)
        found[when] = [np.asarray(value).tolist() for value in values]
        model.average_statistics()
    return found


def unequal_rows(strategy, known):
    """Return the error when replica r gathers 2 + r rows."""
    shape = [None, 1]
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: tf.zeros([2 + context.replica_id_in_sync_group, 1])
    )

    def gather(x):
        x = x if known else tf.ensure_shape(tf.boolean_mask(x, x[:, 0] == 0), shape)
        return gather_candidates(x)[0]

    try:
        tf.function(lambda x: strategy.run(gather, args=(x,)))(rows)
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        return f"{type(error).__name__}: {error}"


def compiled(optimizer, cls=models.DistributedModel, **arguments):
    model = cls(*network(), name="net")
    model.compile(optimizer, losses.MultiSimilarityLoss(), **arguments)
    return model


def compiled_later():
    model = compiled("sgd")
    model.jit_compile = True
    fitted(model)


ACCUMULATING = {"gradient_accumulation_steps": 2}
# Cases that several replicas do not support.
REFUSED = {
    "jit_compile": lambda: compiled("sgd", jit_compile=True),
    "jit_compile_later": compiled_later,
    "accumulation": lambda: compiled(keras.optimizers.SGD(**ACCUMULATING)),
    "accumulation_scaled": lambda: compiled(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(**ACCUMULATING))
    ),
    "accumulation_ours": lambda: fitted(
        compiled(optimizers.CoupledSGD(**ACCUMULATING), keras.Model)
    ),
    "accumulation_rankmi": lambda: small_rankmi().compile(
        "sgd", keras.optimizers.SGD(**ACCUMULATING)
    ),
}


def refusals(strategy):
    """Return the errors of `compile` and `fit` for unsupported cases on several replicas."""
    found = {}
    for name, attempt in REFUSED.items():
        with strategy.scope():
            try:
                attempt()
                found[name] = "nothing"
            except Exception as error:  # any exception: the test checks it
                found[name] = f"{type(error).__name__}: {error}"
    return found


def overflow(strategy):
    """Return the weights after a step whose gradient is infinite only on the last replica."""
    with building(strategy):
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


def custom_loop(strategy):
    """Return the weights and the losses after the training loop of the guide to devices."""
    text = (pathlib.Path(__file__).parents[2] / "docs/pages/guides/devices.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (code,) = [block for block in blocks if "GradientTape" in block]
    with building(strategy):
        names = {"model": keras.Model(*network(), name="net")}
    names |= {"strategy": strategy, "keras_dml": keras_dml, "tf": tf}
    names["batches"] = strategy.experimental_distribute_dataset(batches())
    exec(code, names)
    return {"weights": [w.tolist() for w in names["model"].get_weights()], "loss": names["values"]}


def embedded(strategy):
    """Return embeddings (the images' means) for several batch sizes, in image order."""
    with strategy.scope():
        inputs = keras.Input((8, 8, 3))
        model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(inputs))
    pixels = np.broadcast_to(np.arange(IMAGES)[:, None, None, None], (IMAGES, 8, 8, 3))
    table = pipelines.ImageTable.from_arrays(pixels.astype("uint8"), np.arange(IMAGES))
    transform = pipelines.EvaluationTransform(8)
    embedders = {size: TableEmbedder(model, transform, size, again=True) for size in (3, 64)}
    for embedder in embedders.values():
        embedder(table)
    again = {size: embedder(table)[:, 0].tolist() for size, embedder in embedders.items()}
    # Like an evaluation that resumes after five images.
    rest = TableEmbedder(model, transform, 3).batches(table, first_row=5)
    return again | {"rest": [*range(5), *np.concatenate(list(rest))[:, 0].tolist()]}


def devices(count):
    """Return a strategy over this many devices of this process."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * count
    )
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    return tf.distribute.MirroredStrategy(names)


def on_logical_devices(count):
    """Train the quick cases on `count` devices; if `count` is 2, on one device, too."""
    many = devices(count)
    results = {"many": trained(many, QUICK)}
    if count == 2:
        results["one"] = trained(tf.distribute.get_strategy(), QUICK)
        results["batch_norm"] = train_batch_norm(many, synchronized=False)
        results["unequal"] = [unequal_rows(many, known) for known in (True, False)]
        for side, strategy in (("one", tf.distribute.get_strategy()), ("many", many)):
            results[side]["synchronized"] = train_batch_norm(strategy, synchronized=True)
    return {**results, "embedded": embedded(many)}


def more_on_logical_devices(count):
    """Train the other cases on `count` devices; if `count` is 2, on one device, too."""
    many = devices(count)
    strategies = {"many": many} | ({"one": tf.distribute.get_strategy()} if count == 2 else {})
    results = {
        side: {
            **trained(strategy, MORE),
            "overflow": overflow(strategy),
            "loop": custom_loop(strategy),
        }
        for side, strategy in strategies.items()
    }
    if count == 2:
        results["several_steps"] = train(many, rankmi, steps_per_execution=3)
        results["several_steps_with_memory"] = train(many, memory, steps_per_execution=3)
        # Last, because an error during a step consumes the strategy's messages.
        results["refusals"] = refusals(many)
    return results


def trained(strategy, cases):
    """Train these cases and return their results by name."""
    return {case: train(strategy, CASES[case]) for case in cases}


def as_worker(more):
    """Return the results on one of several workers: of the quick cases, or of the others."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if more:
        several_steps = train(strategy, rankmi, steps_per_execution=3)
        others = [case for case in CASES if case not in ON_WORKERS]
        return {**trained(strategy, others), "several_steps": several_steps}
    return {
        "cases": trained(strategy, ON_WORKERS),
        "batch_norm": train_batch_norm(strategy, synchronized=False),
        "embedded": embedded(strategy),
    }


def on_devices_of_jax(cases):
    """Train these cases on one and on several devices; JAX splits the CPU at its start."""
    strategy = tf.distribute.get_strategy()  # on JAX, the process sets the distribution
    found = {case: [] for case in cases}
    for case in cases:
        for distribution in (None, keras.distribution.DataParallel(auto_shard_dataset=False)):
            keras.distribution.set_distribution(distribution)
            found[case].append(train(strategy, CASES[case]))
    return {"devices": len(keras.distribution.list_devices()), "cases": found}


if __name__ == "__main__":
    if ON_JAX:
        results = on_devices_of_jax(sys.argv[1:])
    elif "TF_CONFIG" in os.environ:
        results = as_worker(sys.argv[1:] == ["more"])
    elif sys.argv[2:] == ["more"]:
        results = more_on_logical_devices(int(sys.argv[1]))
    else:
        results = on_logical_devices(int(sys.argv[1]))
    print(json.dumps(results))
