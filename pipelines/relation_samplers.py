"""Samplers for labels beyond class ids: tags, and categories of products.

In their batches, anchors have positives under `keras_dml.relations.SharesLabel` and `Hierarchy`.
For matching pairs, rows of a table of pairs, use `RandomSampler`.
"""

import numpy as np
from numpy.typing import ArrayLike

from keras_dml._common.checks import argument_error, as_array, check_choice, check_whole
from keras_dml._common.errors import ArgumentError, shape_error
from pipelines.checks import as_integers, check_sampler, checked_seed
from pipelines.even_draws import choose
from pipelines.permutation import derive_keys, seed_key
from pipelines.samplers import QuietBalancedSampler, Sampler


class CatalogSampler:
    """A sampler of catalog pictures: one of the class of each image in the batches of a sampler.

    Examples:
        >>> photos, catalog = np.array([0, 0, 1, 1]), np.array([1, 0])
        >>> sampler = pipelines.BalancedSampler(photos, classes_per_batch=2, images_per_class=2)
        >>> photos[sampler(0)], catalog[CatalogSampler(sampler, photos, catalog)(0)]
        (array([0, 0, 1, 1]), array([0, 0, 1, 1]))

    Args:
        sampler: Sampler of the images.
        labels: Class ids `[n]` of the images.
        catalog_labels: Class ids `[c]` of the catalog pictures. If a class has several pictures,
            each batch draws one for each image.
        seed: Seed of the draws, 0 or more.

    Attributes:
        batch_size: Rows in a batch.

    Raises:
        ValueError, TypeError: The labels are not vectors of integers, or a class has no picture.
    """

    def __init__(
        self, sampler: Sampler, labels: ArrayLike, catalog_labels: ArrayLike, *, seed: int = 0
    ) -> None:
        self._labels = as_integers("labels", labels, None)
        pictures = as_integers("catalog_labels", catalog_labels, None)
        missing = np.setdiff1d(self._labels, pictures)
        if len(missing):
            raise ArgumentError(
                f"catalog_labels must have a picture of each class, but got none of {len(missing)} "
                f"classes, the first of them class {missing[0]}."
            )
        self._order = np.argsort(pictures, kind="stable")
        self._pictures = pictures[self._order]
        self._sampler, self._seed = sampler, check_whole("seed", seed, least=0)
        self.batch_size = check_sampler(sampler)

    def __call__(self, step: int) -> np.ndarray:
        """Return the row numbers of the pictures of batch `step` (from 0), int64 `[batch_size]`."""
        classes = self._labels[self._sampler(step)]
        first, end = (np.searchsorted(self._pictures, classes, side) for side in ("left", "right"))
        drawn = np.random.default_rng((self._seed, step)).integers(0, end - first)
        return self._order[first + drawn]


class TagSampler:
    """A sampler that draws tags, and then images of each tag.

    All tags appear equally often, and so do all images of a tag. An image with several of the drawn
    tags can appear once for each of them.

    Examples:
        >>> tags = np.array([[1, 0], [1, 1], [0, 1], [0, 1]])
        >>> TagSampler(tags, tags_per_batch=2, images_per_tag=2)(0)
        array([0, 1, 1, 3])

    Args:
        tags: Tags of each image: 0 and 1 `[n, G]`, or ids `[n, m]` padded with −1.
        tags_per_batch: Tags in a batch.
        images_per_tag: Images of each tag in a batch.
        encoding: `"multi_hot"` or `"ids"`.
        seed: Seed of the sequence of batches, an int64.

    Attributes:
        batch_size: Rows in a batch.
        steps_per_epoch: `n // batch_size`, but at least 1.

    Raises:
        ValueError, TypeError: The tags are not a matrix of integers, a tag id is below −1, fewer
            tags than `tags_per_batch` have an image, or an argument is out of range.
    """

    def __init__(
        self,
        tags: ArrayLike,
        tags_per_batch: int,
        images_per_tag: int,
        *,
        encoding: str = "multi_hot",
        seed: int = 0,
    ) -> None:
        check_choice("encoding", encoding, ("multi_hot", "ids"))
        given = _matrix("tags", tags)
        if encoding == "multi_hot":
            if not ((given == 0) | (given == 1)).all():
                advice = "For tag ids, use encoding='ids'."
                raise argument_error("tags", "0 or 1 for each tag", given, advice=advice)
            rows, ids = np.nonzero(given)
        else:
            if (given < -1).any():
                wanted = "tag ids from 0 on, and −1 after the tags of a row"
                raise argument_error("tags", wanted, int(given.min()))
            # A tag counts once in a row, as in `SharesLabel`.
            given = np.sort(given, axis=1)
            given[:, 1:][given[:, 1:] == given[:, :-1]] = -1
            rows, columns = np.nonzero(given >= 0)
            ids = given[rows, columns]
        tags_per_batch = check_whole("tags_per_batch", tags_per_batch, least=1)
        number = len(np.unique(ids))
        if number < tags_per_batch:
            wanted = f"at most the number of tags with images, {number}"
            raise argument_error("tags_per_batch", wanted, tags_per_batch)
        self._rows = rows
        self._sampler = QuietBalancedSampler(ids, tags_per_batch, images_per_tag, seed)
        self.batch_size = self._sampler.batch_size
        self.steps_per_epoch = max(1, len(given) // self.batch_size)

    def __call__(self, step: int) -> np.ndarray:
        """Return the row numbers of batch `step` (from 0), int64 `[batch_size]`."""
        return self._rows[self._sampler(step)]


class HierarchySampler:
    """A sampler that draws categories, then products of each, and then images of each product.

    All categories appear equally often, and so do all products of a category. The rows of a batch
    are ordered by product.

    Examples:
        >>> paths = np.array([[0, 0], [0, 0], [0, 1], [0, 1], [1, 0], [1, 0], [1, 1], [1, 1]])
        >>> sampler = HierarchySampler(paths, 1, products_per_category=2, images_per_product=2)
        >>> paths[sampler(0)].tolist()
        [[1, 0], [1, 0], [1, 1], [1, 1]]

    Args:
        labels: Class ids `[n, levels]`, coarse to fine. The first level is the category, and all
            levels together are the product.
        categories_per_batch: Categories in a batch.
        products_per_category: Products of each category in a batch. A category with fewer products
            repeats them.
        images_per_product: Images of each product in a batch. A product with fewer images repeats
            them.
        seed: Seed of the sequence of batches, an int64.

    Attributes:
        batch_size: Rows in a batch.
        steps_per_epoch: `n // batch_size`, but at least 1.

    Raises:
        ValueError, TypeError: The labels are not a matrix of integers, there are fewer categories
            than `categories_per_batch`, or an argument is out of range.
    """

    def __init__(
        self,
        labels: ArrayLike,
        categories_per_batch: int,
        products_per_category: int,
        images_per_product: int,
        *,
        seed: int = 0,
    ) -> None:
        given = _matrix("labels", labels)
        categories_per_batch = check_whole("categories_per_batch", categories_per_batch, least=1)
        images_per_product = check_whole("images_per_product", images_per_product, least=1)
        paths, products = np.unique(given, axis=0, return_inverse=True)
        there = len(np.unique(paths[:, 0]))
        if there < categories_per_batch:
            wanted = f"at most the number of categories, {there}"
            raise argument_error("categories_per_batch", wanted, categories_per_batch)
        self._products = QuietBalancedSampler(
            paths[:, 0], categories_per_batch, products_per_category, seed
        )
        products = products.ravel()
        self._rows = np.argsort(products, kind="stable")
        self._starts = np.searchsorted(products[self._rows], np.arange(len(paths)))
        self._sizes = np.bincount(products)
        self._images = images_per_product
        # The categories and the order of their products have the streams before these.
        streams = there + 1 + np.arange(len(paths))
        self._keys = derive_keys(seed_key(checked_seed(seed)), streams)
        self.batch_size = self._products.batch_size * images_per_product
        self.steps_per_epoch = max(1, len(given) // self.batch_size)

    def __call__(self, step: int) -> np.ndarray:
        """Return the row numbers of batch `step` (from 0), int64 `[batch_size]`."""
        products, visits = self._products.rows_and_visits(step)
        images = choose(self._keys[products], self._sizes[products], self._images, visits)
        return self._rows[self._starts[products][:, None] + images].ravel()


def _matrix(name: str, given: ArrayLike) -> np.ndarray:
    array = as_array(name, given)
    if array.ndim != 2 or not array.size:
        raise shape_error(name, "a matrix with a row for each image", array)
    return as_integers(name, array.ravel(), None).reshape(array.shape)
