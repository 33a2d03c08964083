"""The steps of CONTRIBUTING.md, run literally on a copy of the project."""

import re
import shutil

import pytest
from without import ROOT, run_in

STEP = re.compile(
    r"^ *(?:(?P<new>New file) `(?P<path>[^`]+)`"
    r"|(?P<end>At the end of) `(?P<ended>[^`]+)`"
    r"|In `(?P<changed>[^`]+)`, above the line `(?P<line>[^`]+)`):\n"
    r"\n(?P<indent> *)```\w*\n(?P<code>.*?)\n(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


def carry_out(title, root):
    """Follow the steps of a section in `root`."""
    parts = re.split(r"^## ", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    (text,) = [part for part in parts if part.startswith(f"{title}\n")]
    steps = list(STEP.finditer(text))
    assert text.count("```") == 2 * len(steps), "a block is no step: see STEP for their wording"
    for step in steps:
        lines = (line.removeprefix(step["indent"]) for line in step["code"].splitlines())
        code = "\n".join(lines) + "\n"
        if step["new"]:
            path = root / step["path"]
            assert not path.exists(), f"{path.name} is there already"
            path.write_text(code)
        elif step["end"]:
            path = root / step["ended"]
            path.write_text(path.read_text() + "\n\n" + code)
        else:
            path = root / step["changed"]
            lines = path.read_text().splitlines(keepends=True)
            (place, *_) = [n for n, line in enumerate(lines) if line.strip() == step["line"]]
            path.write_text("".join([*lines[:place], code, *lines[place:]]))


def python(root, *words):
    """Run `python WORDS` in the copy, which must succeed, and return its output."""
    run = run_in(root, words, root)  # the copy comes first, wherever this project is installed
    assert run.returncode == 0, f"{run.stdout[-3000:]}\n{run.stderr[-3000:]}"
    return run.stdout


SECTIONS = ("Add a loss", "Add a dataset", "Add a backbone", "Add a sampler", "Add a command")


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the project without ignored files, after the steps of all sections."""
    root = tmp_path_factory.mktemp("extended")
    for name in ("keras_dml", "pipelines", "experiments", "tests", "docs"):
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for name in ("README.md", "CONTRIBUTING.md", "setup.cfg", "pyproject.toml", ".ruff.toml"):
        shutil.copy(ROOT / name, root / name)
    for title in SECTIONS:
        carry_out(title, root)
    return root


# One process, because TensorFlow takes seconds to import.
PROGRAM = """
import runpy, sys
import pipelines
from experiments.options import RunOptions, data, parse
from keras_dml import models

split = pipelines.load_dataset("stripes", train_classes=8)
print(len(split.train), len(split.test))
table = pipelines.load_dataset("digits").train
words = ["run", "--sampler=strided", "--stride=3", "--batch_size=4"]
print(data.sampler(parse(RunOptions, words), table, seed=0)(1))
print(models.build_backbone("plain_convnet", 32).output.shape)
for wrong in (
    lambda: pipelines.load_dataset("stripes", data_dir="x"),
    lambda: pipelines.load_dataset("stripes", crop_to_box=True),
    lambda: models.build_backbone("plain_convnet", 32, weights="imagenet"),
):
    try:
        wrong()
    except ValueError as error:
        print(error)
for sys.argv in (["count", "--dataset=digits"], ["run", "--helpfull"]):
    print("next output")
    try:
        runpy.run_module(f"experiments.{sys.argv[0]}", run_name="__main__")
    except SystemExit as end:
        assert not end.code
"""


@pytest.fixture(scope="module")
def printed(extended):
    """The output of the program, of the added command, and of the help."""
    return python(extended, "-c", PROGRAM).split("next output\n")


@pytest.mark.slow
def test_the_help_lists_the_additions(printed):
    said = " ".join(printed[2].split())
    for words in (
        "smallest distance that negatives should have.",
        "stripes: Built in: stripes; the first classes train",
        "plain_convnet, small_convnet, bn_inception",
        "--stride: strided: Rows between two images of a batch. (default: '1')",
    ):
        assert words in said


@pytest.mark.slow
def test_the_tests_find_the_added_loss(extended):
    tests = ("tests/test_one_declaration.py", "tests/experiments/options/test_registries.py")
    tests += ("tests/keras_dml/losses/test_losses.py",)
    chosen = "(generalized_lifted or GeneralizedLifted)"
    chosen += " and not coincident and not precision and not finite"
    words = ("-m", "pytest", "-rA", "-n", "0", "-m", "not thorough", "-k", chosen)
    said = python(extended, *words, *tests)
    # No test names the loss, so each test has found it by itself.
    assert set(re.findall(r"^PASSED .*?::(\w+)", said, re.MULTILINE)) >= {
        "test_value_parts_and_gradient_match_the_loops",
        "test_degenerate_batches_match_the_loops",
        "test_configuration_round_trip_with_non_default_arguments",
    }


@pytest.mark.slow
def test_the_added_dataset_sampler_and_backbone_work(printed):
    sizes, rows, shape, folder, box, weights = printed[0].splitlines()
    assert (sizes, rows, shape) == ("48 24", "[12 15 18 21]", "(None, 8, 8, 32)")
    assert folder.startswith("data_dir must not be set with stripes")
    assert box.startswith("crop_to_box must be False except for cars and cub")
    assert weights.startswith("weights must be 'none', or a file for plain_convnet")


@pytest.mark.slow
def test_the_added_command_runs(printed):
    assert printed[1].splitlines()[0].endswith("images of 10 classes")
