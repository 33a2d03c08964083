"""The numbers of `.ci/structure.py` on a small project with known numbers."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / ".ci" / "structure.py"


@pytest.mark.slow
def test_the_numbers_of_a_small_project(tmp_path):
    files = {
        "keras_dml/__init__.py": "def long(a, b, c, d, e, f, g):\n    x = 1\n    return x\n",
        "pipelines/__init__.py": "",
        "experiments/__init__.py": "",
        "experiments/run.py": "from experiments import room\nfrom experiments.room import plan\n",
        "experiments/room/__init__.py": "",
        "experiments/room/plan.py": "import os\n\ndef f(self):\n    import experiments.run\n",
        "tests/test_run.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, tmp_path], capture_output=True, text=True, check=True
    )
    rows = [line.strip("| ").split(" | ") for line in run.stdout.splitlines()[2:]]
    found = {name: values for name, *values in rows}
    assert found["modules in experiments"] == ["4", "4"]
    assert found["of them in its top folder"] == ["2", "2"]
    assert found["import arrows in experiments"] == ["3", "3"]
    assert found["longest function, lines"] == ["3 (keras_dml.long)"] * 2
    assert found["functions with 7 or more arguments"] == ["1", "1"]
    assert found["modules without a test file of their name"] == ["1", "1"]


def test_a_folder_outside_a_checkout(tmp_path):
    run = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.startswith("error: no checkout of the project")
