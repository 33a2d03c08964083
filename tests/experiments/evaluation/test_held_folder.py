"""Locks that admit one process at a time to a folder."""

import errno
import fcntl
import os

import pytest

from experiments.evaluation.held_folder import (
    held,
    held_beside,
    try_lock,
)
from experiments.options.errors import UsageError


def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    with held(tmp_path, "output"):
        second = held(tmp_path, "output")
        with pytest.raises(UsageError, match=r"output '.*' is in use by another running process"):
            second.__enter__()
    with held(tmp_path, "output"):
        pass


def test_the_lock_next_to_a_folder_is_deleted_and_a_stale_lock_is_reused(tmp_path):
    folder, link = tmp_path / "made", tmp_path / "link"
    link.symlink_to(folder)
    (tmp_path / ".made.lock").touch()
    with held_beside(folder, "output_dir"):
        for name in (folder, link):
            second = held_beside(name, "output_dir")
            with pytest.raises(UsageError, match=r"output_dir '.*' is in use by another"):
                second.__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
    with held_beside(folder, "output_dir"):
        pass


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def unsupported(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(OSError, match=r"No locks available: '.*/\.lock'"), held(tmp_path, "output"):
        pass


def test_a_lock_that_is_a_link_or_a_pipe_is_refused_without_damage(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.mkfifo(tmp_path / "pipe without a reader")
    for name in ("link", "dangling", "pipe", "pipe without a reader"):
        with pytest.raises(OSError, match=name):
            try_lock(tmp_path / name)
    os.close(reader)
    try_lock(victim).close()
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new").exists()
