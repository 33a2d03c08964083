"""Needs TensorFlow (tensorflow-datasets). Image classification datasets of tensorflow-datasets."""

import contextlib
import difflib
import importlib
import logging
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_dml._common.errors import ArgumentError
from keras_dml._common.extras import needing
from pipelines.datasets.files import LOGGER
from pipelines.split import Split, split_by_class
from pipelines.table import ImageTable

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder

PREFIX = "tfds:"
"""Prefix of the names of these datasets: `tfds:NAME` or `tfds:NAME:CONFIG`."""

_TRAIN, _TESTS = "train", ("test", "validation")
_IMAGES_AT_A_TIME = 1024
_BAR_FROM = 20_000  # images
_TIMEOUT = 5  # seconds


def tfds_split(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    train_classes: int | None = None,
    test_classes: int | None = None,
    split: str = "first_classes",
    seed: int = 0,
) -> Split:
    """Load an image classification dataset of tensorflow-datasets. Download it if it is missing.

    By default, the result has the dataset's splits: `train`, and `test` (or `validation` without a
    `test`). If the training classes contain all test classes, the result has `same_classes`, and a
    warning names `train_classes`. If they contain none, each side numbers its classes.

    An example can have several images and class labels. Then the image is the feature `image`, and
    the label is the feature `label`, or else the label with the most classes.

    With `train_classes` or another `split`, the images of `train`, `validation`, and `test` are
    pooled and split by class, in the order of the class numbers. Other splits are ignored, because
    in some datasets they repeat these images.

    Images are not decoded. The bytes of their files stay in memory (see `ImageTable.encoded`).
    Images without a label (class -1) are left out with one warning.

    Args:
        name: `NAME` or `NAME:CONFIG`, such as `mnist` or `emnist:letters`.
        data_dir: Folder of tensorflow-datasets. None: its default, `~/tensorflow_datasets`.
        train_classes: Number of training classes, or None for the dataset's splits.
        test_classes: Number of test classes. None: all other classes. Needs a split by class.
        split, seed: As for `split_by_class`.

    Raises:
        ValueError: The name or configuration is unknown (the message suggests the nearest), the
            dataset is missing and cannot be downloaded, does not have one uint8 image and one class
            label, or has no train and test splits, or one side of the split is empty.
    """
    by_class = train_classes is not None or split != "first_classes"
    if test_classes is not None and not by_class:
        raise ArgumentError(
            f"test_classes must not be set without train_classes for {PREFIX}{name}, which has a "
            f"test split, but got {test_classes}."
        )
    dataset = _Dataset(name, data_dir)
    splits = dataset.builder.info.splits
    own_test = next((each for each in _TESTS if each in splits), None)
    if by_class:
        pooled = [each for each in (_TRAIN, *reversed(_TESTS)) if each in splits]
        table = dataset.table(pooled or list(splits))
        table = table.select_classes(np.unique(table.labels))
        return split_by_class(table, train_classes, test_classes, None, split, seed)
    if _TRAIN not in splits or own_test is None:
        raise ArgumentError(
            f"train_classes must be set for {PREFIX}{name} without a train and a test split, but "
            f"got None. Its splits are {', '.join(splits)}."
        )
    train, test = dataset.table([_TRAIN]), dataset.table([own_test])
    trained, tested = np.unique(train.labels), np.unique(test.labels)
    known = np.isin(tested, trained)
    if known.all():
        LOGGER.warning(
            "%s%s: its %s split has the classes of its %s split. To test on unseen classes, set "
            "train_classes, for example train_classes=%d",
            PREFIX,
            name,
            own_test,
            _TRAIN,
            (len(trained) + 1) // 2,
        )
        return Split(train, test, same_classes=True)
    if known.any():
        raise ArgumentError(
            f"train_classes must be set for {PREFIX}{name}, but got None. "
            f"{np.count_nonzero(~known)} of the {len(tested)} classes in its test split are not in "
            "its train split."
        )
    return Split(train.select_classes(trained), test.select_classes(tested))


class _Dataset:
    """A dataset of tensorflow-datasets, which is downloaded if it is missing.

    Args:
        name, data_dir: As for `tfds_split`.

    Attributes:
        builder: The dataset's `DatasetBuilder`.

    Raises:
        ValueError: As for `tfds_split`.
    """

    def __init__(self, name: str, data_dir: str | os.PathLike[str] | None) -> None:
        with needing("tfds", "a dataset of tensorflow-datasets"):
            self._tfds: Any = importlib.import_module("tensorflow_datasets")
        self._name = f"{PREFIX}{name}"
        self._base, _, self._config = name.partition(":")
        self._given = os.path.expanduser(data_dir) if data_dir else None
        self._root = os.path.expanduser(self._given or self._tfds.core.constants.DATA_DIR)
        self.builder: DatasetBuilder = self._opened()
        self._image, self._label = self._features()
        if not self.builder.is_prepared():
            self._prepare()

    def _opened(self) -> "DatasetBuilder":
        base, config = self._base, self._config
        try:
            return self._tfds.builder(f"{base}/{config}" if config else base, data_dir=self._given)
        except self._tfds.core.DatasetNotFoundError:
            known = self._tfds.list_builders(with_community_datasets=False)
            what, word = "dataset", base
        except Exception as error:  # the code of a dataset raises any exception
            known = []
            with contextlib.suppress(ValueError):
                known = list(self._tfds.builder_cls(base).builder_configs)
            if not config or config in known:
                folder = os.path.join(self._root, base)
                hint = f". To prepare it again, delete {folder}" if os.path.isdir(folder) else ""
                raise ArgumentError(
                    f"dataset {self._name} cannot be opened: {_one_line(error)}{hint}"
                ) from error
            what, word = f"configuration of {base}", config
        near = difflib.get_close_matches(word, known, n=5) or known
        shown = ", ".join(near[:10]) + (", ..." if len(near) > 10 else "")
        raise ArgumentError(
            f"dataset must be in tensorflow-datasets, but got {self._name}. There is no {what} "
            f"{word}. The nearest names are {shown or 'none'}."
        )

    def _features(self) -> tuple[str, str]:
        """Return the names of the image and of the label in an example."""
        features, of_tfds = self.builder.info.features, self._tfds.features
        kinds = dict(features.items()) if hasattr(features, "items") else {}
        images = [
            key
            for key, kind in kinds.items()
            if type(kind) is of_tfds.Image and kind.np_dtype == np.uint8
        ]
        labels = [key for key, kind in kinds.items() if isinstance(kind, of_tfds.ClassLabel)]
        # Others are masks or views of the image, and coarser classes of it.
        if "image" in images:
            images = ["image"]
        if len(labels) > 1:
            labels = [
                "label"
                if "label" in labels
                else max(labels, key=lambda each: kinds[each].num_classes)
            ]
        if len(images) != 1 or len(labels) != 1:
            found = ", ".join(f"{key} ({type(kind).__name__})" for key, kind in kinds.items())
            raise ArgumentError(
                "dataset must have one uint8 image and one class label in each example, but got "
                f"{self._name} with {found or type(features).__name__}."
            )
        return images[0], labels[0]

    def _prepare(self) -> None:
        folder = self.builder.data_dir
        self._check_network()
        LOGGER.warning("%s is not in %s: downloading it", self._name, folder)
        retries = logging.getLogger("urllib3.connectionpool")
        level = retries.level
        retries.setLevel(logging.ERROR)  # one error instead of a warning for each retry
        try:
            self.builder.download_and_prepare()
        except Exception as error:  # from the code of the dataset, its archives, or the network
            raise self._not_prepared(error) from error
        finally:
            retries.setLevel(level)

    def _check_network(self) -> None:
        """Raise an error without a connection, which tensorflow-datasets retries for minutes."""
        import requests  # tensorflow-datasets requires it

        if os.path.isdir(os.path.join(self._root, "downloads")):
            return  # its archives can be there
        for url in list(self.builder.url_infos or ())[:1]:
            try:
                requests.head(url, timeout=_TIMEOUT)
            except requests.ConnectionError as error:
                raise self._not_prepared(error) from error
            except requests.RequestException:
                pass  # such as a refused HEAD request, or another protocol

    def _not_prepared(self, error: Exception) -> ArgumentError:
        name = "/".join(filter(None, (self._base, self._config)))
        return ArgumentError(
            f"dataset {self._name} is not in {self.builder.data_dir} and could not be prepared: "
            f'{_one_line(error)}. On a machine with a network, run  python -c "import '
            f"tensorflow_datasets as tfds; tfds.builder('{name}', "
            f"data_dir='tfds').download_and_prepare()\"  and copy the content of tfds to "
            f"{self._root}"
        )

    def table(self, splits: Sequence[str]) -> ImageTable:
        """Read the images with labels of some splits."""
        from keras_dml._common.progress import Bar  # imports tqdm

        decoding, info, label = self._tfds.decode, self.builder.info, self._label
        decoders = decoding.PartialDecoding(
            {self._image: True, label: True}, decoders={self._image: decoding.SkipDecoding()}
        )
        encoded: list[bytes] = []
        numbers: list[int] = []
        total = sum(info.splits[split].num_examples for split in splits)
        hidden = total < _BAR_FROM
        with Bar("reading images", total, leave=True, disable=hidden) as bar:
            for split in splits:
                try:
                    examples = self.builder.as_dataset(
                        split=split, decoders=decoders, shuffle_files=False
                    )
                    for batch in examples.batch(_IMAGES_AT_A_TIME).as_numpy_iterator():
                        encoded.extend(batch[self._image])
                        numbers.extend(batch[label].tolist())
                        bar.update(len(batch[label]))
                except Exception as error:  # TensorFlow's errors for damaged and missing files
                    raise self._damaged(split, _one_line(error)) from error
        which = " and ".join(splits)
        if len(numbers) != total:
            raise self._damaged(which, f"it has {len(numbers)} examples instead of {total}")
        labels = np.array(numbers, np.int64)
        labelled = np.flatnonzero(labels >= 0)
        if not len(labelled):
            raise ArgumentError(
                f"dataset must have images with labels, but got {self._name} with no label in its "
                f"{which} split."
            )
        if len(labelled) < len(labels):
            LOGGER.warning(
                "%s: left out %d images of %s that have no label",
                self._name,
                len(labels) - len(labelled),
                which,
            )
        chosen = np.empty(len(labelled), object)
        chosen[:] = [encoded[row] for row in labelled]
        return ImageTable(labels[labelled], info.features[label].names, encoded=chosen)

    def _damaged(self, split: str, why: str) -> ArgumentError:
        return ArgumentError(
            f"dataset {self._name} in {self.builder.data_dir} cannot be read, split {split}: {why}"
            ". To prepare it again, delete this folder"
        )


def _one_line(error: Exception) -> str:
    host = re.search(r"host='([^']+)'", str(error))
    if host and isinstance(error, OSError):  # a network error
        return f"no connection to {host[1]}"
    return " ".join(str(error).split())[:300] or type(error).__name__
