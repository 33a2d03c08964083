"""Comparison of an export with the model in Keras."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from experiments.evaluation.model_embeddings import naming_bad_images
from experiments.exporting.formats import Answer, Images
from experiments.options.errors import RunError
from experiments.options.progress import progress_bar
from keras_dml.metrics import recall_at_k
from pipelines import EvaluationTransform, ImageTable, evaluation_batches

#: "test", and "gallery" if there is one -> embeddings of its images, float32 `[n, d]`.
Embeddings: TypeAlias = Mapping[str, npt.NDArray[np.float32]]
# Number of timed calls with one image, and of warm-up calls.
_TIMED, _BEFORE = 30, 5


class Comparison(NamedTuple):
    """An export compared with the model in Keras.

    Attributes:
        bytes: Size on disk.
        difference: Largest difference of a number of an embedding.
        length: Mean length of the embeddings from Keras, as a scale for `difference`.
        similarity: Least cosine similarity of an image's two embeddings.
        recalls: Recall at K of the export, by cosine similarity.
        keras_recalls: Recall at K of the model in Keras.
        milliseconds: Median time of a call with one image.
    """

    bytes: int
    difference: float
    length: float
    similarity: float
    recalls: Mapping[int, float]
    keras_recalls: Mapping[int, float]
    milliseconds: float


def answers(
    answer: Answer, table: ImageTable, transform: EvaluationTransform, batch_size: int
) -> npt.NDArray[np.float32]:
    """Embed a table with a runtime, with a progress bar.

    Raises:
        RunError: An embedding is not finite.
    """
    rows: list[npt.NDArray[np.float32]] = []
    with naming_bad_images(table), progress_bar("comparing", total=len(table)) as bar:
        for images in evaluation_batches(table, transform, batch_size):
            rows.append(np.asarray(answer(images.numpy()), np.float32))
            bar.update(len(rows[-1]))
    embeddings = np.concatenate(rows)
    if not np.isfinite(embeddings).all():
        raise RunError("the export gives embeddings that are not finite: nothing was written")
    return embeddings


def milliseconds(answer: Answer, image: Images) -> float:
    """Return the median time of a call with one image `[1, size, size, 3]`."""
    seconds = []
    for _ in range(_BEFORE + _TIMED):
        begin = time.perf_counter()
        answer(image)
        seconds.append(time.perf_counter() - begin)
    return 1000 * statistics.median(seconds[_BEFORE:])


def compare(
    of_export: Embeddings,
    of_keras: Embeddings,
    labels: Mapping[str, npt.NDArray[np.int64]],
    ks: Sequence[int],
    size: int,
    time_of_one: float,
) -> Comparison:
    """Compare the embeddings and their recall.

    Args:
        of_export, of_keras: Embeddings of the same images.
        labels: Class ids of the same images.
        ks: Values of K for recall at K.
        size, time_of_one: `bytes` and `milliseconds` of `Comparison`.
    """
    one, other = of_export["test"].astype(np.float64), of_keras["test"].astype(np.float64)
    lengths = np.linalg.norm(other, axis=1)
    products = np.linalg.norm(one, axis=1) * lengths
    cosines = (one * other).sum(axis=1) / np.where(products, products, 1)
    found, keras_found = (
        recall_at_k(
            each["test"],
            labels["test"],
            ks,
            "cosine",
            gallery=each.get("gallery"),
            gallery_labels=labels.get("gallery"),
        )
        for each in (of_export, of_keras)
    )
    return Comparison(
        size,
        float(np.abs(one - other).max()),
        float(lengths.mean()),
        float(cosines.min()),
        found,
        keras_found,
        time_of_one,
    )
