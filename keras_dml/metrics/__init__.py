"""Metrics: recall at K of whole sets of embeddings, the parts of a loss during `fit`."""

from keras_dml.metrics.loss_part import LossPart
from keras_dml.metrics.recall import nearest_neighbours, recall_at_k

__all__ = ["LossPart", "nearest_neighbours", "recall_at_k"]
