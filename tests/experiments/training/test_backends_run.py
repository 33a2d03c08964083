"""`experiments.run` on JAX and PyTorch: resuming, another backend, and invalid strategies."""

import importlib.util
import json

import pytest
from tiny_run import TINY, assert_same_weights, finish, history, kill_when
from tiny_run import start as start_process

ARGUMENTS = [*TINY, "--epochs=4", "--steps_per_epoch=3", "--deterministic"]


def start(backend, *words):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    return start_process(*words, backend=backend)


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
    kill_when((killed / "checkpoint.npz").is_file, process, killed)
    assert "continued after epoch" in finish(start(backend, *command, f"--output_dir={killed}"))
    assert_same_weights(whole, killed)
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
