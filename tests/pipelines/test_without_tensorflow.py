"""`import pipelines` needs only NumPy, and imports TensorFlow when a name needs it."""

import re

import pytest
from without import run_without

import pipelines

WORKS = """
import sys
import numpy as np
import pipelines

assert "glyphs" in pipelines.DATASETS
table = pipelines.ImageTable.from_arrays(np.zeros([6, 4, 4, 1], np.uint8), list("aabbcc"))
split = pipelines.split_by_class(table, 1)
assert (len(split.train), len(split.test)) == (2, 4)
assert sorted(pipelines.RandomSampler(6, 6)(0)) == list(range(6))
assert len(pipelines.BalancedSampler(table.labels, 2, 2)(3)) == 4
try:
    pipelines.load_dataset("nothing")
except ValueError as error:
    print(error)
assert not {"tensorflow", "tqdm", "keras"} & set(sys.modules)
"""
NAMED = """
import pipelines
def call():
    pipelines.TrainTransform(8)(b"", [0, 0])

for use in (call, *(lambda name=name: getattr(pipelines, name)
                    for name in ("evaluation_batches", "find_bad_images", "training_batches"))):
    try:
        use()
    except ImportError as error:
        print(f"{type(error).__name__}: {error}")
"""


def test_tables_do_not_import_an_installed_tensorflow(tmp_path):
    done = run_without((), ["-c", WORKS], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("dataset must be one of cars, ")


BATCHES = """
import io
import sys
import numpy as np
import pipelines
from PIL import Image

file = io.BytesIO()
Image.fromarray(np.full([20, 30, 3], 7, np.uint8)).save(file, "JPEG")
table = pipelines.ImageTable.from_encoded([file.getvalue()] * 6, list("aabbcc"))
sampler = pipelines.BalancedSampler(table.labels, 2, 2)
assert not {"tensorflow", "keras"} & set(sys.modules)
transform = pipelines.TrainTransform(8, jitter=(0.1, 0.1, 0.1, 0.1))
images, labels = pipelines.BalancedDataset(table, sampler, transform)[5]
assert images.shape == (4, 8, 8, 3) and len(set(labels)) == 2
assert "tensorflow" not in sys.modules
"""


@pytest.mark.slow
def test_images_are_decoded_and_augmented_without_tensorflow(tmp_path):
    done = run_without(("tensorflow",), ["-c", BATCHES], tmp_path, KERAS_BACKEND="jax")
    assert done.returncode == 0, done.stderr


def test_missing_tensorflow_is_a_one_line_error(tmp_path):
    done = run_without(("tensorflow",), ["-c", NAMED], tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    for line in lines:
        pattern = r"MissingExtraError: .+ needs tensorflow: .*keras-dml\[tensorflow\]'"
        assert re.fullmatch(pattern, line), line


def test_lazy_names_are_listed():
    assert set(pipelines.__all__) <= set(dir(pipelines))
    with pytest.raises(AttributeError, match="'pipelines' has no attribute 'training_batch'"):
        pipelines.training_batch  # noqa: B018
