"""The flags of a registry's entries follow from their signatures and docstrings."""

import typing

import pytest

from experiments.options import RunOptions, UsageError, parse
from experiments.options.registries import arguments, flags_of_entries
from keras_dml import losses, models

CLASSES = [*losses.LOSSES.values(), models.RankMI, models.StatisticsNetwork, models.ProxyHead]
every_class = pytest.mark.parametrize("described", CLASSES, ids=lambda cls: cls.__name__)


@every_class
def test_only_listed_choices_are_accepted(described):
    for argument in arguments(described).values():
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


def number(mode: float = 0.5):
    """A function.

    Args:
        mode: Number of the function.
    """


def test_only_arguments_with_a_flag_type_have_flags():
    (mode,) = arguments(literal).values()
    assert (mode.name, mode.kind, mode.default, mode.choices) == ("mode", str, None, ("a", "b"))


def test_entries_that_share_a_name_must_share_its_type():
    with pytest.raises(TypeError, match="mode must be of one type in all entries .*: a, b"):
        flags_of_entries({"a": literal, "b": number}, "Group")


def test_a_loss_name_is_registered_once():
    from keras_dml.losses.base import register

    register("triplet")(losses.TripletLoss)  # like a module reload
    with pytest.raises(ValueError, match="name must be new, but got 'triplet'.*TripletLoss"):
        register("triplet")(losses.SNCALoss)
    assert losses.LOSSES["triplet"] is losses.TripletLoss


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
