"""The command and the versions in a report."""

import pathlib
import re
import shlex

import keras_dml
from experiments.options import RunOptions, parse
from experiments.pages.run_pages import made_by


def test_the_command_repeats_the_run_and_versions_are_listed(tmp_path):
    flags = tmp_path / "some flags.txt"
    flags.write_text("--loss=triplet\n--dataset=glyphs\n")
    command, versions = made_by(flags, ["--trust_code"]).split("\n")
    _, _, _, *words = shlex.split(command)
    assert words == [f"--flagfile={flags}", "--trust_code", "--output_dir=AGAIN"]
    options = parse(RunOptions, ["run", f"--flagfile={flags}"])
    assert options.loss == "triplet"
    assert f"keras_dml {keras_dml.__version__}" in versions
    assert re.search(r"keras 3\.\d+", versions)
    if (pathlib.Path(keras_dml.__file__).parents[1] / ".git").exists():
        assert re.search("commit [0-9a-f]{12}", versions)
