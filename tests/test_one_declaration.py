"""A new loss only needs one declaration each of its oracle, recipe, and arguments to try."""

import pytest
from loss_cases import CASES

from experiments import recipes
from experiments.options.registry_flags import arguments
from keras_dml import losses

every_loss = pytest.mark.parametrize("name", losses.LOSSES)


@every_loss
def test_each_oracle_tries_a_non_default_value_of_every_argument(name):
    cases = [case for case in CASES if case.name == name]
    assert cases, f"no function in tests/support/oracles.py has the decorator @oracle({name!r})"
    assert cases[0].arguments == {}
    taken = arguments(losses.LOSSES[name])
    for argument in taken.values():
        tried = {case.arguments.get(argument.name, argument.default) for case in cases}
        assert tried - {argument.default}, (
            f"@oracle({name!r}, …) must give {argument.name} another value than its default"
        )
        assert tried >= set(argument.choices or ()), f"{argument.name}: only {tried} are tried"
    for case in cases:
        assert set(case.arguments) <= set(taken)
        assert all(value != taken[given].default for given, value in case.arguments.items())


@every_loss
def test_each_loss_has_a_recipe_on_the_built_in_dataset(name):
    lines = recipes.find_recipe(f"glyphs_{name}.flags").read_text().splitlines()
    assert "--flagfile=glyphs.flags" in lines
    assert f"--loss={name}" in lines


def test_every_oracle_belongs_to_a_loss():
    assert {case.name for case in CASES} == set(losses.LOSSES)
