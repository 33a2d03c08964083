"""Benchmark of whole trainings: data, network, loss, optimizer, and evaluation."""

import dataclasses
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from experiments.benchmarks import measuring, torch_training
from experiments.options import Options, RunOptions, option, parse

OURS, PEER = "keras_dml", "torch"
_GLYPHS = "glyphs.flags"
# Batches in memory for the bare `fit`.
_MOST_BARE = 50
_PARTS = ("data", "f+b", "loss", "optimizer", "rest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndToEndOptions(Options):
    """Options of `benchmark end_to_end`.

    Attributes:
        training: Recipe of the trainings.
        losses: Losses, in place of the recipe's.
        data_dir: Folder of the recipe's dataset.
        steps: Steps of a training.
        rounds: Trainings of each program. The table has the medians.
    """

    group = "Measured"

    command = "experiments.benchmark end_to_end"
    intro = """Measure whole trainings on the backend that Keras uses. If pytorch-metric-learning is
installed, the losses multi_similarity and ce also train in torch, with the backbones small_convnet,
efficientnet_lite0, and resnet50_v1_5. There, Pillow decodes photographs.

  keras-dml benchmark end_to_end
  keras-dml benchmark end_to_end --training=cub.flags --data_dir=FOLDER --steps=12

Each training runs in a new process, and the programs take turns. Both have the same images,
batches, network, and learning rates.

  images/s   of the whole training loop, without its first step
  data       milliseconds of a batch if only the data pipeline runs; it overlaps with the steps
  f+b        milliseconds of the forward and backward pass of the network
  loss       additional milliseconds of the loss
  optimizer  additional milliseconds of the optimizer and of train_on_batch
  rest       additional milliseconds of the training loop
  / f+b      ratio of a step of the loop to the forward and backward pass with the loss
  / bare     ratio of a step of the loop to a step of keras.Model.compile("adam", loss) and
             fit(images, class_ids) on the same images in memory
  MB         peak memory of the process
"""

    training: str = option(_GLYPHS)
    losses: tuple[str, ...] = option(("multi_similarity", "ce"))
    data_dir: str | None = option(None)
    steps: int = option(480, lower_bound=2)
    rounds: int = option(3, lower_bound=1)


def measure(options: EndToEndOptions) -> Iterator[str]:
    """Yield the lines of the table."""
    import keras

    has_torch = importlib.util.find_spec("pytorch_metric_learning") is not None
    columns = "".join(f"{name:>10}" for name in (*_PARTS, "/ f+b", "/ bare"))
    yield (
        f"{'network':<24}{'loss':<18}{keras.backend.backend():<11}"
        f"{'images/s':>9}{columns}{'MB':>7}{'R@1, %':>8}"
    )
    for loss in options.losses:
        words = [f"--flagfile={options.training}", f"--loss={loss}"]
        if options.data_dir is not None:
            words.append(f"--data_dir={options.data_dir}")
        run = parse(RunOptions, ["experiments.run", *words])
        programs = {OURS: _ours}
        if has_torch and torch_training.can_train(run):
            programs[PEER] = torch_training.train
        rates = _rates(run, options.steps)
        rows: dict[str, list[measuring.Row]] = {name: [] for name in programs}
        for _ in range(options.rounds):
            for name, program in programs.items():
                # TensorFlow and torch in one process can end with signal 11.
                backend = "torch" if name == PEER else None
                rows[name] += measuring.child_rows(
                    program, words, options.steps, rates, backend=backend
                )
        for name, of_rounds in rows.items():
            yield _line(f"{run.backbone} {run.image_size}", loss, name, of_rounds)


def _rates(options: RunOptions, steps: int) -> list[float]:
    """Return the learning rate of each step."""
    from experiments.training.objectives import objective_of

    rate = objective_of(options).learning_rate(steps)
    return [float(rate(step) if callable(rate) else rate) for step in range(steps)]


def _line(network: str, loss: str, program: str, rows: Sequence[measuring.Row]) -> str:
    of = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    parts, ratio = {"data": of["data"]}, "–"
    if "whole" in of:  # not for a training that alternates between two kinds of steps
        parts |= {
            "f+b": of["f+b"],
            "loss": of["with loss"] - of["f+b"],
            "optimizer": of["whole"] - of["with loss"],
            "rest": of["step"] - of["whole"],
        }
        ratio = f"{of['step'] / of['with loss']:.2f}"
    bare = f"{of['step'] / of['bare']:.2f}" if "bare" in of else "–"
    numbers = "".join(f"{parts[name]:>10.1f}" if name in parts else f"{'–':>10}" for name in _PARTS)
    return (
        f"{network:<24}{loss:<18}{program:<11}{1000 * of['images'] / of['step']:>9,.0f}"
        f"{numbers}{ratio:>10}{bare:>10}{of['MB']:>7.0f}{100 * of['R@1']:>8.1f}"
    )


def _ours(words: Sequence[str], steps: int, rates: Sequence[float]) -> Iterator[measuring.Row]:
    """Train as a run with these flags does, and yield the row."""
    import keras

    from experiments.evaluation.embed import TableEmbedder
    from experiments.options import data
    from experiments.training.encoders import embedding_model
    from experiments.training.objectives import objective_of
    from experiments.training.optimizer import optimizer
    from keras_dml.metrics import recall_at_k
    from pipelines import training_batches

    options = parse(RunOptions, ["experiments.run", *words])
    split = data.load(options)
    sampler = data.sampler(options, split.train, options.seed)
    objective = objective_of(options)
    keras.utils.set_random_seed(0)
    _, embedding = embedding_model(options)
    model = objective.training_model(embedding, split.train.num_classes)
    model.compile(
        optimizer(options, objective.learning_rate(steps)),
        **objective.compile_arguments(steps),
        jit_compile=keras.backend.backend() == "jax",
    )
    transform = data.training_transform(options)
    batches = objective.targets(training_batches(split.train, sampler, transform, options.seed))
    step = _milliseconds_of_a_step(model, batches, steps_per_epoch=steps)
    embedder = TableEmbedder(embedding, data.evaluation_transform(options), options.eval_batch_size)
    row = {"images": sampler.batch_size, "MB": measuring.peak_megabytes(), "step": step}
    embeddings = embedder(split.test)
    iterator = iter(batches)
    images, ids = next(iterator)
    row["data"] = measuring.milliseconds_of_a_batch(lambda: next(iterator), min(steps, 50))
    if model.wrapped is None:
        loss = objective.compile_arguments(steps)["loss"]
        inputs = keras.ops.convert_to_tensor(np.asarray(images))
        targets = keras.ops.convert_to_tensor(np.asarray(ids))
        row |= measuring.milliseconds_in_turns(
            {
                "f+b": _backward(model, inputs, keras.ops.sum),
                "with loss": _backward(model, inputs, lambda outputs: loss(targets, outputs)),
                "whole": lambda: float(model.train_on_batch(images, ids)[0]),
            }
        )
        # Other layers, because a model's optimizer and functions belong to its layers.
        again = objective.training_model(embedding_model(options)[1], split.train.num_classes)
        bare = keras.Model(again.input, again.output)
        bare.compile("adam", loss, jit_compile=keras.backend.backend() == "jax")
        some = itertools.islice(batches, min(steps, _MOST_BARE))
        arrays = [np.concatenate(each) for each in zip(*some)]
        row["bare"] = _milliseconds_of_a_step(bare, *arrays, batch_size=sampler.batch_size)
    row["R@1"] = recall_at_k(embeddings, split.test.labels, [1])[1]
    yield row


def _milliseconds_of_a_step(model: Any, *data: Any, **options: Any) -> float:
    """Return the mean milliseconds of a step of `fit` after the first one."""
    import keras

    ends = []

    def on_step(batch: int, logs: Any) -> None:
        float(logs["loss"])  # waits for the step, as the progress bar of a run does
        ends.append(time.perf_counter())

    timer = keras.callbacks.LambdaCallback(on_train_batch_end=on_step)
    model.fit(*data, callbacks=[timer], shuffle=False, verbose=0, **options)
    return 1000 * (ends[-1] - ends[0]) / (len(ends) - 1)


def _backward(model: Any, images: Any, value: Callable[[Any], Any]) -> measuring.Step:
    """Return a step that computes the gradients of a value of the outputs."""
    import keras

    from keras_dml._backend.steps import compiled, gradients

    def step(images: Any) -> list[Any]:
        _, _, found, _ = gradients(
            lambda: (value(model(images, training=True)), None),
            model.trainable_variables,
            states=model.non_trainable_variables,
        )
        return [gradient for gradient in found if gradient is not None]

    call = compiled(step, model.variables)
    return lambda: [keras.ops.convert_to_numpy(gradient) for gradient in call(images)]
