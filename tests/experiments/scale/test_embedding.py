"""Several workers embed a folder: each image once, also if a process is killed."""

import contextlib
import os
import pathlib
import signal
import time

import numpy as np
import pytest
import tiers
from photo_search import index_command, plain_embeddings, save_color_model, write_photos
from processes import run_python
from tiny_run import start

SECONDS = 300


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


def processes(mark, name=""):
    """Return process ids of a command and its children, by a mark in the environment."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_ours = f"{mark}=1".encode() in (path / "environ").read_bytes()
            if is_ours and name in (path / "cmdline").read_text():
                found.append(int(path.name))
    return found


def finished_files(output):
    checkpoint = output / ".ray" / "checkpoint"
    return [file for file in checkpoint.glob("*.parquet") if ".pending" not in file.name]


@pytest.mark.slow
def test_a_killed_worker_loses_nothing_and_repeats_nothing(tmp_path):
    """The embeddings equal the result of the command without Ray."""
    pytest.importorskip("ray")
    write_photos(tmp_path / "photos", [f"{number:03d}.png" for number in range(600)])
    (tmp_path / "photos" / "bad.jpg").write_text("no image")
    save_color_model(tmp_path / "model")
    output, folder, mark = tmp_path / "out", tmp_path / "files", f"KERAS_DML_TEST_{os.getpid()}_w"
    given = words(tmp_path, output, f"parquet:{folder}", "--workers=2")
    process = start("experiments.index", *given, **{mark: "1"})
    killed = None
    try:
        while process.poll() is None and not killed:
            if finished_files(output):
                killed = processes(mark, "_Embedder")[0]
                os.kill(killed, signal.SIGKILL)
            time.sleep(0.002)
        said = process.communicate(timeout=SECONDS)[0]
    finally:
        process.kill()
    assert killed, said
    assert process.returncode == 0, said
    assert "600 images; 601 embedded in" in said
    assert (output / "skipped.txt").read_text().startswith("bad.jpg\t")
    found, rows = read_parquet(folder)
    assert rows == len(found) == 600
    for path, row in plain_embeddings(tmp_path, tmp_path / "plain").items():
        np.testing.assert_allclose(found[path], row, atol=1e-5)


@tiers.thorough
@pytest.mark.parametrize("store", ["parquet", "lancedb"])
def test_a_killed_command_continues_and_leaves_no_process(store, tmp_path):
    """Killed when Ray starts, when a worker starts, and after 1, 3, and all files."""
    pytest.importorskip("ray")
    if store == "lancedb":
        pytest.importorskip("lancedb")
    names = [f"{number}.png" for number in range(600)]
    write_photos(tmp_path / "photos", names)
    save_color_model(tmp_path / "model")
    output, address = tmp_path / "out", f"{store}:{tmp_path / 'store'}"
    command_line = words(tmp_path, output, address, "--workers=2")
    moments = [("raylet/raylet", 0), ("_Embedder", 0), (None, 1), (None, 3), (None, 10)]
    for number, (program, files) in enumerate(moments):
        mark = f"KERAS_DML_TEST_{os.getpid()}_{store}_{number}"
        process = start("experiments.index", *command_line, **{mark: "1"})
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
        found, rows = read_parquet(tmp_path / "store")
        assert rows == 600
    else:
        from experiments.searching.gallery import open_gallery

        found = open_gallery(address).paths
    assert sorted(found) == sorted(names)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "nothing answers at RAY_ADDRESS=127.0.0.1:1 ("),
        ("auto", "the cluster of RAY_ADDRESS=auto cannot be used: no cluster"),
    ],
)
def test_no_cluster_at_the_address(address, said, index, tmp_path, monkeypatch, capsys):
    ray = pytest.importorskip("ray")

    def refuse(address, **given):
        assert address == "auto"
        raise ConnectionError("no cluster")

    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "init", refuse)
    given = words(index.parent, tmp_path / "out", f"parquet:{tmp_path / 'files'}")
    assert index_command(*given) == 2
    assert said in capsys.readouterr().err


@tiers.thorough
def test_a_folder_that_disappears_stops_the_command(tmp_path):
    pytest.importorskip("ray")
    photos = tmp_path / "photos"
    names = [f"{number:04d}.png" for number in range(1500)]
    write_photos(photos, names)
    save_color_model(tmp_path / "model")
    given = words(tmp_path, tmp_path / "out", f"parquet:{tmp_path / 'files'}", "--workers=1")
    process = start("experiments.index", *given)
    while process.poll() is None and not finished_files(tmp_path / "out"):
        time.sleep(0.002)
    photos.rename(tmp_path / "saved")
    said = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 1, said
    assert f"stopped: the folder of the images is gone: {photos}." in said.splitlines()[-1]
    (tmp_path / "saved").rename(photos)
    assert index_command(*given) == 0
    assert sorted(read_parquet(tmp_path / "files")[0]) == names
