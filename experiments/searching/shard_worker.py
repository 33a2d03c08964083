"""What a worker of `experiments.index --engine=ray` does: the images of one shard after another."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.searching.image_files import ImageFile, check_not_gone, folder_is_gone
from experiments.searching.shards import EmbeddedShard, Shard, part_name
from experiments.searching.store import Description, made_rows
from keras_dml._common.types import Metric

__all__ = ["MODELS", "ShardWorker"]

MODELS = "keras_dml-model-"
"""What the temporary folders begin with in which workers have their models."""
_READERS = 8


class ShardWorker:
    """Holds the model; embeds shards, and writes them where they are to be files of Parquet.

    Args:
        model: in it where Ray holds the SavedModel's files, contents by path: its folder may be on
            another machine.
        images: the images' folder or URI.
        description: of the images, without the number of dimensions.
        parquet: folder or URI of Parquet files; None: the rows are returned.
        max_pixels: how many pixels an image may have.
        batch_size: images embedded at once.
        threads: that TensorFlow may use; None: as many as there are.
    """

    def __init__(
        self,
        model: Sequence[Any],
        images: str,
        description: Mapping[str, Any],
        parquet: str | None,
        max_pixels: int,
        batch_size: int,
        threads: int | None,
    ) -> None:
        import ray
        import tensorflow as tf

        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        for device in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(device, True)
        from experiments.embedding.held_folder import TemporaryFolder
        from experiments.embedding.saved_model import ImageEmbedder
        from experiments.searching.file_systems import opened_folder

        # Kept as long as the worker: a model may read files of its own later.
        self._folder = TemporaryFolder(MODELS)
        copy = self._folder.path / "model"
        for name, contents in ray.get(model[0]).items():
            path = copy / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)
        self._embedder = ImageEmbedder(copy)
        self._images = opened_folder(images)
        self._description = Description(**{**description, "dimensions": self._embedder.dimensions})
        self._parquet = None if parquet is None else opened_folder(parquet)
        self._max_pixels, self._batch_size = max_pixels, batch_size

    def dimensions(self) -> int:
        """Of an embedding."""
        return self._embedder.dimensions

    def embed(self, shard: Shard) -> EmbeddedShard:
        """Embed a shard's images; the same shard gives the same, however often it is asked for."""
        from experiments.searching.image_batch import NO_EMBEDDING, embed_batch
        from experiments.searching.parquet_files import write_part
        from keras_dml.retrieval.rows import prepared_rows

        blocks: list[np.ndarray] = []
        bad: dict[str, str] = {}
        with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
            contents = pool.map(self._read, shard.files)
            for start in range(0, len(shard.files), self._batch_size):
                batch = shard.files[start : start + self._batch_size]
                rows, reasons = embed_batch(self._embedder, [next(contents) for _ in batch])
                bad |= {batch[place].path: reason for place, reason in reasons.items()}
                blocks.append(rows)
        every = np.concatenate(blocks)
        good = np.flatnonzero(every[:, 0] != NO_EMBEDDING).tolist()
        metric: Metric = "l2" if self._description.metric == "l2" else "cosine"
        made = made_rows(
            [shard.files[place].path for place in good],
            prepared_rows(every[good], "embeddings", metric),
            {name: [each[place] for place in good] for name, each in shard.columns.items()},
        )
        if self._parquet is None:
            return EmbeddedShard(shard.number, len(good), bad, made)
        write_part(self._parquet, part_name(shard.number), self._description, made)
        return EmbeddedShard(shard.number, len(good), bad, None)

    def _read(self, file: ImageFile) -> bytes | str:
        from experiments.searching.image_batch import read_image

        return read_image(
            lambda: self._images.read(file.path), self._max_pixels, self._check_folder
        )

    def _check_folder(self) -> None:
        """Raise `RunError` if the images' folder is gone."""
        place = self._images.place
        if "://" not in place:
            check_not_gone(place)
        elif not self._images.is_there():
            raise folder_is_gone(place)
