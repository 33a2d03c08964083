"""Datasets: one file each, their annotations and downloads."""

from pipelines.datasets.registry import DATASETS, load_dataset

__all__ = ["DATASETS", "load_dataset"]
