"""Embeddings of a SavedModel if some images cannot be decoded."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.evaluation.saved_model import ImageEmbedder


@pytest.mark.parametrize("error", [tf.errors.InvalidArgumentError, tf.errors.CancelledError])
def test_other_images_are_embedded_despite_a_bad_image(error):
    """Under load, TensorFlow may raise an error that does not name the bad image."""

    def signature(images):
        if b"bad" in images.numpy():
            raise error(None, None, "Function was cancelled before it was started")
        return {"embeddings": tf.ones([len(images), 2])}

    embedder = ImageEmbedder.__new__(ImageEmbedder)
    embedder._function, embedder._input, embedder.dimensions = signature, "images", 2
    embeddings, bad = embedder([b"1", b"2", b"bad", b"4", b"5"])
    np.testing.assert_array_equal(embeddings[:, 0], [1, 1, 0, 1, 1])
    assert bad == {2: "not a JPEG, PNG, WebP, BMP or GIF image"}
