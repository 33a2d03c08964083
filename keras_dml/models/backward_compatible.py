"""A model that trains to be searched in the index of an older model."""

import types
from typing import Any

import keras
from keras import ops

from keras_dml._common.checks import check_number, check_whole
from keras_dml._common.errors import ArgumentError, ArgumentTypeError, argument_error, shape_error
from keras_dml._common.types import Logs, Tensor, TensorLike
from keras_dml._pairwise.pairs import normalize
from keras_dml.layers.proxy_head import ProxyHead
from keras_dml.losses.base import EmbeddingLoss, check_compared_loss
from keras_dml.losses.proxy_loss import ProxyLoss
from keras_dml.losses.reduction import reduced
from keras_dml.models.distributed_model import Wrapper, refuse_arguments
from keras_dml.models.embeddings import check_embedding_model


@keras.saving.register_keras_serializable("keras_dml")
class BackwardCompatible(Wrapper):
    """A new embedding model, whose queries find rows that an old model has embedded.

    With the new embeddings n(x) `[n, d_n]` and the old ones o(x) `[n, d_o]`, training minimizes

        L(n(x), y) + w · L_c(n(x)[:, :d_o], y)

    with a loss L and the compatible part

    - pairs: `L_c = L.between(y, n(x)[:, :d_o], y, o(x)) + a · mean(1 − cos(n(x)[:, :d_o], o(x)))`.
      The anchors are the new embeddings, and the candidates the old embeddings of the images of all
      replicas, as constants. The old embedding of the anchor's image is a positive. The second term
      with the weight a compares each image with its own old embedding, which also holds the new
      model to the old one on classes that do not train.
    - proxies, with `old_head`: `L_c = L(y, old_head(n(x)[:, :d_o]))`, the loss of the new
      embeddings on the old model's frozen proxies. Classes from the head's number of classes on
      are new, and their images have no compatible part.

    If the layers are the same, start from the old model (`keras_dml.models.copy_weights`). Of the
    trainings in docs/pages/results/upgrade.md, only such starts with a > 0 find old rows as well as
    the old queries do.

    If the new embeddings are longer, only their first d_o numbers are compatible, and the others
    are free to be better. Search the old index with `n(x)[:, :d_o]`, and a new index with n(x).

    Train with `fit` on `(images, (labels, old_embeddings))`. Row i of the old embeddings is from
    image i, augmented or not. With `old_head`, labels suffice. The log
    `compatible_loss` is L_c. Metrics of `compile` receive the labels and the new embeddings (or
    cosines). Works under every `tf.distribute` strategy, on JAX, and on PyTorch. For large batches,
    `BackwardCompatible(CachedGradients(embedding, 32), 128)`.

    `keras_dml.upgrade.cross_scores` measures the result. Evaluate and save the wrapped model for
    use.

    Examples:
        >>> images, labels = np.random.default_rng(0).normal(size=(32, 8)), np.arange(32) % 4
        >>> encoder = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(6)])
        >>> old_embeddings = images[:, :4]
        >>> model = BackwardCompatible(encoder, old_dimensions=4)
        >>> model.compile("adam", keras_dml.losses.SupConLoss())
        >>> history = model.fit(images, (labels, old_embeddings), verbose=0)
        >>> sorted(history.history)
        ['compatible_loss', 'loss']

    Args:
        model: A built `keras.Model` from images to embeddings `[n, d_n]`. With `old_head`, the
            functional model of `proxy_model`, from images to the cosines of the new classes.
        old_dimensions: d_o, the length of the old embeddings, at most d_n.
        weight: w, at least 0.
        alignment: a, at least 0. 0 with `old_head`.
        old_head: The old model's `ProxyHead`, built for d_o numbers. This model freezes it. The
            outputs of the model are then the cosines to the new and to the old classes.
        name: Name of the model.

    Raises:
        TypeError: In `compile`, the loss is not a loss over pairs that can compare two sets, or
            with `old_head` not a loss on cosines.
        ValueError: An argument is out of range, d_n is below d_o, the model is not built, or its
            outputs have another form. In `fit`, the old embeddings are missing, or their length is
            not d_o.

    References: Shen et al., "Towards Backward-Compatible Representation Learning", CVPR 2020, Eq. 3
    and 4 (the proxies). Meng et al., "Learning Compatible Embeddings", ICCV 2021 (pairs). Budnik
    and Avrithis, "Asymmetric Metric Learning for Knowledge Transfer", CVPR 2021 (the term with a).
    """

    is_outermost = True

    def __init__(
        self,
        model: keras.Model,
        old_dimensions: int,
        *,
        weight: float = 1.0,
        alignment: float = 0.0,
        old_head: ProxyHead | None = None,
        name: str = "backward_compatible",
        **kwargs: Any,
    ) -> None:
        super().__init__(model, name, **kwargs)
        is_outermost = isinstance(model, Wrapper) and model.is_outermost
        if is_outermost or self.two_sets is not None:
            raise argument_error("model", "a model of one set of embeddings, not a memory", model)
        dimensions = check_embedding_model("model", model)
        self.old_dimensions = check_whole("old_dimensions", old_dimensions, least=1)
        self.weight = check_number("weight", weight, least=0)
        self.alignment = check_number("alignment", alignment, least=0)
        self.old_head = old_head
        # Keras does not track a namespace, and so saves these layers once, in the model.
        self._parts = types.SimpleNamespace(embedding=model, head=None)
        if old_head is not None:
            if self.alignment:
                wanted = "0 with old_head, which needs no old embeddings"
                raise argument_error("alignment", wanted, alignment)
            self._parts = _embedding_and_head(model)
            dimensions = self._parts.embedding.output_shape[1]
            _check_old_head(old_head, self.old_dimensions)
            old_head.trainable = False
        if dimensions is not None and dimensions < self.old_dimensions:
            wanted = f"at most {dimensions}, the length of the new embeddings"
            advice = "Train an embedding that is at least as long as the old one."
            raise argument_error("old_dimensions", wanted, old_dimensions, advice=advice)
        self.compatible_loss = keras.metrics.Mean("compatible_loss")
        self.built = True

    def call(self, images: Tensor, training: bool = False) -> Any:
        """Compute the embeddings, or with `old_head` the cosines to new and to old classes."""
        outputs = self._parts.embedding(images, training=training)
        if self.old_head is None:
            return outputs
        # The old head is constant, so it compares with all old classes even if it sampled them.
        return (
            self._parts.head(outputs, training=training),
            self.old_head(outputs[:, : self.old_dimensions], training=False),
        )

    def compile(
        self,
        optimizer: keras.Optimizer | str = "rmsprop",
        loss: EmbeddingLoss | None = None,
        **kwargs: Any,
    ) -> None:
        """Compile as in `keras.Model.compile`, with one loss.

        Args:
            optimizer: As in Keras.
            loss: A loss over pairs whose `between` can compare two sets. With `old_head`, a loss on
                the cosines of a `ProxyHead`.
            kwargs: As in Keras, without `loss_weights`.

        Raises:
            TypeError, ValueError: See the class.
        """
        if self.old_head is None:
            _check_pair_loss(loss)
        elif not isinstance(loss, ProxyLoss):
            wanted = "a loss on the cosines of a ProxyHead, because old_head is set"
            raise argument_error("loss", wanted, loss, ArgumentTypeError)
        self.check_layers()
        advice = "Set weight, the weight of the compatible part, in the constructor"
        refuse_arguments(kwargs, ["loss_weights"], advice)
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: TensorLike | None = None,
        training: bool = True,
    ) -> Tensor:
        """Compute L + w · L_c of a batch, and the weight regularizers.

        Args:
            x: Unused.
            y: (labels, old embeddings `[n, d_o]`). With `old_head`, labels suffice.
            y_pred: Outputs of the model.
            sample_weight: `[n]`, or None. Weights both parts.
            training: Unused.
        """
        labels, old = self._targets(y)
        sample_weight = _once(sample_weight)
        if self.old_head is None:
            outputs, term = y_pred, self._between(labels, y_pred, old, sample_weight)
        else:
            outputs, old_cosines = y_pred
            term = self._on_old_proxies(labels, old_cosines, sample_weight)
        # Keras divided the mean by the number of replicas, and the logs average over replicas.
        self.compatible_loss.update_state(
            ops.stop_gradient(term) * self.replicas, ops.shape(outputs)[0]
        )
        of_new = super().compute_loss(x, labels, outputs, sample_weight, training)
        # Keras sums in floatx, which may be a half.
        return ops.cast(of_new, term.dtype) + self.weight * term

    def compute_metrics(
        self, x: Any, y: Any, y_pred: Any, sample_weight: TensorLike | None = None
    ) -> Logs:
        """Update the metrics of `compile` with the labels and the new outputs."""
        labels, _ = self._targets(y)
        outputs = y_pred if self.old_head is None else y_pred[0]
        return super().compute_metrics(x, labels, outputs, _once(sample_weight))

    def _targets(self, y: Any) -> tuple[Any, Any]:
        """Return labels and old embeddings."""
        if isinstance(y, (tuple, list)) and len(y) == 2:
            return tuple(y)
        if self.old_head is not None:
            return y, None
        wanted = "a tuple (labels, old embeddings)"
        advice = "Pass fit(images, (labels, old_embeddings)), or batches of this form."
        raise argument_error("y", wanted, y, advice=advice)

    def _between(
        self, labels: Any, new: Tensor, old: Any, sample_weight: TensorLike | None
    ) -> Tensor:
        """Compute the compatible part over pairs."""
        old = ops.stop_gradient(ops.convert_to_tensor(old))
        if len(old.shape) != 2 or old.shape[1] != self.old_dimensions:
            wanted = f"old embeddings [n, {self.old_dimensions}] (old_dimensions) after the labels"
            raise shape_error("y", wanted, old)
        new = new[:, : self.old_dimensions]
        term = self.loss.between(labels, new, labels, old, sample_weight)
        if not self.alignment:
            return term
        dtype = self.loss.dtype  # a half is too coarse for 1 - cos near 0
        cosines = ops.sum(normalize(ops.cast(new, dtype)) * normalize(ops.cast(old, dtype)), -1)
        apart = reduced(self.loss, 1 - cosines, new, sample_weight)
        return term + self.alignment * ops.cast(apart, term.dtype)

    def _on_old_proxies(
        self, labels: Any, cosines: Tensor, sample_weight: TensorLike | None
    ) -> Tensor:
        """Compute the compatible part on the old proxies, which new classes do not have."""
        labels = self.loss.checked_labels(labels)
        are_old = labels < ops.cast(cosines.shape[1], labels.dtype)
        weights = ops.cast(are_old, self.loss.dtype)
        if sample_weight is not None:
            given = ops.cast(ops.convert_to_tensor(sample_weight), self.loss.dtype)
            weights = weights * ops.reshape(given, (-1,))
        return self.loss(ops.where(are_old, labels, ops.zeros_like(labels)), cosines, weights)


def _once(sample_weight: Any) -> Any:
    """Return the weights of the images, which Keras repeats for each array of `y`."""
    repeated = isinstance(sample_weight, (tuple, list)) and len(sample_weight) == 2
    return sample_weight[0] if repeated else sample_weight


def _embedding_and_head(model: keras.Model) -> types.SimpleNamespace:
    """Return the parts of a `proxy_model`: up to the embeddings, and its head."""
    heads = [layer for layer in getattr(model, "layers", []) if isinstance(layer, ProxyHead)]
    if len(heads) != 1 or getattr(model, "output", None) is not heads[0].output:
        wanted = "a functional model that ends with a ProxyHead, because old_head is set"
        advice = "Create it with keras_dml.models.proxy_model(embedding, num_classes)."
        raise argument_error("model", wanted, model, advice=advice)
    [head] = heads
    return types.SimpleNamespace(embedding=keras.Model(model.input, head.input), head=head)


def _check_old_head(head: object, old_dimensions: int) -> None:
    if not isinstance(head, ProxyHead):
        wanted = "the ProxyHead of the old model, or None"
        raise argument_error("old_head", wanted, head, ArgumentTypeError)
    shape = head.proxies.shape if head.built else None
    if shape is None or shape[1] != old_dimensions:
        received = "a head that is not built" if shape is None else f"proxies of {shape[1]} numbers"
        raise ArgumentError(
            f"old_head must be built for embeddings of old_dimensions={old_dimensions} numbers, "
            f"but got {received}. Use the head of the trained old model."
        )


def _check_pair_loss(loss: object) -> None:
    """Raise an error unless a loss can compare new embeddings with old ones."""
    if isinstance(loss, ProxyLoss):
        wanted = "a loss over pairs without old_head"
        advice = "Pass old_head, the ProxyHead of the old model."
        raise argument_error("loss", wanted, loss, ArgumentTypeError, advice=advice)
    compared = check_compared_loss(loss)
    compared.check_memory()  # the old embeddings are constants
    if compared.boundaries:
        wanted = "a loss without learned boundaries"
        raise argument_error("loss", wanted, loss, ArgumentTypeError)
