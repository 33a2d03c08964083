import logging
import re
import shutil
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from keras_dml._common.errors import ArgumentError
from pipelines.batches import evaluation_batches
from pipelines.datasets.registry import load_dataset
from pipelines.datasets.tfds import tfds_split
from pipelines.images.bad_images import find_bad_images
from pipelines.images.transforms import EvaluationTransform
from pipelines.table import ImageTable

SIDE = 12


def pixels(number, label):
    """Return an image with a noisy gray level for each class."""
    noise = np.random.default_rng(number).integers(0, 40, (SIDE, SIDE, 1))
    return (30 * (label + 1) + noise).astype(np.uint8)


class TinyNoise(tfds.core.GeneratorBasedBuilder):
    """Six classes. The configuration defines the classes of each split."""

    VERSION = tfds.core.Version("1.0.0")
    CLASSES: ClassVar = {  # configuration -> split -> labels
        "shared": {"train": [3, 1, 0, 5] * 6, "test": [0, 1, 3] * 4},
        "unseen": {"train": [4, 0, 2] * 4, "validation": [5, 1, 3] * 4},
        "mixed": {"train": [0, 1] * 4, "test": [1, 2] * 4},
        "whole": {"train": [0, 1, 2, 4] * 4, "extra": [0, 1, 2, 3] * 4},
        "unlabelled": {"train": [0, 1] * 4, "test": [0, 1, -1]},
    }
    BUILDER_CONFIGS: ClassVar = [
        tfds.core.BuilderConfig(name=name) for name in (*CLASSES, "offline", "no_network")
    ]

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(SIDE, SIDE, 1), encoding_format="png"),
            "label": tfds.features.ClassLabel(names=[f"gray {n}" for n in range(6)]),
            "author": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        if self.builder_config.name == "offline":
            raise OSError("Failed to resolve\n'somewhere'")
        if self.builder_config.name == "no_network":
            logging.getLogger("urllib3.connectionpool").warning("Retrying")
            raise ConnectionError("HTTPSConnectionPool(host='data.example', port=443): Max retries")
        splits = self.CLASSES[self.builder_config.name]
        return {split: self._examples(split, labels) for split, labels in splits.items()}

    def _generate_examples(self):
        raise NotImplementedError  # _split_generators returns the examples

    def _examples(self, split, labels):
        for number, label in enumerate(labels):
            yield number, {"image": pixels(number, label), "label": label, "author": split}


class TinyTexts(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        raise NotImplementedError

    def _generate_examples(self):
        raise NotImplementedError


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    for name in TinyNoise.CLASSES:
        TinyNoise(config=name, data_dir=folder).download_and_prepare()
    return folder


def contents(table):
    """Return (class name, gray level of the image without noise) of each row, sorted."""
    images = np.concatenate(list(evaluation_batches(table, EvaluationTransform(SIDE))))
    return sorted(
        (table.class_names[number], int(image.min()) // 30 - 1)
        for number, image in zip(table.labels, images)
    )


def expected(labels):
    return sorted((f"gray {label}", label) for label in labels)


@pytest.mark.slow
def test_official_splits_of_the_same_classes(data_dir):
    split = load_dataset("tfds:tiny_noise:shared", data_dir)
    assert split.same_classes
    assert split.train.class_names == split.test.class_names
    assert contents(split.train) == expected(TinyNoise.CLASSES["shared"]["train"])
    assert contents(split.test) == expected(TinyNoise.CLASSES["shared"]["test"])


@pytest.mark.slow
def test_official_splits_of_unseen_classes_number_them_separately(data_dir):
    split = load_dataset("tfds:tiny_noise:unseen", str(data_dir))
    assert not split.same_classes
    assert split.train.class_names == ("gray 0", "gray 2", "gray 4")
    assert split.test.class_names == ("gray 1", "gray 3", "gray 5")
    assert contents(split.test) == expected([5, 1, 3] * 4)


@pytest.mark.slow
def test_a_number_of_training_classes_pools_the_splits(data_dir):
    split = load_dataset("tfds:tiny_noise:shared", data_dir, train_classes=2)
    assert not split.same_classes
    assert contents(split.train) == expected([1, 0] * 6 + [0, 1] * 4)
    assert contents(split.test) == expected([3, 5] * 6 + [3] * 4)
    assert split.test.class_names == ("gray 3", "gray 5")
    split = load_dataset("tfds:tiny_noise:unseen", data_dir, train_classes=3, test_classes=2)
    assert split.test.class_names == ("gray 3", "gray 4")


def test_files_that_are_damaged(data_dir, tmp_path):
    whole = TinyNoise(config="mixed", data_dir=data_dir).data_dir
    folder = tmp_path / "tiny_noise" / "mixed" / "1.0.0"
    shutil.copytree(whole, folder)
    [record] = folder.glob("*-train.tfrecord*")
    intact = record.read_bytes()
    first = 8 + 4 + int.from_bytes(intact[:8], "little") + 4  # length, checksum, data, checksum
    flipped = bytearray(intact)
    flipped[len(flipped) // 2] ^= 4
    damaged = {
        "cut": intact[:-7],
        "cut between two": intact[:first],
        "flipped": flipped,
        "empty": b"",
    }
    for content in damaged.values():
        record.write_bytes(content)
        with pytest.raises(ArgumentError, match=r"mixed in .*1\.0\.0 cannot be read") as said:
            load_dataset("tfds:tiny_noise:mixed", tmp_path, train_classes=1)
        assert "delete this folder" in str(said.value)
    record.unlink()
    with pytest.raises(ArgumentError, match="delete this folder"):
        load_dataset("tfds:tiny_noise:mixed", tmp_path, train_classes=1)
    record.write_bytes(intact)
    assert load_dataset("tfds:tiny_noise:mixed", tmp_path, train_classes=1)
    described = folder / "dataset_info.json"
    described.write_text(described.read_text()[:-40])
    again = re.escape(f". To prepare it again, delete {tmp_path / 'tiny_noise'}")
    with pytest.raises(ArgumentError, match=f"cannot be opened: .*{again}"):
        load_dataset("tfds:tiny_noise:mixed", tmp_path, train_classes=1)


def test_images_stay_encoded_until_a_batch_needs_them(data_dir, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("decoded")

    monkeypatch.setattr(tfds.features.Image, "decode_example", refuse)
    monkeypatch.setattr(tf.io, "decode_image", refuse)
    table = load_dataset("tfds:tiny_noise:shared", data_dir).train
    assert table.paths is None and table.arrays is None
    assert all(image.startswith(b"\x89PNG") for image in table.encoded)


def test_images_without_a_label_are_left_out_with_a_warning(data_dir, caplog):
    split = load_dataset("tfds:tiny_noise:unlabelled", data_dir)
    assert len(split.test) == 2
    assert "left out 1 images of test that have no label" in caplog.text


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("tiny_nois", {}, "no dataset tiny_nois.* tiny_noise"),
        ("tiny_noise:share", {}, "no configuration of tiny_noise share.* shared"),
        ("tiny_noise:Shared!", {}, "no configuration of tiny_noise"),
        ("", {}, "no dataset|cannot be opened"),
        ("tiny_noise:shared", {"test_classes": 2}, "test_classes must not be set without"),
        ("tiny_noise:shared", {"train_classes": 4}, "4 classes, .* leaves no class to test"),
        ("tiny_noise:whole", {}, "train_classes must be set .*splits are train"),
        ("tiny_noise:mixed", {}, "1 of the 2 classes in its test split are not in its train"),
        ("tiny_texts", {}, r"one uint8 image and one class label .*text \(Text\)"),
        (
            "tiny_noise:offline",
            {},
            "could not be prepared: Failed to resolve 'somewhere'.*with a network, run "
            r".*tfds.builder\('tiny_noise/offline', data_dir='tfds'\).download_and_prepare\(\).*"
            "copy the content of tfds to ",
        ),
    ],
)
def test_bad_input(name, arguments, message, data_dir):
    with pytest.raises(ValueError, match=message) as caught:
        tfds_split(name, data_dir, **arguments)
    assert "\n" not in str(caught.value)


def test_missing_network_is_a_one_line_error(data_dir, caplog):
    with pytest.raises(ArgumentError) as caught:
        tfds_split("tiny_noise:no_network", data_dir)
    assert "could not be prepared: no connection to data.example. On" in str(caught.value)
    assert "Retrying" not in caplog.text


def test_damaged_images_in_memory_are_found_and_skipped(data_dir):
    good = load_dataset("tfds:tiny_noise:shared", data_dir).train
    encoded = good.encoded.copy()
    encoded[3], encoded[5] = b"no picture", encoded[5][:60]
    table = ImageTable(good.labels, good.class_names, encoded=encoded)
    found = find_bad_images(table)
    assert [(row, name) for row, name, _ in found] == [(3, "image 3"), (5, "image 5")]
    assert "not a JPEG, PNG" in found[0][2]
