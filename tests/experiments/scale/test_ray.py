"""Several Ray workers embed a folder or train a run, also if a process is killed."""

import contextlib
import os
import pathlib
import signal
import time
from unittest import mock

import numpy as np
import pytest
import tiers
from photo_search import index_command, plain_embeddings, save_color_model, write_photos
from processes import run_python
from tiny_run import TINY_GLYPHS, assert_same_runs, finish, start


@pytest.fixture(scope="module", autouse=True)
def _needs_ray():
    pytest.importorskip("ray")


def processes(mark, name=""):
    """Return the ids of a command's processes in ascending order, by their variable MARK."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_ours = f"MARK={mark}\0".encode() in (path / "environ").read_bytes()
            if is_ours and name in (path / "cmdline").read_text():
                found.append(int(path.name))
    return sorted(found)


@pytest.fixture
def folder(tmp_path):
    """A folder with a model and 600 photos."""
    write_photos(tmp_path / "photos", [f"{number:03d}.png" for number in range(600)])
    save_color_model(tmp_path / "model")
    return tmp_path


def words(made, output, address, *more):
    return [
        f"--saved_model={made / 'model'}", f"--images={made / 'photos'}", f"--output_dir={output}",
        f"--to={address}", "--engine=ray", "--batch_size=8", *more,
    ]  # fmt: skip


def read_parquet(folder):
    """Return path -> embedding, and the number of rows, which includes duplicates."""
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.read_table(folder)
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    return dict(zip(table["path"].to_pylist(), vectors)), len(table)


def finished_files(output):
    checkpoint = output / ".ray" / "checkpoint"
    return [file for file in checkpoint.glob("*.parquet") if ".pending" not in file.name]


@pytest.mark.slow
def test_a_killed_worker_loses_nothing_and_repeats_nothing(folder):
    """The embeddings equal the result of the command without Ray."""
    (folder / "photos" / "bad.jpg").write_text("no image")
    output, files = folder / "out", folder / "files"
    given = words(folder, output, f"parquet:{files}", "--workers=2")
    process = start("experiments.index", *given, MARK=str(folder))
    while process.poll() is None and not finished_files(output):
        time.sleep(0.002)
    os.kill(processes(folder, "_Embedder")[0], signal.SIGKILL)
    said = finish(process)
    assert "600 images; 601 embedded in" in said
    assert (output / "skipped.txt").read_text().startswith("bad.jpg\t")
    found, rows = read_parquet(files)
    assert rows == len(found) == 600
    for path, row in plain_embeddings(folder, folder / "plain").items():
        np.testing.assert_allclose(found[path], row, atol=1e-5)


@tiers.thorough
@pytest.mark.parametrize("store", ["parquet", "lancedb"])
def test_a_killed_command_continues_and_leaves_no_process(store, folder):
    """Killed when Ray starts, when a worker starts, and after 1, 3, and all files."""
    pytest.importorskip({"parquet": "pyarrow", "lancedb": "lancedb"}[store])
    output, address = folder / "out", f"{store}:{folder / 'store'}"
    command_line = words(folder, output, address, "--workers=2")
    moments = [("raylet/raylet", 0), ("_Embedder", 0), (None, 1), (None, 3), (None, 10)]
    for number, (program, files) in enumerate(moments):
        mark = f"{folder} {number}"
        process = start("experiments.index", *command_line, MARK=mark)
        try:
            while process.poll() is None:
                if processes(mark, program) if program else len(finished_files(output)) >= files:
                    break
                time.sleep(0.05 if program else 0.002)
        finally:
            process.kill()
        said = process.communicate()[0]
        assert process.returncode in (-signal.SIGKILL, 0), said
        end = time.monotonic() + 90
        while (left := processes(mark)) and time.monotonic() < end:
            time.sleep(0.5)
        assert not left
    assert "600 images; " in run_python("-m", "experiments.index", *command_line)
    if store == "parquet":
        found, rows = read_parquet(folder / "store")
        assert rows == 600
    else:
        from experiments.searching.gallery import open_gallery

        found = open_gallery(address).paths
    assert sorted(found) == [f"{number:03d}.png" for number in range(600)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "nothing answers at RAY_ADDRESS=127.0.0.1:1 ("),
        ("auto", "the cluster of RAY_ADDRESS=auto cannot be used: no cluster"),
    ],
)
def test_no_cluster_at_the_address(address, said, index, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("ray.init", mock.Mock(side_effect=ConnectionError("no cluster")))
    given = words(index.parent, tmp_path / "out", f"parquet:{tmp_path / 'files'}")
    assert index_command(*given) == 2
    assert said in capsys.readouterr().err


@tiers.thorough
def test_a_folder_that_disappears_stops_the_command(folder):
    photos, output = folder / "photos", folder / "out"
    given = words(folder, output, f"parquet:{folder / 'files'}", "--workers=1")
    process = start("experiments.index", *given)
    while process.poll() is None and not finished_files(output):
        time.sleep(0.002)
    photos.rename(folder / "saved")
    said = finish(process, code=1)
    assert f"stopped: the folder of the images is gone: {photos}." in said.splitlines()[-1]
    (folder / "saved").rename(photos)
    assert index_command(*given) == 0
    assert len(read_parquet(folder / "files")[0]) == 600


@tiers.thorough
def test_a_worker_that_always_dies_stops_the_command_with_one_line(folder):
    given = words(folder, folder / "out", f"parquet:{folder / 'files'}", "--workers=1")
    process, killed = start("experiments.index", *given, MARK=str(folder)), set()
    end = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < end:
        for each in set(processes(folder, "_Embedder")) - killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
            killed.add(each)
        time.sleep(0.02)
    said = finish(process, code=1)
    assert len(killed) > 1 and "Traceback" not in said
    assert said.splitlines()[-1].startswith("stopped: a worker failed")
    assert "The same command continues after the finished images" in said.splitlines()[-1]


TRAINING = [*TINY_GLYPHS, "--dropout=0.5", "--optimizer=adam", "--deterministic"]
TRAINING += ["--epochs=6", "--steps_per_epoch=4", "--eval_every=3", "--engine=ray", "--workers=2"]


def start_run(folder, *more):
    return start("experiments.run", *TRAINING, f"--output_dir={folder}", *more, MARK=str(folder))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    said = finish(start_run(folder))
    assert f"report: {folder}/report.html" in said
    assert said.count(" classes to train, ") == 1  # only the first worker prints
    return folder


@pytest.mark.slow
@tiers.parametrize("victim", [1, 0], [1], pytest.mark.thorough)
def test_a_killed_worker_is_restarted_and_the_run_is_bit_identical(whole, tmp_path, victim):
    folder = tmp_path / "killed"
    process = start_run(folder)
    while process.poll() is None and not (folder / "checkpoint.npz").is_file():
        time.sleep(0.005)
    os.kill(processes(folder, "ray::RayTrainWorker")[victim], signal.SIGKILL)
    assert not (folder / "result.json").exists(), "killed too late"
    assert "continued after epoch" in finish(process)
    assert_same_runs(whole, folder)


@pytest.mark.slow
def test_a_mistake_stops_the_workers_with_one_line_and_no_retry(tmp_path):
    said = finish(start_run(tmp_path / "run", "--batch_size=25"), code=2)
    last = said.splitlines()[-1]  # after those of TensorFlow's server
    assert last.startswith("error: batch_size must be a multiple of the 2 devices")
    assert "Ray's logs: " in last
    assert "Requesting resources" not in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()
