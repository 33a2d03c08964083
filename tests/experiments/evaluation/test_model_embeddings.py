"""Embeddings of a table whose images are deleted during the computation."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from experiments.evaluation.model_embeddings import embed_table
from experiments.evaluation.table_embedder import IdentifiedEmbedder
from experiments.options.errors import RunError
from pipelines import ImageTable


class VanishingImages:
    """An embedder whose images are deleted after the first batch, optionally with the folder."""

    transform = "whole"

    def __init__(self, delete):
        self.delete = delete

    def batches(self, table, description, first_row):
        yield np.zeros((1, 3), "float32")
        self.delete()
        raise tf.errors.NotFoundError(None, None, "an image")


@pytest.mark.parametrize("keep_folder", [True, False])
def test_deleted_images_stop_the_command_and_are_not_reported_as_bad(keep_folder, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (4, 4)).save(folder / name)
    table = ImageTable.from_paths(sorted(map(str, folder.iterdir())), [0, 1])

    def delete():
        shutil.rmtree(folder)
        if keep_folder:  # like an empty mount point
            folder.mkdir()

    model = IdentifiedEmbedder(VanishingImages(delete), "model")
    with pytest.raises(RunError, match="a.png can no longer be read.*continues where it stopped"):
        embed_table(model, table, tmp_path / "evaluation.npy")
