"""Pooling of a backbone's maps or tokens to one vector, and the layout of tokens.

`POOLINGS` is the only list of poolings. The flag, its help, and its checks use it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_dml._backend.configured import Configured
from keras_dml._common.checks import check_positive, check_whole
from keras_dml._common.errors import argument_error
from keras_dml._common.types import Config, Tensor
from keras_dml._pairwise.arithmetic import maximum


@keras.saving.register_keras_serializable("keras_dml")
class TokenLayout(Configured, keras.Layer):
    """A layer that describes a transformer's tokens `[n, t, c]` and returns them unchanged.

    It is the last layer of a backbone with tokens, so that poolings know which tokens are patches
    of the image. Files and copies of the model include it.

    Args:
        class_token: Whether the first token is the class token.
        registers: Number of tokens after it that are not patches either (DINOv2's registers, the
            distillation token of DeiT).

    Raises:
        ValueError: `registers` is not a whole number of at least 0.

    Examples:
        >>> tokens = keras.Input((1 + 4 + 16, 8))
        >>> TokenLayout(class_token=True, registers=4)(tokens).shape
        (None, 21, 8)
    """

    def __init__(self, class_token: bool = True, registers: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.class_token = bool(class_token)
        self.registers = check_whole("registers", registers, least=0)

    def call(self, tokens: Tensor) -> Tensor:
        """Return the tokens."""
        return tokens


@keras.saving.register_keras_serializable("keras_dml")
class TokenSlice(Configured, keras.Layer):
    """A layer that selects the tokens from `start` on, `[n, t − start, c]`, or the first, `[n, c]`.

    Args:
        start: First token to keep. None returns the first token as a vector.
    """

    def __init__(self, start: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start = start

    def call(self, tokens: Tensor) -> Tensor:
        """Return the selected tokens."""
        return tokens[:, 0] if self.start is None else tokens[:, self.start :]


# Float32 numbers below 1.2e-38 lose digits, or are 0 where the hardware flushes them.
_SMALLEST_NUMBER = 1e-37

# Below, rounding errors divided by p show in the result.
_SMALLEST_P = 0.001


@keras.saving.register_keras_serializable("keras_dml")
class GeneralizedMeanPooling(keras.Layer):
    """Generalized mean over positions: `(mean_i x_i^p)^{1/p}` of each channel, p learned.

    p = 1 is the average, p → ∞ the maximum. Negative activations count as 0, as after a ReLU. An
    activation of 0 has gradient 0, and so has p in a channel without positive activations. A
    learned p below 0.001 counts as 0.001.

    Computes in float32 under any precision policy (`dtype="float64"` is possible), each channel
    relative to its largest activation, so that no power overflows.

    Args:
        p: Initial exponent, above 0.

    Call arguments:
        features: maps `[n, h, w, c]` or tokens `[n, t, c]`.

    Returns:
        `[n, c]`.

    Raises:
        ValueError: `p` is not a positive number.

    Reference: Radenović, Tolias and Chum, "Fine-tuning CNN Image Retrieval with No Human
    Annotation", TPAMI 2019, Eq. 3, which begins with p = 3.

    Examples:
        >>> pooled = GeneralizedMeanPooling(p=1.0)(np.arange(6.0).reshape(1, 3, 2))
        >>> np.round(pooled, 3)
        array([[2., 3.]], dtype=float32)
    """

    def __init__(self, p: float = 3.0, dtype: str = "float32", **kwargs: Any) -> None:
        super().__init__(dtype=dtype, **kwargs)
        self.initial_p = check_positive("p", p)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create p, one exponent for all channels."""
        start = keras.initializers.Constant(self.initial_p)
        self.p = self.add_weight(shape=(), initializer=start, name="p")

    def call(self, features: Tensor) -> Tensor:
        """Compute the means `[n, c]`."""
        positions = tuple(range(1, len(features.shape) - 1))
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        x = maximum(ops.cast(features, dtype), 0.0)
        p = maximum(ops.cast(self.p, dtype), _SMALLEST_P)
        # The mean is homogeneous in x, so a constant divisor leaves its gradients exact.
        largest = ops.stop_gradient(ops.max(x, axis=positions, keepdims=True))
        shares = x / maximum(largest, _SMALLEST_NUMBER)
        positive = shares >= _SMALLEST_NUMBER
        # 0 ** p and 0 ** (1 / p) have infinite slopes: replace 0 by 1 before each power.
        powers = ops.where(positive, shares, ops.ones_like(shares)) ** p
        powers = powers * ops.cast(positive, dtype)
        # ops.mean computes float64 in float32 on JAX.
        means = ops.sum(powers, axis=positions) / ops.sum(ops.ones_like(x), axis=positions)
        largest = ops.squeeze(largest, positions)
        means = ops.where(means > 0.0, means, ops.ones_like(means))
        return ops.cast(largest * means ** (1.0 / p), self.compute_dtype)

    def get_config(self) -> Config:
        """Return the constructor's arguments."""
        return {**super().get_config(), "p": self.initial_p}


class Features(NamedTuple):
    """The output of a backbone.

    Attributes:
        values: Maps `[n, h, w, c]`, tokens `[n, t, c]` or vectors `[n, c]`.
        class_token: Whether the first token is a class token. None if unknown.
        others: Number of tokens that are not patches, including the class token.
    """

    values: Tensor
    class_token: bool | None = False
    others: int = 0

    @property
    def described(self) -> str:
        """Description of the output, for messages."""
        if len(self.values.shape) == 4:
            return "maps, which have no class token"
        if len(self.values.shape) == 2:
            return "vectors, which are pooled already"
        return "tokens without a class token"


def pooled(features: Features, pooling: str, name: str) -> Tensor:
    """Pool a backbone's features to one vector `[n, d]` by one of `POOLINGS`.

    Args:
        features: Features from `features_of`.
        pooling: A name in `POOLINGS`.
        name: Name of the layer that returns the vector.

    Raises:
        ValueError: The backbone does not support this pooling.
    """
    rank = len(features.values.shape)
    suited = list(POOLINGS)
    if rank == 2:
        suited = ["average"]
    elif rank == 4 or features.class_token is False:
        suited = [known for known in POOLINGS if not known.startswith("cls")]
    if pooling not in suited:
        known = ", ".join(map(repr, suited))
        wanted = f"one of {known} for a backbone that gives {features.described}"
        raise argument_error("pooling", wanted, pooling)
    if rank == 2:
        return keras.layers.Identity(name=name)(features.values)
    return POOLINGS[pooling](features, name)


def average_pooling(features: Features, name: str) -> Tensor:
    """Average over all positions (Lin et al. 2014, Network in Network)."""
    return _over_positions(
        features, keras.layers.GlobalAveragePooling2D, keras.layers.GlobalAveragePooling1D, name
    )


def max_pooling(features: Features, name: str) -> Tensor:
    """Take the largest value of each channel (MAC, Tolias et al. 2016)."""
    return _over_positions(
        features, keras.layers.GlobalMaxPooling2D, keras.layers.GlobalMaxPooling1D, name
    )


def sum_pooling(features: Features, name: str) -> Tensor:
    """Add average and max (the published code of Kim et al. 2020, Proxy Anchor)."""
    both = [average_pooling(features, f"{name}_average"), max_pooling(features, f"{name}_max")]
    return keras.layers.Add(name=name)(both)


def gem_pooling(features: Features, name: str) -> Tensor:
    """Compute a generalized mean with a learned exponent, initially 3 (Radenović et al. 2019)."""
    return _over_positions(features, GeneralizedMeanPooling, GeneralizedMeanPooling, name)


def cls_pooling(features: Features, name: str) -> Tensor:
    """Take a transformer's class token (Dosovitskiy et al. 2021, ViT)."""
    return TokenSlice(name=name)(features.values)


def cls_average_pooling(features: Features, name: str) -> Tensor:
    """Concatenate class token and mean of the patches (Oquab et al. 2024, DINOv2)."""
    patches = features._replace(others=max(features.others, 1))
    parts = [cls_pooling(features, f"{name}_cls"), average_pooling(patches, f"{name}_average")]
    return keras.layers.Concatenate(name=name)(parts)


POOLINGS: dict[str, Callable[[Features, str], Tensor]] = {
    "average": average_pooling,
    "max": max_pooling,
    "sum": sum_pooling,
    "gem": gem_pooling,
    "cls": cls_pooling,
    "cls_average": cls_average_pooling,
}
"""Poolings by name. The first line of each docstring describes it, with its source."""


def _over_positions(
    features: Features,
    of_maps: Callable[..., keras.Layer],
    of_tokens: Callable[..., keras.Layer],
    name: str,
) -> Tensor:
    if len(features.values.shape) == 4:
        return of_maps(name=name)(features.values)
    patches = features.values
    if features.others:
        patches = TokenSlice(features.others, name=f"{name}_patches")(patches)
    return of_tokens(name=name)(patches)
