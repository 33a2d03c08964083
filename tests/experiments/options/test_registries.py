"""The flags of a registry's entries follow from their signatures and docstrings."""

import typing
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.options import RunOptions, UsageError, data, help_text, parse, resolved
from experiments.options.declaration import declarations
from experiments.options.loss_flags import loss_names
from experiments.options.registries import arguments, flags_of_entries, import_attribute, words
from keras_dml import losses, models, optimizers
from pipelines import samplers
from pipelines.images.transforms import CROPS

CLASSES = [*losses.LOSSES.values(), models.RankMI, models.StatisticsNetwork, models.ProxyHead]
every_class = pytest.mark.parametrize("described", CLASSES, ids=lambda cls: cls.__name__)


@every_class
def test_only_listed_choices_are_accepted(described):
    for argument in arguments(described):
        if described is models.RankMI or argument.choices is None:
            continue
        needed = {"num_classes": 3} if described is models.ProxyHead else {}
        for choice in argument.choices:
            assert getattr(described(**needed, **{argument.name: choice}), argument.name) == choice
        with pytest.raises(ValueError, match=f"{argument.name} must be one of"):
            described(**needed, **{argument.name: "neither"})


def literal(mode: typing.Literal["a", "b"] | None = None, other: "Missing | None" = None):  # noqa: F821
    """A function.

    Args:
        mode: Mode of the function.
        other: An object.
    """


def test_only_arguments_with_a_flag_type_have_flags():
    (mode,) = arguments(literal)
    assert (mode.name, mode.kind, mode.default, mode.choices) == ("mode", str, None, ("a", "b"))


def test_entries_that_share_a_name_must_share_its_type():
    floats = {one.name: one for one in arguments(losses.TripletLoss)}
    strings = {"margin": arguments(literal)[0]}
    with pytest.raises(TypeError, match="margin must be of one type in all entries .*: a, b"):
        flags_of_entries({"a": {"margin": floats["margin"]}, "b": strings}, "Group")


def test_a_loss_name_is_registered_once():
    from keras_dml.losses.base import register

    register("triplet")(losses.TripletLoss)  # like a module reload
    with pytest.raises(ValueError, match="name must be new, but got 'triplet'.*TripletLoss"):
        register("triplet")(losses.SNCALoss)
    assert losses.LOSSES["triplet"] is losses.TripletLoss


def test_choices_equal_the_registries():
    flags = {name: flag for name, (_, _, flag) in declarations(RunOptions).items()}
    assert flags["optimizer"].choices == tuple(optimizers.OPTIMIZERS)
    assert flags["schedule"].choices == tuple(optimizers.SCHEDULES)
    assert flags["sampler"].choices == tuple(samplers.SAMPLERS)
    assert flags["crop"].choices == tuple(CROPS)
    assert loss_names() == tuple(losses.LOSSES)
    assert set(words("keras_dml.models.backbones.BACKBONES")()) < set(models.backbone_names())
    text = help_text(RunOptions, full=True)
    for name in (*import_attribute("pipelines.DATASETS"), *losses.LOSSES, *models.POOLINGS):
        assert name in text
    assert flags["max_pixels"].default == import_attribute("pipelines.images.limits.MOST_PIXELS")


def options(*given):
    return parse(RunOptions, ["run", *given])


def test_an_argument_of_another_entry_is_refused():
    for name, given in (("sampler", "--images_per_class=2"), ("optimizer", "--momentum=0.5")):
        chosen = {"sampler": "random", "optimizer": "adam"}[name]
        flag = given.partition("=")[0].strip("-")
        with pytest.raises(UsageError, match=f"{name} must be .*--{flag}.*{chosen}"):
            getattr(options(f"--{name}={chosen}", given), f"{name}_arguments")


def test_an_argument_of_the_recipe_is_dropped_with_its_choice(tmp_path):
    recipe = tmp_path / "a.flags"
    recipe.write_text("--sampler=balanced\n--images_per_class=8\n")
    flagfile = f"--flagfile={recipe}"
    assert options(flagfile).sampler_arguments == {"images_per_class": 8}
    assert options(flagfile, "--sampler=random").sampler_arguments == {}
    with pytest.raises(UsageError, match="sampler must be balanced with --images_per_class"):
        _ = options(flagfile, "--sampler=random", "--images_per_class=4").sampler_arguments


@pytest.fixture
def sequential(monkeypatch):
    """A sampler that is only added to the registry."""

    def sequential_rows(labels, batch_size: int, stride: int = 1, seed: int = 0):
        """Sample the rows in order.

        Args:
            stride: Rows between two images.
        """
        return np.arange(batch_size) * stride % len(labels)

    monkeypatch.setitem(samplers.SAMPLERS, "sequential", sequential_rows)
    import_attribute("experiments.options.declaration._declarations").cache_clear()
    yield
    import_attribute("experiments.options.declaration._declarations").cache_clear()


@pytest.mark.usefixtures("sequential")
def test_a_sampler_in_the_registry_has_flags():
    text = " ".join(help_text(RunOptions, full=True).split())
    assert "--stride=1 sequential: Rows between two images." in text
    given = options("--sampler=sequential", "--stride=3", "--batch_size=4")
    assert {"--sampler=sequential", "--stride=3"} <= set(resolved(given).splitlines())
    table = SimpleNamespace(labels=np.zeros(7, int))
    np.testing.assert_array_equal(data.sampler(given, table, 0), [0, 3, 6, 2])
