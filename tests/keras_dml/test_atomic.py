"""Files that are written whole or not at all."""

import errno
import sys
import threading

import numpy as np
import pytest

from keras_dml.atomic import naming, replacing, replacing_folder


def fill_the_disk():
    with open("/dev/full", "wb") as stream:
        stream.write(b"x")


def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path):
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


def test_what_names_no_file_gets_one_and_what_does_keeps_it(tmp_path):
    with pytest.raises(OSError, match="written: 'b.npy'"), naming("b.npy"):
        raise OSError("800 requested and 0 written")
    with pytest.raises(FileNotFoundError, match="'c'"), naming("b.npy"):
        open("c")  # noqa: SIM115
    told = r"\d+ requested and \d+ written: 'b.npy'"
    full = open("/dev/full", "wb")  # noqa: SIM115
    with pytest.raises(OSError, match=told), naming("b.npy"), full:
        np.zeros(100_000).tofile(full)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the old folder goes aside")
def test_a_folder_that_is_replaced_is_there_all_the_time(tmp_path):
    path, missing, done = tmp_path / "index", [], threading.Event()

    def replace(content):
        with replacing_folder(path, "a.json", "it") as folder:
            folder.mkdir()
            (folder / "a.json").write_text(content)

    def look():
        while not done.is_set():
            if not path.is_dir():
                missing.append(1)

    replace("old")
    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(200):
            replace(str(number))
    finally:
        done.set()
        reader.join()
    assert not missing
    assert (path / "a.json").read_text() == "199" and [path] == list(tmp_path.iterdir())
