"""Python functions of a pipeline are freed with the pipeline."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from pipelines import python_calls
from pipelines.batches import evaluation_batches
from pipelines.images.transforms import EvaluationTransform
from pipelines.python_calls import map_numpy
from pipelines.table import ImageTable


def kept_by_tensorflow():
    """Return the number of functions that TensorFlow keeps until the process ends."""
    return len(getattr(tf.compat.v1.get_default_graph(), "_py_funcs_used_in_graph", ()))


def table(seed):
    images = np.random.default_rng(seed).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    return ImageTable.from_arrays(images, [0, 1, 1])


def images_of(table):
    (batch,) = list(evaluation_batches(table, EvaluationTransform(8)))
    return batch.numpy()


@pytest.mark.slow  # garbage collection also visits the objects of other tests
def test_table_is_freed_with_its_pipeline():
    # The first graph keeps the function, and other tests can have cleared this graph.
    python_calls._caller.cache_clear()
    images_of(table(0))
    gc.collect()
    kept, called = kept_by_tensorflow(), len(python_calls._functions)
    assert kept > 0
    for seed in (1, 2):
        images = table(seed)
        np.testing.assert_array_equal(images_of(images), images.arrays.astype("float32"))
        gone = weakref.ref(images)
        del images
        gc.collect()
        assert gone() is None
    assert (kept_by_tensorflow(), len(python_calls._functions)) == (kept, called)


@pytest.mark.slow
def test_function_lives_as_long_as_datasets_made_from_it():
    def rows(factor):
        def look_up(step):
            return (np.full(2, factor * step),)

        steps = tf.data.Dataset.range(4)
        return map_numpy(steps, look_up, (tf.int64, [])).unbatch().batch(4).prefetch(1)

    first, second = rows(1), iter(rows(10))
    gc.collect()
    batches = [batch.numpy().tolist() for (batch,) in second]
    assert batches == [[0, 0, 10, 10], [20, 20, 30, 30]]
    both = tf.data.Dataset.zip((first, rows(100)))
    del first
    gc.collect()
    assert [int(b[0] + a[3]) for (a,), (b,) in both] == [1, 203]
