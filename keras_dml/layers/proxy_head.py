"""A head of class proxies, for losses on cosines."""

import contextlib
import contextvars
import decimal
import math
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_dml._backend.configured import Configured
from keras_dml._backend.replicas import gather_candidates
from keras_dml._common.checks import (
    check_choice,
    check_number,
    check_positive,
    check_seed,
    check_whole,
)
from keras_dml._common.errors import argument_error
from keras_dml._common.types import Tensor, TensorLike
from keras_dml._pairwise.arithmetic import matmul
from keras_dml._pairwise.arrays import (
    as_labels,
    check_class_range,
    checked_class_ids,
    known_numbers,
)
from keras_dml._pairwise.pairs import normalize
from keras_dml.layers.checks import check_full_precision, embedding_size

# Name of the state of the seed generator in files.
_STEP = "step_of_samples"
# A fraction in a message must be large enough.
_ROUND_UP = decimal.Context(prec=3, rounding=decimal.ROUND_UP)

# The head whose model samples the classes after it. Not an attribute of the layer, because each
# replica calls it in its thread.
_DEFERRED: contextvars.ContextVar["ProxyHead | None"] = contextvars.ContextVar(
    "_DEFERRED", default=None
)


@keras.saving.register_keras_serializable("keras_dml")
class ProxyHead(Configured, keras.Layer):
    """A head from embeddings `[n, d]` to the cosines `[n, K]` to learned proxies of K classes.

    The layer has one weight, `proxies` `[K·C, d]`. Class k has the rows `k C … k C + C − 1`.
    Embeddings and proxies are l2-normalized in the layer. A zero row has the cosine 0 to all
    proxies. With C > 1 centers per class, `pooling` selects the cosine of a class:

    - `"max"`: the cosine of the nearest center (sub-center ArcFace)
    - `"soft"`: the mean of its centers' cosines `c_j` with the weights `softmax_j(c_j / γ)`
      (SoftTriple)

    With `sampled` below 1, a training step computes the cosines to only `s = ⌈sampled · K⌉`
    classes: the classes of the batch, and random others without repetition. The loss is then a
    cross-entropy over s classes. The sample is a pure function of the seed, the step, and the class
    ids of the global batch, which must have at most s classes. Only `keras_dml.models.proxy_model`
    trains such a head, because the sample needs the class ids. Outside of training, the head
    computes the cosines to all classes.

    The cosines are float32 under any precision policy. Memory is `[n, K C]`, never `[n, K, d]`. Set
    the learning rate of the proxies in the optimizer,
    `keras_dml.optimizers.multipliers(head, 100)`. Scaling their gradients has no effect with Adam.

    Examples:
        >>> head = ProxyHead(num_classes=3)
        >>> head(np.ones((2, 8), "float32")).shape
        TensorShape([2, 3])

    Args:
        num_classes: K, at least 2.
        centers: C, the number of proxies per class, at least 1.
        pooling: How to reduce the cosines of a class's centers to one: `"max"` or `"soft"`.
        temperature: γ of the soft pooling, above 0.
        proxies_initializer: A Keras initializer. None is N(0, 1/d), which gives a length of about
            1. The length of a proxy does not change its cosines, but it changes how far a step
            turns the proxy.
        proxies_regularizer: A Keras regularizer, such as `CenterRegularizer`, or None. It reads
            all proxies, also with `sampled`.
        sampled: Fraction of the classes that a training step compares with, above 0 and at most 1.
        seed: Seed of the samples.
        dtype: float32 or float64.
        name, trainable: As in every Keras layer.

    Raises:
        ValueError: A number is out of range, `pooling` is unknown, `dtype` is not supported, the
            inputs are not `[n, d]`, or a model other than `keras_dml.models.proxy_model` trains a
            head with `sampled` below 1.

    References: Movshovitz-Attias et al. 2017; Deng et al. 2020, Eq. 3; Qian et al. 2019, Eq. 5. The
    sample is from An et al., "Killing Two Birds with One Stone: Efficient and Robust Training of
    Face Recognition CNNs by Partial FC", CVPR 2022, section 3.2.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        centers: int = 1,
        pooling: Literal["max", "soft"] = "max",
        temperature: float = 0.1,
        proxies_initializer: keras.initializers.Initializer | None = None,
        proxies_regularizer: keras.regularizers.Regularizer | None = None,
        sampled: float = 1.0,
        seed: int = 0,
        dtype: object = "float32",
        **kwargs: object,
    ) -> None:
        super().__init__(dtype=dtype or "float32", **kwargs)
        check_full_precision(self)
        self.num_classes = check_whole("num_classes", num_classes, least=2)
        self.centers = check_whole("centers", centers, least=1)
        self.pooling = check_choice("pooling", pooling, ("max", "soft"))
        self.temperature = check_positive("temperature", temperature)
        if proxies_initializer is None:
            # The "fan out" of [K·C, d] is d.
            proxies_initializer = keras.initializers.VarianceScaling(
                1.0, "fan_out", "untruncated_normal"
            )
        self.proxies_initializer = _of_keras(
            "proxies_initializer", "initializer", keras.initializers.get, proxies_initializer
        )
        self.proxies_regularizer = _of_keras(
            "proxies_regularizer", "regularizer", keras.regularizers.get, proxies_regularizer
        )
        self.sampled = check_number("sampled", sampled, above=0, most=1)
        self.seed = check_seed("seed", seed)
        if self.sampled < 1:
            # Its state is the seed and the step. A full head has no further variables, as in files
            # of earlier releases.
            self.seed_generator = keras.random.SeedGenerator(self.seed)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the proxies."""
        dimensions = embedding_size(input_shape)
        self.proxies = self.add_weight(
            name="proxies",
            shape=(self.num_classes * self.centers, dimensions),
            initializer=self.proxies_initializer,
            regularizer=self.proxies_regularizer,
        )

    def save_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Save the proxies, and the step of the samples, which Keras leaves out of files."""
        super().save_own_variables(store)
        if self.sampled < 1:
            store[_STEP] = ops.convert_to_numpy(self.seed_generator.state)

    def load_own_variables(self, store: MutableMapping[str, Any]) -> None:
        """Load the variables that `save_own_variables` saved."""
        names = list(store.keys())  # a store in a file is not a dictionary
        super().load_own_variables({name: store[name] for name in names if name != _STEP})
        if self.sampled < 1 and _STEP in names:
            self.seed_generator.state.assign(store[_STEP])

    def center_cosines(self, embeddings: Tensor, classes: Tensor | None = None) -> Tensor:
        """Compute the cosines of embeddings `[n, d]` to all centers of classes.

        Args:
            embeddings: `[n, d]`.
            classes: Class ids int32 `[s]`. None: all classes.

        Returns:
            `[n, s, C]`, or `[n, K, C]`.
        """
        z = normalize(ops.cast(embeddings, self.compute_dtype))
        if classes is None:
            proxies = ops.copy(self.proxies)
        else:
            rows = classes[:, None] * self.centers + ops.arange(self.centers, dtype="int32")
            proxies = ops.take(self.proxies, ops.reshape(rows, (-1,)), axis=0)
        cosines = matmul(z, ops.transpose(normalize(proxies)))
        of_classes = self.num_classes if classes is None else classes.shape[0]
        return ops.reshape(cosines, (-1, of_classes, self.centers))

    def call(self, embeddings: Tensor, training: bool | None = None) -> Tensor:
        """Compute the class cosines `[n, K]`. `sampled_cosines` does in training with `sampled`."""
        if not training or self.sampled == 1:
            return self._pooled(self.center_cosines(embeddings))
        if _DEFERRED.get() is not self:
            wanted = "1 in this model"
            advice = (
                "Only the model of keras_dml.models.proxy_model(embedding, num_classes, "
                "sampled=...) trains a sampled head, because the head needs the class ids."
            )
            raise argument_error("sampled", wanted, self.sampled, advice=advice)
        return embeddings

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Return the embeddings instead of cosines in training, within a `with` block.

        The block applies to calls in this thread.
        """
        token = _DEFERRED.set(self)
        try:
            yield
        finally:
            _DEFERRED.reset(token)

    def sampled_cosines(self, embeddings: Tensor, class_ids: TensorLike) -> tuple[Tensor, Tensor]:
        """Draw the next sample of classes, and compute the cosines to them.

        Args:
            embeddings: `[n, d]`.
            class_ids: `[n]` or `[n, 1]`, in 0 … K − 1. With `tf.distribute`, of this replica.

        Returns:
            `(ids, cosines)`: the place of each image's class in the sample, int32 `[n]`, and the
            cosines `[n, s]`. The classes of the sample are in increasing order.

        Raises:
            ValueError: A class id is outside 0 … K − 1, or the batch has more than s classes. A
                compiled graph cannot raise, and there the id is −1, for which a loss is NaN. Or
                `sampled` is 1.
        """
        if self.sampled == 1:
            raise argument_error("sampled", "below 1 for sampled cosines", self.sampled)
        labels = checked_class_ids(as_labels(class_ids))
        check_class_range(labels, self.num_classes, "num_classes of the ProxyHead")
        own = self._valid(labels)
        every, _ = gather_candidates(own)
        self.check_room(every)
        classes = self._next_classes(every)
        places = ops.scatter_update(
            ops.full((self.num_classes,), -1, dtype="int32"),
            classes[:, None],
            ops.arange(self.sample_size, dtype="int32"),
        )
        ids = ops.where(own < 0, -1, ops.take(places, ops.maximum(own, 0), axis=0))
        return ids, self._pooled(self.center_cosines(embeddings, classes))

    @property
    def sample_size(self) -> int:
        """s, the number of classes in a sample."""
        # In decimals, because the float64 product of 0.07 and 100 is above 7.
        return max(math.ceil(decimal.Decimal(str(self.sampled)) * self.num_classes), 2)

    def check_room(self, class_ids: TensorLike) -> None:
        """Raise `ValueError` if the class ids of a global batch, if known, exceed a sample."""
        known = known_numbers(class_ids)
        used = 0 if known is None else len(np.unique(known))
        if used > self.sample_size:
            least = _ROUND_UP.divide(decimal.Decimal(used), decimal.Decimal(self.num_classes))
            wanted = f"at least {least}, because a batch has {used} classes"
            advice = "Or put several images of each class into a batch (BalancedSampler)."
            raise argument_error("sampled", wanted, self.sampled, advice=advice)

    def _valid(self, labels: Tensor) -> Tensor:
        """Return the labels as int32, and −1 for a label outside 0 … K − 1."""
        ids = ops.cast(labels, "int32")
        whole = ops.equal(ops.cast(ids, labels.dtype), labels)
        inside = ops.logical_and(labels >= 0, labels < self.num_classes)
        return ops.where(ops.logical_and(whole, inside), ids, -1)

    def _next_classes(self, own: Tensor) -> Tensor:
        """Return the next sample, int32 `[s]` in increasing order.

        Args:
            own: Class ids of the global batch, int32. -1 counts as class 0.
        """
        own = ops.maximum(own, 0)
        # As in the authors' code: the classes of the batch have the largest numbers.
        drawn = keras.random.uniform((self.num_classes,), dtype="float32", seed=self.seed_generator)
        drawn = ops.scatter_update(drawn, own[:, None], ops.full_like(own, 2, dtype=drawn.dtype))
        _, classes = ops.top_k(drawn, self.sample_size, sorted=False)
        return ops.sort(ops.cast(classes, "int32"))

    def _pooled(self, cosines: Tensor) -> Tensor:
        """Reduce the cosines `[n, K, C]` to the cosines of the classes."""
        if self.centers == 1:
            return ops.squeeze(cosines, axis=-1)
        if self.pooling == "max":
            return ops.max(cosines, axis=-1)
        return ops.sum(ops.softmax(cosines / self.temperature, axis=-1) * cosines, axis=-1)


def _of_keras(name: str, what: str, get: Callable[[Any], Any], identifier: object) -> Any:
    try:
        return get(identifier)
    except (TypeError, ValueError) as error:
        raise argument_error(name, f"None or a Keras {what}", identifier) from error
