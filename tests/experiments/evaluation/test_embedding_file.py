"""Files of embeddings: resuming, locks, archives, bad images, and deleted images."""

import errno
import fcntl
import itertools
import json
import os
import resource
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import processes
import pytest
import tensorflow as tf
from photo_search import write_photos

from experiments.evaluation import saved_model
from experiments.evaluation.embed import IdentifiedEmbedder, embed_table
from experiments.evaluation.embedding_file import EmbeddingFile, UnreadableError, read_npz
from experiments.options.errors import RunError, UsageError
from experiments.options.held_folder import held, held_beside, try_lock, waiting_for
from pipelines import ImageTable

ROWS = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")


def fill(path, rows=ROWS, key="a", batch=4):
    """Return the computed rows and the file's array."""
    computed = []
    with EmbeddingFile(path, len(rows), key) as file:
        for start in range(file.done, len(rows), batch):
            file.append(rows[start : start + batch])
            computed += range(start, min(start + batch, len(rows)))
    return computed, file.array()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_write_error_names_the_file(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "e.npy"
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            fill(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.filename == str(path)


def test_rows_are_reused_if_the_key_is_the_same(tmp_path):
    path = tmp_path / "e.npy"
    computed, array = fill(path)
    assert computed == list(range(10)) and isinstance(array, np.memmap)
    np.testing.assert_array_equal(array, ROWS)
    assert fill(path)[0] == []
    assert names(tmp_path) == ["e.npy", "e.npy.json", "manifest.json"]
    for other in ({"key": "b"}, {"rows": ROWS[:7]}, {}):
        computed, array = fill(path, **other)
        np.testing.assert_array_equal(array, other.get("rows", ROWS))
        assert len(computed) == len(array)
    path.write_bytes(path.read_bytes()[:-1] + b"x")  # a damaged file
    assert len(fill(path)[0]) == 10


def test_a_damaged_manifest_is_named_before_any_row_is_computed(tmp_path):
    (tmp_path / "manifest.json").write_text("of another program")
    with pytest.raises(ValueError, match="manifest.json is damaged.*Put it back, or delete"):
        fill(tmp_path / "e.npy")


def test_a_file_of_version_0_2_resumes(tmp_path):
    """Its state has a CRC-32, and it is in no manifest."""
    path = tmp_path / "e.npy"
    fill(path)
    (tmp_path / "manifest.json").unlink()
    for done, computed in ((10, []), (6, [6, 7, 8, 9])):
        state = {"key": "a", "rows": 10, "dtype": "float32", "dimensions": 3, "done": done}
        (tmp_path / "e.npy.json").write_text(json.dumps(state | {"crc32": 1}))
        assert fill(path)[0] == computed
    np.testing.assert_array_equal(np.load(path), ROWS)


def test_an_error_loses_no_written_row(tmp_path):
    path = tmp_path / "e.npy"
    with pytest.raises(KeyError), EmbeddingFile(path, 10, "a") as file:
        file.append(ROWS[:4])
        file.append(ROWS[4:5])
        raise KeyError
    assert names(tmp_path) == ["e.npy", "e.npy.json"]
    with EmbeddingFile(path, 10, "b") as file:  # another key: the first file is unchanged so far
        assert file.done == 0
    with EmbeddingFile(path, 10, "a") as file:
        assert file.done == 5
        with pytest.raises(ValueError, match=r"another running process"):
            EmbeddingFile(path, 10, "a").__enter__()
        with pytest.raises(FloatingPointError, match="no longer finite"):
            file.append(np.full((2, 3), np.nan))
        assert file.done == 5
    computed, array = fill(path)
    assert computed == list(range(5, 10))
    np.testing.assert_array_equal(array, ROWS)


KILLED = """
import os, signal, sys
import numpy as np
from experiments.evaluation.embedding_file import EmbeddingFile
file, rows = EmbeddingFile(sys.argv[1], 10, "a").__enter__(), np.load(sys.argv[2])
file.append(rows[:4])
file.append(rows[4:6])
file._stream.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_process_loses_no_complete_row(tmp_path):
    """After `kill -9`, complete rows stay on disk and a partial batch is recomputed."""
    path = tmp_path / "e.npy"
    np.save(tmp_path / "rows.npy", ROWS)
    process = processes.start("-c", KILLED, path, tmp_path / "rows.npy")
    assert process.wait() == -signal.SIGKILL
    assert fill(path)[0] == list(range(4, 10))  # the second batch was not recorded as written
    np.testing.assert_array_equal(np.load(path), ROWS)
    # A file that is shorter than its recorded state is not reused.
    path.write_bytes(path.read_bytes()[:150])
    assert fill(path)[0] == list(range(10))


@pytest.mark.parametrize("keep_folder", [True, False])
def test_deleted_images_stop_the_command_and_are_not_reported_as_bad(keep_folder, tmp_path):
    folder = write_photos(tmp_path / "photos", ["a.png", "b.png"])
    table = ImageTable.from_paths(sorted(map(str, folder.iterdir())), [0, 1])

    def batches(table, description, first_row):
        """The images are deleted after the first batch."""
        yield np.zeros((1, 3), "float32")
        shutil.rmtree(folder)
        if keep_folder:  # like an empty mount point
            folder.mkdir()
        raise tf.errors.NotFoundError(None, None, "an image")

    model = IdentifiedEmbedder(SimpleNamespace(transform="whole", batches=batches), "model")
    with pytest.raises(RunError, match="a.png can no longer be read.*continues where it stopped"):
        embed_table(model, table, tmp_path / "evaluation.npy")


@pytest.mark.parametrize("error", [tf.errors.InvalidArgumentError, tf.errors.CancelledError])
def test_other_images_are_embedded_despite_a_bad_image(error, monkeypatch):
    """Under load, TensorFlow may raise an error that does not name the bad image."""

    class Loaded:
        dimensions, takes_text = 2, False

        def __call__(self, images):
            if b"bad" in images:
                raise error(None, None, "Function was cancelled before it was started")
            return np.ones([len(images), 2], "float32")

    monkeypatch.setattr(saved_model, "load_saved_model", lambda path: Loaded())
    embedder = saved_model.ImageEmbedder("served")
    embeddings, bad = embedder([b"1", b"2", b"bad", b"4", b"5"])
    np.testing.assert_array_equal(embeddings[:, 0], [1, 1, 0, 1, 1])
    assert bad == {2: "not a JPEG, PNG, WebP, BMP or GIF image"}


def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    folder, link = tmp_path / "made", tmp_path / "link"
    link.symlink_to(folder)
    folder.mkdir()
    (tmp_path / ".made.lock").touch()  # of a killed process
    for lock in (held, held_beside):
        for _ in range(2):
            with lock(folder, "output"):
                for name in (folder, link):
                    with pytest.raises(UsageError, match="output '.*' is in use by another run"):
                        lock(name, "output").__enter__()
    assert names(tmp_path) == ["link", "made"]


def test_a_lock_whose_file_another_process_deletes_has_one_holder(tmp_path, monkeypatch):
    path, lock = tmp_path / "lock", fcntl.flock

    def after_deletion(*arguments):
        monkeypatch.setattr(fcntl, "flock", lock)
        path.unlink()  # between opening and locking
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", after_deletion)
    holders = [try_lock(path), try_lock(path)]
    assert sum(holder is not None for holder in holders) == 1


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def unsupported(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(OSError, match=r"No locks available: '.*/\.lock'"), held(tmp_path, "output"):
        pass


def test_a_lock_that_is_no_file_is_refused_without_damage(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, lock in itertools.product(("link", "pipe", "folder"), (try_lock, waiting_for)):
        with pytest.raises(UsageError, match=f"{name} must be a regular file. Delete it, and"):
            lock(tmp_path / name)
    assert victim.read_text() == "precious"


def test_arrays_by_name_and_no_python_objects(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(3), b=np.eye(2), c=np.array([{}], object))
    arrays, held = read_npz(path, ["a", "d"])
    assert list(arrays) == ["a"] and arrays["a"].tolist() == [0, 1, 2] and held == ["a", "b", "c"]
    with pytest.raises(UnreadableError, match="allow_pickle"):
        read_npz(path)
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "gone.npz")


def test_a_changed_shape_is_detected_although_numpy_reads_it(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.ones((4000, 8)))
    path.write_bytes(path.read_bytes().replace(b"(4000, 8)", b"(4000, 4)"))
    with np.load(path) as saved:
        assert saved["a"].shape == (4000, 4)
    with pytest.raises(UnreadableError):
        read_npz(path)


@pytest.mark.parametrize("place", range(0, 400, 25))
def test_a_changed_bit_is_detected_or_has_no_effect(place, tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, a=np.arange(10))
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 4
    path.write_bytes(data)
    try:
        arrays, _ = read_npz(path)
    except UnreadableError:
        return
    assert arrays["a"].tolist() == list(range(10))
