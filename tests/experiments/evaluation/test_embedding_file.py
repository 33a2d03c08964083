"""`EmbeddingFile`: resuming, reusing, and refusing files."""

import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from experiments.evaluation.embedding_file import EmbeddingFile

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
    assert computed == list(range(10))
    assert isinstance(array, np.memmap)
    np.testing.assert_array_equal(np.load(path, mmap_mode="r"), ROWS)
    assert names(tmp_path) == ["e.npy", "e.npy.json"]

    assert fill(path)[0] == []
    assert names(tmp_path) == ["e.npy", "e.npy.json"]
    for other in ({"key": "b"}, {"rows": ROWS[:7]}, {}):
        computed, array = fill(path, **other)
        assert len(computed) == len(other.get("rows", ROWS))
    np.testing.assert_array_equal(array, ROWS)
    path.write_bytes(b"")  # a damaged file
    assert len(fill(path)[0]) == 10


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


@pytest.mark.slow
def test_a_killed_process_loses_no_complete_row(tmp_path):
    """After `kill -9`, complete rows stay on disk and a partial batch is recomputed."""
    path = tmp_path / "e.npy"
    program = (
        "import os, signal, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import test_embedding_file as t\n"
        "file = t.EmbeddingFile(sys.argv[2], 10, 'a').__enter__()\n"
        "file.append(t.ROWS[:4])\n"
        "file.append(t.ROWS[4:6])\n"
        "file._stream.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    here = os.path.dirname(__file__)
    done = subprocess.run([sys.executable, "-c", program, here, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert fill(path)[0] == list(range(4, 10))  # the second batch was not recorded as written
    np.testing.assert_array_equal(np.load(path), ROWS)
    # A file that is shorter than its recorded state is not reused.
    path.write_bytes(path.read_bytes()[:150])
    assert fill(path)[0] == list(range(10))
