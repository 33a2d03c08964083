"""The two ways to say how near two embeddings are: what `metric` may be, wherever it is asked."""

from typing import Literal

from keras_dml.errors import ArgumentError

__all__ = ["METRICS", "Metric", "check_metric"]

Metric = Literal["cosine", "l2"]
"""Similarity of directions, higher is nearer; or Euclidean distance, lower is nearer."""
METRICS: tuple[Metric, ...] = ("cosine", "l2")
"""What `metric` may be."""


def check_metric(metric: object) -> None:
    """`ArgumentError` unless it is one of `METRICS`."""
    if not isinstance(metric, str) or metric not in METRICS:
        raise ArgumentError(f"metric must be one of {METRICS}. Received: metric={metric!r}")
