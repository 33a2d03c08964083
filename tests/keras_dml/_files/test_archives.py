"""Zip files from a stranger: content that is compressed too much is never read."""

import io
import json
import time
import zipfile

import h5py
import keras
import pytest

from experiments.evaluation.embedded_sets import embeddings_from_file
from keras_dml.models.converters import load_arrays
from keras_dml.models.keras_files import load_keras_file, saved_backbone

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


READERS = {
    ".keras": ("model.weights.h5", load_keras_file),
    ".npz": ("embeddings.npy", embeddings_from_file),
    "weights .npz": ("dense/kernel.npy", load_weights),
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


def rewritten(path, target, change):
    """Copy a zip file with changed entries."""
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(target, "w") as other:
        for name in archive.namelist():
            other.writestr(name, change(name, archive.read(name)))
    return target


def with_a_huge_layer(name, content):
    return content.replace(b'"units": 7', b'"units": 1000000000')


def with_huge_weights(name, content):
    if not name.endswith(".h5"):
        return content
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file.create_dataset("vars/0", (10**6, 10**6), "f4", chunks=(1000, 1000), compression="gzip")
    return stream.getvalue()


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.filterwarnings("ignore:You are saving a model that has not yet been built")
def test_a_small_keras_file_cannot_ask_for_a_huge_layer(is_built, tmp_path):
    layers = [keras.Input((8, 8, 3))] * is_built + [keras.layers.Flatten(), keras.layers.Dense(7)]
    keras.Sequential(layers).save(tmp_path / "a.keras")
    huge = rewritten(tmp_path / "a.keras", tmp_path / "huge.keras", with_a_huge_layer)
    with pytest.raises(ValueError, match="huge.keras.*must have the weights that are in the file"):
        saved_backbone(huge, 8)
    assert keras.layers.Dense(7)(keras.ops.ones((1, 2))).shape == (1, 7)
    if is_built:
        assert load_keras_file(tmp_path / "a.keras").output_shape == (None, 7)
        huge = rewritten(tmp_path / "a.keras", huge, with_huge_weights)
        with pytest.raises(ValueError, match="huge.keras is damaged: its weights are cut off"):
            load_keras_file(huge)
