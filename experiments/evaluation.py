"""Embeddings of a whole table, and their recall at K."""

import numpy as np
import tensorflow as tf

from experiments.progress import progress_bar
from keras_dml.metrics import recall_at_k
from pipelines import EvaluationTransform, evaluation_batches

METRICS = ("cosine", "l2")


class Embedder:
    """Tables of images to float32 embeddings `[n, d]`, in row order.

    Args:
        model: embedding model.
        transform: evaluation transform.
        batch_size: images embedded at once.
    """

    def __init__(self, model, transform, batch_size):
        self.transform = transform
        self.batch_size = batch_size
        # Made once: every new tf.function would be traced anew at each evaluation.
        self._embed = tf.function(
            lambda images: model(images, training=False), reduce_retracing=True
        )

    def __call__(self, table, description="embedding"):
        """The table's embeddings, with a progress bar.

        Raises:
            FloatingPointError: embeddings that are not finite.
        """
        parts = []
        with progress_bar(description, total=len(table)) as bar:
            for images in evaluation_batches(table, self.transform, self.batch_size):
                parts.append(self._embed(images).numpy())
                bar.update(len(parts[-1]))
        embeddings = np.concatenate(parts).astype("float32")
        if not np.isfinite(embeddings).all():
            raise FloatingPointError("the embeddings are no longer finite")
        return embeddings


def recalls(embeddings, labels, ks):
    """Recall at each K for both distances: `{"cosine": {K: share}, "l2": {K: share}}`."""
    return {metric: recall_at_k(embeddings, labels, ks, metric) for metric in METRICS}


def raw_pixels(table, batch_size):
    """The images themselves as vectors: grey levels of 32×32 pixels, `[n, 1024]`.

    The floor that an embedding has to beat. 32×32 keeps it affordable for photographs.
    """
    transform = EvaluationTransform(image_size=32, resize=(32, 32))
    parts = []
    with progress_bar("raw pixels", total=len(table)) as bar:
        for images in evaluation_batches(table, transform, batch_size):
            grey = tf.image.rgb_to_grayscale(images)
            parts.append(tf.reshape(grey, [len(images), -1]).numpy())
            bar.update(len(parts[-1]))
    return np.concatenate(parts)
