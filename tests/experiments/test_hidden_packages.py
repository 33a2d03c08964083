"""`python -m experiments.COMMAND` in a folder with packages of the same names."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_a_package_that_hides_ours_is_named_in_one_line(tmp_path):
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "experiments.recipes"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert f"{tmp_path}/pipelines/__init__.py hides" in done.stderr and "keras-dml" in done.stderr
