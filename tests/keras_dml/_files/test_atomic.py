"""Files that are written completely or not at all, and their checksums."""

import concurrent.futures
import errno
import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest

from keras_dml._common.errors import ArgumentError
from keras_dml._files import atomic
from keras_dml._files.atomic import naming, read_folder, replacing, replacing_all, replacing_folder
from keras_dml._files.checksums import check_saved_model, write_checksums
from keras_dml._files.manifest import Manifest


def fill_the_disk():
    with open("/dev/full", "wb") as stream:
        stream.write(b"x")


def test_a_full_disk_names_the_file_and_keeps_the_old_one(tmp_path):
    path = tmp_path / "a.npz"
    path.write_text("old")
    full = "No space left on device"
    with pytest.raises(OSError, match=f"{full}: '{path}'") as caught, replacing(path) as temporary:
        temporary.write_text("half")
        fill_the_disk()
    assert caught.value.errno == errno.ENOSPC
    assert path.read_text() == "old" and [path] == list(tmp_path.iterdir())
    index = tmp_path / "index"
    with (
        pytest.raises(OSError, match=f"{full}: '{index}'"),
        replacing_folder(index, "a.json", "it"),
    ):
        fill_the_disk()


def test_a_folder_in_place_of_the_file_is_named_and_kept(tmp_path):
    path = tmp_path / "a.txt"
    path.mkdir()
    wanted = f"{path} must be a file to replace, but got a folder. Move the folder away"
    with pytest.raises(ArgumentError, match=wanted), replacing(path) as temporary:
        temporary.write_text("text")
    assert [path] == list(tmp_path.iterdir()) and path.is_dir()
    manifest = Manifest(tmp_path)
    with pytest.raises(ArgumentError, match=wanted):
        manifest.write_text(path.name, "text")
    path.rmdir()
    manifest.recover()
    assert manifest.check(path.name).read_text() == "text"
    path.unlink()
    path.symlink_to(tmp_path)  # a link is replaced
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new" and not path.is_symlink()


def test_links_at_the_temporary_names_are_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "a.txt"
    (tmp_path / ".writing-a.txt").symlink_to(victim)
    (tmp_path / ".a.txt.turn").symlink_to(tmp_path / "new")
    with replacing(path) as temporary:
        temporary.write_text("text")
    assert path.read_text() == "text" and not path.is_symlink()
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new").exists()


def test_an_error_without_a_file_name_gets_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="'c'"), naming("b.npy"):
        open("c")  # noqa: SIM115
    told = r"\d+ requested and \d+ written: 'b.npy'"
    full = open("/dev/full", "wb")  # noqa: SIM115
    with pytest.raises(OSError, match=told), naming("b.npy"), full:
        np.zeros(100_000).tofile(full)


def test_the_root_cannot_be_written():
    for use in (replacing_folder("/", "a.json", "it").__enter__, lambda: read_folder("/", str)):
        with pytest.raises(ArgumentError, match="path must be .* but got '"):
            use()


def stay_unfinished(path, says):
    with replacing(path) as temporary:
        temporary.write_text("half")
        says.send("half")
        signal.pause()


def test_a_live_process_blocks_writers_and_a_killed_process_does_not(tmp_path):
    path = tmp_path / "a.txt"
    fork = multiprocessing.get_context("fork")  # does not import TensorFlow again
    here, there = fork.Pipe()
    holder = fork.Process(target=stay_unfinished, args=(path, there))
    holder.start()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        try:
            assert here.poll(20) and here.recv() == "half"

            def write():
                with replacing(path) as unfinished:
                    unfinished.write_text("whole")

            writing = pool.submit(write)
            with pytest.raises(concurrent.futures.TimeoutError):
                writing.result(0.2)
        finally:
            holder.kill()
        writing.result(20)
    holder.join()
    assert path.read_text() == "whole" and os.listdir(tmp_path) == ["a.txt"]


def test_writing_works_without_locks(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    for place, name, stand_in in [
        (atomic.fcntl, "flock", refused),
        (os, "open", refused),
        (atomic, "fcntl", None),
    ]:
        with monkeypatch.context() as without:
            without.setattr(place, name, stand_in)
            with replacing(tmp_path / "a.txt") as unfinished:
                unfinished.write_text(name)
        assert (tmp_path / "a.txt").read_text() == name and os.listdir(tmp_path) == ["a.txt"]


def test_a_reader_waits_for_a_writer(tmp_path):
    index = tmp_path / "index"
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        replacing_folder(index, "a.json", "it") as folder,
    ):
        reading = pool.submit(read_folder, index, lambda found: os.listdir(found))
        with pytest.raises(concurrent.futures.TimeoutError):
            reading.result(0.2)
        folder.mkdir()
        (folder / "a.json").write_text("whole")
    assert reading.result(20) == ["a.json"]


def test_the_old_folder_of_a_killed_replacement_is_read(tmp_path):
    (tmp_path / ".index.old").mkdir()
    assert read_folder(tmp_path / "index", lambda folder: folder.name) == ".index.old"


def test_checksums_of_a_saved_model_are_checked(tmp_path):
    (tmp_path / "variables").mkdir()
    for name in ("saved_model.pb", "variables/variables.index", "fingerprint.pb"):
        (tmp_path / name).write_text(name)
    check_saved_model(tmp_path)  # written before checksums existed
    write_checksums(tmp_path)
    check_saved_model(tmp_path)
    # Another export of the same model has another fingerprint.
    (tmp_path / "fingerprint.pb").write_text("another number")
    check_saved_model(tmp_path)
    model, variables = tmp_path / "saved_model.pb", tmp_path / "variables/variables.index"
    for path, damage, what in (
        (model, lambda: model.write_text("another"), "has changed since"),
        (variables, variables.unlink, "missing"),
    ):
        damage()
        with pytest.raises(ValueError, match=f"{path.name}.*{what}"):
            check_saved_model(tmp_path)
        path.write_text(str(path.relative_to(tmp_path)))
    for damaged in (b"", b"[]", b"{"):
        (tmp_path / "assets.extra" / "sha256.json").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"sha256\.json has changed since it was written"):
            check_saved_model(tmp_path)


def test_threads_that_replace_two_files_in_both_orders_take_turns(tmp_path):
    begun = threading.Barrier(2)

    def write(first, second):
        begun.wait(10)
        for _ in range(50):
            with replacing_all(one=tmp_path / first, two=tmp_path / second) as (one, two):
                one.write_text(first)
                two.write_text(second)

    threads = [threading.Thread(target=write, args=names, daemon=True) for names in ("ab", "ba")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "a", "b": "b"}
