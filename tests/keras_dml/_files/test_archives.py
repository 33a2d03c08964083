"""Zip files from a stranger: content that is compressed too much is never read."""

import json
import time
import zipfile

import keras
import pytest

from experiments.evaluation.labeled_embeddings import embeddings_from_file
from keras_dml.models.converters import load_arrays
from keras_dml.models.keras_files import load_keras_file
from keras_dml.similarity.stores import MemoryStore

GIGABYTE = 2**30


def write_zip(path, name, content, states=None, method=zipfile.ZIP_DEFLATED):
    """Write a zip file of one entry, and optionally the size that the file states for it."""
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("config.json", json.dumps({}))
        archive.writestr(name, content)
    if states is not None:
        data = bytearray(path.read_bytes())
        for mark, place in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
            start = data.rindex(mark) + place
            data[start : start + 4] = states.to_bytes(4, "little")
        path.write_bytes(data)


def load_weights(path):
    load_arrays(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]), path)


def load_store(path):
    path.rename(path.with_name("index.npz"))
    try:
        return MemoryStore().load(path.parent)
    finally:
        path.with_name("index.npz").rename(path)


READERS = {
    ".keras": ("model.weights.h5", load_keras_file),
    ".npz": ("embeddings.npy", embeddings_from_file),
    "weights .npz": ("dense/kernel.npy", load_weights),
    "store .npz": ("embeddings.npy", load_store),
}


@pytest.mark.parametrize("kind", READERS)
def test_content_is_not_compressed_too_much(kind, tmp_path):
    name, read = READERS[kind]
    path = tmp_path / f"file.{kind.rpartition('.')[2]}"
    write_zip(path, name, bytes(2**20), states=GIGABYTE)
    start = time.process_time()
    with pytest.raises(ValueError, match=r"must have at most 256 MB, but got.*compressed too much"):
        read(path)
    write_zip(path, name, bytes(2**20), method=zipfile.ZIP_BZIP2)
    with pytest.raises(ValueError, match="must be stored or deflated"):
        read(path)
    assert time.process_time() - start < 0.5
