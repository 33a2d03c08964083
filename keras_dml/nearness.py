"""The two metrics of nearness of two embeddings: the values of `metric` arguments."""

from typing import Literal

__all__ = ["METRICS", "Metric"]

Metric = Literal["cosine", "l2"]
"""Cosine similarity, higher is nearer, or Euclidean distance, lower is nearer."""
METRICS: tuple[Metric, ...] = ("cosine", "l2")
"""The valid values of `metric`."""
