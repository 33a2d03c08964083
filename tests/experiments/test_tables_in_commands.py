"""`--dataset=table`: runs and evaluations on the images of a CSV file."""

import json

import numpy as np
import pytest
import tiny_run

from experiments import evaluate
from experiments.options.command_line import run_command


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_on_a_table_equals_a_run_on_its_folder(photos, tmp_path):
    paths = sorted(photos.rglob("*.*"))
    lines = [f"{path.relative_to(photos.parent)},{path.parent.name}" for path in paths]
    # Paths are relative to the folder of the table.
    table = photos.parent / "table.csv"
    table.write_text("\n".join(["path,label", *lines]))
    arguments = [f"--data_dir={table}", "--dataset=table"]
    runs = {
        "folder": tiny_run.finished_run(tmp_path / "folder", photos),
        "table": tiny_run.finished_run(tmp_path / "table", photos, *arguments),
    }
    weights = {name: tiny_run.final_weights(run) for name, run in runs.items()}
    for name, array in weights["folder"].items():
        np.testing.assert_allclose(weights["table"][name], array, rtol=1e-4, atol=1e-5)
    words = ["evaluate", f"--run={runs['table']}", f"--output_dir={tmp_path / 'again'}"]
    assert run_command(evaluate.main, words) == 0
    result = json.loads((runs["table"] / "result.json").read_text())
    again = json.loads((tmp_path / "again" / "evaluation.json").read_text())
    assert again["rows"]["embedding, cosine"] == result["rows"]["embedding, cosine"]
