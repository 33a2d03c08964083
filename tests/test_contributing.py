"""The steps of CONTRIBUTING.md, run literally on a copy of the project."""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[1]
STEP = re.compile(
    r"^ *(?:(?P<new>New file) `(?P<path>[^`]+)`"
    r"|(?P<end>At the end of) `(?P<ended>[^`]+)`"
    r"|In `(?P<changed>[^`]+)`, above the line `(?P<line>[^`]+)`):\n"
    r"\n(?P<indent> *)```\w*\n(?P<code>.*?)\n(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


def section(title):
    """Return the part of CONTRIBUTING.md under this heading."""
    parts = re.split(r"^## ", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    (found,) = [part for part in parts if part.startswith(f"{title}\n")]
    return found


def carry_out(title, root):
    """Follow the steps of a section in `root` and return the changed files."""
    text, touched = section(title), []
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
        touched.append(path.relative_to(root).as_posix())
    return touched


def copied(root):
    """Copy the project without ignored files to a folder."""
    for name in ("keras_dml", "pipelines", "experiments", "tests", "docs"):
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for name in ("README.md", "CONTRIBUTING.md", "setup.cfg", "pyproject.toml", ".ruff.toml"):
        shutil.copy(ROOT / name, root / name)
    return root


def python(root, *words):
    """Run `python WORDS` in the copy, which must succeed, and return its output."""
    # The copy comes first, wherever this project is installed. A relative path would follow a
    # command into other folders.
    environment = {**os.environ, "PYTHONPATH": str(root)}
    run = subprocess.run(
        [sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, f"{run.stdout[-3000:]}\n{run.stderr[-3000:]}"
    return run.stdout


def passed(output):
    """Return the passed tests from the output of `-rA`, with their number of cases."""
    return collections.Counter(re.findall(r"^PASSED .*?::(\w+)", output, re.MULTILINE))


def check_layout(root, touched):
    files = [path for path in touched if path.endswith(".py")]
    python(root, "-m", "ruff", "check", *files)
    python(root, "-m", "ruff", "format", "--check", *files)


@pytest.fixture(scope="module")
def with_loss(tmp_path_factory):
    root = copied(tmp_path_factory.mktemp("loss"))
    touched = carry_out("Add a loss", root)
    assert touched == [
        "keras_dml/losses/generalized_lifted.py",
        "keras_dml/losses/__init__.py",
        "tests/support/oracles.py",
        "experiments/recipes/glyphs/glyphs_generalized_lifted.flags",
    ]
    check_layout(root, touched)
    return root


@pytest.mark.slow
def test_walkthrough_loss(with_loss):
    program = (
        "from experiments.options.loss_flags import taken_by\n"
        "margin = taken_by('generalized_lifted')['margin']\n"
        "print(margin.name, margin.kind.__name__, margin.default, margin.text)"
    )
    said = python(with_loss, "-c", program)
    assert said.startswith("margin float 1.0 m, above 0, the smallest distance")
    tests = ("tests/test_one_declaration.py", "tests/experiments/options/test_registries.py")
    tests += ("tests/keras_dml/losses/test_losses.py",)
    chosen = "(generalized_lifted or GeneralizedLifted)"
    chosen += " and not coincident and not precision and not finite"
    words = ("-m", "pytest", "-rA", "-n", "0", "-m", "not thorough", "-k", chosen)
    tried = passed(python(with_loss, *words, *tests))
    # No test names the loss, so each test has found it by itself.
    assert set(tried) >= {
        "test_value_parts_and_gradient_match_the_loops",
        "test_degenerate_batches_match_the_loops",
        "test_sample_weights_weigh_anchors",
        "test_configuration_round_trip_with_non_default_arguments",
        "test_bad_shapes",
    }


def test_walkthrough_help(with_loss):
    said = " ".join(python(with_loss, "-m", "experiments.run", "--helpfull").split())
    assert "generalized_lifted" in said
    assert "smallest distance that negatives should have." in said


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("Add a dataset", "stripes: Built in: stripes; the first classes train"),
        ("Add a backbone", "plain_convnet, small_convnet, bn_inception"),
        ("Add a sampler", "--stride=1 strided: Rows between two images of a batch."),
    ],
)
def test_walkthrough_help_of_others(title, said, tmp_path):
    root = copied(tmp_path)
    carry_out(title, root)
    assert said in " ".join(python(root, "-m", "experiments.run", "--helpfull").split())


@pytest.mark.thorough
@pytest.mark.slow
def test_walkthrough_loss_everywhere(with_loss):
    guide = "docs/pages/guides/losses.md"
    assert "`GeneralizedLiftedLoss(margin=1.0)`" not in (with_loss / guide).read_text()
    python(with_loss, "-m", "keras_dml.losses", guide)
    assert (
        "| `generalized_lifted` | `GeneralizedLiftedLoss(margin=1.0)` |"
        in (with_loss / guide).read_text()
    )
    words = ("-m", "pytest", "-rA", "-n", "0", "-m", "slow or not slow", "-k")
    readme = passed(python(with_loss, *words, "table", "tests/test_readme.py"))
    assert set(readme) == {"test_the_table_of_losses_matches_the_source"}
    tests = ("tests/keras_dml/_backend/test_distribute.py", "tests/keras_dml/losses")
    assert set(
        passed(python(with_loss, *words, "generalized_lifted or GeneralizedLifted", *tests))
    ) >= {
        "test_the_weights_equal_one_device",
        "test_the_weights_on_four_devices_equal_one_device",
        "test_the_logs_equal_one_device",
        "test_two_workers_equal_one_process_for_every_loss",
        "test_xla_gives_the_same_weights",
        "test_fit_under_mixed_precision",
    }


@pytest.mark.slow
def test_walkthrough_dataset(tmp_path):
    root = copied(tmp_path)
    touched = carry_out("Add a dataset", root)
    assert touched == ["pipelines/datasets/stripes.py", "pipelines/datasets/registry.py"]
    check_layout(root, touched)
    program = textwrap.dedent("""
        import pipelines
        split = pipelines.load_dataset("stripes", train_classes=8)
        print("stripes" in pipelines.DATASETS, len(split.train), len(split.test))
        for wrong in ({"data_dir": "x"}, {"crop_to_box": True}):
            try:
                pipelines.load_dataset("stripes", **wrong)
            except ValueError as error:
                print(error)
    """)
    first, folder, box = python(root, "-c", program).splitlines()
    assert first == "True 48 24"
    assert folder.startswith("data_dir must not be set with stripes")
    assert box.startswith("crop_to_box must be False except for cars and cub")


@pytest.mark.slow
def test_walkthrough_sampler(tmp_path):
    root = copied(tmp_path)
    touched = carry_out("Add a sampler", root)
    assert touched == ["pipelines/strided.py"] + ["pipelines/samplers.py"] * 2
    check_layout(root, touched)
    program = textwrap.dedent("""
        from experiments.options import RunOptions, data, parse
        import pipelines
        table = pipelines.load_dataset("digits").train
        words = ["run", "--sampler=strided", "--stride=3", "--batch_size=4"]
        print(data.sampler(parse(RunOptions, words), table, seed=0)(1))
    """)
    assert python(root, "-c", program).strip() == "[12 15 18 21]"


@pytest.mark.slow
def test_walkthrough_backbone(tmp_path):
    root = copied(tmp_path)
    touched = carry_out("Add a backbone", root)
    assert touched == ["keras_dml/models/plain_convnet.py"] + ["keras_dml/models/backbones.py"] * 2
    check_layout(root, touched)
    program = textwrap.dedent("""
        from keras_dml import models
        model = models.build_backbone("plain_convnet", 32)
        print("plain_convnet" in models.backbone_names(), model.output.shape)
        model.save_weights("plain.weights.h5")
        models.build_backbone("Plain_ConvNet", 32, weights="plain.weights.h5")
        try:
            models.build_backbone("plain_convnet", 32, weights="imagenet")
        except ValueError as error:
            print(error)
    """)
    first, error = python(root, "-c", program).splitlines()
    assert first == "True (None, 8, 8, 32)"
    assert error.startswith("weights must be none or a file for plain_convnet, which has no ")
    assert "PyTorch" not in error


@pytest.mark.slow
def test_walkthrough_command(tmp_path):
    root = copied(tmp_path)
    touched = carry_out("Add a command", root)
    assert touched == ["experiments/count.py"]
    check_layout(root, touched)
    said = python(root, "-m", "experiments.count", "--dataset=digits")
    assert said.splitlines()[0].endswith("images of 10 classes")
    (line,) = [
        line
        for line in python(root, "-m", "experiments", "--help").splitlines()
        if line.split()[:1] == ["count"]
    ]
    assert line.endswith("how many images and classes a built-in dataset has.")
    assert python(root, "-m", "experiments", "count", "--dataset=digits") == said
    shown = python(root, "-m", "experiments.count", "--helpfull")
    assert "--dataset=glyphs\n      What is counted. (one of digits, glyphs)" in shown
