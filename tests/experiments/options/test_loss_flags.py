"""The flags of losses are derived from their constructors."""

import pytest
import tiers

from experiments.options import RunOptions, UsageError, parse
from experiments.options.help import help_text
from experiments.options.loss_flags import flags_of_losses, taken_by
from keras_dml import losses


def options(*words):
    return parse(RunOptions, ["run", *words])


@pytest.mark.parametrize("loss", losses.LOSSES)
def test_each_argument_of_a_loss_has_a_flag_that_sets_it(loss):
    for name, argument in taken_by(loss).items():
        value = {bool: not argument.default, int: 3, float: 0.5}.get(argument.kind)
        if argument.kind is str:
            value = argument.choices[-1]
        given = options(f"--loss={loss}", f"--{name}={value}")
        assert given.loss_arguments == {name: value}
        if loss not in ("rankmi",) and name != "anchor_gradient":
            assert losses.get(loss, **given.loss_arguments).get_config()[name] == value


@tiers.parametrize("loss", losses.LOSSES, ["arcface", "contrastive", "center", "rankmi"])
def test_a_flag_of_another_loss_is_refused_with_the_valid_flags(loss):
    for flag in flags_of_losses():
        if flag.name not in taken_by(loss):
            value = {bool: True, int: 3, float: 0.5, str: "all"}[flag.kind]
            given = options(f"--loss={loss}", f"--{flag.name}={value}")
            takes = ", ".join(taken_by(loss)) or "no arguments"
            with pytest.raises(UsageError, match=f"{flag.name} .*{loss}.* {value}.* {takes}"):
                _ = given.loss_arguments


def test_the_help_describes_a_shared_flag_for_each_loss():
    text = " ".join(help_text(RunOptions, full=True).split())
    for loss in losses.LOSSES:
        for argument in taken_by(loss).values():
            assert " ".join(argument.text.split()) in text
    below = text.partition("--alpha= ")[2].partition(" --")[0]
    assert "multi_similarity: α, above 0" in below and "rankmi: α > 0, the margin around" in below


def test_choices_are_refused_before_anything_is_built():
    with pytest.raises(UsageError, match="triplets must be one of all, semihard, hard .*best"):
        _ = options("--loss=triplet", "--triplets=best").loss_arguments
