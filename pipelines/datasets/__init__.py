"""Datasets: annotations and downloads, one module for each dataset."""

from pipelines.datasets.registry import DATASETS, load_dataset

__all__ = ["DATASETS", "load_dataset"]
