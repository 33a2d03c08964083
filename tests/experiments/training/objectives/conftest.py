"""Fixtures: a small embedding with two levels, and the objective of a command line."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from batches import images
from tiny_run import run_options

from experiments.training import encoders
from experiments.training.objectives import objective_of
from experiments.training.objectives.base import Objective
from experiments.training.optimizer import backbone_optimizer


@dataclasses.dataclass
class Tiny:
    """Eight images of four classes, and a small model with two levels and its objective."""

    objective: Objective
    embedding: keras.Model
    model: keras.Model
    images: np.ndarray
    class_ids: np.ndarray

    def batches(self, steps=1, inputs=None, classes=None):
        """Return one batch of the images, or of other inputs, for each step."""
        inputs = self.images if inputs is None else inputs
        batches = tf.data.Dataset.from_tensors((inputs, self.class_ids)).repeat(steps)
        return self.objective.targets(batches, classes)

    def evaluate(self, **more):
        return self.model.evaluate(self.batches(**more), verbose=0, return_dict=True)

    def fit(self, steps, classes=None):
        return self.model.fit(self.batches(steps, classes=classes), verbose=0).history

    def embeddings(self):
        return self.embedding(self.images, training=False).numpy()


@pytest.fixture
def level_names():
    return ["stage1_conv2_relu", "stage2_conv2_relu"]


@pytest.fixture
def tiny(level_names):
    """Function: flags -> `Tiny`, with two levels or without levels."""

    def build(*words, two_levels=True):
        small = ["--backbone=small_convnet", "--filters=4,6", "--weights=none", "--image_size=16"]
        small += ["--embedding_size=5"]
        levels = [f"--levels={','.join(level_names)}"] if two_levels else []
        options = run_options(*small, *levels, *words)
        objective = objective_of(options)
        keras.utils.set_random_seed(3)
        backbone, embedding = encoders.embedding_model(options)
        model = objective.training_model(embedding, 4)
        optimizer = backbone_optimizer(options, [backbone], 0.01)
        model.compile(optimizer, **objective.compile_arguments(10))
        return Tiny(objective, embedding, model, images(16, 8), np.repeat(np.arange(4), 2))

    return build


@pytest.fixture
def objective():
    """Function: flags -> `Objective`."""
    return lambda *words: objective_of(run_options(*words))
