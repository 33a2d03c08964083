"""Many workers: every image once, whoever is killed."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import types

import numpy as np
import pytest
from photo_search import index_command, plain_embeddings, save_color_model, write_photos

from experiments.options.errors import RunError
from experiments.searching import shards
from experiments.searching.image_files import ImageFile
from experiments.searching.shard_worker import MODELS

ray = pytest.importorskip("ray")
pq = pytest.importorskip("pyarrow.parquet")

from experiments.searching import ray_engine  # noqa: E402, needs ray

NAMES = [f"{folder}/{number:03d}.png" for folder in "abc" for number in range(60)]


def files(*names):
    return [ImageFile(name, 1, 1) for name in names]


class Call:
    """What an actor's method was given, as Ray's own references are."""

    def __init__(self, worker, shard=None):
        self.worker, self.shard = worker, shard

    def answer(self):
        if self.shard is None:
            return 3
        if self.worker.name == "dies":
            raise ray.exceptions.RayActorError
        return shards.EmbeddedShard(self.shard.number, 1, {}, None)


class Worker:
    """Stands in for an actor."""

    def __init__(self, name):
        self.name = name
        self.dimensions = types.SimpleNamespace(remote=lambda: Call(self))
        self.embed = types.SimpleNamespace(remote=lambda shard: Call(self, shard))


def test_a_worker_that_hangs_holds_nobody_up(monkeypatch):
    """Nor does one that never begins, or one that dies with a shard that another has, too."""
    asked = []

    def wait(calls, num_returns, timeout):
        able = [one for one in calls if one.worker.name == "works"
                or (one.shard is None and one.worker.name != "never")]  # fmt: skip
        # Who dies does so when there is nothing else to wait for.
        able = able or [one for one in calls if one.worker.name == "dies"]
        asked.append([one.worker.name for one in calls])
        assert able and len(asked) < 100
        return able[:1], []

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", Call.answer)
    monkeypatch.setattr(ray_engine, "_LATE", -1.0)
    pool = [Worker(name) for name in ("hangs", "dies", "never", "works")]
    dealt = shards.shards_of(files(*NAMES), {}, 9)
    done = [one.number for one in ray_engine._results(pool, dealt)]
    assert sorted(done) == list(range(9))
    assert asked[-1].count("never") == 1 and "hangs" in asked[-1]


def test_a_shard_that_ends_every_worker_is_named(monkeypatch):
    monkeypatch.setattr(ray, "wait", lambda calls, num_returns, timeout: (calls[:1], []))
    monkeypatch.setattr(ray, "get", Call.answer)
    dealt = shards.shards_of(files("a.png", "b.png"), {}, 1)
    with pytest.raises(RunError, match="shard 0 ended 5 times, with a.png and 1 more images"):
        list(ray_engine._results([Worker("dies")], dealt))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    write_photos(folder / "photos", NAMES)
    (folder / "photos" / "a" / "bad.jpg").write_text("no image")
    save_color_model(folder / "model")
    return folder


def command(made, output, address, *more):
    return index_command(
        f"--saved_model={made / 'model'}", f"--images={made / 'photos'}", f"--output={output}",
        f"--to={address}", "--engine=ray", "--batch_size=16", *more,
    )  # fmt: skip


def vectors(table):
    return dict(zip(table["path"].to_pylist(), np.array(table["vector"].to_pylist(), np.float32)))


@pytest.mark.slow
@pytest.mark.thorough
def test_a_killed_worker_loses_nothing(made, tmp_path, monkeypatch, capsys):
    """And the embeddings are those of the plain command."""
    keep, begin, alive, killed = shards.Journal.add, ray_engine._Driver._workers, [], []

    def begun(self, shards):
        pool, count = begin(self, shards)
        alive.append(ray.get(pool[0].__ray_call__.remote(lambda worker: os.getpid())))
        return pool, count

    def kill_one(self, shard, digest):
        keep(self, shard, digest)
        if not killed:
            killed.append(alive[0])
            os.kill(alive[0], signal.SIGKILL)

    monkeypatch.setattr(ray_engine._Driver, "_workers", begun)
    monkeypatch.setattr(shards.Journal, "add", kill_one)
    folder = tmp_path / "files"
    assert command(made, tmp_path / "out", f"parquet:{folder}", "--workers=2") == 0
    assert killed and "180 images; 181 embedded in" in (out := capsys.readouterr().out)
    assert "skipped 1 files" in out
    assert (tmp_path / "out" / "skipped.txt").read_text().startswith("a/bad.jpg\t")
    table = pq.read_table(folder)
    assert sorted(table["path"].to_pylist()) == NAMES
    found = vectors(table)
    for path, row in plain_embeddings(made, tmp_path / "plain").items():
        np.testing.assert_allclose(found[path], row, atol=1e-5)

    # Given again: nothing to do; then a new image and one less, and no other shard.
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("part-*")}
    assert command(made, tmp_path / "out", f"parquet:{folder}") == 0
    assert " 0 embedded in" in capsys.readouterr().out
    write_photos(made / "photos", ["new.png"])
    try:
        assert command(made, tmp_path / "out", f"parquet:{folder}") == 0
    finally:
        (made / "photos" / "new.png").unlink()
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("part-*")}
    assert len(set(after.items()) - set(before.items())) == 1
    assert "new.png" in pq.read_table(folder)["path"].to_pylist()


@pytest.mark.slow
@pytest.mark.thorough
def test_a_killed_command_writes_nothing_twice(made, tmp_path, monkeypatch, capsys):
    pytest.importorskip("lancedb")
    from experiments.searching.gallery import open_gallery

    keep, kept = shards.Journal.add, []

    def killed(self, shard, digest):
        if len(kept) == 1:
            raise KeyboardInterrupt  # written, and not in the journal
        keep(self, shard, digest)
        kept.append(shard)

    address = f"lancedb:{tmp_path / 'store'}"
    monkeypatch.setattr(shards.Journal, "add", killed)
    assert command(made, tmp_path / "out", address, "--workers=1") == 130
    monkeypatch.setattr(shards.Journal, "add", keep)
    assert command(made, tmp_path / "out", address, "--workers=1") == 0
    assert "180 images; " in capsys.readouterr().out
    assert open_gallery(address).paths == NAMES

    # Images that another writer wrote twice are repaired.
    import lancedb

    table = lancedb.connect(tmp_path / "store").open_table("images")
    table.add(table.to_arrow().slice(0, 5))
    assert command(made, tmp_path / "out", address, "--workers=1") == 0
    assert "180 images; " in (said := capsys.readouterr().out) and " 0 embedded" not in said
    assert open_gallery(address).paths == NAMES


def processes_with(mark):
    """The ids of those that have this name in their environment: a command and all it starts."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def runs(mark, name):
    """Whether one of them is a program of this name."""
    for number in processes_with(mark):
        with contextlib.suppress(OSError):
            if name in pathlib.Path(f"/proc/{number}/cmdline").read_text():
                return True
    return False


def folders_of_workers():
    return list(pathlib.Path(tempfile.gettempdir()).glob(f"{MODELS}*"))


# Moments, each of another command: what Ray has begun, and how many shards are in the journal.
MOMENTS = {"Ray": 0, "a worker": 0, "a shard": 1, "half": 5, "all": 10}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("store", ["parquet", "lancedb"])
def test_a_command_killed_at_any_moment_goes_on_and_leaves_no_process(made, store, tmp_path):
    """Killed as `kill -9` does, five times; then given once more."""
    if store == "lancedb":
        pytest.importorskip("lancedb")
    names = [f"{number}.png" for number in range(600)]  # ten shards
    write_photos(tmp_path / "photos", names)
    address, output = f"{store}:{tmp_path / 'store'}", tmp_path / "out"
    words = [
        "experiments.index", f"--saved_model={made / 'model'}", f"--images={tmp_path / 'photos'}",
        f"--output={output}", f"--to={address}", "--engine=ray", "--batch_size=8", "--workers=2",
    ]  # fmt: skip

    def start(mark):
        return subprocess.Popen(
            [sys.executable, "-m", *words], env={**os.environ, mark: "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def done():
        with contextlib.suppress(OSError):
            return (output / shards.JOURNAL).read_text().count("\n") - 1
        return 0

    def check_ended(mark):
        # Ray's own agents may try for a minute to tell the cluster of its end.
        end = time.monotonic() + 90
        while (left := processes_with(mark)) and time.monotonic() < end:
            time.sleep(0.5)
        assert not left

    journaled = []
    for number, (moment, count) in enumerate(MOMENTS.items()):
        mark = f"KERAS_DML_TEST_{os.getpid()}_{store}_{number}"
        process = start(mark)
        program = {"Ray": "raylet/raylet", "a worker": "ray::ShardWorker"}.get(moment)
        try:
            while process.poll() is None:
                if runs(mark, program) if program else done() >= count:
                    break
                time.sleep(0.05 if program else 0.002)
        finally:
            process.kill()
        said = process.communicate()[0]
        assert process.returncode in (-signal.SIGKILL, 0 if moment == "all" else None), said
        check_ended(mark)
        journaled.append(done())
    assert journaled == sorted(journaled) and journaled[0] == 0 and 0 < journaled[2] < 10

    mark = f"KERAS_DML_TEST_{os.getpid()}_{store}_last"
    process = start(mark)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    assert "600 images; " in said
    check_ended(mark)
    assert not folders_of_workers()
    if store == "parquet":
        found = pq.read_table(tmp_path / "store")["path"].to_pylist()
        parts = sorted(path.name for path in (tmp_path / "store").iterdir())
        assert parts == ["_keras_dml.json", *map(shards.part_name, range(10))]
    else:
        from experiments.searching.gallery import open_gallery

        found = open_gallery(address).paths
    assert sorted(found) == sorted(names)
    left = {path.name for path in output.iterdir()}
    assert left == {".lock", "settings.json", "shards.jsonl"}


@pytest.mark.parametrize(
    "more,said",
    [
        (["--engine=ray"], "--engine=ray makes no index: give --to="),
        (["--engine=ray", "--to=parquet:x", "--prefix=2"], "leave out --prefix"),
        (["--workers=2"], "leave out --workers=2, which is for --engine=ray"),
        (["--images=s3://bucket/photos"], "images must be a folder; --engine=ray reads others"),
        (["--engine=spark"], "engine"),
    ],
)
def test_flags_that_do_not_go_together(made, tmp_path, more, said, capsys):
    given = [f"--saved_model={made / 'model'}", f"--images={made / 'photos'}"]
    assert index_command(*given, f"--output={tmp_path / 'out'}", *more) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "nothing answers at RAY_ADDRESS=127.0.0.1:1 ("),  # before Ray tries
        ("auto", "the cluster of RAY_ADDRESS=auto cannot be used: no cluster"),
    ],
)
def test_no_cluster_at_the_address(address, said, made, tmp_path, monkeypatch, capsys):
    def refuse(address, **given):
        assert address == "auto"
        raise ConnectionError("no cluster")

    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray, "init", refuse)
    assert command(made, tmp_path / "out", f"parquet:{tmp_path / 'files'}") == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.thorough
def test_an_image_folder_that_disappears_stops_the_command(made, tmp_path, monkeypatch, capsys):
    photos = tmp_path / "photos"
    write_photos(photos, NAMES)
    keep = shards.Journal.add

    def losing(self, shard, digest):
        keep(self, shard, digest)
        if photos.exists():
            photos.rename(tmp_path / "saved")

    monkeypatch.setattr(shards.Journal, "add", losing)
    words = [f"--saved_model={made / 'model'}", f"--images={photos}", f"--output={tmp_path / 'o'}"]
    words += [f"--to=parquet:{tmp_path / 'files'}", "--engine=ray", "--batch_size=16"]
    assert index_command(*words, "--workers=1") == 1
    err = capsys.readouterr().err
    assert f"stopped: the folder of the images is gone: {photos}." in err.splitlines()[-1]
    monkeypatch.setattr(shards.Journal, "add", keep)
    (tmp_path / "saved").rename(photos)
    assert index_command(*words, "--workers=1") == 0
    assert sorted(pq.read_table(tmp_path / "files")["path"].to_pylist()) == NAMES
