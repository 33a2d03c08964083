"""The two ways to say how near two embeddings are: what `metric` may be, wherever it is asked."""

from typing import Literal

__all__ = ["METRICS", "Metric"]

Metric = Literal["cosine", "l2"]
"""Similarity of directions, higher is nearer; or Euclidean distance, lower is nearer."""
METRICS: tuple[Metric, ...] = ("cosine", "l2")
"""What `metric` may be."""
