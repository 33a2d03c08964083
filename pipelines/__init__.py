"""Input pipelines: image tables, datasets, samplers, augmentation, and batches.

Tables, datasets, splits, samplers, and transforms need only NumPy and the packages that read a
dataset or an image. The functions for tf.data need TensorFlow, and `BalancedDataset` and
`PairDataset` need Keras. Python imports them when one of their names is first used. If a package is
missing, the error names the extra that installs it.
"""

import importlib
from typing import TYPE_CHECKING

from keras_dml._common.extras import needing
from pipelines.datasets.registry import DATASETS, load_dataset
from pipelines.hard_candidates import HardCandidateSampler
from pipelines.hard_classes import HardClassSampler
from pipelines.images.transforms import EvaluationTransform, TrainTransform
from pipelines.random_access import BatchSource
from pipelines.read_table import read_table
from pipelines.relation_samplers import CatalogSampler, HierarchySampler, TagSampler
from pipelines.samplers import BalancedSampler, RandomSampler
from pipelines.split import Split, split_by_class, training_fold
from pipelines.table import ImageTable

if TYPE_CHECKING:  # __getattr__ imports these at run time
    from pipelines.batches import evaluation_batches, feature_batches, training_batches
    from pipelines.from_dataset import balanced, table_from_dataset
    from pipelines.images.bad_images import find_bad_images
    from pipelines.keras_batches import BalancedDataset, PairDataset

__all__ = [
    "DATASETS",
    "BalancedDataset",
    "BalancedSampler",
    "BatchSource",
    "CatalogSampler",
    "EvaluationTransform",
    "HardCandidateSampler",
    "HardClassSampler",
    "HierarchySampler",
    "ImageTable",
    "PairDataset",
    "RandomSampler",
    "Split",
    "TagSampler",
    "TrainTransform",
    "balanced",
    "evaluation_batches",
    "feature_batches",
    "find_bad_images",
    "load_dataset",
    "read_table",
    "split_by_class",
    "table_from_dataset",
    "training_batches",
    "training_fold",
]

_WITH_TENSORFLOW = {
    "balanced": "pipelines.from_dataset",
    "evaluation_batches": "pipelines.batches",
    "feature_batches": "pipelines.batches",
    "find_bad_images": "pipelines.images.bad_images",
    "table_from_dataset": "pipelines.from_dataset",
    "training_batches": "pipelines.batches",
}


def __getattr__(name: str) -> object:
    if name in ("BalancedDataset", "PairDataset"):
        return getattr(importlib.import_module("pipelines.keras_batches"), name)
    if name not in _WITH_TENSORFLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needing("tensorflow", f"{__name__}.{name}"):
        value = getattr(importlib.import_module(_WITH_TENSORFLOW[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
