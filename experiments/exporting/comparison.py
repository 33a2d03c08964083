"""How an export's answers differ from those of the model that it was made of."""

from __future__ import annotations

import os
import pathlib
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.evaluation.model_embeddings import naming_bad_images
from experiments.evaluation.table_embedder import recalls
from experiments.exporting.formats import Answer, Images
from experiments.options.errors import RunError
from experiments.options.progress import progress_bar
from pipelines import EvaluationTransform, ImageTable, evaluation_batches

# Calls of one image each that are timed, after some that are not.
_TIMED, _BEFORE = 30, 5


class Embeddings(NamedTuple):
    """Of the test images and, where there is one, of the gallery: float32 `[n, d]`."""

    queries: npt.NDArray[np.float32]
    gallery: npt.NDArray[np.float32] | None


class Comparison(NamedTuple):
    """An export beside the model in Keras.

    Attributes:
        bytes: size on disk.
        difference: the largest of a number of an embedding.
        length: the mean length of Keras' embeddings, which says how much that is.
        similarity: the least cosine similarity of an image's two embeddings.
        recalls: share by K, by cosine similarity, of the export.
        keras_recalls: of the model in Keras.
        milliseconds: the median of calls of one image each.
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
    """The embeddings of a table by a runtime, with a progress bar.

    Raises:
        RunError: embeddings that are not finite.
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
    """The median time of a call with one image `[1, size, size, 3]`."""
    seconds = []
    for _ in range(_BEFORE + _TIMED):
        begin = time.perf_counter()
        answer(image)
        seconds.append(time.perf_counter() - begin)
    return 1000 * statistics.median(seconds[_BEFORE:])


def compare(
    of_export: Embeddings,
    of_keras: Embeddings,
    labels: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None],
    ks: Sequence[int],
    size: int,
    time_of_one: float,
) -> Comparison:
    """Both, number by number and by what they find.

    Args:
        of_export, of_keras: the embeddings of the same images.
        labels: of the test images and of the gallery, None without one.
        ks: the K of recall at K.
        size, time_of_one: as `Comparison` has them.
    """
    one, other = of_export.queries.astype(np.float64), of_keras.queries.astype(np.float64)
    lengths = np.linalg.norm(other, axis=1)
    products = np.linalg.norm(one, axis=1) * lengths
    cosines = np.einsum("nd,nd->n", one, other) / np.where(products, products, 1)
    found, keras_found = (
        recalls(each.queries, labels[0], ks, gallery=each.gallery, gallery_labels=labels[1])[
            "cosine"
        ]
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


def size_of(path: pathlib.Path) -> int:
    """Bytes of a file with those beside it that belong to it, or of a folder."""
    files = path.rglob("*") if path.is_dir() else path.parent.glob(f"{path.stem}.*")
    return sum(os.path.getsize(file) for file in files if file.is_file())
