"""Input pipelines: tables of images, datasets by name, samplers, augmentation and batches.

Needs TensorFlow (tf.data): `pip install 'keras-dml[tensorflow]'`.
"""

from pipelines.extras import needing

# Said once, here, and not by whichever of the modules below comes first.
with needing("tensorflow", "pipelines"):
    import tensorflow  # noqa: F401
    import tqdm  # noqa: F401

from pipelines.batches import evaluation_batches, training_batches
from pipelines.datasets.registry import DATASETS, load_dataset
from pipelines.images.bad_images import find_bad_images
from pipelines.images.transforms import EvaluationTransform, TrainTransform
from pipelines.samplers import BalancedSampler, RandomSampler
from pipelines.split import Split, split_by_class
from pipelines.table import ImageTable

__all__ = [
    "DATASETS",
    "BalancedSampler",
    "EvaluationTransform",
    "ImageTable",
    "RandomSampler",
    "Split",
    "TrainTransform",
    "evaluation_batches",
    "find_bad_images",
    "load_dataset",
    "split_by_class",
    "training_batches",
]
