"""Parsing of command lines and flag files into options."""

import ast
import dataclasses
import pathlib

import pytest
from tiny_run import run_options as options

from experiments import recipes
from experiments.options import (
    Options,
    RunOptions,
    UsageError,
    command_line_only_words,
    command_words,
    declarations,
    given_words,
    option,
    parse,
    resolved,
)


def test_two_calls_return_independent_options():
    first = options("--epochs=3", "--loss=ice", "--scale=32", "--jitter=0.1,0,0,0")
    second = options("--seed=7")
    assert (first.epochs, first.seed, first.loss_arguments) == (3, 0, {"scale": 32.0})
    assert (second.epochs, second.seed, second.loss_arguments) == (30, 7, {})
    assert first.given == {"epochs", "loss", "scale", "jitter"}
    assert first.jitter == ("0.1", "0", "0", "0") and second.jitter == ("0",) * 4
    assert options("--seed=7") == second != first
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.epochs = 4
    with pytest.raises(TypeError):
        first.statistics["hidden"] = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Small(Options):
    command = "small"
    where: pathlib.Path | None = option(None, "Some", "Where.")
    many: tuple[str, ...] = option((), "Some", "Many.", repeated=True)
    some: tuple[str, ...] | None = option(None, "Some", "Some.")
    maybe: bool | None = option(None, "Some", "Maybe.")
    number: float = option(0.5, "Some", "A number.", lower_bound=0.0, upper_bound=1.0)


def test_each_kind_of_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = parse(Small, ["small"])
    assert (given.where, given.many, given.some, given.maybe) == (None, (), None, None)
    words = ["--where=a/../b", "--many=x,y", "--many", "z", "-some=p,q", "--nomaybe", "--number=1"]
    given = parse(Small, ["small", *words])
    assert given.where == tmp_path / "b"
    assert (given.many, given.some) == (("x,y", "z"), ("p", "q"))
    assert (given.maybe, given.number) == (False, 1.0)
    assert given.given == given.on_command_line == {"where", "many", "some", "maybe", "number"}
    (tmp_path / "a.flags").write_text("--number=0.25\n--maybe\n")
    given = parse(Small, ["small", "--flagfile", "a.flags", "--nomaybe"])
    assert (given.number, given.maybe, given.recipe) == (0.25, False, "a")
    assert given.flagfile == ("a.flags",)
    assert given.on_command_line == {"maybe"} and given.given == {"number", "maybe"}
    given = parse(Small, ["small", "--number=1", "--flagfile=a.flags"])  # the line wins
    assert (given.number, given.maybe) == (1.0, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nummer=1"], r"--nummer=1.*Did you mean number\? --help"),
        (["word"], "start with --.*word"),
        (["a.flags"], "start with --.*Did you mean --flagfile=a.flags"),
        (["--flagfile=helpp"], r"Did you mean help\.flags\?"),
        (["--where"], "where"),
        (["--flagfile=help.flags"], "flagfile .*help.flags .*line 1.*--help"),
        (["--flagfile=glyphs.flags"], "flagfile .*glyphs.flags .*line 5.*--dataset=glyphs"),
    ],
)
def test_invalid_command_lines(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "help.flags").write_text("--help\n")
    with pytest.raises(ValueError, match=message):
        parse(Small, ["small", *words])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needy(Options):
    command = "needy"
    output_dir: pathlib.Path = option(None, "Some", "Output folder.", required=True)


def test_a_required_option(tmp_path):
    with pytest.raises(UsageError, match="output_dir must be set.*--output_dir="):
        parse(Needy, ["needy"])
    assert parse(Needy, ["needy", f"--output_dir={tmp_path}"]).output_dir == tmp_path


def test_a_flag_of_a_recipe_can_be_unset(tmp_path):
    recipe = "--flagfile=glyphs.flags"
    assert options(recipe).embedding_size == 128
    unset = options(recipe, "--embedding_size=none", "--resize=none")
    assert (unset.embedding_size, unset.resize) == (None, None)
    assert "embedding_size" not in resolved(unset)
    assert given_words(unset, ["embedding_size"]) == ["--embedding_size=none"]
    assert options("--weights=none").weights == "none"  # "none" is a value of this flag
    with pytest.raises(UsageError, match="epochs must be a positive integer.*none"):
        options("--epochs=none")


def test_a_number_and_a_switch_can_be_unset():
    unset = options("--learning_rate=0.5", "--ema=0.9", "--ema=none", "--frozen_batch_norm=none")
    assert (unset.ema, unset.frozen_batch_norm) == (None, None)
    assert unset.given == {"learning_rate", "ema", "frozen_batch_norm"}


def test_the_values_of_repeated_flags_follow_those_of_the_flag_files(tmp_path):
    (tmp_path / "a.flags").write_text("--many=x\n# a comment\n// another\n\n--many=y\n")
    (tmp_path / "b.flags").write_text("--flagfile=a.flags\n--number=0.1\n")
    line = ["--many=z", f"--flagfile={tmp_path / 'b.flags'}"]
    given = parse(Small, ["small", *line])
    assert (given.many, given.number, given.recipe) == (("x", "y", "z"), 0.1, "b")
    assert given.on_command_line == {"many"} and given.given == {"many", "number"}


def test_undefok_accepts_unknown_flags(tmp_path):
    (tmp_path / "new.flags").write_text("--number=1\n--of_the_next_version=3\n")
    words = [f"--flagfile={tmp_path / 'new.flags'}", "--another=2"]
    given = parse(Small, ["small", *words, "--undefok=of_the_next_version,another"])
    assert given.number == 1.0
    with pytest.raises(UsageError, match="another=2"):
        parse(Small, ["small", *words, "--undefok=of_the_next_version"])


@pytest.mark.parametrize(
    ("recipe", "lines"),
    [
        ("glyphs", "--dataset=glyphs --noflip --resize=36 --warmup_steps=50 --images_per_class=4"),
        ("cub", "--crop_from=resized --crop_area=0.16,1 --weight_decay=0.0005 --flip --seed=0"),
        ("glyphs_triplet", "--loss=triplet --triplets=semihard --feature_batch_norm --epochs=12"),
    ],
)
def test_the_resolved_flags_of_recipes(recipe, lines):
    assert set(lines.split()) <= set(resolved(options(f"--flagfile={recipe}.flags")).split())


def test_the_shared_files_name_no_flag_of_one_command():
    folder = pathlib.Path(command_words.__file__).parent
    known = {*declarations(RunOptions), "index", "format", "to"} - set(declarations(Options))
    for name in ("absl_flags", "command_words", "declared", "conversions"):
        tree = ast.parse((folder / f"{name}.py").read_text())
        words = {each.value for each in ast.walk(tree) if isinstance(each, ast.Constant)}
        assert not words & known


def test_a_run_without_a_recipe_is_named_after_its_dataset():
    assert options().name == "run"
    assert options("--dataset=digits", "--seed=3").folder == pathlib.Path("runs/digits-seed3")
    assert options("--flagfile=glyphs.flags").folder == pathlib.Path("runs/glyphs-seed0")


def test_flag_files_cannot_set_command_line_only_flags(tmp_path):
    (tmp_path / "inner.flags").write_text("-trust_code=true\n--import_modules=theirs\n")
    file = tmp_path / "outer.flags"
    file.write_text("--flagfile=inner.flags\n--trust_code\n--loss=triplet\n")
    given = options(f"--flagfile={file}")
    assert given.loss == "triplet"
    assert not given.trust_code and given.import_modules == ()
    assert command_line_only_words(given) == []
    words = ["--trust_code", "--import_modules=mine,yours"]
    given = options(*words, f"--flagfile={file}")
    assert given.trust_code and given.import_modules == ("mine", "yours")
    assert sorted(command_line_only_words(given)) == sorted(words)


def test_a_flag_file_of_more_than_a_megabyte_is_not_read(tmp_path):
    (tmp_path / "large.flags").write_text("#" * 2**20 + "\n")
    with pytest.raises(recipes.RecipeError, match=r"large.flags cannot be read.* more than 1 MB"):
        options(f"--flagfile={tmp_path / 'large.flags'}")
