"""Embeddings of a whole table, their recall at K, and the accuracy on classes trained on."""

import numpy as np
import tensorflow as tf

from experiments.progress import progress_bar
from keras_dml.distribute import gather_candidates
from keras_dml.metrics import class_mean_accuracy, recall_at_k
from pipelines import EvaluationTransform, evaluation_batches

METRICS = ("cosine", "l2")


class Embedder:
    """Tables of images to float32 embeddings `[n, d]`, in row order.

    The replicas of the model's strategy share the images; every worker gets all embeddings.

    Args:
        model: embedding model.
        transform: evaluation transform.
        batch_size: images embedded at once, on each replica.
    """

    def __init__(self, model, transform, batch_size):
        self.transform = transform
        self.batch_size = batch_size
        self.strategy = model.distribute_strategy

        def embed(images):
            return gather_candidates(model(images, training=False))[0]

        # Made once: every new tf.function would be traced anew at each evaluation.
        self._embed = tf.function(
            lambda images: self.strategy.run(embed, args=(images,)), reduce_retracing=True
        )

    def __call__(self, table, description="embedding"):
        """The table's embeddings, with a progress bar.

        Raises:
            FloatingPointError: embeddings that are not finite.
        """
        batches = self.strategy.distribute_datasets_from_function(
            lambda context: evaluation_batches(table, self.transform, self.batch_size, context)
        )
        parts, left = [], len(table)
        with progress_bar(description, total=left) as bar:
            for images in batches:
                of_all = self.strategy.experimental_local_results(self._embed(images))[0]
                parts.append(of_all.numpy()[:left])  # without the last row's repetitions
                left -= len(parts[-1])
                bar.update(len(parts[-1]))
        embeddings = np.concatenate(parts).astype("float32")
        if not np.isfinite(embeddings).all():
            raise FloatingPointError("the embeddings are no longer finite")
        return embeddings


def recalls(embeddings, labels, ks, **gallery):
    """Recall at each K for both distances: `{"cosine": {K: share}, "l2": {K: share}}`."""
    return {metric: recall_at_k(embeddings, labels, ks, metric, **gallery) for metric in METRICS}


def gallery_arguments(embed, data, description):
    """What `recalls` takes of the gallery: its embeddings and labels; nothing if there is none.

    Args:
        embed: (table, description) -> embeddings.
        data: `Split`.
        description: of the progress bar.
    """
    if data.gallery is None:
        return {}
    embeddings = embed(data.gallery, f"{description}, gallery")
    return {"gallery": embeddings, "gallery_labels": data.gallery.labels}


def closed_set_accuracy(model, embedder, data, embeddings, description):
    """The share of test images given their own class, where those classes were trained on.

    Args:
        model: the fitted model. Where it has a classifier, that gives the class; otherwise the
            means of the training images' embeddings do (Boudiaf et al. 2020, appendix B), so these
            images are embedded as well, as the test images are.
        embedder: `Embedder`.
        data: `Split` with the same classes on both sides.
        embeddings: `[n, d]` of the test images.
        description: of the progress bar.
    """
    for layer in model.layers:
        if layer.name == "logits":
            chosen = tf.argmax(layer(embeddings), axis=1).numpy()
            return float(np.mean(chosen == data.test.labels))
    train = embedder(data.train, description)
    return class_mean_accuracy(train, data.train.labels, embeddings, data.test.labels)


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
