"""`experiments.run` on JAX and PyTorch: resuming, another backend, and invalid strategies."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tiny_run import TINY, final_weights, history

ARGUMENTS = [*TINY, "--epochs=4", "--steps_per_epoch=3", "--deterministic"]


def start(backend, *words):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "KERAS_BACKEND": backend},
    )


def finish(process, code=0):
    try:
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == code, output
    return output


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("loss", ["rankmi", "ce"])
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_killed_run_resumes_identically_and_another_backend_reads_it(
    backend, loss, photos, tmp_path
):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = ["experiments.run", *ARGUMENTS, f"--loss={loss}", f"--data_dir={photos}"]
    finish(start(backend, *command, f"--output_dir={whole}"))
    process = start(backend, *command, f"--output_dir={killed}")
    while not (killed / "checkpoint.npz").is_file() and process.poll() is None:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (killed / "result.json").exists(), "killed too late to show anything"
    assert "continued after epoch" in finish(start(backend, *command, f"--output_dir={killed}"))
    expected, found = final_weights(whole), final_weights(killed)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(array, found[name], err_msg=name)
    assert history(whole) == history(killed)
    assert (whole / "saved_model" / "saved_model.pb").is_file()
    # The best model has the same scores on TensorFlow.
    finish(start("tensorflow", "experiments.evaluate", f"--run={whole}"))
    [result, evaluation] = (
        json.loads((whole / name).read_text())["scores"]
        for name in ("result.json", "evaluation.json")
    )
    recalls = {name: share for name, share in result.items() if name.startswith("recall")}
    assert recalls
    assert recalls == pytest.approx({name: evaluation[name] for name in recalls})


@pytest.mark.slow
@pytest.mark.thorough
def test_unsupported_strategies_are_refused_in_one_line(photos, tmp_path):
    command = ["experiments.run", *ARGUMENTS, "--loss=ce", f"--data_dir={photos}"]
    command += [f"--output_dir={tmp_path / 'run'}"]
    for backend, strategy in (("torch", "mirrored"), ("jax", "multi_worker")):
        said = finish(start(backend, *command, f"--strategy={strategy}"), code=2)
        assert said.startswith("error: ") and said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_run_is_exported_to_every_format(backend, photos, tmp_path):
    """The export has the same `KERAS_BACKEND`. Formats without their package are skipped."""
    folder = tmp_path / "run"
    command = ["experiments.run", *TINY, "--loss=contrastive", f"--data_dir={photos}"]
    finish(start(backend, *command, f"--output_dir={folder}"))
    packages = {"saved_model": "tensorflow", "onnx": "tf2onnx", "openvino": "nncf"}
    packages["litert"] = "litert_converter"
    for name, package in packages.items():
        if importlib.util.find_spec(package) is None:
            continue
        finish(start(backend, "experiments.export", f"--run={folder}", f"--format={name}"))
        facts = json.loads((folder / "exports" / name / "export.json").read_text())
        assert facts["difference"] < 1e-4 * facts["length"]
        assert facts["recalls"] == pytest.approx(facts["keras_recalls"])
