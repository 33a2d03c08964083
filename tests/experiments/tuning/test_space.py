"""Parsing of --search."""

import pytest

from experiments.options import RunOptions, UsageError, parse
from experiments.tuning.space import Parameter, own_values, read_space, words_of_trial


def read(*words, loss="contrastive", given=()):
    options = parse(RunOptions, ["run", f"--loss={loss}", *given])
    return read_space(words, "one", options, ["one", "another"])


def test_bounds_scales_whole_numbers_and_choices():
    found = read(
        "learning_rate=1e-5:1e-3:log",
        "one/margin=0.05:0.5",
        "another/margin=2:1",  # for another recipe
        "images_per_class=2:8",
        "optimizer=adam,sgd",
        "flip=true,false",
    )
    assert found == (
        Parameter("learning_rate", 1e-5, 1e-3, log=True),
        Parameter("margin", 0.05, 0.5),
        Parameter("images_per_class", 2, 8, whole=True),
        Parameter("optimizer", choices=("adam", "sgd")),
        Parameter("flip", choices=("true", "false")),
    )
    assert [parameter.text for parameter in found][::3] == [
        "learning_rate=1e-05:0.001:log",
        "optimizer=adam,sgd",
    ]
    words = words_of_trial({"learning_rate": 0.00012345678, "flip": "false"})
    assert words == ["--learning_rate=0.000123457", "--flip=false"]
    options = parse(RunOptions, ["run", *words])
    assert options.learning_rate == 0.000123457
    assert not options.flip


def test_values_of_a_recipe_within_the_bounds(tmp_path):
    def own(*flags):
        (tmp_path / "one.flags").write_text("\n".join(["--loss=contrastive", *flags]))
        options = parse(RunOptions, ["run", f"--flagfile={tmp_path / 'one.flags'}"])
        return own_values(read_space(words, "one", options, ["one"]), options)

    words = ("learning_rate=1e-4:1e-2:log", "margin=0.5:2", "positive_margin=0.1:0.3")
    words += ("images_per_class=2:8", "optimizer=adam,sgd", "flip=true,false", "power=1,2")
    # The learning rate and the default of positive_margin are out of bounds.
    assert own("--learning_rate=0.02", "--images_per_class=4", "--optimizer=sgd", "--noflip") == {
        "margin": 1.0,
        "images_per_class": 4,
        "optimizer": "sgd",
        "flip": "false",
        "power": "2",
    }
    assert "optimizer" not in own("--optimizer=rmsprop")
    assert own("--margin=0.7")["margin"] == 0.7


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("scale=1:2", "must name an argument of loss=contrastive.*margin"),
        ("learning_rate=1e-3:1e-5", "must have the lower bound before the higher"),
        ("learning_rate=0:1:log", "must have bounds above 0 for log"),
        ("learning_rate=0:1:lin", "must be NAME=LOW:HIGH"),
        ("learning_rate=0.1", "two different words or more"),
        ("learning_rate", "must be NAME=LOW:HIGH"),
        ("=1:2", "must be NAME=LOW:HIGH"),
        ("learning_rate=nan:1", "learning_rate must be a finite number"),
        ("ema=0:2", "ema must be a finite number .*of at most 1"),
        ("batch_size=1.5:3", "batch_size must be a whole number"),
        ("optimizer=adam,adam", "two different words"),
        ("optimizer=adam,addam", "optimizer must be one of "),
        ("train_classes=1:5", "not of the data or the evaluation"),
        ("eval_every=1:2", "not of the data or the evaluation"),
        ("loss=ce,contrastive", "not of the data or the evaluation"),
        ("jitter=0,1", "must name a flag of one value"),
        ("learning_rat=1:2", "must name a flag of experiments.run.*Did you mean learning_rate"),
        ("another/learning_rate=1:2", "must name a hyperparameter of one"),
        ("two/margin=1:2", "must name one of the recipes one, another before the /"),
    ],
)
def test_bad_input(word, message):
    with pytest.raises(UsageError, match=f"^search .*{message}"):
        read(word)


def test_a_parameter_that_is_also_a_flag_or_is_named_twice():
    with pytest.raises(UsageError, match="must not name learning_rate, which is also set"):
        read("learning_rate=1e-5:1e-3", given=["--learning_rate=0.1"])
    with pytest.raises(UsageError, match="must name learning_rate once"):
        read("learning_rate=1e-5:1e-3", "one/learning_rate=1e-5:1e-3")
