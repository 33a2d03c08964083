"""`experiments.prepare`: preparation of published datasets, without a network."""

import dataclasses
import hashlib
import pathlib
import shutil
import socketserver
import tarfile
import threading
import time
import zipfile

import pytest
from official_layouts import write_cub, write_groceries, write_inshop, write_sop
from tiny_run import command_of

from pipelines.datasets import cub, groceries, inshop, sop
from pipelines.datasets.download import ARCHIVES

NOWHERE = "http://127.0.0.1:1/CUB_200_2011.tgz"
COUNTS = {
    cub: (5, 4),
    sop: ({"train": 3, "test": 4}, {"train": 2, "test": 2}),
    inshop: ({"train": 3, "query": 2, "gallery": 3}, {"train": 2, "query": 2, "gallery": 2}),
    groceries: (9, 4),
}


command = command_of("prepare")


@pytest.fixture(autouse=True)
def tiny_is_full(monkeypatch):
    for module, (images, classes) in COUNTS.items():
        monkeypatch.setattr(module, "NUM_IMAGES", images)
        monkeypatch.setattr(module, "NUM_CLASSES", classes)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def write_archive(name, folder):
    """Write an archive of a few images in the official layout. Return its path."""
    official = ARCHIVES[name][0]
    root = folder / official.holds
    if name == "cub":
        write_cub(root, content=bytes(range(256)) * 40)
    elif name == "sop":
        write_sop(root, content=b"image" * 99)
    else:
        write_groceries(root / "dataset", train=(0, 0, 1), val=(1, 41), content=b"image" * 99)
    kind = "gztar" if official.file.endswith(".tgz") else "zip"
    made = shutil.make_archive(str(root), kind, folder, root.name)
    shutil.rmtree(root)
    return pathlib.Path(made).rename(folder / official.file)


@pytest.fixture
def serve(monkeypatch):
    """A function that registers a file as the official archive of a dataset."""

    def serve(path, name="cub", url=None, checksum=True):
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest() if checksum else None
        (official,) = ARCHIVES[name]
        archive = dataclasses.replace(official, url=url or path.as_uri(), sha256=sha256)
        monkeypatch.setitem(ARCHIVES, name, (archive,))

    return serve


@pytest.fixture
def cub_archive(tmp_path, serve):
    path = write_archive("cub", tmp_path / "remote")
    serve(path)
    return path


@pytest.fixture
def refused(tmp_path, capsys):
    """A function that runs the command, and checks its exit code and its last line."""

    def refused(code, *words, name="cub", folder=tmp_path / "data"):
        assert command(f"--dataset={name}", f"--data_dir={folder}") == code
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert all(word in line for word in words), line

    return refused


def contents(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".preparing")


@pytest.mark.parametrize(("name", "train"), [("cub", 3), ("sop", 3), ("groceries", 4)])
def test_a_dataset_is_downloaded_unpacked_and_counted(name, train, tmp_path, serve, capsys):
    path = write_archive(name, tmp_path / "remote")
    serve(path, name)
    folder = tmp_path / "data"
    assert command(f"--dataset={name}", f"--data_dir={folder}") == 0
    out = capsys.readouterr().out
    assert f"{train} images of 2 classes (training), " in out
    assert f"--flagfile={name}.flags --data_dir={folder}" in out
    assert contents(folder) == sorted([path.name, path.stem])
    # An unpacked dataset needs no archive. data_dir may be the folder or its parent.
    path.unlink()
    (folder / path.name).unlink()
    assert command(f"--dataset={name}", f"--data_dir={folder}") == 0
    assert command(f"--dataset={name}", f"--data_dir={folder / path.stem}") == 0


class _HalfOfIt(socketserver.StreamRequestHandler):
    """A server that closes the connection too early."""

    def handle(self):
        while self.rfile.readline().strip():
            pass
        self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")


def test_an_interrupted_download_and_another_file_leave_nothing(
    tmp_path, cub_archive, serve, refused
):
    with socketserver.TCPServer(("127.0.0.1", 0), _HalfOfIt) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/CUB_200_2011.tgz"
        serve(cub_archive, url=url)
        refused(1, f"the download of {url} failed: ", "By hand: put")
        server.shutdown()
    assert contents(tmp_path / "data") == []
    serve(cub_archive)
    cub_archive.write_bytes(b"<html>moved</html>")
    refused(1, "CUB_200_2011.tgz is not the official archive", "By hand: put")
    assert contents(tmp_path / "data") == []


def test_without_a_network_one_line_explains_the_manual_download(
    tmp_path, cub_archive, serve, refused
):
    serve(cub_archive, url=NOWHERE)
    folder = tmp_path / "data"
    began = time.monotonic()
    by_hand = f"put CUB_200_2011.tgz (data.caltech.edu/records/65de6-vp158) into {folder}"
    refused(1, "does not answer", by_hand)
    assert time.monotonic() - began < 20
    assert contents(folder) == []
    # Follow the instructions of the message.
    shutil.copy(cub_archive, folder)
    assert command("--dataset=cub", f"--data_dir={folder}") == 0


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("name", ["cub", "sop"])
def test_a_truncated_archive(name, checksum, tmp_path, serve, refused):
    path = write_archive(name, tmp_path / "remote")
    serve(path, name, NOWHERE, checksum)
    folder = tmp_path / "data"
    folder.mkdir()
    whole = path.read_bytes()
    (folder / path.name).write_bytes(whole[: len(whole) * 2 // 3])
    reason = "the checksum differs" if checksum else "is damaged or cut off: "
    refused(2, f"{path.name} ", reason, "repeat this command", name=name)
    assert contents(folder) == [path.name]


@pytest.mark.parametrize("name", ["cub", "sop"])
def test_an_archive_cannot_write_outside_its_folder(name, tmp_path, serve):
    path, evil = write_archive(name, tmp_path / "remote"), tmp_path / "evil"
    evil.write_text("")
    if name == "cub":
        whole = tmp_path / "whole"
        shutil.unpack_archive(path, whole, filter="data")
        with tarfile.open(path, "w:gz") as archive:
            archive.add(whole / "CUB_200_2011", "CUB_200_2011")
            archive.add(evil, "CUB_200_2011/../../../../evil")
    else:
        with zipfile.ZipFile(path, "a") as archive:
            archive.write(evil, "Stanford_Online_Products/../../../evil")
    evil.unlink()
    serve(path, name)
    command(f"--dataset={name}", f"--data_dir={tmp_path / 'a' / 'data'}")
    assert not list(tmp_path.rglob("evil"))


def test_leftovers_of_a_killed_command_are_not_used(tmp_path, cub_archive):
    for left in (".unpacking-CUB_200_2011", ".downloading"):
        write_cub(tmp_path / "data" / left / "CUB_200_2011", (1, 2))
    assert command("--dataset=cub", f"--data_dir={tmp_path / 'data'}") == 0
    assert contents(tmp_path / "data") == ["CUB_200_2011", "CUB_200_2011.tgz"]


def test_an_incomplete_folder_is_reported_and_not_changed(tmp_path, refused):
    root = write_cub(tmp_path / "data" / "CUB_200_2011")
    next(root.rglob("*.jpg")).unlink()
    for folder in (root, root.parent):
        missing = "1 images listed in images.txt are not in"
        refused(2, missing, "move CUB_200_2011 away", folder=folder)
    assert contents(root.parent) == ["CUB_200_2011"]


def test_another_archive_and_counts_that_differ_from_the_publication(
    tmp_path, cub_archive, serve, refused, monkeypatch
):
    monkeypatch.setattr(cub, "NUM_IMAGES", 11_788)
    refused(2, "found 5 images of 4 classes; the full CUB-200-2011 has 11788")
    with tarfile.open(cub_archive, "w:gz") as archive:
        archive.add(__file__, "CUB_200/README")
    serve(cub_archive)
    other = tmp_path / "other"
    refused(2, "tgz must contain CUB_200_2011, but got another archive", folder=other)
    assert contents(other) == ["CUB_200_2011.tgz"]


def test_in_shop_is_only_counted(tmp_path, capsys):
    assert command("--dataset=inshop", f"--data_dir={tmp_path / 'none'}") == 2
    err = capsys.readouterr().err
    assert "ask its authors at mmlab" in err and len(err.splitlines()) == 1
    assert command("--dataset=inshop", f"--data_dir={write_inshop(tmp_path / 'data')}") == 0
    assert "3 images of 2 classes (gallery)" in capsys.readouterr().out


def test_a_folder_that_cannot_be_created_is_a_usage_error(tmp_path, refused):
    (tmp_path / "file").write_text("")
    refused(2, f"{tmp_path / 'file'}", folder=tmp_path / "file" / "data")
