"""All numeric arguments of constructors are checked in the same way, with one form of message."""

import dataclasses
import fractions
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable

import keras
import numpy as np
import pytest

from keras_dml import addons, layers, losses, models, optimizers
from keras_dml._common import checks
from keras_dml._common.errors import ArgumentError
from keras_dml.losses.rankmi import FixedStatistics

NO_NUMBERS = [None, True, np.True_, "1", np.array(1), np.array([1]), [1], 1j, {}]
NOT_FINITE = [math.nan, math.inf, -math.inf, np.float32("nan"), np.float64("inf")]


@dataclasses.dataclass(frozen=True)
class Number:
    """A numeric argument: the constructor of its object, its name, and a valid value."""

    make: Callable
    name: str
    value: float
    optional: bool = False

    def __str__(self):
        return f"{getattr(self.make, 'func', self.make).__name__}({self.name})"

    def made(self, value):
        return self.make(**{self.name: value})


def numbers_of(make):
    """Return each argument annotated as a number, with a value where it has no default."""
    found = []
    for parameter in inspect.signature(make).parameters.values():
        annotation, optional = parameter.annotation, False
        if isinstance(annotation, types.UnionType):
            annotation, *none = typing.get_args(annotation)
            optional = none == [type(None)]
        if annotation in (int, float):
            value = {int: 3, float: 0.375}[annotation]
            found.append(Number(make, parameter.name, value, optional))
    return found


EMBEDDING = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
rankmi = functools.partial(models.RankMI, EMBEDDING)
head = functools.partial(layers.ProxyHead, num_classes=3)
chunks = functools.partial(models.CachedGradients, EMBEDDING)
classifier = functools.partial(models.classifier_model, EMBEDDING, num_classes=3)
backbone = functools.partial(models.build_backbone, "small_convnet", image_size=32)
warm_cosine = functools.partial(optimizers.WarmCosine, learning_rate=0.5, total_steps=10)

OPTIONAL = ("clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor")
OF_OPTIMIZERS = [
    *(Number(optimizers.CoupledSGD, name, 0.25) for name in
      ("learning_rate", "ema_momentum", "coupled_weight_decay", "momentum")),
    *(Number(optimizers.CoupledSGD, name, 0.25, optional=True) for name in OPTIONAL),
    *(Number(optimizers.CoupledSGD, name, 4, optional=True) for name in
      ("ema_overwrite_frequency", "gradient_accumulation_steps")),
    *(Number(optimizers.CoupledAdam, name, 0.25) for name in ("beta_1", "beta_2", "epsilon")),
    Number(optimizers.LayerwiseAdamW, "decoupled_weight_decay", 0.25),
    *(Number(optimizers.CoupledRMSprop, name, 0.25) for name in ("rho", "momentum")),
]  # fmt: skip


NUMBERS = [
    *(number for loss in losses.LOSSES.values() for number in numbers_of(loss)),
    *numbers_of(FixedStatistics),
    *numbers_of(models.StatisticsNetwork),
    *numbers_of(rankmi),
    *OF_OPTIMIZERS,
    *numbers_of(warm_cosine),
    *(Number(make, "margin", 0.25) for make in
      (addons.ContrastiveLoss, addons.TripletSemiHardLoss, addons.TripletHardLoss,
       addons.LiftedStructLoss)),
]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_a_number_is_checked_and_becomes_a_python_number(number):
    """The kinds of wrong values are below: every argument goes through the same checks."""
    kind = type(number.value)
    config = number.made({int: np.int64, float: np.float32}[kind](number.value)).get_config()
    assert type(config[number.name]) is kind and config[number.name] == number.value
    for value in (math.nan, "1", *([] if number.optional else [None])):
        with pytest.raises(ArgumentError, match=rf"^{number.name} must be an? .* but got "):
            number.made(value)
    if number.optional:
        assert number.made(None).get_config()[number.name] is None


OF_LOSSES = [
    ("ce", "label_smoothing", 1.0), ("contrastive", "margin", 0), ("contrastive", "power", 0),
    ("contrastive", "pair_reduction", "max"), ("multi_similarity", "alpha", -1),
    ("multi_similarity", "beta", 0.0), ("multi_similarity", "epsilon", -0.1),
    ("snca", "temperature", 0), ("pce", "lam", 0), ("pce", "lam_floor", -1.0),
    ("pce", "classifier", "dense"), ("fastap", "num_bins", 0), ("ice", "scale", 0.0),
    ("ice", "pair_reduction", "max"), ("lifted_structure", "margin", 0), ("triplet", "margin", 0),
    ("triplet", "triplets", "easy"), ("triplet", "average", "pairs"), ("quadruplet", "margin", -1),
    ("quadruplet", "second_margin", 0), ("margin", "nu", -0.1), ("margin", "boundaries", -1),
    ("recall_at_k", "ks", ()), ("recall_at_k", "ks", (0, 2)), ("recall_at_k", "ks", 3),
    ("arcface", "margin", -0.1), ("arcface", "margin", 3.1416), ("rankmi", "sampling", "hard"),
    ("rankmi", "statistics_network", "mlp"), ("snca", "dtype", "float16"),
]  # fmt: skip
INVALID = [
    *((functools.partial(losses.get, loss), name, value) for loss, name, value in OF_LOSSES),
    (FixedStatistics, "beta", -1), (rankmi, "k", 0), (rankmi, "alpha", 0.0), (rankmi, "beta", 2.5),
    (rankmi, "seed", -1), (rankmi, "sampling", "hard"), (rankmi, "statistics_network", abs),
    (models.StatisticsNetwork, "hidden", 0), (models.StatisticsNetwork, "depth", -1),
    (models.StatisticsNetwork, "slope", 1.0), (models.StatisticsNetwork, "zero_at", 2.0),
    (models.StatisticsNetwork, "zero_at", 0), (head, "num_classes", 1), (head, "centers", 0),
    (head, "pooling", "mean"), (head, "temperature", 0.0), (head, "dtype", "float16"),
    (head, "dtype", "mixed_bfloat16"), (chunks, "chunk_size", 0), (chunks, "chunk_size", 2.0),
    (chunks, "chunk_size", True), (layers.TokenLayout, "registers", -1),
    (layers.TokenLayout, "registers", 1.5), (layers.GeneralizedMeanPooling, "p", 0),
    (layers.GeneralizedMeanPooling, "p", math.nan), (classifier, "num_classes", 1),
    (classifier, "dropout", 1.0), (backbone, "image_size", 0), (backbone, "image_size", 2.5),
    (backbone, "filters", (8, -1)), (optimizers.CoupledSGD, "coupled_weight_decay", -1e-4),
    (optimizers.CoupledSGD, "weight_decay", 0.01),
    (optimizers.CoupledSGD, "velocity", "pytorch"),
    (optimizers.CoupledAdam, "learning_rate_multipliers", 0.1),
    (warm_cosine, "learning_rate", 0.0), (warm_cosine, "total_steps", 0),
    (warm_cosine, "warmup_steps", 0),
]  # fmt: skip


@pytest.mark.parametrize(("make", "name", "value"), INVALID)
def test_an_invalid_argument_is_named_with_its_value(make, name, value):
    with pytest.raises(ArgumentError, match=f"^{name} must be .* but got ") as refused:
        make(**{name: value})
    message = str(refused.value)
    assert str(value).removeprefix("mixed_") in message
    assert refused.value.renamed("--flag") == message.replace(name, "--flag", 1)


RATE = functools.partial(checks.check_number, least=0, most=1)
BETWEEN = functools.partial(checks.check_number, above=0, below=2)
WHOLE = functools.partial(checks.check_whole, least=1, most=5)
WHOLES = functools.partial(checks.check_wholes, least=1)
CHOICE = functools.partial(checks.check_choice, choices=("a", "b"))


@pytest.mark.parametrize(
    ("check", "within", "beyond"),
    [
        (checks.check_number, [-1e300, 0, np.float32(0.5)], NO_NUMBERS + NOT_FINITE),
        (RATE, [0, 1], [-1e-300, 1.1]),
        (BETWEEN, [1e-300, 1], [0, 2]),
        (checks.check_positive, [fractions.Fraction(1, 4)], [fractions.Fraction(1, 10**400)]),
        (WHOLE, [1, np.uint8(3), 5], [0, 6, 2**70, 2.0, *NO_NUMBERS, *NOT_FINITE]),
        (checks.check_seed, [0, np.int64(2**31 - 1)], [-1, 2**31]),
        (WHOLES, [np.array([1, 2])], [(), (1, 0), (1, 2.0), (True,), 3, "12", None]),
        (CHOICE, [np.str_("b")], ["c", None, 1, ["a"], np.array(["a", "b"])]),
        (
            checks.check_bool,
            [True, np.True_, 1, np.int8(0)],
            [None, "no", 2, 1.0, np.ones(1, bool)],
        ),
    ],
)
def test_the_checks_of_one_argument(check, within, beyond):
    for value in within:
        checked = check("x", value)
        assert type(checked) in (int, float, str, bool, tuple) and np.array_equal(checked, value)
    for value in beyond:
        with pytest.raises(ArgumentError, match="^x must be .* but got "):
            check("x", value)


def test_models_take_numpy_sizes():
    backbone = models.build_backbone("small_convnet", np.int64(8), filters=np.array([2, 3]))
    embedding = models.embedding_model(backbone, np.int32(3))
    classifier = models.classifier_model(embedding, np.int64(2), np.float32(0.5), np.int64(1))
    assert type(embedding.get_layer("projection").units) is int
    assert type(classifier.get_layer("logits").units) is int
    assert type(classifier.get_layer("dropout").rate) is float
