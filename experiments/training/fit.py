"""What learns: the embedding, the model around it that is fitted, and its training."""

from typing import Literal, cast

import keras
import tensorflow as tf

from experiments.options import RunOptions
from experiments.options.values import whole_numbers
from experiments.training.callbacks import callbacks
from experiments.training.optimizer import backbone_optimizer
from experiments.training.plan import RunPlan
from experiments.training.run_folder import State
from keras_dml import models
from pipelines import training_batches


def embedding_model(options: RunOptions) -> tuple[keras.Model, keras.Model]:
    """The backbone, and the model from images to embeddings over it."""
    weights = None if options.weights == "none" else options.weights
    backbone = models.build_backbone(
        options.backbone,
        options.image_size,
        weights,
        options.frozen_batch_norm,
        None if options.filters is None else whole_numbers("filters", options.filters),
    )
    return backbone, models.embedding_model(
        backbone,
        options.embedding_size,
        options.feature_batch_norm,
        cast(Literal["average", "max"], options.pooling),
        options.levels,
    )


def compiled_model(run: RunPlan, strategy: tf.distribute.Strategy) -> tuple[keras.Model, ...]:
    """The embedding model, and the compiled one that is fitted: they share their layers."""
    options, objective = run.options, run.objective
    with strategy.scope():
        backbone, embedding = embedding_model(options)
        model = objective.training_model(embedding, run.data.train.num_classes)
        model.compile(
            backbone_optimizer(options, backbone, run.rate),
            **objective.compile_arguments(run.total_steps),
            jit_compile=options.jit_compile,
        )
    return embedding, model


def fit(
    run: RunPlan,
    model: keras.Model,
    embedding: keras.Model,
    strategy: tf.distribute.Strategy,
    state: State,
) -> None:
    """Train from `state` to the end, evaluating and saving after each epoch."""
    if state.epoch >= run.options.epochs:
        return

    def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
        share = training_batches(
            run.data.train,
            run.sampler,
            run.augmentation,
            seed=run.options.seed,
            start_step=state.step,
            input_context=context,
        )
        return run.objective.targets(share)

    model.fit(
        strategy.distribute_datasets_from_function(batches),
        epochs=run.options.epochs,
        initial_epoch=state.epoch,
        steps_per_epoch=run.steps_per_epoch,
        callbacks=callbacks(run, embedding, state),
        shuffle=False,
        verbose=0,
    )
