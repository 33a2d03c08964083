"""Tables of images and class numbers, the common form of all datasets.

A table stores images as paths, as the bytes of image files, or as one array. A path is read when a
batch needs its image. This module needs only NumPy and decodes nothing.
"""

import decimal
import logging
import os
import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from keras_dml._common.errors import (
    ArgumentError,
    ArgumentTypeError,
    argument_error,
    as_array,
    shape_error,
)
from pipelines.checks import as_integers, as_labels, checked_items

MAX_BOX_PIXELS = 2**30
"""Largest coordinate or side of a box. The decoders need the sum of both as an int32."""

# Labels in a warning.
_SHOWN = 10

# __post_init__ converts other array-like arguments.
_Boxes: TypeAlias = np.ndarray | None


@dataclass(frozen=True, eq=False, repr=False)
class ImageTable:
    """An immutable table of images with their class numbers, in row order.

    Exactly one of `paths`, `arrays`, and `encoded` must be set. `from_paths`, `from_arrays`, and
    `from_encoded` create a table from integer or string labels.

    Examples:
        >>> pictures = np.zeros([4, 8, 8, 3], "uint8")
        >>> table = ImageTable.from_arrays(pictures, np.array(["a", "a", "b", "b"]))
        >>> len(table), table.class_names
        (4, ('a', 'b'))

    Attributes:
        labels: int64 `[n]`. Class numbers in `0..num_classes-1`. A class can be empty (after
            `select`). The table must have at least one image.
        class_names: `num_classes` strings.
        paths: String array `[n]` of image files, or None.
        arrays: Images, uint8 `[n, height, width, channels]` with 1 (gray) or 3 (RGB) channels, or
            other data, floats `[n, ...]` of rank 2 or more, for example features. Batches of other
            data take no `transform`, or a user-defined one. None for other tables. The array is not
            copied.
        encoded: Object array `[n]` of `bytes`, the contents of image files, or None. The bytes stay
            in memory: a few hundred for a digit, tens of thousands for a photo.
        boxes: int64 `[n, 4]`, bounding boxes (y, x, height, width) in pixels from the top left
            corner, or None for whole images. An image is cropped to its box before all other steps.
            The part of a box outside the image is ignored. Boxes refer to the stored pixels,
            because the tools that made the official boxes ignore EXIF. A box is rotated upright
            together with its image.
        coarse_ids: int64 `[num_classes]`, the dataset's id of the coarse class of each class (the
            classes Gala and Pink Lady have the coarse class apple), or None.

    Raises:
        ValueError, TypeError: An argument has a wrong length, dtype, or range. The message names
            it.
    """

    labels: np.ndarray
    class_names: tuple[str, ...]
    paths: np.ndarray | None = None
    arrays: np.ndarray | None = None
    encoded: np.ndarray | None = None
    boxes: np.ndarray | None = None
    coarse_ids: np.ndarray | None = None

    def __post_init__(self) -> None:
        given = [name for name in _CHECKS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ArgumentError(
                "Exactly one of paths, arrays, and encoded must be set, but got "
                f"{' and '.join(given) or 'none'}."
            )
        names = _checked_names(self.class_names)
        labels = as_labels("labels", self.labels)
        labels = as_integers("labels", labels, None, bounds=(0, len(names) - 1)).copy()
        images = _CHECKS[given[0]](getattr(self, given[0]))
        if len(images) != len(labels):
            raise ArgumentError(
                f"labels must have one label for each image, but got {len(images)} images and "
                f"{len(labels)} labels."
            )
        object.__setattr__(self, "labels", _read_only(labels.astype(np.int64, copy=False)))
        object.__setattr__(self, "class_names", names)
        object.__setattr__(self, given[0], images)
        if self.boxes is not None:
            object.__setattr__(self, "boxes", _checked_boxes(self.boxes, len(labels)))
        if self.coarse_ids is not None:
            coarse_ids = as_integers("coarse_ids", self.coarse_ids, len(names))
            object.__setattr__(self, "coarse_ids", _read_only(coarse_ids.astype(np.int64)))

    @classmethod
    def from_paths(
        cls,
        paths: Sequence[str | os.PathLike[str]] | np.ndarray,
        labels: Sequence[int] | Sequence[str] | np.ndarray,
        class_names: Sequence[str] | None = None,
        boxes: ArrayLike | None = None,
    ) -> "ImageTable":
        """Create a table of image files.

        Args:
            paths: `n` strings or path objects.
            labels: `n` integers or `n` strings. They become `0..K-1` in sorted order.
            class_names: `K` names in the same order. Default: the labels as strings.
            boxes: Integers `[n, 4]`, see `ImageTable`. Default: whole images.

        Warns if an image, or a box of it, has two classes.

        Raises:
            ValueError, TypeError: As for `ImageTable`.
        """
        numbers, names = _named_classes(labels, class_names)
        table = cls(numbers, names, paths=cast(np.ndarray, paths), boxes=cast(_Boxes, boxes))
        images = [str(path) for path in cast(np.ndarray, table.paths)]
        shown = images if table.boxes is None else list(zip(images, map(tuple, table.boxes)))
        several, _ = repeated_images(shown, numbers)
        if several:
            warnings.warn(
                f"{len(several)} images have two classes or more, so equal pictures are negatives. "
                f"The first: {several[0]}",
                stacklevel=2,
            )
        return table

    @classmethod
    def from_arrays(
        cls,
        arrays: np.ndarray,
        labels: Sequence[int] | Sequence[str] | np.ndarray,
        class_names: Sequence[str] | None = None,
        boxes: ArrayLike | None = None,
    ) -> "ImageTable":
        """Create a table of images in memory, uint8 `[n, height, width, 1 or 3]`, or of float data.

        `labels`, `class_names`, `boxes`, and errors are as for `from_paths`.
        """
        numbers, names = _named_classes(labels, class_names)
        return cls(numbers, names, arrays=arrays, boxes=cast(_Boxes, boxes))

    @classmethod
    def from_encoded(
        cls,
        encoded: Sequence[bytes] | np.ndarray,
        labels: Sequence[int] | Sequence[str] | np.ndarray,
        class_names: Sequence[str] | None = None,
        boxes: ArrayLike | None = None,
    ) -> "ImageTable":
        """Create a table of the contents of image files, `n` `bytes` objects.

        `labels`, `class_names`, `boxes`, and errors are as for `from_paths`.
        """
        numbers, names = _named_classes(labels, class_names)
        return cls(numbers, names, encoded=cast(np.ndarray, encoded), boxes=cast(_Boxes, boxes))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        (kind,) = (name for name in _CHECKS if getattr(self, name) is not None)
        shape = "" if self.arrays is None else self.arrays.shape[1:]
        return f"ImageTable({len(self)} images as {kind}{shape}, {self.num_classes} classes)"

    @property
    def num_classes(self) -> int:
        """Number of classes, including empty classes."""
        return len(self.class_names)

    def select(self, rows: ArrayLike) -> "ImageTable":
        """Return the table of these rows, in this order, with the same classes.

        Args:
            rows: Integers, or a boolean mask `[n]`.

        Raises:
            ValueError: `rows` is empty, out of range, or has another shape or dtype.
        """
        rows = as_array("rows", rows)
        if rows.dtype.kind == "b":
            if rows.shape != self.labels.shape:
                raise argument_error("rows", f"a boolean mask of shape [{len(self)}]", rows)
            rows = np.flatnonzero(rows)
        rows = as_integers("rows", rows, None, bounds=(-len(self), len(self) - 1))
        return ImageTable(
            self.labels[rows], self.class_names, coarse_ids=self.coarse_ids, **self._images(rows)
        )

    def select_classes(self, class_numbers: ArrayLike) -> "ImageTable":
        """Return the table of these classes. `class_numbers[i]` becomes class `i`. Rows keep their
        order.

        Args:
            class_numbers: Integers `[k]`.

        Raises:
            ValueError: A number is out of range or appears twice, or no image is left.
        """
        bounds = (0, self.num_classes - 1)
        chosen = as_integers("class_numbers", class_numbers, None, bounds=bounds)
        renumbered = np.full(self.num_classes, -1, np.int64)
        renumbered[chosen] = np.arange(len(chosen))
        if np.count_nonzero(renumbered >= 0) != len(chosen):
            raise argument_error("class_numbers", "without repeats", class_numbers)
        labels = renumbered[self.labels]
        rows = np.flatnonzero(labels >= 0)
        names = tuple(self.class_names[number] for number in chosen)
        coarse_ids = None if self.coarse_ids is None else self.coarse_ids[chosen]
        return ImageTable(labels[rows], names, coarse_ids=coarse_ids, **self._images(rows))

    def _images(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        columns = {name: getattr(self, name) for name in (*_CHECKS, "boxes")}
        return {name: column[rows] for name, column in columns.items() if column is not None}


def number_classes(
    labels: Sequence[int] | Sequence[str] | np.ndarray, class_names: Sequence[str] | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number labels in sorted order.

    Args:
        labels: Integers or strings `[n]`.
        class_names: Names of the `K` different labels, in sorted order. Default: the labels as
            strings.

    Returns:
        Class numbers, integers `[n]` in `0..K-1`, and the `K` class names.

    Raises:
        ValueError, TypeError: The labels are empty or not a vector, or the names do not fit.
    """
    given = as_labels("labels", labels)
    if given.ndim != 1 or len(given) == 0:
        raise argument_error("labels", "a vector with at least one label", given)
    values, numbers = np.unique(given, return_inverse=True)
    distinct = values.tolist()
    names = _checked_names(map(str, distinct) if class_names is None else class_names)
    if len(names) != len(distinct):
        raise ArgumentError(
            f"class_names must have one name for each of the {len(distinct)} classes, but got "
            f"{len(names)} names."
        )
    return numbers, names


def repeated_images(
    images: Sequence[Hashable], labels: Sequence[object] | np.ndarray
) -> tuple[list[Hashable], list[Hashable]]:
    """Return the images with several labels, and those with a repeated row, each once."""
    label_of: dict[Hashable, object] = {}
    several: dict[Hashable, None] = {}
    repeated: dict[Hashable, None] = {}
    for image, label in zip(images, np.asarray(labels).tolist()):
        if image not in label_of:
            label_of[image] = label
        elif label_of[image] == label:
            repeated[image] = None
        else:
            several[image] = None
    return list(several), list(repeated)


def _named_classes(
    labels: Sequence[int] | Sequence[str] | np.ndarray, class_names: Sequence[str] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return `number_classes`, and warn about labels that differ only in their form."""
    numbers, names = number_classes(labels, class_names)
    if class_names is None:
        forms: dict[object, list[str]] = {}
        for name in names:
            forms.setdefault(_form(name), []).append(name)
        alike = [" and ".join(map(repr, same)) for same in forms.values() if len(same) > 1]
        if alike:
            logging.getLogger("pipelines").warning(
                "labels differ only by case, spaces, or the form of a number, and are different "
                "classes: %s%s", ", ".join(alike[:_SHOWN]), ", …" * (len(alike) > _SHOWN),
            )  # fmt: skip
    return numbers, names


def _form(name: str) -> object:
    """Return a label without case and spaces, or the number that it spells."""
    text = "".join(name.split()).casefold()
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        return text
    return number if number.is_finite() and "_" not in text else text


def check_table(name: str, table: object) -> None:
    """Raise `ArgumentTypeError` unless the argument is an `ImageTable`."""
    if not isinstance(table, ImageTable):
        raise argument_error(name, "an ImageTable", table, ArgumentTypeError)


def plain_rows(table: ImageTable) -> np.ndarray:
    """Return the rows of a table without images to decode or crop.

    Raises:
        ValueError: The table needs a transform.
    """
    if table.arrays is None or table.boxes is not None:
        raise ArgumentError(
            "transform must be set for image files and for tables with boxes, but got None for "
            f"{table!r}. Pass for example EvaluationTransform(image_size=224)."
        )
    return table.arrays


def _checked_names(class_names: Iterable[str]) -> tuple[str, ...]:
    names = checked_items("class_names", "strings", class_names)
    for name in names:
        if not isinstance(name, str):
            raise argument_error("class_names", "strings", name, ArgumentTypeError)
    return tuple(cast(list[str], names))


def _checked_paths(paths: Sequence[str | os.PathLike[str]] | np.ndarray) -> np.ndarray:
    if isinstance(paths, np.ndarray) and paths.dtype.kind == "U":
        checked = paths
    else:
        given = checked_items("paths", "strings or path objects", paths)
        names = [os.fspath(path) if isinstance(path, os.PathLike) else path for path in given]
        for path in names:
            if not isinstance(path, str):
                raise argument_error("paths", "strings or path objects", path, ArgumentTypeError)
            try:
                path.encode()
            except UnicodeEncodeError:
                # TensorFlow only reads files with UTF-8 names, and would only fail during training.
                advice = "Rename the file."
                raise argument_error("paths", "valid UTF-8", path, advice=advice) from None
        checked = np.array(names, dtype=str)
    if checked.ndim != 1:
        raise shape_error("paths", "a vector", checked)
    return _read_only(checked)


def _checked_arrays(arrays: np.ndarray) -> np.ndarray:
    checked = as_array("arrays", arrays)
    wanted = "arrays must be images, uint8 [n, height, width, 1 or 3], or floats [n, ...], but got"
    if checked.dtype.kind != "f" and checked.dtype != np.uint8:
        advice = ""
        if checked.dtype.kind in "iub":
            advice = " Use .astype('uint8') for pixels, .astype('float32') for other data."
        raise ArgumentTypeError(f"{wanted} dtype {checked.dtype}.{advice}")
    rank_is_wrong = checked.ndim < 2 if checked.dtype.kind == "f" else checked.ndim != 4
    pixels = checked.dtype == np.uint8
    if rank_is_wrong or (pixels and checked.shape[-1] not in (1, 3)) or 0 in checked.shape[1:]:
        raise ArgumentError(f"{wanted} dtype {checked.dtype} and shape {checked.shape}.")
    return _read_only(checked)


def _checked_encoded(encoded: Sequence[bytes] | np.ndarray) -> np.ndarray:
    images = checked_items("encoded", "bytes objects", encoded)
    for image in images:
        if not isinstance(image, bytes):
            raise argument_error("encoded", "bytes objects", image, ArgumentTypeError)
    # Not np.array(images): NumPy's byte strings drop zeros at the end.
    checked = np.empty(len(images), object)
    checked[:] = images
    return _read_only(checked)


def _checked_boxes(boxes: ArrayLike, count: int) -> np.ndarray:
    checked = as_integers("boxes", boxes, count, 4, bounds=(-MAX_BOX_PIXELS, MAX_BOX_PIXELS)).copy()
    empty = np.flatnonzero(checked[:, 2:].min(axis=1) < 1)
    if len(empty):
        raise ArgumentError(
            "boxes must be (y, x, height, width) with a height and a width of at least 1, but got "
            f"{checked[empty[0]].tolist()} in row {empty[0]}."
        )
    return _read_only(checked.astype(np.int64, copy=False))


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view. The user's array stays writable."""
    view = array.view()
    view.flags.writeable = False
    return view


_CHECKS = {"paths": _checked_paths, "arrays": _checked_arrays, "encoded": _checked_encoded}
