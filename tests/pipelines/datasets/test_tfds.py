import io
import logging
import re
import shutil
import socket
from typing import ClassVar

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from keras_dml._common.errors import ArgumentError
from pipelines.datasets.registry import load_dataset
from pipelines.datasets.tfds import tfds_split

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
        tfds.core.BuilderConfig(name=name) for name in (*CLASSES, "texts", "offline", "no_network")
    ]

    def _info(self):
        names = [f"gray {n}" for n in range(6)]
        features = {
            "label": tfds.features.ClassLabel(names=names),
            "author": tfds.features.Text(),
        }
        if self.builder_config.name != "texts":
            features["image"] = tfds.features.Image(shape=(SIDE, SIDE, 1), encoding_format="png")
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


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    for name in TinyNoise.CLASSES:
        TinyNoise(config=name, data_dir=folder).download_and_prepare()
    return folder


def contents(table):
    """Return (class name, gray level of the encoded image without noise) of each row, sorted."""
    levels = [np.asarray(Image.open(io.BytesIO(encoded))).min() for encoded in table.encoded]
    return sorted(
        (table.class_names[number], level // 30 - 1) for number, level in zip(table.labels, levels)
    )


def expected(labels):
    return sorted((f"gray {label}", label) for label in labels)


@pytest.mark.parametrize(
    ("config", "arguments", "train", "test"),
    [
        ("shared", {}, [3, 1, 0, 5] * 6, [0, 1, 3] * 4),
        ("unseen", {}, [4, 0, 2] * 4, [5, 1, 3] * 4),
        # A number of training classes pools the splits.
        ("shared", {"train_classes": 2}, [1, 0] * 6 + [0, 1] * 4, [3, 5] * 6 + [3] * 4),
        ("unseen", {"train_classes": 3, "test_classes": 2}, [0, 1, 2] * 4, [3, 4] * 4),
    ],
)
def test_splits(config, arguments, train, test, data_dir):
    split = load_dataset(f"tfds:tiny_noise:{config}", str(data_dir), **arguments)
    assert split.same_classes == (config == "shared" and not arguments)
    for side, labels in ((split.train, train), (split.test, test)):
        assert contents(side) == expected(labels)
        known = range(6) if split.same_classes else sorted(set(labels))
        assert side.class_names == tuple(f"gray {label}" for label in known)


def test_files_that_are_damaged(data_dir, tmp_path):
    whole = TinyNoise(config="mixed", data_dir=data_dir).data_dir
    folder = tmp_path / "tiny_noise" / "mixed" / "1.0.0"
    shutil.copytree(whole, folder)
    [record] = folder.glob("*-train.tfrecord*")
    intact = record.read_bytes()
    first = 8 + 4 + int.from_bytes(intact[:8], "little") + 4  # length, checksum, data, checksum
    flipped = bytearray(intact)
    flipped[len(flipped) // 2] ^= 4
    cut, cut_between_two = intact[:-7], intact[:first]
    for content in (cut, cut_between_two, flipped, None):
        record.unlink() if content is None else record.write_bytes(content)
        with pytest.raises(ArgumentError, match=r"mixed in .*1\.0\.0 .*delete this folder"):
            load_dataset("tfds:tiny_noise:mixed", tmp_path, train_classes=1)
    record.write_bytes(intact)
    assert load_dataset("tfds:tiny_noise:mixed", tmp_path, train_classes=1)
    described = folder / "dataset_info.json"
    described.write_text(described.read_text()[:-40])
    again = re.escape(f". To prepare it again, delete {tmp_path / 'tiny_noise'}")
    with pytest.raises(ArgumentError, match=f"cannot be opened: .*{again}"):
        load_dataset("tfds:tiny_noise:mixed", tmp_path, train_classes=1)


def test_images_without_a_label_are_left_out_with_a_warning(data_dir, caplog):
    split = load_dataset("tfds:tiny_noise:unlabelled", data_dir)
    assert len(split.test) == 2
    assert "left out 1 images of test that have no label" in caplog.text


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("tiny_nois", {}, "no dataset tiny_nois.* tiny_noise"),
        ("tiny_noise:share", {}, "no configuration of tiny_noise share.* shared"),
        ("", {}, "no dataset|cannot be opened"),
        ("tiny_noise:shared", {"test_classes": 2}, "test_classes must not be set without"),
        ("tiny_noise:shared", {"train_classes": 4}, "4 classes, .* leaves no class to test"),
        ("tiny_noise:whole", {}, "train_classes must be set .*splits are train"),
        ("tiny_noise:mixed", {}, "1 of the 2 classes in its test split are not in its train"),
        ("tiny_noise:texts", {}, r"one uint8 image and one class label .*author \(Text\)"),
        ("tiny_noise:no_network", {}, "not be prepared: no connection to data.example. On"),
        (
            "tiny_noise:offline",
            {},
            "could not be prepared: Failed to resolve 'somewhere'.*with a network, run "
            r".*tfds.builder\('tiny_noise/offline', data_dir='tfds'\).download_and_prepare\(\).*"
            "copy the content of tfds to ",
        ),
    ],
)
def test_bad_input(name, arguments, message, data_dir, caplog):
    with pytest.raises(ValueError, match=message) as caught:
        tfds_split(name, data_dir, **arguments)
    assert "\n" not in str(caught.value)
    assert "Retrying" not in caplog.text


@pytest.mark.parametrize(
    ("name", "image", "label"),
    [
        ("stanford_online_products", "image", "class_id"),
        ("caltech_birds2011", "image", "label"),
        ("cars196", "image", "label"),
    ],
)
def test_image_and_label_of_datasets_with_several(name, image, label, tmp_path, monkeypatch):
    """Without the data, the table receives the features of the installed builder."""
    read = []
    monkeypatch.setattr(tfds.core.DatasetBuilder, "is_prepared", lambda _: True)

    def as_dataset(builder, *, split, decoders, shuffle_files):
        read.append(set(decoders.extract_features(builder.info.features)))
        raise OSError("no data")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "as_dataset", as_dataset)
    splits = tfds.core.SplitDict(
        [
            tfds.core.SplitInfo(name=each, shard_lengths=[1], num_bytes=1)
            for each in ("train", "test")
        ]
    )
    monkeypatch.setattr(tfds.core.DatasetInfo, "splits", splits)
    with pytest.raises(ArgumentError, match="no data"):
        tfds_split(name, tmp_path)
    assert read == [{image, label}]


def test_shared_classes_are_pointed_out(data_dir, caplog):
    assert tfds_split("tiny_noise:shared", data_dir).same_classes
    assert "tiny_noise:shared: its test split has the classes of its train split" in caplog.text
    assert "train_classes=2" in caplog.text


def test_a_missing_network_is_noticed_at_once(tmp_path, monkeypatch):
    """The address of the dataset refuses connections. tensorflow-datasets would retry."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/data"
    monkeypatch.setattr(TinyNoise, "url_infos", {address: None})
    monkeypatch.setattr(
        TinyNoise, "download_and_prepare", lambda _: pytest.fail("tried to download")
    )
    with pytest.raises(ArgumentError, match="could not be prepared: no connection to 127.0.0.1"):
        tfds_split("tiny_noise:whole", tmp_path, train_classes=2)
