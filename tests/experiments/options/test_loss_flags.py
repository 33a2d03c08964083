"""The losses' flags come from the losses."""

import dataclasses

import pytest

import pipelines
from experiments.options import (
    RunOptions,
    UsageError,
    catalog,
    declarations,
    loss_flags,
    parse,
    registries,
)
from experiments.options.help import help_text
from experiments.options.loss_flags import flags_of_losses, taken_by
from keras_dml import losses, models, optimizers
from keras_dml.models import POOLINGS


def options(*words):
    return parse(RunOptions, ["run", *words])


@pytest.mark.parametrize("loss", catalog.names())
def test_each_argument_of_a_loss_is_a_flag_that_reaches_it(loss):
    for name, argument in taken_by(loss).items():
        value = {bool: not argument.default, int: 3, float: 0.375}.get(argument.kind)
        if argument.kind is str:
            value = argument.choices[-1]
        given = options(f"--loss={loss}", f"--{name}={value}")
        assert given.loss_arguments == {name: value}
        own, of_cross_entropy = loss_flags.divided(loss, given.loss_arguments)
        if loss not in ("rankmi",) and name != "anchor_gradient":
            taker = losses.get(loss, **own) if own else losses.get("ce", **of_cross_entropy)
            assert taker.get_config()[name] == value


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize("loss", catalog.names())
def test_a_loss_refuses_what_it_does_not_take_and_names_what_it_takes(loss):
    for flag in flags_of_losses():
        if flag.name not in taken_by(loss):
            value = {bool: True, int: 3, float: 0.5, str: "all"}[flag.kind]
            given = options(f"--loss={loss}", f"--{flag.name}={value}")
            takes = ", ".join(taken_by(loss)) or "none"
            with pytest.raises(UsageError) as refused:
                _ = given.loss_arguments
            assert str(refused.value) == (
                f"{flag.name} is no argument of loss {loss}, which takes {takes}. "
                f"Received: {flag.name}={value}"
            )


def test_the_help_says_what_a_shared_name_means_in_each_loss():
    text = " ".join(help_text(RunOptions).split())
    for loss in catalog.names():
        for argument in taken_by(loss).values():
            assert " ".join(argument.text.split()) in text
    _, below = text.split("--alpha= ")
    assert below.startswith("multi_similarity: α, above 0")
    assert "rankmi: α > 0, the margin around β" in below[:200]


def test_a_name_with_two_types_is_a_mistake_of_ours(monkeypatch):
    monkeypatch.setattr(loss_flags.catalog, "trained_by", lambda loss: loss)
    monkeypatch.setattr(loss_flags.catalog, "attribute", lambda loss, name: None)
    text = catalog.arguments("triplet")[0]
    words = dataclasses.replace(text, kind=str)
    given = {"a": (text,), "b": (words,)}
    monkeypatch.setattr(loss_flags.catalog, "names", lambda: tuple(given))
    monkeypatch.setattr(loss_flags.catalog, "arguments", given.get)
    with pytest.raises(TypeError, match="margin must be of one type in all losses .*: a, b"):
        flags_of_losses()


def test_choices_are_refused_before_anything_is_built():
    with pytest.raises(
        UsageError, match="triplets must be one of all, semihard, hard .*triplets=best"
    ):
        _ = options("--loss=triplet", "--triplets=best").loss_arguments


def test_what_is_read_from_the_source_is_what_is_imported():
    assert set(catalog.names()) == set(losses.LOSSES)
    assert registries.words("keras_dml.optimizers", "OPTIMIZERS") == tuple(optimizers.OPTIMIZERS)
    assert registries.words("keras_dml.models.pooling", "POOLINGS") == tuple(POOLINGS)
    for name, function in POOLINGS.items():
        assert function.__name__ == f"{name}_pooling"  # where the help finds what it says
    own = registries.words("keras_dml.models.backbones", "BACKBONES")
    assert set(own) < set(models.backbone_names())
    names = registries.words("pipelines.datasets.registry", "NAMES")
    assert (*names, "tfds:NAME") == pipelines.DATASETS
    held = {name: flag for name, (_, _, flag) in declarations(RunOptions).items()}
    assert all(name in held["dataset"].text() for name in pipelines.DATASETS)
    assert all(name in held["backbone"].text() for name in own)
    assert held["loss"].text().strip(".").split(" | ") == list(losses.LOSSES)


@pytest.mark.parametrize(
    ("module", "name"),
    [("keras_dml.nothing", "X"), ("nothing_at_all", "X"), ("keras_dml.optimizers", "multipliers")],
)
def test_registries_that_are_none(module, name):
    with pytest.raises((LookupError, FileNotFoundError)):
        registries.words(module, name)


def test_a_summary_is_the_docstring_and_must_be_of_something():
    assert registries.summary("pipelines.datasets.cub", "load_split").startswith("CUB-200-2011")
    with pytest.raises(LookupError, match="has no function nothing"):
        registries.summary("pipelines.datasets.cub", "nothing")


def test_the_statistics_network_has_the_defaults_of_its_constructor():
    given = options("--statistics_depth=1")
    network = models.StatisticsNetwork(**given.statistics)
    assert (network.hidden, network.depth, network.slope, network.residual) == (128, 1, 0.1, True)
