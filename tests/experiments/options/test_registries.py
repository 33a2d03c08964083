"""Flags of registries such as the losses, and flags that need or exclude other flags."""

import pytest
import tiers
from tiny_run import run_options as options

from experiments.options import RunOptions, UsageError, check_together, help_text
from experiments.options.loss_flags import flags_of_losses, taken_by
from keras_dml import losses

CACHED = ["--cache_features", "--freeze_backbone"]
REFUSED = [
    (["--freeze_backbone", "--lora_rank=2"], "freeze_backbone must be false with --lora_rank"),
    (["--freeze_backbone", "--head_epochs=2"], "freeze_backbone .* with --head_epochs"),
    (["--freeze_backbone", "--rematerialize"], "freeze_backbone .* with --rematerialize"),
    (["--lora_rank=2", "--layer_decay=0.5"], "lora_rank must be unset with --layer_decay"),
    (["--lora_layers=query"], "lora_layers must be unset without --lora_rank=.*query"),
    (["--cache_features"], "cache_features must be false without --freeze_backbone.*true"),
    ([*CACHED, "--levels=stage1"], "cache_features must be false with --levels"),
    ([*CACHED, "--strategy=multi_worker"], "cache_features .* with --strategy=multi_worker"),
    (["--cached_views=2"], "cached_views must be unset without --cache_features.*2"),
    (["--cache_dir=x", "--freeze_backbone"], "cache_dir must be unset without --cache_features"),
    (["--chunk_statistics"], "chunk_statistics must be false without --chunk_size=..."),
    (["--strategy=auto", "--logical_devices=2"], "logical_devices .*without --strategy=mirrored"),
    (["--classifier_steps=3"], "classifier_steps must be 500 without --objective=.*3"),
    (["--also=tcm", "--matryoshka=4,8"], "also must be unset with --matryoshka.*tcm"),
    (["--relation=hierarchy", "--also=tcm"], "relation must be unset with --also"),
    ([*CACHED, "--training_size=192"], "training_size must be unset with --cache_features.*192"),
    (["--objective=alternating", "--also=tcm"], "objective must be unset with --also"),
    (["--workers=2"], "workers must be unset without --engine=ray.*2"),
    (["--matryoshka=4,8", "--levels=a,b"], "matryoshka must be unset with --levels"),
    (["--patience=2"], "patience must be 0 without --fold=.*2"),
    (["--measured_in=x"], "measured_in must be unset without --class_split=every_class"),
    (["--refit", "--class_split=every_class"], "refit must be false with --class_split=every"),
    (["--refit", "--strategy=multi_worker"], "refit must be false with --strategy=multi_worker"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_conflicting_flags(words, message):
    with pytest.raises(UsageError, match=message):
        check_together(options(*words))


def test_flags_that_fit_each_other():
    for words in ([], CACHED, ["--nofreeze_backbone", "--lora_rank=2"], ["--workers=none"]):
        check_together(options(*words))


@pytest.mark.parametrize("loss", losses.LOSSES)
def test_each_argument_of_a_loss_has_a_flag_that_sets_it(loss):
    for name, argument in taken_by(loss).items():
        one = {bool: not argument.default, int: 3, float: 0.5}.get(argument.kind)
        for value in argument.choices or [one]:
            given = options(f"--loss={loss}", f"--{name}={value}")
            assert given.loss_arguments == {name: value}
            if loss not in ("rankmi",) and name != "anchor_gradient":
                assert losses.get(loss, **given.loss_arguments).get_config()[name] == value
        if argument.choices:
            with pytest.raises(ValueError, match=f"{name} must be one of"):
                losses.get(loss, **{name: "neither"})


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
    below = text.partition("--alpha: ")[2].partition(" --")[0]
    assert "multi_similarity: α, above 0" in below and "rankmi: α > 0, the margin around" in below


def test_choices_are_refused_before_anything_is_built():
    with pytest.raises(UsageError, match="triplets must be one of all, semihard, hard .*best"):
        _ = options("--loss=triplet", "--triplets=best").loss_arguments


def test_a_loss_name_is_registered_once():
    from keras_dml.losses.registry import register

    register("triplet")(losses.TripletLoss)  # like a module reload
    with pytest.raises(ValueError, match="name must be new, but got 'triplet'.*TripletLoss"):
        register("triplet")(losses.SNCALoss)
    assert losses.LOSSES["triplet"] is losses.TripletLoss


def test_an_argument_of_the_recipe_is_dropped_with_its_choice(tmp_path):
    recipe = tmp_path / "a.flags"
    recipe.write_text("--sampler=balanced\n--images_per_class=8\n")
    flagfile = f"--flagfile={recipe}"
    assert options(flagfile).sampler_arguments == {"images_per_class": 8}
    assert options(flagfile, "--sampler=random").sampler_arguments == {}
    message = "sampler must be balanced or hard_classes with --images_per_class"
    with pytest.raises(UsageError, match=message):
        _ = options(flagfile, "--sampler=random", "--images_per_class=4").sampler_arguments
