"""Metrics: recall at K and accuracy of whole sets of embeddings, the parts of a loss in `fit`."""

from keras_dml.metrics.accuracy import class_mean_accuracy
from keras_dml.metrics.loss_part import LossPart
from keras_dml.metrics.recall import nearest_neighbours, recall_at_k

__all__ = ["LossPart", "class_mean_accuracy", "nearest_neighbours", "recall_at_k"]
